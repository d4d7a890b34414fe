package quorum_test

import (
	"fmt"
	"slices"
	"testing"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

// cutAll is a power cut of all nodes that takes all that was not synced.
func (c *cluster) cutAll() {
	c.t.Helper()
	for _, id := range c.ids() {
		n := c.nodes[id]
		c.restart(n, n.store.Lose(n.store.Unsynced()))
	}
}

// durableMembers fails at a save after which a power cut would change who the
// members are for the node.
func (c *cluster) durableMembers() {
	c.saving = func(n *node, _ quorum.Write, after bool) {
		if !after {
			return
		}
		now := n.core.Status()
		core, err := quorum.Open(quorum.Options{ID: n.id}, n.store.Lose(n.store.Unsynced()), &quorumtest.Machine{})
		if err != nil {
			c.t.Fatal(err)
		}
		members := func(st quorum.Status) string { return fmt.Sprintf("%x %x %t", st.Voters, st.Learners, st.Joint) }
		if left := members(core.Status()); left != members(now) {
			c.t.Errorf("node %d: members %s, after a power cut %s", n.id, members(now), left)
		}
	}
}

// TestRemovedIsDurable proves that who was told that a member is removed can throw
// it away: the one that is left leads, though its power fails at once and takes
// what was not synced.
func TestRemovedIsDurable(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2)
	l := c.elect()
	c.durableMembers()
	other := 3 - l.id
	c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Remove(id, other)) })
	if st := l.core.Status(); !slices.Equal(st.Voters, []uint64{l.id}) {
		t.Fatalf("%+v", st)
	}
	delete(c.nodes, other)
	c.cutAll()
	l = c.elect()
	c.committed(l, c.propose(l, "alone"))
}

// TestPromotedIsDurable proves that three voters that all have applied that they
// are are that after a power cut of all: the loss of any one disk is borne then.
func TestPromotedIsDurable(t *testing.T) {
	for lost := uint64(1); lost <= 3; lost++ {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			c, _ := one(t, quorum.Options{QuorumSize: 3})
			c.committed(c.nodes[1], c.propose(c.nodes[1], "before"))
			for id := uint64(2); id <= 3; id++ {
				c.add(id, nil)
				c.learner(id)
			}
			c.durableMembers()
			c.tick(60)
			for _, id := range c.ids() {
				if st := c.nodes[id].core.Status(); !slices.Equal(st.Voters, []uint64{1, 2, 3}) || st.Joint {
					t.Fatalf("node %d: %+v", id, st)
				}
			}
			delete(c.nodes, lost)
			c.cutAll()
			l := c.elect()
			c.committed(l, c.propose(l, "after"))
		})
	}
}
