package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/replication/controller"
	"leat/replication/quorum"
)

// shrink is a cluster that becomes one of a single broker and grows again: an
// operator has one node after the other leave, and has them come back later.
type shrink struct {
	w    *world
	keep *node
	// leaving are those that leave or have left, in the order in which they do; the
	// first that has not is on its way.
	leaving []*leaver
	// alone says that nobody is left but keep, back that the others return.
	alone, back bool
	// stable is the term in which keep led alone, and the life in which it did.
	stable struct {
		term   uint64
		starts int
	}
}

// leaver is a node on its way out and back.
type leaver struct {
	n      *node
	member uint64 // that it is before it leaves
	// hasty: it is stopped and no member any more before its partitions have moved.
	hasty bool
	// begun says that there is no way back, left that no trace of the node is left,
	// visits that it came back with its old disk, and returned that it is here again, as
	// another member.
	begun, left, visits, returned bool
	knew                          uint64 // the index that it had applied when it came to visit
}

// shrinks has the cluster shrink now and then.
func (w *world) shrinks() {
	if w.phase != phaseFaults || w.cfg.shrinks == 0 {
		return
	}
	w.at(w.between(w.cfg.shrinkEvery/2, w.cfg.shrinkEvery*3/2), nil, w.shrinks)
	st, known := w.members()
	losing := slices.ContainsFunc(w.losses, func(l *mishap) bool { return l.left() != "" })
	stranger := func(n *node) bool { return !isMember(&st, n.member()) }
	if w.shrinking() || losing || !known || st.Joint || w.here() < len(w.nodes) || slices.ContainsFunc(w.nodes, stranger) {
		return
	}
	voters := slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return !slices.Contains(st.Voters, n.member()) })
	if len(voters) < len(st.Voters) {
		return
	}
	w.cfg.shrinks--
	s := &shrink{w: w, keep: pick(w.rng, voters...)}
	for _, i := range w.rng.Perm(len(w.nodes)) {
		if n := w.nodes[i]; n != s.keep {
			s.leaving = append(s.leaving, &leaver{n: n, member: n.member(), hasty: w.rng.IntN(4) == 0})
		}
	}
	w.shrunk = append(w.shrunk, s)
	w.counts.shrinks++
	s.work()
}

// shrinking reports whether a cluster is on its way to one broker or back.
func (w *world) shrinking() bool {
	return slices.ContainsFunc(w.shrunk, func(s *shrink) bool { return s.left() != "" })
}

// left is what is still to be done, "" for nothing.
func (s *shrink) left() string {
	for _, l := range s.leaving {
		switch {
		case !l.returned && (l.begun || s.w.phase == phaseFaults):
			return fmt.Sprintf("node %d is to come back", l.n.id)
		case s.stranger(l):
			return fmt.Sprintf("member %x is to be removed", l.member)
		}
	}
	if id, is := s.small(s.w.checks.newest); is {
		return short(id) + " is to have more replicas"
	}
	return ""
}

// stranger reports whether a member is one again that a late message has brought
// back.
func (s *shrink) stranger(l *leaver) bool {
	st, known := s.w.members()
	return l.returned && l.n.member() != l.member && known && isMember(&st, l.member)
}

// small is a partition that has fewer replicas than an operator leaves it with.
func (s *shrink) small(state *controller.State) (id partID, is bool) {
	for _, t := range state.Topics() {
		for i := range t.Partitions.Len() {
			id := partID{Topic: t.ID, Partition: int32(i)}
			if t.Partitions.At(i).Factor() < s.w.leastReplicas(id) && len(t.Partitions.At(i).Adding) == 0 {
				return id, true
			}
		}
	}
	return partID{}, false
}

// work does what is next, again and again.
func (s *shrink) work() {
	w := s.w
	w.at(w.between(100*time.Millisecond, 400*time.Millisecond), nil, s.work)
	for _, l := range s.leaving {
		if s.stranger(l) {
			w.remove(l.member)
		}
	}
	s.undisturbed()
	if s.left() == "" {
		return
	}
	if w.phase != phaseFaults && !s.back {
		s.grow() // nobody leaves any more who has not begun to
	}
	for _, l := range s.leaving {
		if !l.returned && !l.left && (l.begun || !s.back) && !s.gone(l, w.checks.newest) {
			return
		}
		l.left = true
	}
	switch {
	case !s.back && !s.alone:
		s.stand()
	case s.back:
		s.enlarge(w.checks.newest)
	}
}

// gone has a node leave, and reports whether nothing is left of it.
func (s *shrink) gone(l *leaver, state *controller.State) bool {
	w := s.w
	st, known := w.members()
	named := s.evacuate(l, state)
	member := !known || isMember(&st, l.member)
	counted := func(n *node) bool { return !n.gone && slices.Contains(n.voters, l.member) && n != l.n }
	b, registered := state.Broker(l.n.id)
	switch {
	case named && !l.hasty && !l.begun:
		return false
	case member:
		l.begun = true
		w.remove(l.member)
		return false
	case slices.ContainsFunc(w.nodes, counted):
		return false // who does not know yet that it is no member may need its vote
	case !l.n.gone:
		l.begun = true
		s.stop(l)
		return false
	case registered:
		w.admin(adminAt, &controller.Unregister{ID: l.n.id, Epoch: b.Epoch}, func(reply controller.Reply, err error) {
			if err == nil && errors.Join(reply.Errs...) == nil {
				w.counts.unregistered++
			}
		})
		return false
	}
	return !named
}

// stop has the process end, and not start again.
func (s *shrink) stop(l *leaver) {
	n := l.n
	over := func() { n.gone = true }
	if n.p == nil || s.w.rng.IntN(2) == 0 {
		n.crash(false, false)
		over()
		return
	}
	n.stop(over)
}

// remove asks for a member to be removed.
func (w *world) remove(member uint64) {
	to := w.anyNode()
	w.net.send(adminAt, to.addr(), func() { to.removeMember(member) }, nil)
}

// evacuate moves partitions off a node, and reports whether there are any.
func (s *shrink) evacuate(l *leaver, state *controller.State) (named bool) {
	w := s.w
	stays := func(id int32) bool {
		return !slices.ContainsFunc(s.leaving, func(l *leaver) bool { return l.n.id == id && !l.returned })
	}
	for _, t := range state.Topics() {
		for i := range t.Partitions.Len() {
			p, id := t.Partitions.At(i), partID{Topic: t.ID, Partition: int32(i)}
			if !slices.Contains(p.Replicas, l.n.id) {
				continue
			}
			named = true
			holders := slices.Concat(p.ISR, p.ELR)
			if p.Leader < 0 && len(w.present(holders)) == 0 && len(w.present(p.Replicas)) > 0 {
				w.giveUp(id) // who was hasty has taken it along
				continue
			}
			if slices.Contains(p.Removing, l.n.id) {
				continue
			}
			target := slices.DeleteFunc(slices.Clone(p.Replicas), func(r int32) bool { return !stays(r) })
			if len(target) == 0 {
				target = []int32{s.keep.id}
			}
			s.reassign(id, target)
		}
	}
	return named
}

func (s *shrink) reassign(id partID, target []int32) {
	w := s.w
	w.admin(adminAt, &controller.Reassign{Partitions: []controller.Reassignment{{ID: id, Replicas: target}}}, func(reply controller.Reply, err error) {
		if w.tracing() {
			w.trace("shrink: %s to %v: %v %v", short(id), target, reply.Errs, err)
		}
	})
}

// stand is the cluster as one broker, for a while.
func (s *shrink) stand() {
	w := s.w
	s.alone = true
	w.counts.shrunk++
	w.trace("node %d is alone", s.keep.id)
	w.at(w.between(200*time.Millisecond, 3*time.Second), nil, s.grow)
}

// grow has the others come back: at once with an empty disk, or first with the old
// one.
func (s *shrink) grow() {
	if s.back {
		return
	}
	s.back = true
	for _, l := range s.leaving {
		if l.begun {
			s.w.at(s.w.between(0, 2*time.Second), nil, func() { s.comeBack(l) })
		} else {
			l.returned = true
		}
	}
}

func (s *shrink) comeBack(l *leaver) {
	w, n := s.w, l.n
	st, known := w.members()
	again := known && isMember(&st, l.member)
	switch {
	case !l.left || !known || again:
		if l.left && again {
			w.remove(l.member) // which a late message has brought back
		}
		w.at(w.between(100*time.Millisecond, 300*time.Millisecond), nil, func() { s.comeBack(l) })
	case w.phase == phaseFaults && !l.visits && len(n.voters) > 0 && w.rng.IntN(2) == 0:
		l.visits = true
		w.counts.visits++
		n.gone = false
		n.start()
		l.knew = n.p.meta.applied
		w.at(w.between(300*time.Millisecond, 3*time.Second), nil, func() { s.leaveAgain(l) })
	default:
		l.returned = true
		n.crash(true, false)
		n.newDisk()
		n.gone = false
		w.counts.returned++
		w.startAfter(n, w.between(0, time.Second))
	}
}

// leaveAgain is the end of a visit with the old disk.
func (s *shrink) leaveAgain(l *leaver) {
	if p := l.n.p; p != nil && p.meta.applied == l.knew {
		// It may register, by a word of the leader's that came late; more it does not hear,
		// unless a late message has made it a member again for a while.
		if b, ok := s.w.checks.newest.Broker(l.n.id); ok && !b.Fenced || p.meta.core.Status().Active {
			s.w.failed("members", fmt.Sprintf("node %d is no member, and it decides or its broker is in service: %+v", l.n.id, b))
		}
		s.w.counts.refusedMembers++
	}
	l.n.crash(false, false)
	l.n.gone = true
	s.comeBack(l)
}

// undisturbed asks that who leads alone goes on to, whoever comes back that was a
// member.
func (s *shrink) undisturbed() {
	if s.keep.p == nil {
		s.stable.term = 0
		return
	}
	m := s.keep.p.meta
	switch st := m.core.Status(); {
	case !m.core.Alone():
		s.stable.term = 0
	case s.stable.term == 0 || s.stable.starts != s.keep.starts:
		if st.Active {
			s.stable.term, s.stable.starts = st.Term, s.keep.starts
		}
	case st.Term != s.stable.term || st.Role != quorum.Leader:
		s.w.failed("members", fmt.Sprintf("node %d is the only member and led in term %d: %+v", s.keep.id, s.stable.term, st))
	default:
		s.w.counts.undisturbed++
	}
}

// enlarge gives partitions replicas on those who are back.
func (s *shrink) enlarge(state *controller.State) {
	w := s.w
	for _, t := range state.Topics() {
		for i := range t.Partitions.Len() {
			p, id := t.Partitions.At(i), partID{Topic: t.ID, Partition: int32(i)}
			want := w.leastReplicas(id)
			if w.chance(0.2) {
				want = max(want, min(w.cfg.rf, w.here()))
			}
			if p.Factor() >= want || len(p.Adding)+len(p.Removing) > 0 {
				continue
			}
			target := slices.Clone(p.Replicas)
			for _, r := range w.someNodes(len(w.nodes)) {
				if _, registered := state.Broker(r); registered && len(target) < want && !w.gone(r) && !slices.Contains(target, r) {
					target = append(target, r)
				}
			}
			s.reassign(id, target)
		}
	}
}
