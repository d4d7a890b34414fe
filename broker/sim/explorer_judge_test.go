package sim

import "slices"

// judge asks the invariants of a world.
func (x *exploration) judge(w *xworld) {
	for i, n := range w.nodes {
		x.judgeNode(w, n)
		if candidate := slices.Contains(w.meta.part.ISR, n.id) || slices.Contains(w.meta.part.ELR, n.id); candidate && !n.lossy && !n.log.has(w.committed) {
			x.fail(w, "I7: node %d, which may lead, has %v, committed is %v", n.id, n.log, w.committed)
		}
		for _, o := range w.nodes[i+1:] {
			x.judgePair(w, n.log, o.log)
		}
	}
}

func (x *exploration) judgeNode(w *xworld, n *xnode) {
	if n.r == nil {
		return
	}
	switch {
	case n.hw > n.log.end():
		x.fail(w, "I6: node %d has the high watermark %d and a log to %d", n.id, n.hw, n.log.end())
	case !w.committed.has(n.log.to(n.hw)):
		x.fail(w, "I7: node %d believes that %v is committed, committed is %v", n.id, n.log.to(n.hw), w.committed)
	case n.failed != nil:
		x.fail(w, "node %d has failed: %v", n.id, n.failed)
	}
}

// judgeLeaders takes what leaders have committed into a world.
func (x *exploration) judgeLeaders(w *xworld) {
	for _, n := range w.nodes {
		if n.leads && n.hw <= n.log.end() {
			x.judgeLeader(w, n)
		}
	}
}

func (x *exploration) judgeLeader(w *xworld, n *xnode) {
	if mine := n.log.to(n.hw); mine.n > w.committed.n && mine.has(w.committed) {
		if len(n.part.ISR) < 2 {
			x.fail(w, "I12: node %d commits with %v in sync", n.id, n.part.ISR)
		}
		w.committed = mine
	}
	for _, id := range n.maximal {
		if m := w.nodes[id-1]; m.log.end() < n.hw && !m.lossy {
			x.fail(w, "I8: node %d, in sync, ends at %d, the high watermark of node %d is %d", id, m.log.end(), n.id, n.hw)
		}
	}
}

// judgePair is the log matching property.
func (x *exploration) judgePair(w *xworld, a, b *xlog) {
	differ := a.differ(*b)
	for i := differ; i < min(a.end(), b.end()); i++ {
		switch {
		case a.at(i).epoch != b.at(i).epoch:
		case a.at(i) != b.at(i):
			x.fail(w, "I3: offset %d of epoch %d has two values: %v %v", i, a.at(i).epoch, a, b)
		default:
			x.fail(w, "I4: equal at %d and not before: %v %v", i, a, b)
		}
	}
}

// learn has a node apply the newest metadata.
func (x *exploration) learn(w *xworld, i int) {
	n := w.nodes[i]
	out := x.learned(n, w.meta, w.now)
	w.nodes[i] = out.node
	x.judgeElected(w, n, &out)
}

// judgeElected asks the invariants of a node that has learned of metadata.
func (x *exploration) judgeElected(w *xworld, n *xnode, out *xchange) {
	if out.fault != "" {
		x.fail(w, "%s", out.fault)
	}
	if out.elected && !n.log.has(w.committed) {
		x.fail(w, "I7: node %d leads epoch %d with %v, committed is %v", n.id, w.meta.part.LeaderEpoch, n.log, w.committed)
	}
}

// decide has the controller decide.
func (x *exploration) decide(w *xworld, ev xevent) *xdecision {
	was := w.meta
	out := x.decided(was, ev)
	w.meta = out.meta
	if out.fault != "" {
		x.fail(w, "%s", out.fault)
	}
	for i, n := range w.nodes {
		if n.lossy && n.r != nil && slices.Contains(w.meta.part.ISR, n.id) && !slices.Contains(was.part.ISR, n.id) && w.meta.part.Leader != n.id {
			w.nodes[i] = x.regained(n) // in another life than lost it, so it must have got it back
		}
	}
	return out
}
