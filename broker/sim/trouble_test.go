package sim

import (
	"slices"
	"time"

	"leat/replication/controller"
)

// trouble is a fault of several steps, aimed at who has an office.
func (w *world) trouble(f faultKind, n *node, away time.Duration) {
	switch f {
	case faultKillAll:
		for _, n := range w.nodes {
			w.crash(n, false, w.between(0, away))
		}
	case faultRoll:
		w.roll(0, w.rng.IntN(2) == 0)
	case faultSplit:
		w.split(away)
	case faultAside:
		w.aside(w.anyPartition(), away)
	case faultDouble:
		w.double(w.anyPartition(), away)
	case faultRapid:
		w.rapid(w.anyPartition(), w.now+time.Second)
	case faultMoveKill:
		w.moveKill(w.anyPartition(), away)
	case faultCrawl:
		n.disk.crawl = max(n.disk.crawl, w.now+away)
	case faultFull:
		n.disk.full = max(n.disk.full, w.now+away)
	default:
		panic("no trouble: " + f.String())
	}
}

// roll starts the nodes anew one after the other, each when the one before is back.
func (w *world) roll(i int, clean bool) {
	if w.phase != phaseFaults || i == len(w.nodes) {
		return
	}
	n := w.nodes[i]
	next := func() { w.at(w.between(50*time.Millisecond, time.Second), nil, func() { w.roll(i+1, clean) }) }
	if n.p == nil {
		next()
		return
	}
	back := func() {
		w.counts.rolled++
		w.startAfter(n, w.between(0, 200*time.Millisecond))
		next()
	}
	if clean {
		n.stop(back)
	} else {
		n.crash(false, false)
		back()
	}
}

// split has the nodes see each other in part only: two sides, two sides with a node
// that sees both, or a ring of neighbours.
func (w *world) split(away time.Duration) {
	k := len(w.nodes)
	at := make([]int, k)
	for i, j := range w.rng.Perm(k) {
		at[i] = j
	}
	side := 1 + w.rng.IntN(max(1, k-1))
	see := func(i, j int) bool { return (at[i] < side) == (at[j] < side) }
	switch kind := w.rng.IntN(3); {
	case kind == 1 && k >= 3:
		bridge := w.rng.IntN(k)
		sides := see
		see = func(i, j int) bool { return i == bridge || j == bridge || sides(i, j) }
	case kind == 2 && k >= 4:
		see = func(i, j int) bool { d := (at[i] - at[j] + k) % k; return d == 1 || d == k-1 }
	}
	for i, a := range w.nodes {
		for j, b := range w.nodes {
			if i != j && !see(i, j) {
				w.cut(a.addr(), b.addr(), away)
			}
		}
	}
}

// cut cuts one direction between two ends for a while.
func (w *world) cut(from, to addr, away time.Duration) {
	l := &w.net.links[from][to]
	l.cut = true
	w.at(away, nil, func() {
		if w.phase == phaseFaults {
			l.cut = false
		}
	})
}

// decider is the node that decides, nil if none is known to.
func (w *world) decider() *node {
	for _, n := range w.nodes {
		if n.p != nil && n.p.meta.desk.Deciding() {
			return n
		}
	}
	return nil
}

// aside has a leader see the controller and none of its followers, or its followers
// and not the controller.
func (w *world) aside(id partID, away time.Duration) {
	p, ok := w.checks.partition(id)
	c := w.decider()
	if !ok || p.Leader < 0 || c == nil || p.Leader == c.id {
		return
	}
	w.counts.asides++
	leader, followers := w.node(p.Leader).addr(), w.rng.IntN(2) == 0
	for _, n := range w.nodes {
		if a := n.addr(); a != leader && (n == c) != followers {
			w.cut(a, leader, away)
			w.cut(leader, a, away)
		}
	}
}

// double kills a leader, and within a second who leads after it.
func (w *world) double(id partID, away time.Duration) {
	p, ok := w.checks.partition(id)
	if !ok || p.Leader < 0 {
		return
	}
	first, until := p.Leader, w.now+time.Second
	power := w.chance(0.3)
	w.crash(w.node(first), power, away)
	var second func()
	second = func() {
		switch now, ok := w.checks.partition(id); {
		case !ok || w.now > until || w.phase != phaseFaults:
		case now.Leader >= 0 && now.Leader != first:
			if w.node(now.Leader).p != nil {
				w.counts.seconds++
			}
			w.crash(w.node(now.Leader), power, w.between(0, away))
		default:
			w.at(10*time.Millisecond, nil, second)
		}
	}
	second()
}

// rapid moves a leadership again and again, fifty times a second.
func (w *world) rapid(id partID, until time.Duration) {
	if w.now >= until || w.phase != phaseFaults {
		return
	}
	w.move(id)
	w.at(20*time.Millisecond, nil, func() { w.rapid(id, until) })
}

// moveKill moves a partition, and kills one that is added or removed on the way.
func (w *world) moveKill(id partID, away time.Duration) {
	w.operation(adminReassign, id)
	until := w.now + 500*time.Millisecond
	var kill func()
	kill = func() {
		p, ok := w.checks.partition(id)
		on := slices.Concat(p.Adding, p.Removing)
		switch {
		case !ok || w.now > until || w.phase != phaseFaults:
		case len(on) > 0:
			if n := w.node(pick(w.rng, on...)); n.p != nil {
				w.counts.killedMoving++
				w.crash(n, w.chance(0.3), away)
			}
		default:
			w.at(5*time.Millisecond, nil, kill)
		}
	}
	kill()
}

// veryLate is how long after it was sent a message counts as very late: a newer one
// must have arrived long since.
const veryLate = 5 * time.Second

// stale counts a request to the controller that comes very late.
func (w *world) stale(ev controller.Event, sent time.Duration) {
	if w.now-sent < veryLate {
		return
	}
	switch ev.(type) {
	case *controller.AlterPartitions:
		w.counts.staleAlters++
	case *controller.Register:
		w.counts.staleRegisters++
	}
}
