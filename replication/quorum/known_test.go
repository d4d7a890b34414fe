package quorum_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"leat/replication/quorum"
)

// unheard cuts the leader off from a voter as soon as it would tell it that the entry
// at index, or one after it, is committed.
func (c *cluster) unheard(l *node, index uint64) {
	c.sent = func(m quorum.Message) {
		if m.From == l.id && m.Raft.GetCommit() >= index {
			c.cut[[2]uint64{m.From, m.To}] = true
		}
	}
}

// TestRemovedIsKnown proves that the removal of a voter is told to be done only when
// the others know of it. Else they would count a voter that somebody has thrown away,
// and if the leader's disk is lost then, be no majority of those that they count,
// though one of those that there are.
func TestRemovedIsKnown(t *testing.T) {
	for _, heard := range []bool{false, true} {
		t.Run(fmt.Sprint("heard=", heard), func(t *testing.T) {
			c := newCluster(t, quorum.Options{}, 1, 2, 3, 4)
			l := c.elect()
			c.tick(4)
			gone := c.nodes[l.id%4+1]
			if !heard {
				c.unheard(l, l.core.Status().Last+1)
			}
			id := c.id()
			if err := l.core.Remove(id, gone.id); err != nil {
				t.Fatal(err)
			}
			c.settle()
			if st := l.core.Status(); slices.Contains(st.Voters, gone.id) || st.Settled != heard {
				t.Errorf("%+v", st)
			}
			if !heard {
				if err := l.core.Remove(c.id(), gone.id); !errors.Is(err, quorum.ErrDropped) {
					t.Errorf("the same again: %v", err)
				}
			}
			told := l.ended[id].Outcome == quorum.Committed
			if heard && !told {
				t.Error("it is not told when all know")
			}
			if told {
				delete(c.nodes, gone.id) // thrown away
			}
			delete(c.nodes, l.id) // its disk is lost
			c.sent = nil
			clear(c.cut)
			next := c.elect()
			c.committed(next, c.propose(next, "after"))
			c.tick(12)
			if err := next.core.Remove(c.id(), gone.id); !errors.Is(err, quorum.ErrRefused) {
				t.Errorf("asked again: %v", err)
			}
		})
	}
}

// TestPromotedIsKnown proves that a cluster of one is told to be one of three only
// when the two new voters know that they are: then any one disk may be lost.
func TestPromotedIsKnown(t *testing.T) {
	c, first := one(t, quorum.Options{})
	for id := uint64(2); id <= 3; id++ {
		c.add(id, nil)
		c.learner(id)
	}
	c.tick(4)
	// The entry that ends the change is the one after next.
	c.unheard(first, first.core.Status().Last+2)
	id := c.id()
	if err := first.core.Promote(id, 2, 3); err != nil {
		t.Fatal(err)
	}
	c.settle()
	st := first.core.Status()
	if _, told := first.ended[id]; told || st.Joint || !slices.Equal(st.Voters, []uint64{1, 2, 3}) || st.Settled {
		t.Fatalf("told %t: %+v", told, st)
	}
	c.sent = nil
	clear(c.cut)
	c.tick(4)
	c.committed(first, id)
	if st := first.core.Status(); !st.Settled || st.Peers[0].Applied < st.Last {
		t.Errorf("%+v", st)
	}
	delete(c.nodes, 1)
	c.cutAll()
	l := c.elect()
	c.committed(l, c.propose(l, "after"))
}

// TestTwoRemovals proves that a node that has the removal of two voters in its log,
// and was never told that they are committed, is no majority together with one that
// knows of neither, while the leader is one alone.
func TestTwoRemovals(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	watch(c)
	l := c.elect()
	c.tick(4)
	near, far := c.nodes[l.id%3+1], c.nodes[(l.id+1)%3+1]
	c.isolate(far, true)
	if err := l.core.Remove(c.id(), far.id); err != nil {
		t.Fatal(err)
	}
	c.settle()
	last := l.core.Status().Last + 1
	sent := c.sent
	c.sent = func(m quorum.Message) {
		sent(m)
		if m.From == l.id && m.Raft.GetCommit() >= last {
			c.cut[[2]uint64{m.From, m.To}] = true
		}
	}
	id := c.id()
	if err := l.core.Remove(id, near.id); err != nil {
		t.Fatal(err)
	}
	c.settle()
	c.committed(l, id)
	if st := near.core.Status(); st.Last != last || st.Commit >= last || len(st.Voters) != 2 {
		t.Fatalf("%+v", st)
	}
	c.committed(l, c.propose(l, "alone"))
	c.isolate(far, false)
	c.isolate(l, true)
	for range 10 {
		_, _ = near.core.Campaign(), far.core.Campaign()
		c.tick(20)
		if near.out.Active || far.out.Active {
			t.Fatal("two majorities are disjoint")
		}
	}
	if c.leader() != l || fmt.Sprint(texts(l.machine)) != "[alone]" {
		t.Errorf("%q", texts(l.machine))
	}
}
