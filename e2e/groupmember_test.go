package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// memberSession is how long a member may be silent.
const memberSession = 2 * time.Second

// groupMember is a member of the group g that reads the topic t and commits after each poll what it got.
type groupMember struct {
	*kgo.Client
	work   sync.WaitGroup
	cancel context.CancelFunc
	dialer severed
	mu     struct {
		sync.Mutex
		given []string // partition/offset, also what was not committed
		seen  []string // what was
		owned map[int32]bool
		errs  []error
	}
}

// severed is a dialer until it is cut.
type severed struct {
	mu    sync.Mutex
	off   bool
	conns []net.Conn
}

var errCut = errors.New("cut off")

func (c *severed) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off {
		return nil, errCut
	}
	nc, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		c.conns = append(c.conns, nc)
	}
	return nc, err
}

// cut is what the server sees of a client that dies.
func (c *severed) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = true
	for _, nc := range c.conns {
		_ = nc.Close()
	}
	c.conns = nil
}

// mend lets the client come back.
func (c *severed) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = false
}

// join starts a member; it ends with the test.
func (s *server) join(opts ...kgo.Opt) *groupMember {
	s.t.Helper()
	m := &groupMember{}
	m.mu.owned = map[int32]bool{}
	note := func(have bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range parts["t"] {
				if delete(m.mu.owned, p); have {
					m.mu.owned[p] = true
				}
			}
		}
	}
	m.Client = s.kgo(append([]kgo.Opt{
		kgo.Dialer(m.dialer.dial), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(memberSession), kgo.HeartbeatInterval(memberSession / 10),
		kgo.OnPartitionsAssigned(note(true)), kgo.OnPartitionsRevoked(note(false)), kgo.OnPartitionsLost(note(false)),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(500 * time.Millisecond), kgo.FetchMaxWait(200 * time.Millisecond),
	}, opts...)...)
	ctx, cancel := context.WithCancel(s.t.Context())
	m.cancel = cancel
	m.work.Go(func() { m.consume(ctx) })
	s.t.Cleanup(m.stop)
	return m
}

func (m *groupMember) consume(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := m.PollRecords(ctx, 50)
		records := fetches.Records()
		m.mu.Lock()
		for _, r := range records {
			m.mu.given = append(m.mu.given, fmt.Sprint(r.Partition, "/", r.Offset))
		}
		for _, e := range fetches.Errors() {
			if ctx.Err() == nil {
				m.mu.errs = append(m.mu.errs, e.Err)
			}
		}
		m.mu.Unlock()
		if len(records) > 0 && m.CommitRecords(ctx, records...) == nil {
			m.mu.Lock()
			for _, r := range records {
				m.mu.seen = append(m.mu.seen, fmt.Sprint(r.Partition, "/", r.Offset))
			}
			m.mu.Unlock()
		}
		m.AllowRebalance()
	}
}

// stop ends the work; a static member stays in the group, another leaves with Close.
func (m *groupMember) stop() {
	m.cancel()
	m.work.Wait()
	m.CloseAllowingRebalance()
}

func (m *groupMember) parts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.owned)
}

// share waits until every one of n partitions has one owner, and no member more than most.
func share(t *testing.T, members []*groupMember, n, most int) {
	t.Helper()
	eventually(t, fmt.Sprintf("a share of %d partitions", n), func() error {
		owners := map[int32]int{}
		for _, m := range members {
			m.mu.Lock()
			for p := range m.mu.owned {
				owners[p]++
			}
			own := len(m.mu.owned)
			m.mu.Unlock()
			if own > most {
				return fmt.Errorf("a member has %d partitions", own)
			}
		}
		if len(owners) != n {
			return fmt.Errorf("owners %v", owners)
		}
		for p, c := range owners {
			if c != 1 {
				return fmt.Errorf("partition %d has %d owners", p, c)
			}
		}
		return nil
	})
}

// fill produces n records to each of partitions.
func (s *server) fill(partitions int32, n int) {
	s.t.Helper()
	client := s.kgo(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var records []*kgo.Record
	for p := range partitions {
		for i := range n {
			records = append(records, &kgo.Record{Topic: "t", Partition: p, Value: fmt.Append(nil, i)})
		}
	}
	if err := client.ProduceSync(s.t.Context(), records...).FirstErr(); err != nil {
		s.t.Fatal(err)
	}
}

// once waits until the members have read n records together, none of them twice.
func once(t *testing.T, members []*groupMember, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d records", n), func() error {
		seen := map[string]int{}
		for _, m := range members {
			m.mu.Lock()
			for _, r := range m.mu.seen {
				if seen[r]++; seen[r] > 1 {
					t.Errorf("%s was read twice", r)
				}
			}
			m.mu.Unlock()
		}
		if len(seen) < n {
			return fmt.Errorf("%d of them", len(seen))
		}
		return nil
	})
}

// committed is what the group g has committed for a partition of t, -1 for nothing.
func (s *server) committed(partition int32) int64 {
	s.t.Helper()
	offsets, err := s.admin().FetchOffsets(s.t.Context(), "g")
	if err != nil {
		s.t.Fatal(err)
	}
	if o, ok := offsets.Lookup("t", partition); ok {
		return o.At
	}
	return -1
}

// feed writes records to all partitions of t until it is stopped.
type feed struct {
	partitions atomic.Int32
	written    atomic.Int64
	t          testing.TB
	stop       func()
}

func newFeed(s *server) *feed {
	f := &feed{t: s.t}
	f.partitions.Store(4)
	client := s.kgo(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.MetadataMaxAge(500*time.Millisecond), kgo.UnknownTopicRetries(-1))
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	f.stop = func() { cancel(); work.Wait() }
	s.t.Cleanup(f.stop)
	work.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for n := int32(0); ctx.Err() == nil; n++ {
			r := &kgo.Record{Topic: "t", Partition: n % f.partitions.Load(), Value: fmt.Append(nil, n)}
			// A partition that has just been added may not be known to the client yet.
			if client.ProduceSync(context.Background(), r).FirstErr() == nil {
				f.written.Add(1)
			}
			<-tick.C
		}
	})
	return f
}

func (f *feed) soFar() int64 { return f.written.Load() }

// at returns when n records have been written.
func (f *feed) at(n int64) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d records to be written", n), func() error {
		if got := f.soFar(); got < n {
			return fmt.Errorf("%d so far", got)
		}
		return nil
	})
}

// commitAs commits the offset 0 of partition 0 and returns the code.
func (s *server) commitAs(id string, generation int32) int16 {
	s.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 8, "g", id, generation
	topic, part := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	topic.Topic = "t"
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	return s.wire().call(req).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
}

// refusesZombie wants no commit of a member that is out.
func (s *server) refusesZombie(id string, generation int32) {
	s.t.Helper()
	if code := s.commitAs(id, generation); code != kerr.UnknownMemberID.Code {
		s.t.Errorf("commit of a member that is out: code %d", code)
	}
}

// refusesOld wants no commit of an older generation.
func (s *server) refusesOld(m *groupMember, generation int32) {
	s.t.Helper()
	id, _ := m.GroupMetadata()
	if code := s.commitAs(id, generation); code != kerr.IllegalGeneration.Code {
		s.t.Errorf("commit of generation %d: code %d", generation, code)
	}
}

// readOnce wants the members to have been given every record, and none again that one of them had committed.
func readOnce(t *testing.T, members []*groupMember, ends []int64) {
	t.Helper()
	given, kept := map[string]bool{}, map[string]int{}
	for _, m := range members {
		m.mu.Lock()
		for _, r := range m.mu.given {
			given[r] = true
		}
		for _, r := range m.mu.seen {
			if kept[r]++; kept[r] > 1 {
				t.Errorf("%s was read and committed twice", r)
			}
		}
		m.mu.Unlock()
	}
	total := int64(0)
	for p, end := range ends {
		total += end
		for offset := range end {
			if r := fmt.Sprint(p, "/", offset); !given[r] {
				t.Errorf("%s was not read", r)
			}
		}
	}
	t.Logf("%d records in %v, %d read, %d of them committed by an answered request", total, ends, len(given), len(kept))
}
