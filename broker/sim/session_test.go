package sim

import (
	"errors"
	"fmt"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// session is the shell of a replication.Session: a broker's way from its start to
// its end, as the controller sees it.
type session struct {
	*replication.Session
	p *process
	// told is the lease that the replicas know, timer when the session is looked at
	// again, Forever for not at all.
	told, timer replication.Instant
	ending      func() // the process is to end cleanly, then it is called
}

func (p *process) epoch() int64 { return p.session.Epoch() }

func (p *process) lease() replication.Instant { return p.session.Lease() }

// open starts what a process consists of.
func (p *process) open(run runFile, unclean, lost []storage.ID) {
	w := p.w
	m, err := openMetadata(p)
	if err != nil {
		w.failed("start", err.Error())
		return
	}
	p.meta = m
	alone := w.cfg.nodes == 1 || w.cfg.company && p.alone()
	s := replication.NewSession(replication.SessionOptions{Session: w.cfg.session, Interval: w.cfg.heartbeat, Alone: alone}, controller.Register{
		ID: p.n.id, UUID: p.n.uuid(), Incarnation: fmt.Sprint(p.n.starts), PreviousEpoch: run.epoch, Known: -1,
		MinLevel: 1, MaxLevel: controller.Level, ReadyNow: alone, Unclean: unclean, Lost: lost,
	})
	p.session = &session{Session: s, p: p, told: s.Lease(), timer: replication.Forever}
	s.Ready(p.now())
	m.run()
	p.session.pump()
	p.in(w.between(0, time.Second), p.tick)
	if w.cfg.mixed || !w.cfg.fsync {
		p.in(w.between(0, w.cfg.writeBack), p.writeBack)
	}
}

// alone reports whether there is no other broker, nor can there be without this one
// knowing: nobody else is a member of the quorum.
func (p *process) alone() bool {
	if !p.meta.core.Alone() {
		return false
	}
	for _, id := range p.meta.shown.Brokers() {
		if b, _ := p.meta.shown.Broker(id); id != p.n.id || b.Fenced && p.session != nil {
			return false
		}
	}
	return true
}

// company tells the session whether there are other brokers. Company ends the lease
// without end before it is heard of.
func (s *session) company() {
	p := s.p
	if !p.w.cfg.company || p.stopping {
		return
	}
	before := s.Lease()
	s.SetAlone(p.alone(), p.now())
	if s.Lease() != before {
		if s.Lease() == replication.Forever {
			p.w.counts.leftAlone++
		}
		s.lend()
		p.in(0, s.pump)
	}
}

// lend tells the replicas of the lease.
func (s *session) lend() {
	if l := s.Lease(); l != s.told && !s.p.stopping {
		s.told = l
		for _, r := range s.p.order {
			r.core.Lease(l)
		}
	}
}

// pump sends what the session has to say, and does what it says.
func (s *session) pump() {
	p := s.p
	for !p.over {
		s.Applied(p.meta.applied, p.meta.shown.BrokerEpoch(p.n.id))
		send, ok := s.Next(p.now())
		switch {
		case !ok:
			s.settle()
			return
		case send.Register != nil:
			s.register(send)
		default:
			s.heartbeat(send)
		}
	}
}

// settle tells the replicas of the lease, ends the process if it may or must, and
// has the session looked at when it is due.
func (s *session) settle() {
	p := s.p
	s.lend()
	switch {
	case s.Err() != nil:
		// Another life of this broker is registered, or none: begin anew.
		p.n.crash(false, false)
		p.w.startAfter(p.n, p.w.between(50*time.Millisecond, 300*time.Millisecond))
		return
	case s.Phase() == replication.Parting && s.ending != nil:
		p.n.finish(s.ending)
	}
	due := s.Due()
	if due >= s.timer {
		return
	}
	s.timer = due
	p.in(due-p.now(), func() {
		if s.timer == due {
			s.timer = replication.Forever
			s.pump()
		}
	})
}

// register makes the broker known.
func (s *session) register(send replication.Send) {
	p := s.p
	p.ask(send.Register, func(reply controller.Reply, err error) {
		first := s.Epoch() < 0
		s.Registered(reply, err, p.now())
		if first && s.Epoch() >= 0 {
			p.n.disk.run.epoch, p.n.disk.run.owed = s.Epoch(), false
			p.w.counts.registered++
			p.apply(p.meta.shown)
		}
		s.pump()
	})
}

// heartbeat goes to the controller; its answer brings the lease.
func (s *session) heartbeat(send replication.Send) {
	p := s.p
	c := p.meta.desk.Leader()
	if p.meta.desk.Deciding() {
		c = p.n.id
	}
	if c < 0 {
		s.Answered(send, controller.HeartbeatReply{}, errNoController, p.now())
		return
	}
	type answer struct {
		reply controller.HeartbeatReply
		err   error
	}
	to, sent := p.w.node(c), p.w.now
	call(p.w.net, p.life, p.n.addr(), to.addr(), p.w.cfg.session, func(give func(answer)) {
		if to.p != nil {
			if p.w.now-sent >= veryLate {
				p.w.counts.staleHeartbeats++
			}
			to.p.meta.heartbeat(*send.Heartbeat, func(a replication.Answer) { give(answer{a.Heartbeat, a.Err}) })
		}
	}, func(a answer, err error) {
		s.Answered(send, a.reply, errors.Join(err, a.err), p.now())
		s.pump()
	})
}

func (m *metadata) heartbeat(h controller.Heartbeat, answer func(replication.Answer)) {
	id := m.p.w.newProposalID()
	a, later := m.desk.Heartbeat(id, h, m.p.now())
	if later {
		m.asked[id] = answer
	}
	m.pump()
	if !later {
		answer(a)
	}
}

// stop ends the process cleanly: it asks the controller, and when it may go, or
// after 5 s, it syncs everything and leaves the marker. done is called then.
func (n *node) stop(done func()) {
	p := n.p
	if p == nil || p.session.ending != nil {
		return
	}
	p.session.ending = done
	p.session.Stop(p.now())
	p.in(5*time.Second, func() { n.finish(done) })
	p.session.pump()
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
		n.disk.run = runFile{clean: true, epoch: p.epoch(), boot: n.disk.boots, owed: n.disk.run.owed}
		n.w.counts.cleanStops++
		p.session.goodbye()
		n.end("clean stop")
		done()
	})
}

// goodbye is the last heartbeat: nobody waits for the session to end.
func (s *session) goodbye() {
	p := s.p
	h, ok := s.Goodbye(p.now())
	if c := p.meta.desk.Leader(); ok && c >= 0 && c != p.n.id {
		to := p.w.node(c)
		p.w.net.send(p.n.addr(), to.addr(), func() {
			if to.p != nil {
				to.p.meta.heartbeat(h, func(replication.Answer) {})
			}
		}, nil)
	}
}
