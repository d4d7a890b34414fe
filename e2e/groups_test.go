package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupArgs have groups not wait for more members, and allow short sessions.
var groupArgs = []string{"--set", "group.initial.rebalance.delay.ms=50", "--set", "group.min.session.timeout.ms=100"}

// TestGroupOfSix proves that of six members on four partitions two are idle, without an error; that one of them takes over
// within the session timeout from a member that dies, whose commits are refused from then on; and that all six have work
// when there are eight partitions. Records are written all the time: none is skipped, nor read again once it was committed.
func TestGroupOfSix(t *testing.T) {
	s := start(t, groupArgs...)
	s.createTopic("t", 4)
	s.fill(4, 100)
	var members, everybody []*groupMember
	join := func() {
		m := s.join()
		members, everybody = append(members, m), append(everybody, m)
	}
	for range 6 {
		join()
	}
	share(t, members, 4, 1)
	written := newFeed(s)
	written.at(500)

	dead := 0
	for members[dead].parts() == 0 {
		dead++
	}
	id, generation := members[dead].GroupMetadata()
	began := time.Now()
	members[dead].dialer.cut()
	members = append(members[:dead:dead], members[dead+1:]...)
	share(t, members, 4, 1)
	// The session, and a heartbeat until the others hear of it; the rest is the machine's.
	if took := time.Since(began); took > memberSession+2*time.Second {
		t.Errorf("another member took over after %v, the session is %v", took, memberSession)
	}
	idle := 0
	for _, m := range members {
		if m.parts() == 0 {
			idle++
		}
	}
	if idle != 1 {
		t.Errorf("%d of five members are idle on four partitions", idle)
	}
	s.refusesZombie(id, generation)
	_, now := members[0].GroupMetadata()
	s.refusesOld(members[0], generation)
	if now <= generation {
		t.Errorf("generation %d after another member took over, was %d", now, generation)
	}
	join()
	written.at(written.soFar() + 500)

	if _, err := s.admin().UpdatePartitions(t.Context(), 8, "t"); err != nil {
		t.Fatal(err)
	}
	written.partitions.Store(8)
	share(t, members, 8, 2)
	for i, m := range members {
		if m.parts() == 0 {
			t.Errorf("member %d of six has nothing of eight partitions", i)
		}
	}
	written.at(written.soFar() + 500)
	written.stop()
	w := s.wire()
	var ends []int64
	for p := range int32(8) {
		ends = append(ends, w.end("t", p))
	}
	eventually(t, "the end of the topic", func() error {
		for p, want := range ends {
			if got := s.committed(int32(p)); got != want {
				return fmt.Errorf("partition %d is read up to %d of %d", p, got, want)
			}
		}
		return nil
	})
	readOnce(t, everybody, ends)
	for _, m := range everybody {
		m.mu.Lock()
		if len(m.mu.errs) > 0 && m != everybody[dead] {
			t.Errorf("a member was given errors: %v", m.mu.errs)
		}
		m.mu.Unlock()
	}
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
