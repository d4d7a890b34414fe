package quorum_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"leat/replication/quorum"
)

// promises checks what a node says against what its disk has when it says it.
type promises struct {
	c     *cluster
	votes map[[2]uint64]uint64 // who node, term was voted for
	leads map[uint64]uint64    // who has led in a term
}

func watch(c *cluster) *promises {
	p := &promises{c: c, votes: map[[2]uint64]uint64{}, leads: map[uint64]uint64{}}
	c.sent = p.sent
	return p
}

// sent proves that a term, a vote and an acknowledged entry are durable before
// anybody hears of them, that nobody votes twice in a term, that no two lead in
// one, and that who is sent a snapshot is a member in it.
func (p *promises) sent(m quorum.Message) {
	p.c.t.Helper()
	if m.Raft == nil {
		return
	}
	term, vote, last := p.c.nodes[m.From].store.Durable()
	kind := m.Raft.GetType()
	said := m.Raft.GetTerm()
	switch {
	case kind == raftpb.MsgPreVote || kind == raftpb.MsgPreVoteResp:
		said = 0 // a term to be
	case kind == raftpb.MsgSnap:
		members := m.Raft.GetSnapshot().GetMetadata().GetConfState()
		if !slices.Contains(slices.Concat(members.GetVoters(), members.GetLearners()), m.To) {
			p.c.t.Fatalf("node %d is sent a snapshot of before it was a member: %v", m.To, members)
		}
	case kind == raftpb.MsgVote:
		p.vote(m.From, said, m.From, vote)
	case kind == raftpb.MsgVoteResp && !m.Raft.GetReject():
		p.vote(m.From, said, m.To, vote)
	case kind == raftpb.MsgAppResp && !m.Raft.GetReject() && last < m.Raft.GetIndex():
		p.c.t.Fatalf("node %d acknowledges %d and has %d", m.From, m.Raft.GetIndex(), last)
	case kind == raftpb.MsgApp || kind == raftpb.MsgHeartbeat:
		if other := p.leads[said]; other != 0 && other != m.From {
			p.c.t.Fatalf("nodes %d and %d lead in term %d", other, m.From, said)
		}
		p.leads[said] = m.From
		if n := m.Raft.GetEntries(); len(n) > 0 && last < n[len(n)-1].GetIndex() {
			p.c.t.Fatalf("leader %d sends entry %d before it has it", m.From, n[len(n)-1].GetIndex())
		}
	}
	if said > term {
		p.c.t.Fatalf("node %d says %s in term %d, its disk has term %d", m.From, kind, said, term)
	}
}

func (p *promises) vote(node, term, to, durable uint64) {
	p.c.t.Helper()
	key := [2]uint64{node, term}
	if old := p.votes[key]; old != 0 && old != to || durable != to {
		p.c.t.Fatalf("node %d votes for %d in term %d; before for %d, on its disk for %d", node, to, term, old, durable)
	}
	p.votes[key] = to
}

// crash is where one process ends: at the nth save of all, before it, after it, or
// after it with what was not synced lost.
type crash struct {
	at   int
	when string
}

// everyCrash runs a scenario once for each save that it makes and each way to end
// there. arm counts the saves from then on and ends the process; run must revive
// it with revive.
func everyCrash(t *testing.T, run func(t *testing.T, arm func(c *cluster))) {
	t.Helper()
	total := 0
	count := func(c *cluster) {
		c.saving = func(_ *node, w quorum.Write, after bool) {
			if !after && len(w.Changes) > 0 {
				total++
			}
		}
	}
	run(t, count)
	if total == 0 {
		t.Fatal("nothing was saved")
	}
	for at := range total {
		for _, when := range []string{"before", "after", "lost"} {
			cr := crash{at, when}
			t.Run(fmt.Sprintf("%d-%s", cr.at, cr.when), func(t *testing.T) { run(t, cr.arm) })
		}
	}
}

func (cr crash) arm(c *cluster) {
	n := 0
	c.saving = func(node *node, w quorum.Write, after bool) {
		if len(w.Changes) == 0 {
			return
		}
		if !after && cr.when == "before" && n == cr.at || after && cr.when != "before" && n == cr.at {
			node.lost = true
		}
		if after || node.lost {
			n++
		}
	}
	c.lose = cr.when == "lost"
}

// revive starts the processes that have ended.
func (c *cluster) revive() {
	c.t.Helper()
	for _, id := range c.ids() {
		n := c.nodes[id]
		if !n.lost {
			continue
		}
		store := n.store.Kill()
		if c.lose {
			store = n.store.Lose(n.store.Unsynced())
		}
		c.restart(n, store)
	}
}

// commit proposes until it is told that the proposal is committed, with one id, at
// whoever leads.
func (c *cluster) commit(data string) {
	c.t.Helper()
	c.until(func(l *node, id quorum.ProposalID) error { return l.core.Propose(id, []byte(data)) })
}

// until makes a proposal with one id until it is told to be committed.
func (c *cluster) until(propose func(l *node, id quorum.ProposalID) error) {
	c.t.Helper()
	id := c.id()
	for range 300 {
		c.revive()
		if l := c.leader(); l != nil {
			if _, ok := l.core.Applied(id); ok {
				return
			}
			err := propose(l, id)
			if err != nil && !errors.Is(err, quorum.ErrNotLeader) && !errors.Is(err, quorum.ErrDropped) &&
				!errors.Is(err, quorum.ErrFailed) && !errors.Is(err, quorum.ErrUnknownOutcome) {
				c.t.Fatal(err)
			}
			c.settle()
			if l.ended[id].Outcome == quorum.Committed {
				return
			}
			delete(l.ended, id)
		}
		c.tick(1)
	}
	c.t.Fatal("it is not committed after 300 ticks")
}

// converge proves that all nodes have applied the same, each text of want once and
// in order.
func (c *cluster) converge(want ...string) {
	c.t.Helper()
	var all []*node
	for i := range 60 {
		if i == 30 {
			c.saving = nil // no more crashes
		}
		c.revive()
		c.tick(1)
	}
	for _, id := range c.ids() {
		n := c.nodes[id]
		if err := n.core.Err(); err != nil {
			c.t.Fatalf("node %d: %v", id, err)
		}
		all = append(all, n)
	}
	c.same(all...)
	if got := texts(all[0].machine); !slices.Equal(got, want) {
		c.t.Fatalf("applied %q, want %q", got, want)
	}
}

// TestSharpEdgeA (order of a Ready: persist, send, apply, advance) proves, for a
// process that ends before, in or after each save of three nodes that elect,
// commit, change leaders and commit again, that nothing was said that the disk did
// not have, and that nothing committed is lost or applied twice.
func TestSharpEdgeA(t *testing.T) {
	everyCrash(t, func(t *testing.T, arm func(*cluster)) {
		c := newCluster(t, quorum.Options{}, 1, 2, 3)
		watch(c)
		arm(c)
		c.commit("a")
		c.commit("b")
		if l := c.leader(); l != nil {
			c.isolate(l, true)
			_ = l.core.Propose(c.id(), nil) // it has no quorum
			c.tick(25)
			c.commit("c")
			c.isolate(l, false)
		} else {
			c.commit("c")
		}
		c.commit("d")
		c.converge("a", "b", "c", "d")
	})
}

// TestSteppedMeanwhile proves that a node that hears of a later term while a save is
// under way does not act as leader after it.
func TestSteppedMeanwhile(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	if err := l.core.Propose(c.id(), []byte("a")); err != nil {
		t.Fatal(err)
	}
	w, ok := l.core.Work()
	if !ok {
		t.Fatal("there is nothing to save")
	}
	other := l.id%3 + 1
	later := &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &other, To: &l.id, Term: new(l.out.Term + 1)}
	if err := errors.Join(l.store.Save(w), l.core.Step(quorum.Message{From: other, To: l.id, Raft: later})); err != nil {
		t.Fatal(err)
	}
	if out := l.core.Done(0); out.Active {
		t.Errorf("it acts as leader in term %d", out.Term)
	}
}
