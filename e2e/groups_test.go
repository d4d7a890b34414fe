package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupArgs have groups not wait for more members, and allow short sessions.
var groupArgs = []string{"--set", "group.initial.rebalance.delay.ms=50", "--set", "group.min.session.timeout.ms=100"}

// groupMember is a member of the group g that reads the topic t and commits after each poll what it got.
type groupMember struct {
	*kgo.Client
	work   sync.WaitGroup
	cancel context.CancelFunc
	dialer severed
	mu     struct {
		sync.Mutex
		seen  []string // partition/offset
		owned map[int32]bool
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
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(2 * time.Second), kgo.HeartbeatInterval(200 * time.Millisecond),
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

// TestGroupOfSix proves that of six members on four partitions two are idle, that one of them takes over from a member
// that dies, and that all get work when there are eight partitions; nothing is read twice or skipped.
func TestGroupOfSix(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 4)
	s.fill(4, 100)
	var members []*groupMember
	for range 6 {
		members = append(members, s.join())
	}
	share(t, members, 4, 1)
	once(t, members, 400)

	dead := 0
	for members[dead].parts() == 0 {
		dead++
	}
	began := time.Now()
	members[dead].dialer.cut()
	members = append(members[:dead:dead], members[dead+1:]...)
	share(t, members, 4, 1)
	if took := time.Since(began); took > 2*time.Second+5*time.Second {
		t.Errorf("another member took over after %v, the session is 2 s", took)
	}

	if _, err := s.admin().UpdatePartitions(t.Context(), 8, "t"); err != nil {
		t.Fatal(err)
	}
	members = append(members, s.join())
	share(t, members, 8, 2)
	s.fill(8, 50)
	eventually(t, "the end of the topic", func() error {
		for p, want := range []int64{150, 150, 150, 150, 50, 50, 50, 50} {
			if got := s.committed(int32(p)); got != want {
				return fmt.Errorf("partition %d is read up to %d of %d", p, got, want)
			}
		}
		return nil
	})
	once(t, members, 4*50+4*50)
}

// TestGroupCooperative proves that members that rebalance cooperatively share the partitions, too.
func TestGroupCooperative(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 4)
	s.fill(4, 50)
	opt := kgo.Balancers(kgo.CooperativeStickyBalancer())
	members := []*groupMember{s.join(opt)}
	share(t, members, 4, 4)
	members = append(members, s.join(opt))
	share(t, members, 4, 2)
	once(t, members, 200)
}

// TestCase28Static proves that a static member that comes back has its partitions without a rebalance, and that of two
// with one instance id the newer one reads.
func TestCase28Static(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 2)
	first := s.join(kgo.InstanceID("a"))
	other := s.join(kgo.InstanceID("b"))
	share(t, []*groupMember{first, other}, 2, 1)
	_, generation := other.GroupMetadata()
	second := s.join(kgo.InstanceID("a"))
	share(t, []*groupMember{second, other}, 2, 1)
	if _, g := second.GroupMetadata(); g != generation {
		t.Errorf("generation %d after a static member came back, was %d", g, generation)
	}
	w := s.wire()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.Generation, req.MemberID, req.InstanceID = 4, "g", generation, "an older one", new("a")
	resp, err := w.try(req)
	if err != nil || resp.(*kmsg.HeartbeatResponse).ErrorCode != kerr.FencedInstanceID.Code {
		t.Errorf("heartbeat of an older member: %+v, %v", resp, err)
	}
}

// TestCommitErrors proves the codes of cases 26 and 31, that a deleted topic takes its offsets along, and that what the
// group has is left as it was by what is refused.
func TestCommitErrors(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 1)
	w := s.wire()
	commit := func(member string, generation int32, offset int64, metadata string) int16 {
		t.Helper()
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.MemberID, req.Generation = 8, "g", member, generation
		topic, part := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
		part.Offset, part.Metadata, topic.Topic = offset, &metadata, "t"
		topic.Partitions = append(topic.Partitions, part)
		req.Topics = append(req.Topics, topic)
		resp, err := w.try(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
	}
	want := func(what string, got, want int16) {
		t.Helper()
		if got != want {
			t.Errorf("%s: code %d, want %d", what, got, want)
		}
	}
	want("a commit to the empty group", commit("", -1, 7, "m"), codeNone)
	want("5000 bytes of metadata", commit("", -1, 8, strings.Repeat("m", 5000)), kerr.OffsetMetadataTooLarge.Code)
	m := s.join()
	share(t, []*groupMember{m}, 1, 1)
	id, generation := m.GroupMetadata()
	want("an old generation", commit(id, generation-1, 9, ""), kerr.IllegalGeneration.Code)
	want("a stranger", commit("stranger", generation, 9, ""), kerr.UnknownMemberID.Code)
	want("nobody", commit("", -1, 9, ""), kerr.UnknownMemberID.Code)
	if got := s.committed(0); got != 7 {
		t.Errorf("committed %d, want 7", got)
	}
	m.stop()
	if _, err := s.admin().DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	s.createTopic("t", 1)
	if got := s.committed(0); got != -1 {
		t.Errorf("committed %d for a new topic of the same name", got)
	}
}

// TestGroupRestart proves that offsets whose commit was answered are there after kill -9, and that a member that
// asks in time is in the same generation.
func TestGroupRestart(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 1)
	m := s.join()
	share(t, []*groupMember{m}, 1, 1)
	id, generation := m.GroupMetadata()
	m.cancel()
	m.work.Wait()
	m.dialer.cut()
	for round := range int64(3) {
		var acked int64
		w := s.wire()
		for i := range int64(50) {
			req := kmsg.NewPtrOffsetCommitRequest()
			req.Version, req.Group, req.MemberID, req.Generation = 8, "g", id, generation
			topic, part := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
			part.Offset, topic.Topic = round*50+i, "t"
			topic.Partitions = append(topic.Partitions, part)
			req.Topics = append(req.Topics, topic)
			resp, err := w.try(req)
			if err != nil || resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode != codeNone {
				t.Fatalf("commit in generation %d: %+v, %v", generation, resp, err)
			}
			acked = part.Offset
		}
		s.kill()
		s.restart()
		if got := s.committed(0); got != acked {
			t.Fatalf("committed %d after kill -9, acknowledged was %d", got, acked)
		}
	}
}

// TestKcatGroup proves that kcat reads as a member of a group and goes on where it was.
func TestKcatGroup(t *testing.T) {
	needTool(t, "kcat")
	s := start(t, groupArgs...)
	s.createTopic("t", 1)
	for from := range 2 {
		s.fill(1, 10)
		out, err := exec.Command("kcat", "-b", s.Kafka, "-G", "g", "-X", "auto.offset.reset=earliest", "-c", "10", "-q", "-f", "%o ", "t").Output()
		var want strings.Builder
		for i := range 10 {
			fmt.Fprint(&want, from*10+i, " ")
		}
		if err != nil || string(out) != want.String() {
			t.Fatalf("kcat: %q, %v, want %q", out, err, want.String())
		}
	}
	eventually(t, "the last commit", func() error {
		if got := s.committed(0); got != 20 {
			return fmt.Errorf("offset %d", got)
		}
		return nil
	})
}
