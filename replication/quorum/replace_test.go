package quorum_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

// replacing is how long a voter is silent in these tests before it is replaced.
const replacing = 100

// spare is a cluster of three voters with the learner 4, and one of its followers.
func spare(t *testing.T, o quorum.Options) (c *cluster, l, follower *node) {
	t.Helper()
	c = newCluster(t, o, 1, 2, 3)
	watch(c)
	l = c.elect()
	c.add(4, nil)
	c.learner(4)
	c.tick(10)
	return c, l, c.nodes[l.id%3+1]
}

// members fails unless these are the voters and the learners for the nodes.
func (c *cluster) members(voters, learners []uint64, nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes {
		st := n.core.Status()
		slices.Sort(st.Learners)
		if !slices.Equal(st.Voters, voters) || !slices.Equal(st.Learners, learners) || st.Joint {
			c.t.Errorf("node %d: voters %v, learners %v, joint %t; want %v, %v", n.id, st.Voters, st.Learners, st.Joint, voters, learners)
		}
	}
}

// TestDeadVoterIsReplaced proves that a learner takes the place of a voter that has
// not answered for so many ticks, not before, in one step that never leaves an even
// number of voters; that the cluster then bears the loss of another voter; and that
// the dead one, whether it was cut off or starts again, and whether or not the log
// still has what it lacks, comes back as a learner that costs nobody a term, and
// takes the place of the next one that dies.
func TestDeadVoterIsReplaced(t *testing.T) {
	for _, how := range []string{"cut off", "starts again", "has missed more than the log"} {
		t.Run(how, func(t *testing.T) {
			c, l, dead := spare(t, quorum.Options{QuorumSize: 3, ReplaceTicks: replacing, KeepEntries: 8})
			all := []*node{c.nodes[1], c.nodes[2], c.nodes[3], c.nodes[4]}
			live := slices.DeleteFunc(slices.Clone(all), func(n *node) bool { return n == dead })
			c.saving = func(n *node, _ quorum.Write, _ bool) {
				if v := n.core.Status().Voters; len(v) != 0 && len(v) != 3 {
					t.Errorf("node %d: voters %v", n.id, v)
				}
			}
			c.isolate(dead, true)
			c.tick(replacing - 4)
			c.members([]uint64{1, 2, 3}, []uint64{4}, live...)
			c.tick(8)
			voters := slices.DeleteFunc([]uint64{1, 2, 3, 4}, func(id uint64) bool { return id == dead.id })
			c.members(voters, []uint64{dead.id}, live...)
			c.committed(l, c.propose(l, "without it"))
			term := l.out.Term
			switch how {
			case "starts again":
				c.restart(dead, dead.store.Lose(dead.store.Unsynced()))
			case "has missed more than the log":
				for i := range 20 {
					c.committed(l, c.propose(l, fmt.Sprint(i)))
				}
			}
			for range 3 {
				_ = dead.core.Campaign()
				c.tick(30)
			}
			c.isolate(dead, false)
			_ = dead.core.Campaign()
			c.tick(40)
			if c.leader() != l || l.out.Term != term {
				t.Fatalf("its return has cost the leader its term")
			}
			c.members(voters, []uint64{dead.id}, all...)
			c.same(all...)
			_ = dead.core.Campaign()
			c.settle()
			if st := dead.core.Status(); st.Role != quorum.Follower || st.Term != term {
				t.Errorf("a learner stands for election: %+v", st)
			}
			c.isolate(l, true) // the next one
			c.tick(60)
			next := c.elect()
			c.tick(replacing + 8)
			voters = slices.DeleteFunc([]uint64{1, 2, 3, 4}, func(id uint64) bool { return id == l.id })
			c.members(voters, []uint64{l.id}, next, dead)
			c.committed(next, c.propose(next, "after"))
		})
	}
}

// TestLivingVoterIsNotReplaced proves that no voter is replaced that answers now and
// then, nor any if no learner is fit, if the setting is off, or if there is no
// majority.
func TestLivingVoterIsNotReplaced(t *testing.T) {
	on := quorum.Options{QuorumSize: 3, ReplaceTicks: replacing}
	for name, tc := range map[string]struct {
		o    quorum.Options
		tick func(c *cluster, l, follower *node)
	}{
		"it answers now and then": {on, func(c *cluster, _, follower *node) {
			for range 5 {
				c.isolate(follower, true)
				c.tick(replacing - 10)
				c.isolate(follower, false)
				c.tick(4)
			}
		}},
		"its learner is dead": {on, func(c *cluster, _, follower *node) {
			c.isolate(c.nodes[4], true)
			c.tick(30)
			c.isolate(follower, true)
			c.tick(3 * replacing)
		}},
		"its learner lags": {on, func(c *cluster, l, follower *node) {
			c.sent = func(m quorum.Message) {
				c.cut[[2]uint64{l.id, 4}] = m.To == 4 && m.Raft.GetType() == raftpb.MsgApp
			}
			for range 100 {
				c.propose(l, "x")
			}
			c.isolate(follower, true)
			c.tick(3 * replacing)
		}},
		"off":        {quorum.Options{QuorumSize: 3, ReplaceTicks: -1}, func(c *cluster, _, f *node) { c.isolate(f, true); c.tick(3 * replacing) }},
		"by hand":    {quorum.Options{ReplaceTicks: replacing}, func(c *cluster, _, f *node) { c.isolate(f, true); c.tick(3 * replacing) }},
		"by default": {quorum.Options{QuorumSize: 3}, func(c *cluster, _, f *node) { c.isolate(f, true); c.tick(3 * replacing) }},
		"no majority": {on, func(c *cluster, l, f *node) {
			c.isolate(f, true)
			c.isolate(c.nodes[f.id%3+1], true)
			c.isolate(l, true)
			c.tick(3 * replacing)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, l, follower := spare(t, tc.o)
			tc.tick(c, l, follower)
			c.members([]uint64{1, 2, 3}, []uint64{4}, c.nodes[1], c.nodes[2], c.nodes[3])
		})
	}
	for _, ticks := range []int{1, 9} {
		if _, err := quorum.Open(quorum.Options{ID: 1, ReplaceTicks: ticks}, quorumtest.NewStore(), &quorumtest.Machine{}); err == nil {
			t.Errorf("%d ticks are taken, less than an election has", ticks)
		}
	}
}

// TestReplaceCrashes proves, for an end of a process at each save, that a learner
// takes the place of a voter as a whole or not at all, and that nothing is lost.
func TestReplaceCrashes(t *testing.T) {
	everyCrash(t, func(t *testing.T, arm func(*cluster)) {
		c, _, _ := spare(t, quorum.Options{})
		c.commit("a")
		gone := uint64(1)
		if c.leader() == c.nodes[1] {
			gone = 2
		}
		arm(c)
		c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Replace(id, gone, 4)) })
		c.commit("b")
		c.converge("a", "b")
		voters := slices.DeleteFunc([]uint64{1, 2, 3, 4}, func(id uint64) bool { return id == gone })
		c.members(voters, []uint64{gone}, c.nodes[1], c.nodes[2], c.nodes[3], c.nodes[4])
	})
}

// TestLeaderLosesItsVote proves that a leader whose own place a learner takes, as the
// leader before may have meant it to, proposes nothing from then on: without its vote
// the others could not go on behind a longer log of a node that cannot lead.
func TestLeaderLosesItsVote(t *testing.T) {
	c, l, _ := spare(t, quorum.Options{})
	other := c.nodes[l.id%3+1]
	refused := 0
	c.saving = func(n *node, _ quorum.Write, after bool) {
		if st := n.core.Status(); n != l || !after || st.Role != quorum.Leader || !st.Joint {
			return
		}
		if err := l.core.Propose(c.id(), nil); !errors.Is(err, quorum.ErrDropped) {
			t.Errorf("half replaced: %v", err)
		}
		refused++
	}
	if err := l.core.Replace(c.id(), l.id, 4); err != nil {
		t.Fatal(err)
	}
	if err := l.core.Propose(c.id(), nil); !errors.Is(err, quorum.ErrDropped) {
		t.Errorf("before it is committed: %v", err)
	}
	c.settle()
	if st := l.core.Status(); refused == 0 || st.Role == quorum.Leader || !slices.Contains(st.Learners, l.id) {
		t.Fatalf("asked %d times: %+v", refused, st)
	}
	c.tick(60)
	next := c.elect()
	if next == l {
		t.Fatal("a learner leads")
	}
	c.committed(next, c.propose(next, "after"))
	c.tick(4)
	c.same(l, next, other, c.nodes[4])
}
