package sim

import "fmt"

// xstep is a step of a world to another.
type xstep struct {
	kind xstepKind
	node int32
	msg  *xmsg
	// keep is how many records stay after a crash.
	keep int64
}

type xstepKind uint8

const (
	stepStart xstepKind = iota
	stepLearn
	stepAppend
	stepFetch
	stepFetchLate
	stepAlter
	stepAlterLate
	stepFence
	stepUnfence
	stepCrash
	stepAnswered
	stepUnanswered
	stepLag
)

// describe says what a step does to a world.
func (s xstep) describe(w *xworld) string {
	switch s.kind {
	case stepStart:
		return fmt.Sprintf("start %d", s.node)
	case stepLearn:
		p := &w.meta.part
		return fmt.Sprintf("%d learns of leader %d, epoch %d, in sync %v, eligible %v", s.node, p.Leader, p.LeaderEpoch, p.ISR, p.ELR)
	case stepAppend:
		return fmt.Sprintf("append to %d", s.node)
	case stepFetch:
		return fmt.Sprintf("%d fetches", s.node)
	case stepFetchLate:
		return fmt.Sprintf("%d fetches, late", s.node)
	case stepAlter:
		return fmt.Sprintf("%d asks for another set in sync", s.node)
	case stepAlterLate:
		return fmt.Sprintf("%d asks for another set in sync, late", s.node)
	case stepFence:
		return fmt.Sprintf("fence %d", s.node)
	case stepUnfence:
		return fmt.Sprintf("unfence %d", s.node)
	case stepCrash:
		return fmt.Sprintf("crash %d, %d records stay", s.node, s.keep)
	case stepAnswered, stepUnanswered:
		return fmt.Sprintf("%v arrives, answered=%v", s.msg, s.kind == stepAnswered)
	default:
		return "a lag passes"
	}
}

// expand visits every world one step on.
func (x *exploration) expand(w *xworld) {
	for i := range w.nodes {
		x.expandNode(w, i)
	}
	for i, m := range w.net.msgs {
		if i > 0 && w.net.msgs[i-1] == m {
			continue // its twin has been there
		}
		waiting := !m.late && w.lives(m)
		if waiting {
			x.deliver(w, i, true)
		}
		x.deliver(w, i, false)
	}
	c := *w
	if spend(&c.used.ticks, x.limits.ticks) {
		x.step = xstep{kind: stepLag}
		x.pass(&c, longer)
		x.visit(&c)
	}
}

// lives says that the sender of a request is in the life in which it sent that.
func (w *xworld) lives(m *xmsg) bool {
	n := w.nodes[m.from-1]
	return n.r != nil && n.epoch == m.life
}

// expandNode visits what a node may do or suffer.
func (x *exploration) expandNode(w *xworld, i int) {
	n := w.nodes[i]
	fenced := w.meta.brokers[i].fenced
	if n.r == nil {
		c := *w
		x.step = xstep{kind: stepStart, node: n.id}
		if x.start(&c, i); x.within(&c) {
			x.visit(&c)
		}
		if !fenced {
			x.fence(w, n)
		}
		return
	}
	if !w.meta.known(n) {
		c := *w
		x.step = xstep{kind: stepLearn, node: n.id}
		x.learn(&c, i)
		x.visit(&c)
	}
	x.append(w, i)
	x.fetch(w, i)
	x.alter(w, i)
	if !fenced {
		x.fence(w, n)
	} else {
		c := *w
		x.step = xstep{kind: stepUnfence, node: n.id}
		x.decide(&c, xevent{kind: unfenceIt, id: n.id, epoch: n.epoch})
		x.visit(&c)
	}
	x.crash(w, i)
}

// within says that there were not too many elections.
func (x *exploration) within(w *xworld) bool {
	return x.limits.elections == unlimited || int(w.meta.part.LeaderEpoch) <= x.limits.elections
}

func (x *exploration) append(w *xworld, i int) {
	n, c := w.nodes[i], *w
	if !n.leads || !spend(&c.used.records, x.limits.records) {
		return
	}
	x.step = xstep{kind: stepAppend, node: n.id}
	c.nodes[i] = x.appended(n, x.value(&c, n), w.now).node
	x.visit(&c)
}

func (x *exploration) fence(w *xworld, n *xnode) {
	c := *w
	if n.r != nil && !spend(&c.used.fences, x.limits.fences) {
		return
	}
	x.step = xstep{kind: stepFence, node: n.id}
	x.decide(&c, xevent{kind: fenceIt, id: n.id, epoch: w.meta.brokers[n.id-1].epoch})
	if x.within(&c) {
		x.visit(&c)
	}
}

// crash stops a process, and lets the page cache be lost if it may.
func (x *exploration) crash(w *xworld, i int) {
	n := w.nodes[i]
	if x.limits.restarts == 0 {
		return
	}
	for keep := n.log.end(); keep >= 0; keep-- {
		c := *w
		if !spend(&c.used.restarts, x.limits.restarts) || keep < n.log.end() && !spend(&c.used.losses, x.limits.losses) {
			return
		}
		x.step = xstep{kind: stepCrash, node: n.id, keep: keep}
		c.nodes[i] = x.crashed(n, keep)
		msgs := make([]*xmsg, 0, len(w.net.msgs))
		for _, m := range w.net.msgs {
			if m.to != n.id {
				msgs = append(msgs, m)
			}
		}
		c.net = x.net(msgs)
		x.visit(&c)
	}
}

// start has a process begin: it registers, applies the metadata up to that, and
// is unfenced.
func (x *exploration) start(w *xworld, i int) {
	n := w.nodes[i]
	x.decide(w, xevent{kind: registerIt, id: n.id, epoch: n.epoch, lossy: n.lossy})
	x.decide(w, xevent{kind: unfenceIt, id: n.id, epoch: w.meta.brokers[i].epoch})
	w.nodes[i] = x.started(w.nodes[i], w.meta)
	x.learn(w, i)
}

// fetch has a follower ask its leader, which answers at once: an answer that comes
// later is one that did not come, and another. Or the answer does not come, and
// the request only later.
func (x *exploration) fetch(w *xworld, i int) {
	n := w.nodes[i]
	if n.leader < 0 || w.nodes[n.leader-1].r == nil {
		return
	}
	ask := x.asks(n, w.now)
	if ask == nil {
		return
	}
	c := *w
	if x.mayFly(w) && spend(&c.used.late, x.limits.late) {
		x.step = xstep{kind: stepFetchLate, node: n.id}
		c.nodes[i] = x.unanswered(n, w.now)
		c.net = x.sent(c.net, ask)
		x.visit(&c)
	}
	c = *w
	x.step = xstep{kind: stepFetch, node: n.id}
	x.serve(&c, i, int(n.leader-1), ask)
	x.visit(&c)
}

// serve has a leader answer a fetch.
func (x *exploration) serve(w *xworld, i, leader int, ask *xmsg) {
	out := x.served(w.nodes[leader], ask, w.now)
	w.nodes[leader] = out.node
	x.judgeLeaders(w) // before anybody can hear of it
	x.take(w, i, out.answer)
}

// take has a follower take an answer.
func (x *exploration) take(w *xworld, i int, a *xanswer) {
	out := x.fetched(w.nodes[i], a, w.now)
	w.nodes[i] = out.node
	if out.fault != "" {
		x.fail(w, "%s", out.fault)
	}
	if n := out.node; n.lossy && n.log.end() >= w.committed.end() {
		w.nodes[i] = x.regained(n)
	}
}

// mayFly says that one more request may be under way.
func (x *exploration) mayFly(w *xworld) bool {
	return x.limits.flying == 0 || len(w.net.msgs) < x.limits.flying
}

// alter has a leader ask the controller, if it wants to.
func (x *exploration) alter(w *xworld, i int) {
	n, c := w.nodes[i], *w
	if !n.leads || !spend(&c.used.alters, x.limits.alters) || !x.mayFly(w) {
		return
	}
	out := x.alters(n, x.patience(), w.now)
	if out.msg == nil {
		return
	}
	l := c
	x.step = xstep{kind: stepAlter, node: n.id}
	c.nodes[i], c.net = out.node, x.sent(w.net, out.msg)
	x.visit(&c)
	if spend(&l.used.late, x.limits.late) {
		x.step = xstep{kind: stepAlterLate, node: n.id}
		l.nodes[i] = x.altered(out.node, out.msg, x.givenUp(), w.now)
		late := *out.msg
		late.late = true
		l.net = x.sent(w.net, x.msg(late))
		x.visit(&l)
	}
}

// deliver has a request arrive, and its answer, if there is one. Without it the
// sender learns from the metadata what has come of a request that was granted;
// one that was refused is always answered.
func (x *exploration) deliver(w *xworld, at int, answered bool) {
	c, m := *w, w.net.msgs[at]
	x.step = xstep{kind: stepUnanswered, msg: m}
	if answered {
		x.step.kind = stepAnswered
	}
	c.net = x.arrived(w.net, at)
	if m.to > 0 {
		if to := c.nodes[m.to-1]; to.r != nil {
			c.nodes[m.to-1] = x.served(to, m, c.now).node
			x.visit(&c)
		}
		return
	}
	out := x.decide(&c, xevent{kind: alterIt, id: m.from, msg: m.num})
	switch {
	case answered:
		c.nodes[m.from-1] = x.altered(c.nodes[m.from-1], m, out.reply, c.now)
	case out.reply.err != nil && !m.late && c.lives(m):
		return
	}
	x.visit(&c)
}
