package quorum_test

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"leat/replication/quorum"
)

// says is a message of a node that is not in the cluster.
func says(from, to, term, index uint64, kind raftpb.MessageType) quorum.Message {
	return quorum.Message{From: from, To: to, Applied: index, Raft: &raftpb.Message{
		Type: kind.Enum(), From: &from, To: &to, Term: &term, Index: &index, LogTerm: &term,
	}}
}

// TestStrangersDoNotCount proves that neither the votes nor the acknowledgements of
// nodes that are no members count, be they foreign, removed or learners: by them a
// candidate is not elected, an entry not committed, a leader not kept.
func TestStrangersDoNotCount(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3, 4)
	l := c.elect()
	gone := l.id%4 + 1
	c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Remove(id, gone)) })
	delete(c.nodes, gone)
	c.add(5, nil)
	c.learner(5)
	c.tick(4)
	others := []uint64{gone, 5, 77}
	c.isolate(l, true)
	id := c.propose(l, "x")
	st := l.core.Status()
	for _, from := range others {
		for _, kind := range []raftpb.MessageType{raftpb.MsgAppResp, raftpb.MsgHeartbeatResp} {
			if err := l.core.Step(says(from, l.id, st.Term, st.Last, kind)); err != nil {
				t.Error(err)
			}
		}
	}
	c.settle()
	if now := l.core.Status(); l.ended[id].Outcome == quorum.Committed || now.Commit >= st.Last {
		t.Fatalf("committed by strangers: %+v", now)
	}
	for range 30 {
		for _, from := range others {
			_ = l.core.Step(says(from, l.id, st.Term, 1, raftpb.MsgHeartbeatResp))
		}
		c.tick(1)
	}
	if now := l.core.Status(); now.Role == quorum.Leader {
		t.Fatalf("kept by strangers: %+v", now)
	}
	for range 30 {
		now := l.core.Status()
		for _, from := range others {
			_ = l.core.Step(says(from, l.id, now.Term+1, 0, raftpb.MsgPreVoteResp))
			_ = l.core.Step(says(from, l.id, now.Term, 0, raftpb.MsgVoteResp))
		}
		c.tick(1)
		if now := l.core.Status(); now.Role == quorum.Leader {
			t.Fatalf("elected by strangers: %+v", now)
		}
	}
	c.isolate(l, false)
	c.tick(30)
	c.commit("after")
}

// TestTwo proves that two voters elect a leader when both are there, none when one
// is alone, and one again, with all that was committed, when it is back, be it after
// a power cut of both.
func TestTwo(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2)
	watch(c)
	for _, text := range []string{"a", "b", "c"} {
		l := c.elect()
		c.committed(l, c.propose(l, text))
		other := c.nodes[3-l.id]
		c.isolate(l, true)
		c.tick(60)
		if c.leader() != nil || other.core.Status().Role == quorum.Leader {
			t.Fatal("one of two leads")
		}
		c.isolate(l, false)
		c.cutAll()
	}
	c.converge("a", "b", "c")
}
