package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rawMember is a member of the group g that a test moves step by step.
type rawMember struct {
	*wire
	id, instance string
	generation   int32
}

// joinRaw joins, twice where the server gives the id first.
func (m *rawMember) joinRaw() *kmsg.JoinGroupResponse {
	m.t.Helper()
	for {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.MemberID, req.ProtocolType = 9, "g", m.id, "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 30_000, 30_000
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte{0, 0}}}
		if m.instance != "" {
			req.InstanceID = &m.instance
		}
		resp := m.call(req).(*kmsg.JoinGroupResponse)
		if m.id, m.generation = resp.MemberID, resp.Generation; resp.ErrorCode != 79 {
			return resp
		}
	}
}

func (m *rawMember) sync() int16 {
	m.t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, "g", m.id, m.generation
	if m.instance != "" {
		req.InstanceID = &m.instance
	}
	req.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: m.id, MemberAssignment: []byte("a")}}
	return m.call(req).(*kmsg.SyncGroupResponse).ErrorCode
}

func (m *rawMember) heartbeat() int16 {
	m.t.Helper()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 4, "g", m.id, m.generation
	if m.instance != "" {
		req.InstanceID = &m.instance
	}
	return m.call(req).(*kmsg.HeartbeatResponse).ErrorCode
}

// commit commits an offset of t-0.
func (m *rawMember) commit(offset int64) int16 {
	m.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 8, "g", m.id, m.generation
	if m.instance != "" {
		req.InstanceID = &m.instance
	}
	topic, part := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	topic.Topic, part.Offset = "t", offset
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	return m.call(req).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
}

// TestCase26Commits proves who may commit at each step of a group's life, by raw requests: what is refused leaves the
// offset as it was.
func TestCase26Commits(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 1)
	nobody := &rawMember{wire: s.wire(), generation: -1}
	member := &rawMember{wire: s.wire()}
	want := int64(0)
	step := func(what string, got, code int16, offset int64) {
		t.Helper()
		if got != code {
			t.Errorf("%s: code %d, want %d", what, got, code)
		}
		if code == codeNone {
			want = offset
		}
		if at := s.committed(0); at != want {
			t.Errorf("%s: committed %d, want %d", what, at, want)
		}
	}
	step("nobody, empty group", nobody.commit(1), codeNone, 1)
	if r := member.joinRaw(); r.ErrorCode != codeNone {
		t.Fatalf("join: code %d", r.ErrorCode)
	}
	step("a member that waits for its assignment", member.commit(2), 27, 2)
	step("nobody, while it waits", nobody.commit(2), 25, 2)
	if code := member.sync(); code != codeNone {
		t.Fatalf("sync: code %d", code)
	}
	step("a member", member.commit(3), codeNone, 3)
	old := *member
	old.generation--
	step("an old generation", old.commit(4), 22, 4)
	old.generation += 2
	step("a generation to come", old.commit(4), 22, 4)
	step("a member without a generation", (&rawMember{wire: member.wire, id: member.id, generation: -1}).commit(4), 22, 4)
	step("nobody", nobody.commit(4), 25, 4)
	step("a stranger", (&rawMember{wire: s.wire(), id: "stranger", generation: member.generation}).commit(4), 25, 4)

	// A second member makes the group rebalance: the first still commits what it has read.
	second := &rawMember{wire: s.wire()}
	joined := make(chan int16, 1)
	go func() { joined <- second.joinRaw().ErrorCode }()
	eventually(t, "the rebalance", func() error {
		if code := member.heartbeat(); code != 27 {
			return fmt.Errorf("heartbeat: code %d", code)
		}
		return nil
	})
	step("a member while others join", member.commit(5), codeNone, 5)
	if r := member.joinRaw(); r.ErrorCode != codeNone {
		t.Fatalf("join again: code %d", r.ErrorCode)
	}
	if code := <-joined; code != codeNone {
		t.Fatalf("the second member: code %d", code)
	}
	step("a member that has joined again", member.commit(6), 27, 6)
	step("the second member", second.commit(6), 27, 6)
}

// TestCase28Fencing proves that of two members with one instance id the newer one stays, in the generation that there
// was, and that the older one is fenced whatever it asks.
func TestCase28Fencing(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 1)
	older := &rawMember{wire: s.wire(), instance: "a"}
	if r := older.joinRaw(); r.ErrorCode != codeNone {
		t.Fatalf("join: code %d", r.ErrorCode)
	}
	if a, b := older.sync(), older.commit(1); a != codeNone || b != codeNone {
		t.Fatalf("sync: code %d, commit: code %d", a, b)
	}
	newer := &rawMember{wire: s.wire(), instance: "a"}
	if r := newer.joinRaw(); r.ErrorCode != codeNone || r.Generation != older.generation || newer.id == older.id {
		t.Errorf("the newer one: %+v; the older is %s in generation %d", r, older.id, older.generation)
	}
	for what, code := range map[string]int16{"heartbeat": older.heartbeat(), "commit": older.commit(2), "sync": older.sync()} {
		if code != 82 {
			t.Errorf("%s of the older one: code %d, want 82", what, code)
		}
	}
	if a, b, c := newer.sync(), newer.heartbeat(), newer.commit(3); a != codeNone || b != codeNone || c != codeNone {
		t.Errorf("the newer one: sync %d, heartbeat %d, commit %d", a, b, c)
	}
	if at := s.committed(0); at != 3 {
		t.Errorf("committed %d, want 3", at)
	}
}

// TestCase31EmptyCommit proves that a commit of nothing is answered with nothing and makes no group, in every version.
func TestCase31EmptyCommit(t *testing.T) {
	w := start(t, groupArgs...).wire()
	for version := int16(2); version <= 9; version++ {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.Generation = version, "g", -1
		if resp := w.call(req).(*kmsg.OffsetCommitResponse); len(resp.Topics) != 0 {
			t.Errorf("version %d: %+v", version, resp)
		}
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t"}}
		if resp := w.call(req).(*kmsg.OffsetCommitResponse); len(resp.Topics) > 1 || len(resp.Topics) == 1 && len(resp.Topics[0].Partitions) != 0 {
			t.Errorf("version %d, a topic without partitions: %+v", version, resp)
		}
	}
	if groups := w.call(kmsg.NewPtrListGroupsRequest()).(*kmsg.ListGroupsResponse).Groups; len(groups) != 0 {
		t.Errorf("groups %+v", groups)
	}
}

// TestCase66Series proves that metrics have no label of what clients make up, and that the series of topics, groups and
// connections that are gone are gone, however many there were.
func TestCase66Series(t *testing.T) {
	const topics, groups, connections = 1000, 1000, 10_000
	s := start(t, append([]string{"--set", "offsets.topic.num.partitions=4"}, groupArgs...)...)
	s.createTopic("stays", 1)
	w := s.wire()
	cycle := func(topics, groups, connections int) (during int) {
		t.Helper()
		s.makeSeries(w, topics, groups)
		s.connectAs(connections)
		found := s.scrape()
		took := found.took
		for range 4 { // the machine may be busy
			took = min(took, s.scrape().took)
		}
		if took > 200*time.Millisecond {
			t.Errorf("a scrape of %d series takes %v", len(found.series), took)
		}
		for line := range found.series {
			for _, word := range []string{"made-up-group", "made-up-client", "made-up-member", "127.0.0.1:"} {
				if strings.Contains(line, word) {
					t.Fatalf("a label of what a client made up: %s", line)
				}
			}
		}
		s.dropSeries(w, topics, groups)
		return len(found.series)
	}
	cycle(3, 3, 3) // every API has been asked, every code been answered
	before := len(s.scrape().series)
	during := cycle(topics, groups, connections)
	eventually(t, "the series to go", func() error {
		if n := len(s.scrape().series); n > before*105/100 || n < before*95/100 {
			return fmt.Errorf("%d series, were %d before and %d between", n, before, during)
		}
		return nil
	})
}

// makeSeries makes topics with a record each, and groups that have committed.
func (s *server) makeSeries(w *wire, topics, groups int) {
	s.t.Helper()
	create := createRequest("made-up-topic-0", 1, 1)
	for i := 1; i < topics; i++ {
		create.Topics = append(create.Topics, createRequest(fmt.Sprint("made-up-topic-", i), 1, 1).Topics...)
	}
	for _, t := range w.call(create).(*kmsg.CreateTopicsResponse).Topics {
		if t.ErrorCode != codeNone {
			s.t.Fatalf("create %s: code %d", t.Topic, t.ErrorCode)
		}
	}
	produce := produceRequest("made-up-topic-0", 0, 1, encode(s.t, kgo.NoCompression(), values(time.Now().UnixMilli(), "v")))
	for i := 1; i < topics; i++ {
		topic := produce.Topics[0]
		topic.Topic = fmt.Sprint("made-up-topic-", i)
		topic.Partitions = slices.Clone(topic.Partitions)
		produce.Topics = append(produce.Topics, topic)
	}
	w.call(produce)
	for i := range groups {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.Generation = 8, fmt.Sprint("made-up-group-", i), -1
		topic := kmsg.NewOffsetCommitRequestTopic()
		topic.Topic, topic.Partitions = "stays", []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1}}
		req.Topics = append(req.Topics, topic)
		if p := w.call(req).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0]; p.ErrorCode != codeNone {
			s.t.Fatalf("commit: code %d", p.ErrorCode)
		}
		if i%10 == 0 { // some have members as well, which leave again
			s.joinAndLeave(w, req.Group)
		}
	}
}

func (s *server) joinAndLeave(w *wire, group string) {
	s.t.Helper()
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 3, group, "consumer", 1000, 1000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "made-up-member", Metadata: []byte{0}}}
	resp := w.call(join).(*kmsg.JoinGroupResponse)
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Version, leave.Group, leave.MemberID = 1, group, resp.MemberID
	if left := w.call(leave).(*kmsg.LeaveGroupResponse); resp.ErrorCode != codeNone || left.ErrorCode != codeNone {
		s.t.Fatalf("join: code %d, leave: code %d", resp.ErrorCode, left.ErrorCode)
	}
}

// connectAs opens and closes connections, each of a client with another name.
func (s *server) connectAs(n int) {
	s.t.Helper()
	const workers = 8
	failures := make(chan error, workers)
	var work sync.WaitGroup
	for worker := range workers {
		work.Go(func() {
			for i := worker; i < n; i += workers {
				req := kmsg.NewPtrApiVersionsRequest()
				p := kmsg.NewRequestFormatter(kmsg.FormatterClientID(fmt.Sprint("made-up-client-", i))).AppendRequest(nil, req, 1)
				if err := bombard(s.Kafka, [][]byte{p}, false); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	work.Wait()
	close(failures)
	for err := range failures {
		s.t.Fatal(err)
	}
}

func (s *server) dropSeries(w *wire, topics, groups int) {
	s.t.Helper()
	remove, drop := kmsg.NewPtrDeleteTopicsRequest(), kmsg.NewPtrDeleteGroupsRequest()
	remove.Version = 5
	for i := range topics {
		remove.TopicNames = append(remove.TopicNames, fmt.Sprint("made-up-topic-", i))
	}
	for i := range groups {
		drop.Groups = append(drop.Groups, fmt.Sprint("made-up-group-", i))
	}
	for _, t := range w.call(remove).(*kmsg.DeleteTopicsResponse).Topics {
		if t.ErrorCode != codeNone {
			s.t.Fatalf("delete %s: code %d", *t.Topic, t.ErrorCode)
		}
	}
	for _, g := range w.call(drop).(*kmsg.DeleteGroupsResponse).Groups {
		if g.ErrorCode != codeNone {
			s.t.Fatalf("delete %s: code %d", g.Group, g.ErrorCode)
		}
	}
}
