package conformance

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// member is a client in a group. A goroutine of its own polls, and commits after each poll what it got.
type member struct {
	c      *check
	driver driver
	quit   chan struct{}
	done   chan struct{}
	mu     struct {
		sync.Mutex
		seen     []record // committed
		assigned []int32
		revoked  int
		err      error // of the latest poll or commit
	}
}

// join starts a member of the check's group that reads the check's topic.
func (c *check) join(instance, strategy string) (*member, error) {
	d, err := c.client.open(c.t, c.addr)
	if err != nil {
		return nil, err
	}
	if _, err := d.do(c.ctx, ask{Op: "join", Group: c.topic, Topic: c.topic, Instance: instance, Strategy: strategy}); err != nil {
		d.close()
		return nil, err
	}
	m := &member{c: c, driver: d, quit: make(chan struct{}), done: make(chan struct{})}
	go m.work()
	return m, nil
}

func (m *member) work() {
	defer close(m.done)
	for m.c.ctx.Err() == nil {
		select {
		case <-m.quit:
			return
		default:
		}
		got, err := m.driver.do(m.c.ctx, ask{Op: "poll"})
		if err == nil && len(got.Records) > 0 {
			_, err = m.driver.do(m.c.ctx, ask{Op: "commit"})
		}
		m.mu.Lock()
		if m.mu.err = err; err == nil {
			m.mu.seen = append(m.mu.seen, got.Records...)
			slices.Sort(got.Assigned)
			m.mu.assigned, m.mu.revoked = got.Assigned, got.Revoked
		}
		m.mu.Unlock()
		if err != nil {
			select { // it may come at once, again and again
			case <-m.quit:
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// leave ends the member; again does nothing.
func (m *member) leave() error {
	select {
	case <-m.quit:
		return nil
	default:
	}
	close(m.quit)
	<-m.done
	_, err := m.driver.do(m.c.ctx, ask{Op: "leave"})
	m.driver.close()
	return err
}

func (m *member) assigned() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mu.assigned)
}

func (m *member) revoked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.revoked
}

func (m *member) seen() []record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mu.seen)
}

func (m *member) err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}

// group starts members and ends all of them when do has returned.
func (c *check) group(partitions int32, do func() error, members ...**member) (err error) {
	if err := c.create(partitions); err != nil {
		return err
	}
	err = do()
	for _, m := range members {
		if *m != nil {
			err = errors.Join(err, (*m).leave())
		}
	}
	return err
}

// shared waits until each of n partitions has one owner, and the members have equal parts.
func (c *check) shared(n int, members ...*member) error {
	return c.until(fmt.Sprintf("%d partitions in equal parts", n), func() error {
		var all []int32
		for _, m := range members {
			own := m.assigned()
			if len(own) != n/len(members) {
				return errors.Join(fmt.Errorf("a member has partitions %v", own), m.err())
			}
			all = append(all, own...)
		}
		slices.Sort(all)
		if len(slices.Compact(all)) != n {
			return fmt.Errorf("the members have %v", all)
		}
		return nil
	})
}

// spread writes n records to each of the partitions.
func (c *check) spread(name string, partitions int32, n int) (all []record, err error) {
	for p := range partitions {
		records := sample(fmt.Sprint(name, "-", p), n)
		if err := c.oracle.write(c.ctx, "none", c.topic, p, records); err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	return all, nil
}

// once waits until the members together have read want, each record once, every partition in order.
func (c *check) once(want []record, members ...*member) error {
	byPlace := func(a, b record) int { return int(a.Partition-b.Partition)*1_000_000 + int(a.Offset-b.Offset) }
	var all []record
	err := c.until(fmt.Sprintf("%d records", len(want)), func() error {
		all = nil
		var failed error
		for _, m := range members {
			seen := m.seen()
			last := map[int32]int64{}
			for _, r := range seen {
				if before, ok := last[r.Partition]; ok && r.Offset <= before {
					return fmt.Errorf("partition %d: offset %d after %d", r.Partition, r.Offset, before)
				}
				last[r.Partition] = r.Offset
			}
			all = append(all, seen...)
			failed = errors.Join(failed, m.err())
		}
		if len(all) < len(want) {
			return errors.Join(fmt.Errorf("%d of them", len(all)), failed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, byPlace)
	sorted := slices.SortedStableFunc(slices.Values(want), byPlace)
	return samePlace(all, sorted)
}
