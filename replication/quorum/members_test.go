package quorum_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/cryptotest"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

// TestGrow proves that a cluster of one with a log of its own takes learners by
// snapshot, that the leader makes voters of two of them in one step and passes by a
// cluster of two, that a third stays a learner, and that the cluster then bears the
// loss of its first node, for which another learner is made a voter.
func TestGrow(t *testing.T) {
	c := newCluster(t, quorum.Options{QuorumSize: 3, KeepEntries: 4}, 1)
	watch(c)
	first := c.nodes[1]
	_ = first.core.Campaign()
	c.work(first)
	for i := range 20 {
		c.committed(first, c.propose(first, fmt.Sprint(i)))
	}
	join := func(id uint64) *node {
		t.Helper()
		n := c.add(id, nil)
		l := c.leader()
		pid := c.id()
		if err := l.core.AddLearner(pid, id); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.committed(l, pid)
		c.tick(20)
		c.same(l, n)
		return n
	}
	second := join(2)
	if st := first.core.Status(); !slices.Equal(st.Voters, []uint64{1}) || !slices.Equal(st.Learners, []uint64{2}) {
		t.Fatalf("with one learner: %v, %v", st.Voters, st.Learners)
	}
	c.saving = func(n *node, _ quorum.Write, _ bool) {
		if st := n.core.Status(); len(st.Voters) == 2 {
			t.Errorf("two voters: %+v", st)
		}
	}
	third := join(3)
	for _, n := range []*node{first, second, third} {
		if st := n.core.Status(); !slices.Equal(st.Voters, []uint64{1, 2, 3}) || st.Joint {
			t.Fatalf("node %d: %+v", n.id, st)
		}
	}
	c.saving = nil
	fourth := join(4)
	if st := fourth.core.Status(); !slices.Equal(st.Learners, []uint64{4}) {
		t.Fatalf("a fourth: %+v", st)
	}
	c.isolate(first, true)
	c.tick(30)
	l := c.elect()
	id := c.id()
	if err := l.core.Remove(id, 1); err != nil {
		t.Fatal(err)
	}
	c.settle()
	c.committed(l, id)
	c.tick(20)
	if st := l.core.Status(); !slices.Equal(st.Voters, []uint64{2, 3, 4}) || len(st.Learners) > 0 {
		t.Fatalf("after the removal: %+v", st)
	}
	c.committed(l, c.propose(l, "after"))
	c.tick(3)
	c.same(second, third, fourth)
}

// TestRemovedReturns proves that a voter that was removed while it was cut off, and
// stands for election for ever, costs the others no term when it is back, and that
// it applies nothing more.
func TestRemovedReturns(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	gone := c.nodes[l.id%3+1]
	c.isolate(gone, true)
	id := c.id()
	if err := l.core.Remove(id, gone.id); err != nil {
		t.Fatal(err)
	}
	c.settle()
	c.committed(l, id)
	c.tick(60)
	term, applied := l.out.Term, gone.machine.Applied
	c.isolate(gone, false)
	for range 10 {
		_ = gone.core.Campaign()
		c.tick(10)
	}
	if c.leader() != l || l.out.Term != term || gone.machine.Applied != applied {
		t.Errorf("leader %v in term %d, before %d; it has applied %d, before %d", c.leader().id, c.leader().out.Term, term, gone.machine.Applied, applied)
	}
	c.committed(l, c.propose(l, "x"))
	c.restart(gone, gone.store.Kill())
	c.tick(60)
	if c.leader() != l || l.out.Term != term {
		t.Error("its restart has cost a term")
	}
}

// TestTransfer proves that leadership goes to the voter that is named, or to one
// that is up, at once; that a learner and a stranger get none; and that proposals
// meanwhile are dropped, not forgotten.
func TestTransfer(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	c.tick(5)
	if err := l.core.Transfer(9); !errors.Is(err, quorum.ErrRefused) {
		t.Errorf("to a stranger: %v", err)
	}
	next := c.nodes[l.id%3+1]
	if err := next.core.Transfer(0); !errors.Is(err, quorum.ErrNotLeader) {
		t.Errorf("by a follower: %v", err)
	}
	if err := l.core.Transfer(next.id); err != nil {
		t.Fatal(err)
	}
	if err := l.core.Propose(c.id(), nil); !errors.Is(err, quorum.ErrDropped) {
		t.Errorf("a proposal meanwhile: %v", err)
	}
	c.settle()
	if c.leader() != next {
		t.Fatal("it does not lead")
	}
	other := c.nodes[next.id%3+1]
	c.isolate(other, true)
	c.tick(25)
	if err := next.core.Transfer(0); err != nil {
		t.Fatal(err)
	}
	c.settle()
	if got := c.leader(); got == nil || got == next || got == other {
		t.Error("it did not go to the one that is up")
	}
}

// TestForget proves that the followers of a leader whose connections are gone elect
// another without waiting for an election timeout, and that one alone that has lost
// it disturbs nobody.
func TestForget(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	l := c.elect()
	a, b := c.nodes[l.id%3+1], c.nodes[(l.id+1)%3+1]
	c.tick(3)
	_ = a.core.Forget(b.id)
	if st := a.core.Status(); st.Leader != l.id {
		t.Error("the loss of a follower has made another forget the leader")
	}
	_ = a.core.Forget(l.id)
	_ = a.core.Campaign()
	c.settle()
	if c.leader() != l {
		t.Error("one node alone has unseated the leader")
	}
	c.tick(3)
	c.isolate(l, true)
	_ = a.core.Forget(l.id)
	_ = b.core.Forget(l.id)
	_ = a.core.Campaign()
	c.settle()
	if got := c.leader(); got == nil || got != a {
		t.Error("it was not elected at once")
	}
}

// TestOldStore proves that a store of before there was a quorum, which has state up
// to an index and no log, goes on as a snapshot at that index, and that a node that
// joins later gets that state too; and that it is no node that can join.
func TestOldStore(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	c := newCluster(t, quorum.Options{})
	n := c.add(7, nil)
	old := &quorumtest.Machine{}
	w := quorum.Write{Sync: true}
	for i := range uint64(9) {
		if err := old.Apply((*recorder)(&w), []quorum.Entry{{Index: i + 1, Term: 0, ID: c.id(), Data: []byte("old")}}); err != nil {
			t.Fatal(err)
		}
	}
	(*recorder)(&w).Set([]byte("A"), []byte{0, 0, 0, 0, 0, 0, 0, 9})
	n.store = quorumtest.NewStore()
	if err := n.store.Save(w); err != nil {
		t.Fatal(err)
	}
	if _, err := quorum.Open(quorum.Options{ID: 7}, n.store, old); !errors.Is(err, quorum.ErrDamaged) {
		t.Errorf("it opens without a list of members: %v", err)
	}
	c.open(n, []uint64{7})
	_ = n.core.Campaign()
	c.work(n)
	c.committed(n, c.propose(n, "new"))
	if st := n.core.Status(); st.Applied != 11 || st.First != 10 || st.Term != 2 {
		t.Errorf("%+v", st)
	}
	c.restart(n, n.store.Kill())
	_ = n.core.Campaign()
	c.work(n)
	joined := c.add(8, nil)
	c.commit("newer")
	c.until(func(l *node, id quorum.ProposalID) error { return l.core.AddLearner(id, 8) })
	c.tick(20)
	c.same(n, joined)
	if len(joined.machine.Entries) != 11 {
		t.Errorf("%d entries", len(joined.machine.Entries))
	}
}

// recorder makes a Write by hand.
type recorder quorum.Write

func (r *recorder) Set(key, value []byte) {
	r.Changes = append(r.Changes, quorum.Change{Key: key, Value: value})
}
func (r *recorder) Delete(key []byte) { r.Changes = append(r.Changes, quorum.Change{Key: key}) }
func (r *recorder) DeleteRange(from, to []byte) {
	r.Changes = append(r.Changes, quorum.Change{Key: from, To: to})
}

// storm is one run of random faults and changes of members.
type storm struct {
	*cluster
	rng    *rand.Rand
	next   uint64   // id of the next node
	acked  []string // texts that were told to be committed
	number int      // of texts
	// changes is how many changes of members were told to be committed.
	changes uint64
}

// TestMembersInStorm proves, by seeds, that whatever is cut, lost, late, repeated,
// slow, crashes and loses power while members are added, promoted, removed and
// replaced, there is at most one leader in a term, no promise is broken, no two
// majorities are disjoint: everything that was told to be committed is applied by
// everybody, once and in the same order.
func TestMembersInStorm(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	acked, chunks, terms, changes := 0, 0, uint64(0), uint64(0)
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newCluster(t, quorum.Options{KeepEntries: 8, QuorumSize: 3, ReplaceTicks: 12}, 1, 2, 3)
			cryptotest.SetGlobalRandom(t, seed)
			watch(c)
			c.chunk = func(m quorum.Message) []quorum.Message { chunks++; return []quorum.Message{m} }
			s := &storm{cluster: c, rng: rand.New(rand.NewPCG(seed, 7)), next: 10}
			for range 400 {
				s.step()
			}
			s.calm()
			acked, changes, terms = acked+len(s.acked), changes+s.changes, terms+s.leader().out.Term
		})
	}
	t.Logf("%d seeds: %d proposals committed, %d changes of members, %d terms, %d chunks of snapshots", seeds, acked, changes, terms, chunks)
	if !t.Failed() && (uint64(acked) < 10*seeds || changes < 2*seeds || terms < 5*seeds || uint64(chunks) < seeds) {
		t.Error("that is not much of a storm")
	}
}

func (s *storm) pick() *node {
	ids := s.ids()
	return s.nodes[ids[s.rng.IntN(len(ids))]]
}

func (s *storm) step() {
	switch s.rng.IntN(15) {
	case 0:
		n := s.pick()
		s.isolate(n, true)
	case 1:
		clear(s.cut)
	case 2:
		a, b := s.pick(), s.pick()
		s.cut[[2]uint64{a.id, b.id}] = true
	case 3:
		s.pick().lost = true
		s.lose = s.rng.IntN(2) == 0
		s.revive()
	case 4, 5:
		s.changeMembers()
	case 6:
		if l := s.leader(); l != nil {
			_ = l.core.Transfer(0)
			s.settle()
		}
	case 7:
		n, m := s.pick(), s.pick()
		_ = n.core.Forget(m.id)
		_ = n.core.Campaign()
		s.settle()
	case 8:
		n := s.pick()
		n.took = s.rng.IntN(2) * 11
	case 9:
		if s.lossy = nil; s.rng.IntN(2) == 0 {
			s.lossy = s.rng
		}
	default:
		s.tick(1 + s.rng.IntN(5))
		s.proposeAnywhere()
	}
}

// proposeAnywhere proposes a new text at a leader, or at some node that takes it.
func (s *storm) proposeAnywhere() {
	n := s.leader()
	if n == nil || s.rng.IntN(4) == 0 {
		n = s.pick()
	}
	text := fmt.Sprint(s.number)
	s.number++
	id := s.id()
	if n.core.Propose(id, []byte(text)) != nil {
		return
	}
	s.settle()
	if n.ended[id].Outcome == quorum.Committed {
		s.acked = append(s.acked, text)
	}
}

func (s *storm) changeMembers() {
	l := s.leader()
	if l == nil {
		return
	}
	st := l.core.Status()
	id := s.id()
	switch s.rng.IntN(3) {
	case 0:
		if len(s.nodes) < 7 && l.core.AddLearner(id, s.next) == nil {
			s.add(s.next, nil)
			s.next++
		}
	case 1:
		if len(st.Voters) > 2 {
			_ = l.core.Remove(id, st.Voters[s.rng.IntN(len(st.Voters))])
		}
	case 2:
		if len(st.Learners) > 0 {
			_ = l.core.Promote(id, st.Learners[s.rng.IntN(len(st.Learners))])
		}
	}
	s.settle()
	if l.ended[id].Outcome == quorum.Committed {
		s.changes++
	}
}

// calm ends the faults and looks at what is left.
func (s *storm) calm() {
	s.t.Helper()
	clear(s.cut)
	s.lossy = nil
	for _, n := range s.nodes {
		n.took = 0
	}
	s.tick(100)
	s.elect()
	s.commit("end")
	s.tick(40)
	l := s.leader()
	st := l.core.Status()
	got := texts(l.machine)
	seen := map[string]int{}
	for _, text := range got {
		seen[text]++
	}
	for _, text := range s.acked {
		if seen[text] != 1 {
			s.t.Errorf("%q was committed and is applied %d times", text, seen[text])
		}
	}
	for _, id := range s.ids() {
		n := s.nodes[id]
		if err := n.core.Err(); err != nil {
			s.t.Errorf("node %d: %v", id, err)
		}
		if slices.Contains(st.Voters, id) || slices.Contains(st.Learners, id) {
			s.same(l, n)
			continue
		}
		// Removed: it has a part of the same history.
		if mine := texts(n.machine); len(mine) > len(got) || !slices.Equal(mine, got[:len(mine)]) {
			s.t.Errorf("node %d, which was removed, has another history", id)
		}
	}
}
