package quorum_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
	"leat/storage/meta"
)

// changeEntry is an entry that changes members.
func changeEntry(t *testing.T, index, term uint64, changes string) *raftpb.Entry {
	t.Helper()
	singles, err := raftpb.ConfChangesFromString(changes)
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(&raftpb.ConfChangeV2{Changes: singles})
	if err != nil {
		t.Fatal(err)
	}
	return &raftpb.Entry{Index: &index, Term: &term, Type: raftpb.EntryConfChangeV2.Enum(), Data: data}
}

// TestSharpEdgeB (every committed change of members is applied, a rejected one as
// an empty change, and the members are saved with the applied index) proves, for an
// end of the process at each save, that a node joins, becomes a voter, and another
// one goes; and that the members a node starts with are those of what it has
// applied.
func TestSharpEdgeB(t *testing.T) {
	everyCrash(t, func(t *testing.T, arm func(*cluster)) {
		c := newCluster(t, quorum.Options{}, 1, 2, 3)
		watch(c)
		arm(c)
		c.commit("a")
		c.add(4, nil)
		c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.AddLearner(id, 4)) })
		c.commit("b")
		c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Promote(id, 4)) })
		gone := uint64(1)
		if c.leader() == c.nodes[1] {
			gone = 2
		}
		c.until(func(l *node, id quorum.ProposalID) error { return ignoreRefused(l.core.Remove(id, gone)) })
		c.commit("c")
		c.revive()
		delete(c.nodes, gone)
		c.converge("a", "b", "c")
		want := slices.DeleteFunc([]uint64{1, 2, 3, 4}, func(id uint64) bool { return id == gone })
		for _, n := range c.nodes {
			for _, restart := range []bool{false, true} {
				if restart {
					c.restart(n, n.store.Lose(n.store.Unsynced()))
				}
				st := n.core.Status()
				if !restart && !slices.Equal(st.Voters, want) || len(st.Learners) > 0 && st.Applied == c.leader().machine.Applied {
					t.Errorf("node %d (restart %t): voters %v, learners %v, want %v", n.id, restart, st.Voters, st.Learners, want)
				}
			}
		}
	})
}

// ignoreRefused makes a repeated change, of which the first try was applied, no
// error.
func ignoreRefused(err error) error {
	if errors.Is(err, quorum.ErrRefused) {
		return quorum.ErrDropped
	}
	return err
}

// TestSharpEdgeBRejected proves that a committed change that makes no sense changes
// nothing, does not end the node, and counts as applied; alike after a restart.
func TestSharpEdgeBRejected(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	n := c.nodes[1]
	entries := []*raftpb.Entry{
		changeEntry(t, 2, 5, "v9"), changeEntry(t, 3, 5, "l2"), changeEntry(t, 4, 5, "r8"),
		changeEntry(t, 5, 5, "r1 r2 r3"), changeEntry(t, 6, 5, "l4"), changeEntry(t, 7, 5, ""),
	}
	app := &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(5)),
		Index: new(uint64(1)), LogTerm: new(uint64(1)), Entries: entries, Commit: new(uint64(7)),
	}
	if err := n.core.Step(quorum.Message{From: 2, To: 1, Raft: app}); err != nil {
		t.Fatal(err)
	}
	c.work(n)
	for range 2 {
		st := n.core.Status()
		if st.Err != nil || st.Applied != 7 || !slices.Equal(st.Voters, []uint64{1, 2, 3}) || !slices.Equal(st.Learners, []uint64{4}) {
			t.Fatalf("%+v", st)
		}
		c.restart(n, n.store.Kill())
	}
}

// TestSharpEdgeC (restart) proves that a node starts with its commit index raised
// to what is applied, and refuses a store that no history of saves leaves behind:
// one with more applied than its log has, above all.
func TestSharpEdgeC(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1)
	n := c.nodes[1]
	_ = n.core.Campaign()
	c.work(n)
	for i := range 5 {
		c.propose(n, fmt.Sprint(i))
	}
	last := n.core.Status().Last
	hard := func(term, commit uint64) []byte {
		b := []byte{1}
		for _, v := range []uint64{1, term, 1, commit} {
			b = binary.BigEndian.AppendUint64(b, v)
		}
		return b
	}
	logKey := func(index uint64) []byte { return binary.BigEndian.AppendUint64([]byte("QL"), index) }
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	members := func(voters ...uint64) []byte {
		b := binary.BigEndian.AppendUint16(slices.Concat([]byte{1}, number(1), number(1)), uint16(len(voters)))
		for _, id := range voters {
			b = binary.BigEndian.AppendUint64(b, id)
		}
		return append(b, make([]byte, 7)...)
	}
	set := func(key, value []byte) quorum.Change { return quorum.Change{Key: key, Value: value} }
	for _, tc := range []struct {
		name   string
		change quorum.Change
		want   error
	}{
		{name: "as it is", change: quorum.Change{Key: []byte("x")}},
		{name: "commit behind applied", change: set([]byte("QH"), hard(2, 3))},
		{name: "applied behind the last", change: set(meta.AppliedKey(), number(last-1)), want: quorum.ErrDamaged}, // its id is there
		{name: "applied after the last", change: set(meta.AppliedKey(), number(last+1)), want: quorum.ErrDamaged},
		{name: "applied before the first", change: set(meta.AppliedKey(), number(0)), want: quorum.ErrDamaged},
		{name: "applied of 3 bytes", change: set(meta.AppliedKey(), []byte("abc")), want: quorum.ErrDamaged},
		{name: "nothing applied", change: quorum.Change{Key: meta.AppliedKey()}, want: quorum.ErrDamaged},
		{name: "commit after the last", change: set([]byte("QH"), hard(2, last+1)), want: quorum.ErrDamaged},
		{name: "term before the log's", change: set([]byte("QH"), hard(1, last)), want: quorum.ErrDamaged},
		{name: "no term", change: quorum.Change{Key: []byte("QH")}, want: quorum.ErrDamaged},
		{name: "half a term", change: set([]byte("QH"), hard(2, last)[:20]), want: quorum.ErrDamaged},
		{name: "no members", change: quorum.Change{Key: []byte("QM")}, want: quorum.ErrDamaged},
		{name: "a member twice", change: set([]byte("QM"), members(1, 1)), want: quorum.ErrDamaged},
		{name: "no voter", change: set([]byte("QM"), members()), want: quorum.ErrDamaged},
		{name: "half the members", change: set([]byte("QM"), make([]byte, 20)), want: quorum.ErrDamaged},
		{name: "no last entry", change: quorum.Change{Key: logKey(last)}, want: quorum.ErrDamaged},
		{name: "a hole", change: quorum.Change{Key: logKey(last - 2)}, want: quorum.ErrDamaged},
		{name: "half an entry", change: set(logKey(last-2), make([]byte, 5)), want: quorum.ErrDamaged},
		{name: "an entry of a term to come", change: set(logKey(last-2), append(number(9), 0)), want: quorum.ErrDamaged},
		{name: "an entry of no kind", change: set(logKey(last-2), append(number(2), 7)), want: quorum.ErrDamaged},
		{name: "an entry without an id", change: set(logKey(last-2), append(number(2), 0, 1)), want: quorum.ErrDamaged},
		{name: "half an id", change: set(binary.BigEndian.AppendUint64([]byte("QD"), last), []byte("a")), want: quorum.ErrDamaged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := n.store.Kill()
			if err := store.Save(quorum.Write{Changes: []quorum.Change{tc.change}, Sync: true}); err != nil {
				t.Fatal(err)
			}
			core, err := quorum.Open(quorum.Options{ID: 1}, store, &quorumtest.Machine{})
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) || !errors.Is(quorum.Check(store), tc.want) {
				t.Fatalf("Open: %v, want %v; Check: %v", err, tc.want, quorum.Check(store))
			}
			if err == nil && (core.Status().Commit != last || core.Status().Applied != last) {
				t.Errorf("%+v", core.Status())
			}
		})
	}
}

// TestSharpEdgeD (proposals vanish silently when the leader changes) proves that
// each proposal has an end, that what was certainly not proposed is an error, that
// a proposal that is made again with its id is applied once, also after a restart
// and after a snapshot, and that ids are forgotten alike on all nodes.
func TestSharpEdgeD(t *testing.T) {
	c := newCluster(t, quorum.Options{KeepEntries: 4}, 1, 2, 3)
	l := c.elect()
	for id, n := range c.nodes {
		if n != l {
			if err := n.core.Propose(c.id(), nil); !errors.Is(err, quorum.ErrNotLeader) {
				t.Errorf("node %d: %v", id, err)
			}
		}
	}
	c.isolate(l, true)
	lost := c.propose(l, "once")
	if err := l.core.Propose(lost, []byte("once")); !errors.Is(err, quorum.ErrUnknownOutcome) {
		t.Errorf("the same id again while it is under way: %v", err)
	}
	c.tick(40)
	if l.ended[lost].Outcome != quorum.Unknown {
		t.Fatalf("it ended as %+v", l.ended[lost])
	}
	next := c.elect()
	again := func(n *node) {
		t.Helper()
		delete(n.ended, lost)
		if err := n.core.Propose(lost, []byte("once")); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.committed(n, lost)
	}
	again(next)
	first := next.ended[lost].Index
	again(next)
	if next.ended[lost].Index != first || fmt.Sprint(texts(next.machine)) != "[once]" {
		t.Fatalf("applied at %d and %+v: %q", first, next.ended[lost], texts(next.machine))
	}
	// The old leader has missed more than the log keeps: it gets a snapshot.
	for i := range 10 {
		c.propose(next, fmt.Sprint(i))
	}
	c.isolate(l, false)
	c.tick(30)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])
	for _, id := range c.ids() {
		n := c.nodes[id]
		if index, ok := n.core.Applied(lost); !ok || index != first {
			t.Errorf("node %d: the id is at %d, %t", n.id, index, ok)
		}
		c.restart(n, n.store.Kill())
		if _, ok := n.core.Applied(lost); !ok {
			t.Errorf("node %d has forgotten the id over a restart", n.id)
		}
	}
	leader := c.elect()
	again(leader)
	for range 1024 {
		if err := leader.core.Propose(c.id(), nil); err != nil {
			t.Fatal(err)
		}
	}
	c.settle()
	c.tick(4)
	for _, n := range c.nodes {
		if _, ok := n.core.Applied(lost); ok {
			t.Errorf("node %d remembers the id", n.id)
		}
		if ids := countPrefix(n.store, "QD"); ids > 1024 {
			t.Errorf("node %d stores %d ids", n.id, ids)
		}
	}
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])
}

func countPrefix(s *quorumtest.Store, prefix string) (n int) {
	_ = s.Scan([]byte(prefix), func(_, _ []byte) error { n++; return nil })
	return n
}

// TestSharpEdgeE (ids are never reused, never 0) proves that a node's id depends on
// its number and its directory, that a store of another id is refused, that a node
// with a wiped disk is a stranger whose vote counts for nothing under its new id,
// and that one that comes back empty under its old id stops as soon as its leader
// speaks.
func TestSharpEdgeE(t *testing.T) {
	seen := map[uint64]bool{0: true}
	for node := range int32(100) {
		for _, uuid := range []string{"", "a", "b"} {
			id := quorum.NodeID(node, uuid)
			if seen[id] || id != quorum.NodeID(node, uuid) {
				t.Errorf("node %d in %q has id %d", node, uuid, id)
			}
			seen[id] = true
		}
	}
	for _, id := range []uint64{0, 1<<64 - 1, 1<<64 - 2} {
		if _, err := quorum.Open(quorum.Options{ID: id}, quorumtest.NewStore(), &quorumtest.Machine{}); err == nil {
			t.Errorf("id %x is taken", id)
		}
	}
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	c.committed(l, c.propose(l, "a"))
	if _, err := quorum.Open(quorum.Options{ID: 4}, l.store, &quorumtest.Machine{}); !errors.Is(err, quorum.ErrOtherNode) {
		t.Errorf("the store of node %d opens for node 4: %v", l.id, err)
	}
	wiped := c.nodes[l.id%3+1]
	old := c.nodes[(l.id+1)%3+1]
	back := c.add(wiped.id, nil)
	c.tick(4)
	if err := back.core.Err(); !errors.Is(err, quorum.ErrFailed) {
		t.Errorf("an empty node under an old id goes on: %v", err)
	}
	delete(c.nodes, wiped.id)
	stranger := c.add(77, nil)
	c.isolate(l, true)
	c.tick(60)
	if got := c.leader(); got == old || got == stranger {
		t.Errorf("node %d leads by the vote of a stranger", got.id)
	}
}

// TestSharpEdgeF (a controller acts only in a term whose first entry it has
// applied) proves that a leader is not active before, so that it has
// applied everything that was committed; and that a read barrier waits for a quorum
// and covers what was committed before it.
func TestSharpEdgeF(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	old := c.elect()
	c.committed(old, c.propose(old, "a"))
	next := c.nodes[old.id%3+1]
	// The candidate gets its votes, and then nobody's word about its first entry.
	c.isolate(old, true)
	silent := c.nodes[next.id%3+1]
	c.sent = func(m quorum.Message) {
		if m.Raft.GetType() == raftpb.MsgVoteResp {
			c.cut[[2]uint64{silent.id, next.id}] = false
			return
		}
		if m.From == silent.id && m.Raft.GetType() != raftpb.MsgPreVoteResp {
			c.cut[[2]uint64{silent.id, next.id}] = true
		}
	}
	for range 50 {
		_ = next.core.Tick()
		_ = silent.core.Tick()
		c.settle()
		if next.core.Status().Role == quorum.Leader {
			break
		}
		if silent.core.Status().Role == quorum.Candidate {
			c.restart(silent, silent.store.Kill()) // it is to be the follower
		}
	}
	if st := next.core.Status(); st.Role != quorum.Leader || st.Active || next.out.Active {
		t.Fatalf("a leader without its first entry: %+v", st)
	}
	if err := next.core.AddLearner(c.id(), 9); !errors.Is(err, quorum.ErrDropped) {
		t.Errorf("a change of members before it: %v", err)
	}
	c.sent = nil
	clear(c.cut)
	c.tick(10)
	l := c.elect()
	if fmt.Sprint(texts(l.machine)) != "[a]" {
		t.Errorf("active with %q", texts(l.machine))
	}
	read := c.id()
	c.isolate(l, true)
	if err := l.core.Read(read); err != nil {
		t.Fatal(err)
	}
	c.settle()
	if _, ok := l.ended[read]; ok {
		t.Error("a read without a quorum has ended")
	}
	c.isolate(l, false)
	c.tick(3)
	c.committed(l, read)
	if l.ended[read].Index < l.out.Applied {
		t.Errorf("the read is valid up to %d, and %d was committed before", l.ended[read].Index, l.out.Applied)
	}
}
