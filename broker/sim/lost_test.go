package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage"
)

// lossKind is a way in which a node loses its disk for good.
type lossKind uint8

const (
	lossPlanned   lossKind = iota // its member leaves the quorum first, then the disk is replaced
	lossDisk                      // the disk is dead at once, another one takes its place
	lossMachine                   // the machine never comes back
	lossSuccessor                 // as that, and another one takes its place when nothing is left of it
	lossKinds
)

var lossNames = [lossKinds]string{"disks replaced", "disks lost", "machines lost", "machines lost and replaced"}

func (k lossKind) String() string { return lossNames[k] }

// mishap is a node that loses its disk, and what an operator does about it: the
// member of the quorum that was on the disk is removed, for it never comes back.
// With an empty disk the node has another directory, and so is another member.
type mishap struct {
	w      *world
	n      *node
	kind   lossKind
	member uint64 // that never comes back
	wiped  bool
	// succeeded: there is another machine in its place.
	succeeded bool
	// first: the broker is unregistered before its partitions have moved.
	first bool
}

// lose has a node lose its disk now and then. The next one only does when nothing
// is left to do about the one before: no quorum bears two at a time.
func (w *world) lose() {
	if w.phase != phaseFaults || len(w.losses) == w.cfg.losses {
		return
	}
	w.at(w.between(w.cfg.lossEvery/2, w.cfg.lossEvery*3/2), nil, w.lose)
	n := pick(w.rng, w.nodes...)
	if slices.ContainsFunc(w.losses, func(l *mishap) bool { return l.left() != "" }) || w.shrinking() || !w.mayLose(n) {
		return
	}
	l := &mishap{w: w, n: n, kind: lossKind(w.rng.IntN(int(lossKinds))), member: n.member(), first: w.rng.IntN(2) == 0}
	if left := w.here() - 1; l.kind >= lossMachine && left < max(2, w.cfg.minISR) {
		l.kind = lossDisk // with fewer nobody could write until somebody lowers min.insync.replicas
	}
	w.losses = append(w.losses, l)
	w.counts.losses[l.kind]++
	if n == w.decider() {
		w.counts.lostDecider++
		if slices.ContainsFunc(w.partitions, func(id partID) bool { p, _ := w.checks.partition(id); return p.Leader == n.id }) {
			w.counts.lostBoth++
		}
	}
	if l.kind != lossPlanned {
		l.wipe()
	}
	w.at(w.between(0, 3*time.Second), nil, l.work)
}

// members is the quorum as the node told that has applied most so far: who begins
// with an empty disk, and is alone, knows of no members.
func (w *world) members() (st quorum.Status, known bool) {
	return w.quorum, len(w.quorum.Voters) > 0
}

// noteMembers notes who the members are as the node begins, or as a save lets out.
func (n *node) noteMembers(st quorum.Status) {
	n.voters = st.Voters
	if st.Applied >= n.w.quorum.Applied {
		n.w.quorum = st
	}
}

func isMember(st *quorum.Status, id uint64) bool {
	return slices.Contains(st.Voters, id) || slices.Contains(st.Learners, id)
}

// mayLose reports whether the quorum bears the loss of a node: a majority of the
// voters must be left that have applied that they are the voters. What is known of
// the members may be old by the promotion of learners, which makes it bear more.
func (w *world) mayLose(n *node) bool {
	st, known := w.members()
	if !known || st.Joint || slices.ContainsFunc(st.Voters, func(id uint64) bool { return w.memberNode(id) == nil }) {
		return false
	}
	if slices.Contains(st.Learners, n.member()) {
		return true
	}
	know := 0
	for _, o := range w.nodes {
		if o != n && slices.Contains(st.Voters, o.member()) && slices.Equal(o.voters, st.Voters) {
			know++
		}
	}
	return slices.Contains(st.Voters, n.member()) && 2*know > len(st.Voters)
}

// wipe takes the disk of the node and gives it another one, with which it starts.
func (l *mishap) wipe() {
	l.wiped = true
	l.n.crash(true, false)
	l.n.newDisk()
	if l.n.gone = l.kind >= lossMachine; !l.n.gone {
		l.w.startAfter(l.n, l.w.between(100*time.Millisecond, 4*time.Second))
	}
}

// newDisk replaces the disk of a node that is down by an empty one.
func (n *node) newDisk() {
	w := n.w
	for _, id := range n.logIDs() {
		w.checks.wiped(n.id, id, diskReplaced)
	}
	w.checks.replaced(n.id)
	n.disks++
	n.memberID, n.voters = 0, nil
	n.store, n.logs = newMetaStore(n), map[partID]*diskLog{}
	n.crashed, n.powerless = false, false
	n.disk.run = runFile{clean: true, epoch: -1, boot: n.disk.boots}
	n.disk.stalled, n.disk.crawl, n.disk.full = 0, 0, 0
	if w.tracing() {
		w.trace("node %d: an empty disk, member %x of the quorum", n.id, n.member())
	}
}

// work does what there is to do about a loss, again and again: what others do late
// may undo it.
func (l *mishap) work() {
	w := l.w
	w.at(w.between(200*time.Millisecond, 600*time.Millisecond), nil, l.work)
	if st, known := w.members(); known {
		switch {
		case isMember(&st, l.member):
			w.remove(l.member)
		case !l.wiped:
			l.wipe()
		}
	}
	if l.kind == lossSuccessor && l.gone() && l.left() == "" {
		l.succeed()
	}
	w.describe(adminAt, func(s *controller.State) {
		if s == nil {
			return
		}
		l.relieve(s)
		if l.gone() {
			l.retire(s)
		}
	})
}

// relieve gives up the records that were on the disk alone: who is there leads with
// what it has.
func (l *mishap) relieve(s *controller.State) {
	for _, t := range s.Topics() {
		for i := range t.Partitions.Len() {
			p, id := t.Partitions.At(i), partID{Topic: t.ID, Partition: int32(i)}
			if p.Leader < 0 && len(l.w.present(slices.Concat(p.ISR, p.ELR))) == 0 && len(l.w.present(p.Replicas)) > 0 {
				l.w.giveUp(id)
			}
		}
	}
}

// giveUp asks for an unclean election.
func (w *world) giveUp(id partID) {
	w.admin(adminAt, &controller.Elect{IDs: []storage.ID{id}, Kind: controller.Unclean}, func(reply controller.Reply, err error) {
		if err == nil && errors.Join(reply.Errs...) == nil {
			w.counts.givenUp++
		}
	})
}

// gone says that nobody is there any more, nor another one in its place.
func (l *mishap) gone() bool { return l.n.gone && !l.succeeded }

// left is what is still to be done about a loss, "" for nothing.
func (l *mishap) left() string {
	st, known := l.w.members()
	switch {
	case !known || isMember(&st, l.member):
		return fmt.Sprintf("member %x is to be removed", l.member)
	case !l.wiped:
		return "the disk is to be replaced"
	case l.gone():
		return l.named()
	default:
		return ""
	}
}

// unsettled is what must be done yet for the quorum and the losses to be as they
// should, "" for nothing.
func (w *world) unsettled() string {
	for _, l := range w.losses {
		if what := l.left(); what != "" {
			return fmt.Sprintf("node %d: %s", l.n.id, what)
		}
	}
	for _, s := range w.shrunk {
		if what := s.left(); what != "" {
			return what
		}
	}
	st, known := w.members()
	stranger := func(id uint64) bool { return w.memberNode(id) == nil }
	if !known || st.Joint || slices.ContainsFunc(slices.Concat(st.Voters, st.Learners), stranger) {
		return fmt.Sprintf("the members are not those that there are: voters %x, learners %x", st.Voters, st.Learners)
	}
	if w.here() >= 3 && len(st.Voters) != 3 {
		return fmt.Sprintf("there are %d voters", len(st.Voters))
	}
	return ""
}

// countVoters counts the nodes that vote again, as another member.
func (w *world) countVoters() {
	st, _ := w.members()
	for _, n := range w.nodes {
		if n.disks > 0 && slices.Contains(st.Voters, n.member()) {
			w.counts.newVoters++
		}
	}
}

// removeMember is an operator's wish that a member be one no more.
func (n *node) removeMember(id uint64) {
	if n.p == nil {
		return
	}
	m := n.p.meta
	if st := m.core.Status(); !st.Active || !isMember(&st, id) {
		return
	}
	switch err := m.core.Remove(n.w.newProposalID(), id); {
	case err == nil:
		n.w.counts.removed++
	case errors.Is(err, quorum.ErrDropped) || errors.Is(err, quorum.ErrNotLeader) || errors.Is(err, quorum.ErrRefused):
		// Another change is under way, or none is possible: the operator asks again.
	default:
		m.fatal(err)
	}
	m.pump()
}
