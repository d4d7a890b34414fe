package sim

import "time"

// rounds is how many rounds of everything a cluster without faults may take to
// be well again.
const rounds = 24

// heal lets a world go on without faults: all brokers run and hear of everything.
// In the end all must be in sync and equal.
func (x *exploration) heal(from *xworld) {
	x.healed++
	w := *from
	w.net = x.net(nil)
	for _, m := range from.net.msgs {
		x.lose(&w, m)
	}
	var way [rounds]xstate
	for i := range way {
		x.pass(&w, 3*time.Second)
		if x.round(&w); x.found != "" {
			return
		}
		if way[i] = x.pack(&w); w.isWell() || x.well.has(way[i]) {
			for _, state := range way[:i+1] {
				x.well.add(state, 0)
			}
			return
		}
	}
	x.fail(&w, "I24: not well after %d rounds", rounds)
}

// lose has a request not arrive: who waits for its answer gives it up.
func (x *exploration) lose(w *xworld, m *xmsg) {
	if !m.late && w.lives(m) {
		w.nodes[m.from-1] = x.altered(w.nodes[m.from-1], m, x.givenUp(), w.now)
		x.judgeLeaders(w)
	}
}

// round has everybody do everything once.
func (x *exploration) round(w *xworld) {
	for i, n := range w.nodes {
		if n.r == nil {
			x.start(w, i)
		}
		if w.meta.brokers[i].fenced {
			x.decide(w, xevent{kind: unfenceIt, id: n.id, epoch: n.epoch})
		}
	}
	for i, n := range w.nodes {
		if !w.meta.known(n) {
			x.learn(w, i)
			x.judgeLeaders(w)
		}
	}
	for i := range w.nodes {
		if out := x.alters(w.nodes[i], 0, w.now); out.msg != nil {
			reply := x.decide(w, xevent{kind: alterIt, id: int32(i + 1), msg: out.msg.num}).reply
			w.nodes[i] = x.altered(out.node, out.msg, reply, w.now)
			x.judgeLeaders(w)
		}
		ask := x.asks(w.nodes[i], w.now)
		if ask == nil {
			continue
		}
		if w.nodes[ask.to-1].r != nil {
			x.serve(w, i, int(ask.to-1), ask)
		} else {
			w.nodes[i] = x.unanswered(w.nodes[i], w.now)
		}
	}
	x.judge(w)
	if !x.plain {
		w.used = xused{}
		x.normal(w)
	}
}

// isWell reports whether a world is as it should be in the end.
func (w *xworld) isWell() bool {
	if w.meta.part.Leader < 0 || len(w.meta.part.ISR) < len(w.nodes) {
		return false
	}
	leader := w.nodes[w.meta.part.Leader-1]
	for _, n := range w.nodes {
		if n.r == nil || !w.meta.known(n) || *n.log != *leader.log || n.hw != leader.log.end() {
			return false
		}
	}
	return true
}
