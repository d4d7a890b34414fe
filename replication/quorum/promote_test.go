package quorum_test

import (
	"errors"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

// one is a cluster of one that leads.
func one(t *testing.T, o quorum.Options) (*cluster, *node) {
	t.Helper()
	c := newCluster(t, o, 1)
	n := c.nodes[1]
	if err := n.core.Campaign(); err != nil {
		t.Fatal(err)
	}
	c.work(n)
	return c, n
}

// learner adds a learner, whether or not there is such a node.
func (c *cluster) learner(id uint64) {
	c.t.Helper()
	c.until(func(l *node, pid quorum.ProposalID) error { return ignoreRefused(l.core.AddLearner(pid, id)) })
}

// TestPromoteTheLiving proves that learners of which nothing was ever heard become
// no voters, however little there is to catch up with: two of them would be a
// majority that is dead. As soon as two are alive, these become voters, and the
// cluster bears that one of the three is lost.
func TestPromoteTheLiving(t *testing.T) {
	c, first := one(t, quorum.Options{QuorumSize: 3})
	watch(c)
	c.learner(2)
	c.learner(3)
	c.tick(60)
	if first.core.Alone() {
		t.Error("it takes itself for the only member, and would not tick")
	}
	alone := func(what string) {
		t.Helper()
		if st := first.core.Status(); !slices.Equal(st.Voters, []uint64{1}) || st.Joint || !st.Active {
			t.Fatalf("%s: %+v", what, st)
		}
		c.committed(first, c.propose(first, what))
	}
	alone("two learners that do not live")
	c.add(2, nil)
	c.tick(60)
	alone("one that lives")
	c.add(4, nil)
	c.learner(4)
	c.tick(60)
	if st := first.core.Status(); !slices.Equal(st.Voters, []uint64{1, 2, 4}) || !slices.Equal(st.Learners, []uint64{3}) || st.Joint {
		t.Fatalf("two that live: %+v", st)
	}
	c.isolate(first, true)
	c.tick(60)
	l := c.elect()
	c.committed(l, c.propose(l, "without the first"))
	c.isolate(first, false)
	c.tick(30)
	c.same(first, c.nodes[2], c.nodes[4])
}

// TestPromoteTwoCrashes proves, for an end of a process at each save, that two
// learners become voters in one step, that the half-done step is always ended, and
// that nothing is lost over it.
func TestPromoteTwoCrashes(t *testing.T) {
	everyCrash(t, func(t *testing.T, arm func(*cluster)) {
		c, _ := one(t, quorum.Options{})
		watch(c)
		c.add(2, nil)
		c.add(3, nil)
		c.learner(2)
		c.learner(3)
		c.commit("a")
		arm(c)
		c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Promote(id, 2, 3)) })
		c.commit("b")
		c.converge("a", "b")
		for _, n := range c.nodes {
			if st := n.core.Status(); !slices.Equal(st.Voters, []uint64{1, 2, 3}) || st.Joint || len(st.Learners) > 0 {
				t.Errorf("node %d: %+v", n.id, st)
			}
		}
	})
}

// TestLeaderFallsInChange proves that a change of members that its leader has
// proposed and not committed is committed or forgotten by the next one as a whole,
// whoever has its entry, and that members can be changed again then.
func TestLeaderFallsInChange(t *testing.T) {
	for name, heard := range map[string]bool{"nobody has it": false, "one has it": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, quorum.Options{}, 1, 2, 3)
			watch(c)
			l := c.elect()
			c.add(4, nil)
			c.learner(4)
			c.tick(10)
			other := c.nodes[l.id%3+1]
			c.isolate(l, true)
			c.cut[[2]uint64{l.id, other.id}] = !heard
			lost := c.id()
			if err := l.core.Promote(lost, 4); err != nil {
				t.Fatal(err)
			}
			if err := l.core.Remove(c.id(), 4); !errors.Is(err, quorum.ErrDropped) {
				t.Errorf("another one meanwhile: %v", err)
			}
			c.settle()
			c.isolate(l, true)
			c.tick(60)
			if l.ended[lost].Outcome != quorum.Unknown {
				t.Errorf("it ended as %+v", l.ended[lost])
			}
			next := c.elect()
			if next == l {
				t.Fatal("it leads without a quorum")
			}
			if got := slices.Contains(next.core.Status().Voters, 4); got != heard {
				t.Errorf("a voter %t, its entry was there %t", got, heard)
			}
			c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Remove(id, 4)) })
			delete(c.nodes, 4)
			c.isolate(l, false)
			c.commit("after")
			c.converge("after")
			for _, n := range c.nodes {
				if st := n.core.Status(); !slices.Equal(st.Voters, []uint64{1, 2, 3}) || len(st.Learners) > 0 {
					t.Errorf("node %d: %+v", n.id, st)
				}
			}
		})
	}
}

// TestVoters proves that a list of voters that no cluster begins with is refused.
func TestVoters(t *testing.T) {
	for _, voters := range [][]uint64{{2, 3}, {1, 2, 2}, {1, 0}, {1, 1<<64 - 1}} {
		if _, err := quorum.Open(quorum.Options{ID: 1, Voters: voters}, quorumtest.NewStore(), &quorumtest.Machine{}); err == nil {
			t.Errorf("%x are taken", voters)
		}
	}
}

// TestReadsAreBounded proves that reads that wait for a quorum are bounded, that
// one is not asked twice at a time, and that all end when the leadership does.
func TestReadsAreBounded(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	c.isolate(l, true)
	first := c.id()
	if err := l.core.Read(first); err != nil {
		t.Fatal(err)
	}
	if err := l.core.Read(first); !errors.Is(err, quorum.ErrDropped) {
		t.Errorf("the same again: %v", err)
	}
	taken := 1
	for range 5000 {
		if err := l.core.Read(c.id()); err == nil {
			taken++
		} else if !errors.Is(err, quorum.ErrDropped) {
			t.Fatal(err)
		}
	}
	if taken > 1024 {
		t.Errorf("%d wait", taken)
	}
	c.tick(40)
	if len(l.ended) != taken || l.ended[first].Outcome != quorum.Unknown {
		t.Errorf("%d of %d have ended, the first as %+v", len(l.ended), taken, l.ended[first])
	}
}

// TestWaitingProposalsAreBounded proves that so many proposals may be without an end and no
// more, however small they are, and that all of them end with the leadership.
func TestWaitingProposalsAreBounded(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	c.isolate(l, true)
	for i := range 4096 {
		if err := l.core.Propose(c.id(), nil); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	if err := l.core.Propose(c.id(), nil); !errors.Is(err, quorum.ErrDropped) {
		t.Errorf("one more: %v", err)
	}
	c.tick(40)
	if len(l.ended) != 4096 {
		t.Errorf("%d have ended", len(l.ended))
	}
}

// TestPromoteTheNear proves that a learner becomes no voter while it lags, though it
// lives, nor once it has died, though it has caught up; and that it does as soon as
// it is well.
func TestPromoteTheNear(t *testing.T) {
	for name, cut := range map[string]func(m quorum.Message) bool{
		"it hears the heartbeats and gets no entry": func(m quorum.Message) bool {
			return m.To == 2 && m.Raft.GetType() == raftpb.MsgApp
		},
		"it is gone": func(m quorum.Message) bool { return m.To == 2 || m.From == 2 },
	} {
		t.Run(name, func(t *testing.T) {
			c, first := one(t, quorum.Options{QuorumSize: 3})
			c.add(2, nil)
			c.learner(2)
			c.commit("a")
			c.tick(4)
			lags := name != "it is gone"
			c.sent = func(m quorum.Message) { c.cut[[2]uint64{m.From, m.To}] = cut(m) }
			c.tick(40)
			for range 100 {
				if lags {
					c.commit("b")
				}
			}
			c.add(3, nil)
			c.learner(3)
			c.tick(60)
			if st := first.core.Status(); !slices.Equal(st.Voters, []uint64{1}) {
				t.Fatalf("meanwhile: %+v", st)
			}
			c.sent = nil
			clear(c.cut)
			c.tick(60)
			if st := first.core.Status(); !slices.Equal(st.Voters, []uint64{1, 2, 3}) || st.Joint {
				t.Fatalf("afterwards: %+v", st)
			}
		})
	}
}

// TestLoneSpeaks proves that an only member, whose term costs no sync while nobody
// hears of it, makes it durable before it answers somebody who was a member once.
func TestLoneSpeaks(t *testing.T) {
	c, n := one(t, quorum.Options{})
	if n.store.Unsynced() == 0 {
		t.Fatal("its term is durable already")
	}
	watch(c)
	heard := false
	sent := c.sent
	c.sent = func(m quorum.Message) {
		heard = true
		sent(m)
	}
	old := &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(9)), To: new(uint64(1)), Term: new(uint64(1))}
	if err := n.core.Step(quorum.Message{From: 9, To: 1, Raft: old}); err != nil {
		t.Fatal(err)
	}
	c.work(n)
	if !heard {
		t.Error("it has answered nothing")
	}
}

// TestProposalsAreBounded proves that a proposal may have so many bytes, and no more.
func TestProposalsAreBounded(t *testing.T) {
	c, n := one(t, quorum.Options{MaxProposalBytes: 10})
	c.committed(n, c.propose(n, "ten bytes!"))
	if err := n.core.Propose(c.id(), []byte("eleven byte")); !errors.Is(err, quorum.ErrTooLarge) {
		t.Errorf("one more: %v", err)
	}
}

// TestPromoteToSize proves that an even QuorumSize is no reason for one voter more than
// it says, nor for an even number of them.
func TestPromoteToSize(t *testing.T) {
	c, first := one(t, quorum.Options{QuorumSize: 2})
	for id := range uint64(2) {
		c.add(id+2, nil)
		c.learner(id + 2)
	}
	c.tick(60)
	if st := first.core.Status(); !slices.Equal(st.Voters, []uint64{1}) || len(st.Learners) != 2 {
		t.Errorf("%+v", st)
	}
}

// TestChangeOnce proves that a change of members that is proposed again is made once,
// also if it would make sense again by then.
func TestChangeOnce(t *testing.T) {
	c, n := one(t, quorum.Options{})
	added := c.id()
	add := func() {
		t.Helper()
		if err := n.core.AddLearner(added, 2); err != nil {
			t.Fatal(err)
		}
		c.work(n)
		c.committed(n, added)
	}
	add()
	c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Remove(id, 2)) })
	delete(n.ended, added)
	add()
	if st := n.core.Status(); len(st.Learners) != 0 {
		t.Errorf("%+v", st)
	}
}
