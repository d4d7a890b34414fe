package sim

import (
	"errors"
	"fmt"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// lifecycle is a broker's way from its start to its end, as the controller sees it.
type lifecycle struct {
	p       *process
	epoch   int64 // -1 before the registration
	lease   replication.Instant
	ending  func() // the process is to end cleanly, then it is called
	unclean []storage.ID
	before  int64 // the epoch of the process before, -1 for unknown
}

func (p *process) epoch() int64 { return p.life2.epoch }

func (p *process) lease() replication.Instant { return p.life2.lease }

// open starts what a process consists of.
func (p *process) open(run runFile, unclean []storage.ID, lost bool) {
	w := p.w
	m, err := openMetadata(p)
	if err != nil {
		w.failed("start", err.Error())
		return
	}
	p.meta = m
	l := &lifecycle{p: p, epoch: -1, lease: -time.Hour, unclean: unclean, before: run.epoch}
	p.life2 = l
	if lost && !w.cfg.fsync {
		l.before = -1
	}
	if w.cfg.nodes == 1 {
		l.lease = replication.Forever
	}
	m.run()
	l.register()
	p.in(w.between(0, time.Second), p.tick)
}

// register makes the broker known, and tries until it is.
func (l *lifecycle) register() {
	p := l.p
	ev := &controller.Register{
		ID: p.n.id, UUID: p.n.uuid(), Incarnation: fmt.Sprint(p.n.starts), PreviousEpoch: l.before,
		MinLevel: 1, MaxLevel: controller.Level, ReadyNow: p.w.cfg.nodes == 1, Unclean: l.unclean,
	}
	done := func(reply controller.Reply, err error) {
		if err == nil {
			err = errors.Join(reply.Errs...)
		}
		if err != nil {
			p.in(p.w.between(20*time.Millisecond, 100*time.Millisecond), l.register)
			return
		}
		l.epoch = reply.Epoch
		p.n.disk.run.epoch, p.n.disk.run.owed = reply.Epoch, false
		p.w.counts.registered++
		p.apply(p.meta.shown)
		l.heartbeat()
	}
	p.ask(ev, done)
}

// heartbeat is sent now and then; its answer brings the lease.
func (l *lifecycle) heartbeat() {
	p := l.p
	sent := p.now()
	h := controller.Heartbeat{ID: p.n.id, Epoch: l.epoch, Applied: p.meta.applied, WantShutDown: l.ending != nil}
	p.in(p.w.cfg.heartbeat, l.heartbeat)
	c := p.meta.desk.Leader()
	if p.meta.desk.Deciding() {
		c = p.n.id
	}
	if c < 0 {
		return
	}
	type answer struct {
		reply controller.HeartbeatReply
		err   error
	}
	to := p.w.node(c)
	call(p.w.net, p.life, p.n.addr(), to.addr(), p.w.cfg.session, func(give func(answer)) {
		if to.p != nil {
			reply, err := to.p.meta.heartbeat(h)
			give(answer{reply, err})
		}
	}, func(a answer, err error) { l.answered(sent, a.reply, errors.Join(err, a.err)) })
}

// answered takes the answer to a heartbeat.
func (l *lifecycle) answered(sent replication.Instant, reply controller.HeartbeatReply, err error) {
	p := l.p
	switch {
	case err != nil:
		return
	case errors.Is(reply.Err, controller.ErrStaleBrokerEpoch):
		// Another life of this broker is registered, or none: begin anew.
		p.n.crash(false, false)
		p.w.startAfter(p.n, p.w.between(50*time.Millisecond, 300*time.Millisecond))
		return
	case reply.Err != nil:
		return
	}
	if until := sent + p.w.cfg.session*3/4; until > l.lease && !reply.Fenced {
		l.lease = until
		for _, r := range p.order {
			r.core.Lease(until)
		}
	}
	if reply.MayStop && l.ending != nil {
		p.n.finish(l.ending)
	}
}

func (m *metadata) heartbeat(h controller.Heartbeat) (controller.HeartbeatReply, error) {
	reply, err := m.desk.Heartbeat(h, m.p.now())
	m.pump()
	return reply, err
}

// stop ends the process cleanly: it asks the controller, and when it may go, or
// after 5 s, it syncs everything and leaves the marker. done is called then.
func (n *node) stop(done func()) {
	p := n.p
	if p == nil || p.life2.ending != nil {
		return
	}
	p.life2.ending = done
	p.in(5*time.Second, func() { n.finish(done) })
}

// finish is the end of a clean stop.
func (n *node) finish(done func()) {
	p := n.p
	if p == nil || p.stopping {
		return
	}
	p.stopping = true
	for _, r := range p.order {
		r.core.Lease(-time.Hour) // appends no more
	}
	for _, other := range n.w.nodes {
		if p.meta.desk.Deciding() && other != n && other.p != nil {
			n.transfer(other.id)
			break
		}
	}
	n.disk.sync(p.life, func(_ time.Duration, err error) {
		if err != nil {
			p.failed()
			return
		}
		for _, r := range p.order {
			r.release(errNotHere)
		}
		for _, id := range n.logIDs() {
			l := n.logs[id]
			l.durable = l.end
			if r := p.replicas[id]; r != nil {
				l.hw = r.core.HighWatermark()
			}
		}
		n.store.crash(false)
		n.disk.run = runFile{clean: true, epoch: p.life2.epoch, boot: n.disk.boots, owed: n.disk.run.owed}
		n.w.counts.cleanStops++
		p.life2.goodbye()
		n.end("clean stop")
		done()
	})
}

// goodbye is the last heartbeat: nobody waits for the session to end.
func (l *lifecycle) goodbye() {
	h := controller.Heartbeat{ID: l.p.n.id, Epoch: l.epoch, Applied: l.p.meta.applied, WantFence: true, WantShutDown: true}
	if c := l.p.meta.desk.Leader(); c >= 0 && c != l.p.n.id {
		to := l.p.w.node(c)
		l.p.w.net.send(l.p.n.addr(), to.addr(), func() {
			if to.p != nil {
				_, _ = to.p.meta.heartbeat(h)
			}
		}, nil)
	}
}
