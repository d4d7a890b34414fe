package sim

import (
	"fmt"
	"slices"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// longer is more than a replica may lag, pause more than any backoff.
const (
	longer = 20 * time.Second
	pause  = 2 * time.Second
)

// expand visits every world one step on.
func (x *exploration) expand(w *xworld) {
	for i := range w.nodes {
		x.expandNode(w, i)
	}
	for i, m := range w.net {
		if i > 0 && w.net[i-1].key == m.key {
			continue // its twin has been there
		}
		for _, answered := range []bool{true, false} {
			if answered && (m.late || w.nodes[m.from-1].r == nil || w.nodes[m.from-1].epoch != m.life) {
				continue
			}
			c := w.child(fmt.Sprintf("%s arrives, answered=%v", m.key, answered))
			c.net = slices.Delete(c.net, i, i+1)
			if x.deliver(c, m, answered) {
				x.visit(c)
			}
		}
	}
	if w.used.ticks < x.limits.ticks {
		c := w.child("a lag passes")
		c.used.ticks++
		c.now += longer
		x.visit(c)
	}
}

// expandNode visits what a node may do or suffer.
func (x *exploration) expandNode(w *xworld, i int) {
	n := w.nodes[i]
	if n.r == nil {
		c := w.child(fmt.Sprintf("start %d", n.id))
		x.start(c, c.own(i))
		if c.used.elections <= x.limits.elections {
			x.visit(c)
		}
		if b, _ := w.meta.Broker(n.id); !b.Fenced {
			x.fence(w, n)
		}
		return
	}
	if n.state != w.meta {
		c := w.child(fmt.Sprintf("%d learns of leader %d, epoch %d, in sync %v, eligible %v", n.id, w.part.Leader, w.part.LeaderEpoch, w.part.ISR, w.part.ELR))
		x.learn(c, c.own(i))
		x.visit(c)
	}
	if n.r.Role() == replication.Leader && w.used.records < x.limits.records {
		c := w.child(fmt.Sprintf("append to %d", n.id))
		c.used.records++
		m := c.own(i)
		m.log.append(xrec{m.r.LeaderEpoch(), int8(c.used.records)})
		m.r.Advance(c.now)
		x.visit(c)
	}
	x.fetch(w, i)
	x.alter(w, i)
	if b, _ := w.meta.Broker(n.id); !b.Fenced && w.used.fences < x.limits.fences {
		x.fence(w, n)
	} else if b.Fenced {
		c := w.child(fmt.Sprintf("unfence %d", n.id))
		x.decide(c, &controller.Unfence{ID: n.id, Epoch: n.epoch})
		x.visit(c)
	}
	x.crash(w, i)
}

// decide has the controller decide, and counts the elections.
func (x *exploration) decide(w *xworld, ev controller.Event) controller.Reply {
	reply := x.step(w, ev)
	w.used.elections = int(w.part.LeaderEpoch)
	return reply
}

func (x *exploration) fence(w *xworld, n *xnode) {
	c := w.child(fmt.Sprintf("fence %d", n.id))
	if n.r != nil {
		c.used.fences++
	}
	b, _ := w.meta.Broker(n.id)
	x.decide(c, &controller.Fence{ID: n.id, Epoch: b.Epoch})
	if c.used.elections <= x.limits.elections {
		x.visit(c)
	}
}

// crash stops a process, and lets the page cache be lost if it may.
func (x *exploration) crash(w *xworld, i int) {
	if w.used.restarts >= x.limits.restarts {
		return
	}
	lose := int64(0)
	if w.used.losses < x.limits.losses {
		lose = w.nodes[i].log.end()
	}
	for keep := w.nodes[i].log.end(); keep >= w.nodes[i].log.end()-lose; keep-- {
		c := w.child(fmt.Sprintf("crash %d, %d records stay", i+1, keep))
		c.used.restarts++
		n := c.own(i)
		n.hw = n.r.HighWatermark()
		n.r = nil
		if keep < n.log.end() {
			n.log.cut(keep)
			n.lossy = true
			c.used.losses++
		}
		c.net = slices.DeleteFunc(c.net, func(m *xmsg) bool { return m.to == n.id })
		x.visit(c)
	}
}

// start has a process begin: it registers, applies the metadata up to that, and
// is unfenced.
func (x *exploration) start(w *xworld, n *xnode) {
	ev := &controller.Register{
		ID: n.id, UUID: fmt.Sprint(n.id), Incarnation: fmt.Sprint(n.id, n.epoch+100), PreviousEpoch: n.epoch,
		MinLevel: 1, MaxLevel: controller.Level,
	}
	if n.lossy {
		ev.PreviousEpoch, ev.Unclean = -1, []storage.ID{explored}
	}
	reply := x.decide(w, ev)
	if reply.Errs[0] != nil {
		x.fail(w, "node %d cannot register: %v", n.id, reply.Errs[0])
		return
	}
	n.epoch = reply.Epoch
	x.decide(w, &controller.Unfence{ID: n.id, Epoch: n.epoch})
	x.open(n)
	x.learn(w, n)
}

// fetch has a follower ask its leader, which answers at once: an answer that comes
// later is one that did not come, and another. Or the answer does not come, and
// the request only later.
func (x *exploration) fetch(w *xworld, i int) {
	leader := w.nodes[i].r.Leader()
	if leader < 0 || w.nodes[i].r.Role() != replication.Follower || w.nodes[leader-1].r == nil {
		return
	}
	c := w.child(fmt.Sprintf("%d fetches", i+1))
	n := c.own(i)
	ask, ok := n.r.NextFetch(c.now + pause)
	if !ok {
		return
	}
	ask.BrokerEpoch = n.epoch
	if w.used.late < x.limits.late {
		l := w.child(fmt.Sprintf("%d fetches, late", i+1))
		l.used.late++
		m := l.own(i)
		_, _ = m.r.NextFetch(l.now + pause)
		m.r.Fetched(&ask, nil, errGivenUp, l.now)
		l.send(&xmsg{from: n.id, life: n.epoch, to: leader, late: true, fetch: ask})
		x.visit(l)
	}
	x.serve(c, n, c.own(int(leader-1)), &ask)
	x.visit(c)
}

// serve has a leader answer a fetch.
func (x *exploration) serve(w *xworld, n, leader *xnode, ask *replication.FetchRequest) {
	answer, _, err := leader.r.Fetch(ask, w.now)
	var records []xrec
	if err == nil && answer.Diverging == nil {
		records = leader.log.records[ask.Offset:]
	}
	x.judgeLeaders(w) // before anybody can hear of it
	x.fetched(w, n, ask, &answer, records, err)
}

// alter has a leader ask the controller, if it wants to.
func (x *exploration) alter(w *xworld, i int) {
	if w.used.alters >= x.limits.alters {
		return
	}
	c := w.child(fmt.Sprintf("%d asks for another set in sync", i+1))
	c.used.alters++
	n := c.own(i)
	ask, ok := n.r.Alter(c.now + pause)
	if !ok {
		return
	}
	c.send(&xmsg{from: n.id, life: n.epoch, ask: ask})
	x.visit(c)
	if w.used.late < x.limits.late {
		l := w.child(fmt.Sprintf("%d asks for another set in sync, late", i+1))
		l.used.late++
		l.used.alters++
		m := l.own(i)
		_, _ = m.r.Alter(l.now + pause)
		m.r.Altered(ask, controller.Partition{}, errGivenUp, l.now)
		l.send(&xmsg{from: n.id, life: n.epoch, late: true, ask: ask})
		x.visit(l)
	}
}

// deliver has a request arrive, and its answer, if there is one. Without it the
// sender learns from the metadata what has come of a request that was granted;
// one that was refused is always answered.
func (x *exploration) deliver(w *xworld, m *xmsg, answered bool) bool {
	if m.to > 0 {
		if w.nodes[m.to-1].r == nil {
			return false
		}
		_, _, _ = w.own(int(m.to-1)).r.Fetch(&m.fetch, w.now)
		return true
	}
	reply := x.decide(w, &controller.AlterPartitions{Broker: m.from, BrokerEpoch: m.life, Partitions: []controller.AlterPartition{m.ask}})
	granted := reply.Errs[0] == nil
	if !answered {
		return granted || m.late || w.nodes[m.from-1].r == nil || w.nodes[m.from-1].epoch != m.life
	}
	w.own(int(m.from-1)).r.Altered(m.ask, reply.Partitions[0], reply.Errs[0], w.now)
	return true
}

// fetched has a follower take an answer, and do what it decides.
func (x *exploration) fetched(w *xworld, n *xnode, ask *replication.FetchRequest, answer *replication.FetchResponse, records []xrec, err error) {
	hw := n.r.HighWatermark()
	a := n.r.Fetched(ask, answer, err, w.now)
	switch a.Kind {
	case replication.Append:
		for _, r := range records {
			n.log.append(r)
		}
	case replication.Truncate, replication.Restart:
		if a.BelowHW || a.Offset < hw {
			x.fail(w, "I15: node %d cuts at %d, its high watermark is %d", n.id, a.Offset, hw)
		}
		n.log.cut(a.Offset)
	case replication.Ignore, replication.Fail:
		return
	}
	n.r.Did(a, answer, w.now)
	if n.lossy && n.log.end() >= int64(len(w.committed)) {
		n.lossy = false
	}
}

// rounds is how many rounds of everything a cluster without faults may take to
// be well again.
const rounds = 24

// heal lets a copy of a world go on without faults: all brokers run and hear of
// everything. In the end all must be in sync and equal.
func (x *exploration) heal(w *xworld) {
	x.healed++
	limits := x.limits
	x.limits = exploreLimits{elections: 1 << 20}
	defer func() { x.limits = limits }()
	c := w.child("all is well from here on")
	c.net = nil
	for i := range c.nodes {
		c.own(i)
	}
	for _, m := range w.net {
		x.lose(c, m)
	}
	for range rounds {
		c.now += 3 * time.Second
		x.round(c)
		if x.found != "" || x.well(c) {
			return
		}
	}
	x.fail(c, "I24: not well after %d rounds", rounds)
}

// lose has a request not arrive: who waits for its answer gives it up.
func (x *exploration) lose(w *xworld, m *xmsg) {
	if n := w.nodes[m.from-1]; !m.late && n.r != nil && n.epoch == m.life {
		n.r.Altered(m.ask, controller.Partition{}, errGivenUp, w.now)
		x.judgeLeaders(w)
	}
}

// round has everybody do everything once.
func (x *exploration) round(w *xworld) {
	for _, n := range w.nodes {
		if n.r == nil {
			x.start(w, n)
		}
		if b, _ := w.meta.Broker(n.id); b.Fenced {
			x.decide(w, &controller.Unfence{ID: n.id, Epoch: n.epoch})
		}
	}
	for _, n := range w.nodes {
		if n.state != w.meta {
			x.learn(w, n)
			x.judgeLeaders(w)
		}
	}
	for _, n := range w.nodes {
		if ask, ok := n.r.Alter(w.now); ok {
			reply := x.decide(w, &controller.AlterPartitions{Broker: n.id, BrokerEpoch: n.epoch, Partitions: []controller.AlterPartition{ask}})
			n.r.Altered(ask, reply.Partitions[0], reply.Errs[0], w.now)
			x.judgeLeaders(w)
		}
		ask, ok := n.r.NextFetch(w.now)
		if !ok {
			continue
		}
		ask.BrokerEpoch = n.epoch
		if leader := w.nodes[n.r.Leader()-1]; leader.r != nil {
			x.serve(w, n, leader, &ask)
		} else {
			x.fetched(w, n, &ask, nil, nil, errGivenUp)
		}
	}
	x.judge(w)
}

// well reports whether a world is as it should be in the end.
func (x *exploration) well(w *xworld) bool {
	if w.part.Leader < 0 || len(w.part.ISR) < len(w.nodes) {
		return false
	}
	leader := w.nodes[w.part.Leader-1]
	for _, n := range w.nodes {
		if n.r == nil || n.state != w.meta || !slices.Equal(n.log.records, leader.log.records) || n.r.HighWatermark() != leader.log.end() {
			return false
		}
	}
	return true
}
