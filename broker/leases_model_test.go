package broker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/storage/disk"
)

// leasesModel is a server whose offsets topic is compacted all the time, and what
// it has answered about leases of groups.
type leasesModel struct {
	*offsetsModel
	groups map[place3]*leasedPart
	live   int // leases that were acked after a restart
}

// leasedPart is what a group was told of a partition.
type leasedPart struct {
	committed  int64
	acked      string // the lease
	id         string // of the newest lease, empty for none
	next       int64
	until      time.Time
	deliveries int // of the record at committed
	delayed    time.Time
}

// TestLeasesRebuild proves that whatever a restart finds in the store, and however
// the log of the offsets topic was compacted, leases that live can be acked and
// nobody else gets their partition, those that do not are lost, delays hold,
// deliveries are counted on, and an ack that was answered is known.
func TestLeasesRebuild(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := &leasesModel{
				offsetsModel: &offsetsModel{T: t, rng: rand.New(rand.NewPCG(seed, 3)), fs: disk.NewMem()},
				groups:       map[place3]*leasedPart{},
			}
			m.open()
			for _, topic := range modelTopics {
				create(t, m.b, topic, 3, nil)
				for p := range int32(3) {
					produce(t, m.b, AcksAll, topic, p, strings.Split(strings.Repeat("v", 3000), "")...)
				}
			}
			m.topic = m.b.proposer.State().TopicNamed("a").ID
			m.takeFrom("g0", "a") // makes the offsets topic
			for range 12 {
				for range 40 {
					m.step()
				}
				m.restart()
			}
			if err := m.b.Close(); err != nil {
				t.Error(err)
			}
			if !m.compacted || m.live == 0 {
				t.Errorf("not all was tried: compacted %v, %d leases lived on", m.compacted, m.live)
			}
		})
	}
}

func (p place3) compare(q place3) int {
	return cmp.Or(cmp.Compare(p.group, q.group), cmp.Compare(p.topic, q.topic), cmp.Compare(p.partition, q.partition))
}

func (m *leasesModel) step() {
	m.Helper()
	at := place3{fmt.Sprint("g", m.rng.IntN(3)), modelTopics[m.rng.IntN(3)], m.rng.Int32N(3)}
	if m.groups[at] == nil {
		m.groups[at] = &leasedPart{committed: -1}
	}
	g, began := m.groups[at], m.clock.now()
	switch n := m.rng.IntN(100); {
	case n < 30:
		m.takeFrom(at.group, at.topic)
	case n < 60:
		m.ack(at, g, began)
	case n < 68:
		s, err := m.b.ExtendLease(m.Context(), auth.Anonymous, at.group, m.idOf(g), MinLease*time.Duration(1+m.rng.IntN(20)))
		if m.judge(at, g, began, err) {
			g.until = s.Deadline
		}
	case n < 78:
		delay := time.Duration(m.rng.IntN(2)*m.rng.IntN(10)) * time.Second
		_, err := m.b.ReleaseLease(m.Context(), auth.Anonymous, at.group, m.idOf(g), ReleaseRequest{Upto: -1, Delay: delay})
		if m.judge(at, g, began, err) {
			g.id, g.until, g.delayed = "", time.Time{}, began.Add(delay)
		}
	case n < 88:
		m.clock.advance(time.Duration(m.rng.IntN(4000)) * time.Millisecond)
	case n < 94:
		m.inShard(func(s *shard) { s.syncStore() })
	default:
		m.compact()
	}
}

// idOf is the newest lease, or one that never was.
func (m *leasesModel) idOf(g *leasedPart) string {
	if g.id == "" {
		return leaseID(group.Partition{Topic: m.topic}, group.Nonce{1})
	}
	return g.id
}

// judge compares an answer about the newest lease, which was asked at began, with
// what was told of it. The clock goes on between.
func (m *leasesModel) judge(at place3, g *leasedPart, began time.Time, err error) bool {
	m.Helper()
	now := m.clock.now()
	lost := g.id == "" || !began.Before(g.until)
	live := g.id != "" && now.Add(time.Millisecond).Before(g.until)
	if lost && err == nil || live && err != nil || err != nil && !errors.Is(err, ErrLeaseLost) {
		m.Fatalf("%v: lease %q until %v, from %v to %v: %v", at, g.id, g.until, began, now, err)
	}
	return err == nil
}

func (m *leasesModel) ack(at place3, g *leasedPart, began time.Time) {
	m.Helper()
	if g.acked != "" && (g.id == "" || m.rng.IntN(4) == 0) {
		s, err := m.b.AckLease(m.Context(), auth.Anonymous, at.group, g.acked, -1)
		if err != nil || !s.AlreadyCommitted || s.Committed != g.committed {
			m.Fatalf("%v: acked again: %+v, %v, committed is %d", at, s, err, g.committed)
		}
		return
	}
	upto, all := int64(-1), g.next
	if first := max(g.committed, 0); g.id != "" && m.rng.IntN(3) == 0 && all > first {
		upto = first + 1 + m.rng.Int64N(all-first)
		all = upto
	}
	s, err := m.b.AckLease(m.Context(), auth.Anonymous, at.group, m.idOf(g), upto)
	if !m.judge(at, g, began, err) {
		return
	}
	if s.Committed != all || s.Live != (all < g.next) {
		m.Fatalf("%v: ack up to %d: %+v", at, upto, s)
	}
	g.committed, g.deliveries = all, 1
	if !s.Live {
		g.acked, g.id, g.deliveries = g.id, "", 0
	}
}

// takeFrom takes what is free of a topic and compares all of it.
func (m *leasesModel) takeFrom(id, topic string) {
	m.Helper()
	leases, err := m.b.TakeLeases(m.Context(), auth.Anonymous, id, &LeaseRequest{
		Topics: []string{topic}, MaxRecords: 8, MaxPartitions: 1 + m.rng.IntN(2), Lease: time.Duration(1+m.rng.IntN(8)) * time.Second,
	})
	if err != nil {
		m.Fatal(err)
	}
	for i := range leases {
		l := &leases[i]
		l.Section.Release()
		at := place3{id, topic, l.Partition}
		g := m.groups[at]
		if g == nil {
			g = &leasedPart{committed: -1}
			m.groups[at] = g
		}
		if now := m.clock.now().Add(time.Millisecond); g.id != "" && now.Before(g.until) || now.Before(g.delayed) {
			m.Fatalf("%v is leased until %v, delayed until %v, and at %v: %+v", at, g.until, g.delayed, now, l)
		}
		if g.deliveries++; l.First != max(g.committed, 0) || l.Deliveries != g.deliveries {
			m.Fatalf("%v: committed is %d, handed out %d times: %+v", at, g.committed, g.deliveries, l)
		}
		g.id, g.next, g.until, g.delayed = l.ID, l.Next, l.Deadline, time.Time{}
	}
}

// restart is the offsets model's, and looks at every lease that lives.
func (m *leasesModel) restart() {
	m.Helper()
	m.offsetsModel.restart()
	for _, at := range slices.SortedFunc(maps.Keys(m.groups), place3.compare) {
		g := m.groups[at]
		left := g.until.Sub(m.clock.now())
		if g.committed >= 0 {
			if got := fetchOne(m.T, m.b, at.group, at.topic, at.partition); got != g.committed {
				m.Fatalf("%v has committed %d, want %d", at, got, g.committed)
			}
		}
		if g.id == "" || left < 3*time.Second || m.rng.IntN(2) == 0 {
			continue
		}
		s, err := m.b.ExtendLease(m.Context(), auth.Anonymous, at.group, g.id, 0)
		if err != nil || !s.Live || s.First != max(g.committed, 0) || s.Next != g.next || s.Deliveries != g.deliveries {
			m.Fatalf("%v: the lease has %v left, %d to %d, delivery %d: %+v, %v", at, left, g.committed, g.next, g.deliveries, s, err)
		}
		g.until = s.Deadline
		m.live++
	}
}
