package quorum_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

// lagging is a cluster in which node 3 has missed more than the logs keep.
func lagging(t *testing.T) (c *cluster, l *node) {
	t.Helper()
	c = newCluster(t, quorum.Options{KeepEntries: 3}, 1, 2, 3)
	watch(c)
	c.isolate(c.nodes[3], true)
	l = c.elect()
	for i := range 20 {
		c.committed(l, c.propose(l, fmt.Sprint("entry ", i)))
	}
	return c, l
}

// TestSharpEdgeG (snapshots go in chunks outside Raft's messages, each with a
// checksum, and are installed in one step with the applied index) proves that a
// follower gets its state by many chunks, and that wherever its process ends
// meanwhile, its store has the old state or the new one, and it catches up.
func TestSharpEdgeG(t *testing.T) {
	everyCrash(t, func(t *testing.T, arm func(*cluster)) {
		c, l := lagging(t)
		chunks := 0
		sent := c.sent
		c.sent = func(m quorum.Message) {
			sent(m)
			if m.Chunk != nil && m.Chunk.Kind == quorum.ChunkData {
				chunks++
			}
		}
		arm(c)
		c.isolate(c.nodes[3], false)
		// A leader that ends gives another one the turn.
		for range 120 {
			for _, n := range c.nodes {
				if n.lost {
					half := n.store.Kill()
					if _, err := quorumtest.OpenMachine(half); err != nil {
						t.Fatalf("half a state is stored: %v", err)
					}
				}
			}
			c.revive()
			c.tick(1)
		}
		c.saving = nil
		c.revive()
		c.tick(40)
		if chunks < 5 {
			t.Errorf("%d chunks were sent", chunks)
		}
		c.same(c.nodes[1], c.nodes[2], c.nodes[3])
		if n := len(l.machine.Entries); n != 20 {
			t.Errorf("%d entries", n)
		}
		restarted, err := quorumtest.OpenMachine(c.nodes[3].store.Lose(0))
		if err != nil || restarted.Hash() != l.machine.Hash() {
			t.Errorf("stored after the snapshot: %d entries, %v", len(restarted.Entries), err)
		}
	})
}

// TestSharpEdgeGNetwork proves that a snapshot arrives whole over a network that
// loses, repeats, reorders and damages chunks and their answers, whichever they are, that one
// that does not arrive at all is given up and begun anew, and that what a follower
// holds of it meanwhile is bounded.
func TestSharpEdgeGNetwork(t *testing.T) {
	for _, how := range []string{"lost", "twice", "damaged", "swapped", "late"} {
		for at := range 14 {
			t.Run(fmt.Sprintf("%s-%d", how, at), func(t *testing.T) {
				c, l := lagging(t)
				n := 0
				var kept []quorum.Message
				c.chunk = func(m quorum.Message) []quorum.Message {
					n++
					switch {
					case n-1 != at:
						if how == "swapped" && len(kept) > 0 && kept[0].To == m.To {
							held := kept[0]
							kept = nil
							return []quorum.Message{m, held}
						}
						return []quorum.Message{m}
					case how == "twice":
						return []quorum.Message{m, m}
					case how == "damaged":
						ch := *m.Chunk
						ch.Data = append(slices.Clone(ch.Data), 1)
						return []quorum.Message{{From: m.From, To: m.To, Raft: m.Raft, Chunk: &ch}}
					case how == "late", how == "swapped":
						kept = append(kept, m)
					}
					return nil
				}
				c.isolate(c.nodes[3], false)
				c.tick(60)
				c.same(c.nodes[1], c.nodes[2], c.nodes[3])
				c.committed(l, c.propose(l, "after"))
				for _, m := range kept {
					if err := c.nodes[m.To].core.Step(m); err != nil {
						t.Error(err)
					}
				}
				c.settle()
				c.tick(4)
				c.same(c.nodes[1], c.nodes[2], c.nodes[3])
			})
		}
	}
	t.Run("given up", func(t *testing.T) {
		c, l := lagging(t)
		begun := 0
		c.chunk = func(m quorum.Message) []quorum.Message {
			if m.Chunk.Seq == 0 && m.Chunk.Kind == quorum.ChunkData {
				begun++
			}
			if m.Chunk.Seq == 2 && begun < 12 {
				return nil
			}
			return []quorum.Message{m}
		}
		c.isolate(c.nodes[3], false)
		c.tick(30)
		c.committed(l, c.propose(l, "newer"))
		c.tick(200)
		c.same(c.nodes[1], c.nodes[2], c.nodes[3])
	})
	t.Run("too large", func(t *testing.T) {
		c, l := lagging(t)
		c.o.MaxSnapshotBytes = 300
		c.restart(c.nodes[3], c.nodes[3].store.Kill())
		c.isolate(c.nodes[3], false)
		c.tick(60)
		if n := c.nodes[3]; n.machine.Applied >= l.machine.Applied || n.core.Err() != nil {
			t.Errorf("applied %d: %v", n.machine.Applied, n.core.Err())
		}
	})
}

// TestSharpEdgeH (CheckQuorum, PreVote, a heartbeat of at most a fifth of the
// election timeout, stepping down when removed) proves each of them.
func TestSharpEdgeH(t *testing.T) {
	if _, err := quorum.Open(quorum.Options{ID: 1, ElectionTicks: 10, HeartbeatTicks: 3}, quorumtest.NewStore(), &quorumtest.Machine{}); err == nil {
		t.Error("a heartbeat of more than a fifth is taken")
	}
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	term := l.out.Term
	other := c.nodes[l.id%3+1]
	c.isolate(other, true)
	c.tick(100)
	if got := other.core.Status().Term; got != term {
		t.Errorf("a node that was cut off has gone from term %d to %d", term, got)
	}
	c.isolate(other, false)
	c.tick(10)
	if c.leader() != l || l.out.Term != term {
		t.Errorf("its return has cost the leader its term")
	}
	// One way: it hears nothing, and all hear it.
	for id := range c.nodes {
		c.cut[[2]uint64{id, other.id}] = true
	}
	c.tick(100)
	if c.leader() != l || l.out.Term != term {
		t.Errorf("a node that hears nothing disturbs: %+v", l.core.Status())
	}
	clear(c.cut)
	c.tick(10)
	c.isolate(l, true)
	c.tick(21)
	if st := l.core.Status(); st.Role == quorum.Leader || l.out.Active {
		t.Errorf("a leader without a quorum leads on: %+v", st)
	}
	c.isolate(l, false)
	l = c.elect()
	c.tick(10)
	id := c.id()
	if err := l.core.Remove(id, l.id); err != nil {
		t.Fatal(err)
	}
	c.settle()
	if st := l.core.Status(); st.Role == quorum.Leader || l.out.Active || l.ended[id].Outcome != quorum.Unknown {
		t.Errorf("a leader that was removed leads on: %+v, it ended as %+v", st, l.ended[id])
	}
	c.tick(60)
	next := c.leader()
	if next == nil || next == l {
		t.Fatal("nobody leads in its place")
	}
	if err := next.core.Remove(c.id(), l.id); !errors.Is(err, quorum.ErrRefused) {
		t.Errorf("it is removed, and asked for again: %v", err)
	}
}

// TestSharpEdgeI (disk guard) proves that a leader whose save takes longer than an
// election timeout gives leadership up, says nothing as a leader any more and has
// no outcome for its proposals, while another leads at once; and that a slow follower
// and an only voter go on.
func TestSharpEdgeI(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	term := l.out.Term
	c.nodes[l.id%3+1].took = 50
	c.committed(l, c.propose(l, "a"))
	c.tick(30)
	if c.leader() != l {
		t.Fatal("a slow follower has cost the leader its term")
	}
	c.nodes[l.id%3+1].took = 0
	l.took = 10
	c.committed(l, c.propose(l, "just in time"))
	l.took = 11
	spoken, heir := false, uint64(0)
	c.sent = func(m quorum.Message) {
		if m.From == l.id && m.Raft.GetTerm() == term {
			k := m.Raft.GetType()
			spoken = spoken || k == raftpb.MsgApp && heir != 0 && m.To != heir || k == raftpb.MsgHeartbeat
			heir = m.To
		}
	}
	id := c.propose(l, "b")
	if l.ended[id].Outcome != quorum.Unknown || spoken {
		t.Errorf("the proposal of a slow leader ended as %+v; spoken %t", l.ended[id], spoken)
	}
	if next := c.leader(); next == nil || next == l || next.out.Term != term+1 {
		t.Error("leadership was not handed over at once")
	}
	c.sent = nil
	l.took = 0
	c.tick(30)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])

	// Nobody to hand over to: it is silent, and steps down.
	l = c.elect()
	for id := range c.nodes {
		c.cut[[2]uint64{id, l.id}] = id != l.id
	}
	_ = l.core.Propose(c.id(), []byte("x"))
	l.took = 11
	c.settle()
	if l.out.Active || l.core.Status().Active {
		t.Error("a slow leader acts on")
	}
	if err := l.core.Propose(c.id(), nil); !errors.Is(err, quorum.ErrNotLeader) {
		t.Errorf("asked for more: %v", err)
	}
	l.took = 0
	c.tick(25)
	if l.core.Status().Role == quorum.Leader {
		t.Errorf("it leads on: %+v", l.core.Status())
	}
	clear(c.cut)
	c.tick(40)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])

	one := newCluster(t, quorum.Options{}, 7)
	n := one.nodes[7]
	n.took = 100
	_ = n.core.Campaign()
	one.work(n)
	one.committed(n, one.propose(n, "a"))
}

// TestSharpEdgeIFails (disk guard) proves that after a save that fails, whether or
// not the disk has kept it, nothing more is said, not even what was ready before,
// while another node leads.
func TestSharpEdgeIFails(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	broken := errors.New("broken")
	for _, kept := range []bool{false, true} {
		l := c.elect()
		l.store.Fault = func(quorum.Write) (bool, error) { return kept, broken }
		spoken := false
		c.sent = func(m quorum.Message) { spoken = spoken || m.From == l.id }
		id := c.propose(l, fmt.Sprint("kept ", kept))
		if l.ended[id].Outcome != quorum.Unknown {
			t.Errorf("it ended as %+v", l.ended[id])
		}
		l.store.Fault = nil
		c.tick(60)
		if err := l.core.Err(); spoken || !errors.Is(err, broken) || !errors.Is(err, quorum.ErrFailed) {
			t.Errorf("after a failed save: spoken %t, %v", spoken, err)
		}
		for what, err := range map[string]error{
			"Tick": l.core.Tick(), "Campaign": l.core.Campaign(), "Propose": l.core.Propose(c.id(), nil), "Read": l.core.Read(c.id()),
			"Transfer": l.core.Transfer(0), "Forget": l.core.Forget(2), "Remove": l.core.Remove(c.id(), 2),
		} {
			if !errors.Is(err, broken) {
				t.Errorf("%s after a failed save: %v", what, err)
			}
		}
		if next := c.leader(); next == nil || next == l {
			t.Error("nobody leads in its place")
		}
		c.sent = nil
		c.restart(l, l.store.Kill())
		c.tick(40)
		c.same(c.nodes[1], c.nodes[2], c.nodes[3])
	}
}

// TestSharpEdgeJ (limits) proves that a message has at most 1 MiB or one entry,
// that at most 256 messages are on their way to a follower, that 64 MiB without a
// quorum is the most that is taken, that a proposal has a limit, and that no more
// than about 8 MiB are applied in one save.
func TestSharpEdgeJ(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	if err := l.core.Propose(c.id(), make([]byte, 8<<20+1)); !errors.Is(err, quorum.ErrTooLarge) {
		t.Errorf("8 MiB and a byte: %v", err)
	}
	largest, saved := 0, 0
	c.sent = func(m quorum.Message) {
		size := 0
		for _, e := range m.Raft.GetEntries() {
			size += len(e.GetData())
		}
		if len(m.Raft.GetEntries()) > 1 {
			largest = max(largest, size)
		}
	}
	c.saving = func(_ *node, w quorum.Write, _ bool) {
		size := 0
		for _, ch := range w.Changes {
			if strings.HasPrefix(string(ch.Key), "S") {
				size += len(ch.Value)
			}
		}
		saved = max(saved, size)
	}
	follower := c.nodes[l.id%3+1]
	c.isolate(l, true)
	data := make([]byte, 300<<10)
	n := 0
	for ; n < 1000; n++ {
		if err := l.core.Propose(c.id(), data); err != nil {
			if !errors.Is(err, quorum.ErrDropped) {
				t.Fatal(err)
			}
			break
		}
		c.settle()
	}
	if total := n * len(data); total > 64<<20 || total < 60<<20 {
		t.Errorf("%d MiB were taken without a quorum", total>>20)
	}
	c.isolate(l, false)
	c.tick(30)
	c.same(l, follower)
	if largest == 0 || largest > 1<<20 {
		t.Errorf("a message of %d bytes", largest)
	}
	if saved < 1<<20 || saved > 9<<20 {
		t.Errorf("%d bytes are applied in one save", saved)
	}
	// A follower that takes messages and does not answer.
	c = newCluster(t, quorum.Options{}, 1, 2, 3)
	l = c.elect()
	follower = c.nodes[l.id%3+1]
	c.cut[[2]uint64{follower.id, l.id}] = true
	inflight := 0
	c.sent = func(m quorum.Message) {
		if m.To == follower.id && len(m.Raft.GetEntries()) > 0 {
			inflight++
		}
	}
	for range 600 {
		c.committed(l, c.propose(l, "x"))
	}
	if inflight == 0 || inflight > 256 {
		t.Errorf("%d messages without an answer", inflight)
	}
}
