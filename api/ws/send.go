package ws

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"leat/broker"
)

// kick has a turn run soon. It may be called from anywhere and does not block.
func (s *session) kick() {
	for {
		switch state := s.state.Load(); state {
		case idle:
			if s.state.CompareAndSwap(idle, queued) {
				s.srv.pool.push(s)
				return
			}
		case running:
			if s.state.CompareAndSwap(running, woken) {
				return
			}
		default:
			return
		}
	}
}

// delayed is called by the wheel of delays, which may be early.
func (s *session) delayed() {
	s.timed.Store(0)
	s.kick()
}

// run is called by a worker of the pool.
func (s *session) run() {
	s.state.Store(running)
	if again, ended := s.turn(); ended {
		s.end()
		return
	} else if !again && s.state.CompareAndSwap(running, idle) {
		return
	}
	s.state.Store(queued)
	s.srv.pool.push(s)
}

// turn sends at most one message, so that every session with something to send
// has its share. It reports whether there may be more at once, or that the
// session has ended.
func (s *session) turn() (again, ended bool) {
	defer func() {
		if cause := recover(); cause != nil {
			s.mute = true
			s.panicked(cause)
		}
	}()
	dead, closing := s.take()
	if dead {
		return false, true
	}
	if closing || s.mute {
		return false, false
	}
	if s.wire.owes.Swap(false) {
		s.send(s.wire.flush)
		return true, false
	}
	now := s.srv.now()
	var f frame
	t, wait := s.core.next(now, &f)
	s.count()
	switch {
	case f.buf != nil:
		s.sendFrame(&f)
		now = s.srv.now()
		rest, ok := s.core.rest(now)
		if !ok {
			return true, false
		}
		s.later(now, rest)
	case t.kind != kindInvalid:
		s.sendText(t)
		return true, false
	case s.core.draining:
		s.leave()
	default:
		s.later(now, wait)
	}
	return false, false
}

// later has a turn run after a wait, if it is not 0.
func (s *session) later(now int64, wait time.Duration) {
	if wait == 0 {
		return
	}
	at := now + int64(wait)
	if timed := s.timed.Load(); timed == 0 || at < timed {
		s.timed.Store(at)
		s.srv.delays.add(s, wait)
	}
}

// take gives the events to the core, unless it has messages left from those
// before: what waits is bounded in one place.
func (s *session) take() (dead, closing bool) {
	s.mu.Lock()
	dead, closing = s.mu.dead, s.mu.closing
	var inbox []event
	if len(s.core.out) == 0 && !dead && s.mu.size > 0 {
		inbox, s.mu.inbox, s.mu.size = s.mu.inbox, nil, 0
		s.mu.changed.Broadcast()
	}
	s.mu.Unlock()
	for i := range inbox {
		s.core.apply(&inbox[i])
	}
	return dead, closing
}

// leave closes a draining connection once no receipts are due and everything
// is sent.
func (s *session) leave() {
	s.mu.Lock()
	due := s.mu.appending || s.mu.settling || s.mu.size > 0
	s.mu.Unlock()
	if !due {
		s.shut(causeDraining, "")
	}
}

func (s *session) sendFrame(f *frame) {
	size := len(f.buf.message())
	s.write(f.buf)
	f.buf.release()
	s.srv.metrics.out[kindData].Inc()
	s.srv.metrics.recordsOut.Add(float64(f.records))
	s.core.written(s.srv.now(), f)
	if s.srv.broker.Metered() {
		s.core.held = s.srv.now() + int64(s.srv.broker.Spend(s.principal, broker.QuotaFetch, int64(size)))
	}
}

func (s *session) sendText(t text) {
	buf := newBuffer(len(t.b))
	buf.b = append(buf.b, t.b...)
	s.write(buf)
	buf.release()
	s.srv.metrics.out[t.kind].Inc()
}

// write sends a message.
func (s *session) write(buf *buffer) {
	s.wire.message = buf
	s.send(func() error { return s.ws.Write(s.srv.quiet, websocket.MessageText, buf.message()) })
	s.wire.message = nil
	s.sentAt.Store(s.srv.now())
}

// send has something written. If that fails it does so for good: by then a part
// of a frame may have left.
func (s *session) send(write func() error) {
	if s.wire.raw == nil { // any write may block
		s.srv.pool.leave()
		defer s.srv.pool.back()
	}
	s.writing.Store(true)
	err := write()
	s.writing.Store(false)
	if err == nil {
		return
	}
	s.mute = true
	if s.wire.late.Load() {
		// The client is told by the end of the connection: a close frame
		// cannot overtake what it does not read.
		s.shut(causeSlow, "")
		return
	}
	s.shut(causeLost, "")
}

// pulse stands for a session in the wheel, where it may stay for half a minute
// after the session has ended, which it does not keep.
type pulse struct{ session atomic.Pointer[session] }

// beat is called by the wheel.
func (p *pulse) beat() {
	if s := p.session.Load(); s != nil {
		s.keepAlive()
	}
}

// keepAlive is called by the wheel: it shows the client, and finds out about
// it, that the connection lives.
func (s *session) keepAlive() {
	s.mu.Lock()
	ends := s.mu.dead || s.mu.closing
	if !ends {
		s.srv.wg.Add(1) // under the lock: the session has not ended
	}
	s.mu.Unlock()
	if ends {
		return
	}
	busy := s.writing.Load()
	now, beat := s.srv.now(), int64(s.srv.opts.heartbeat)
	beatAt := s.sentAt.Load() + beat
	if now >= beatAt {
		s.post(&event{reply: plain(kindHeartbeat, "", "")}, false)
		beatAt = now + beat
	}
	due := now >= s.pingAt
	if due {
		s.pingAt = now + beat
	}
	if due && !busy { // one that is being written to is judged by that
		go s.ping()
	} else {
		s.srv.wg.Done()
	}
	s.srv.alive.add(s.pulse, time.Duration(min(beatAt, s.pingAt)-now))
}

// ping closes the connection if the client does not answer, unless a write or
// the session itself keeps it from being seen to.
func (s *session) ping() {
	defer s.srv.wg.Done()
	reads := s.reads.Load()
	ctx, cancel := context.WithTimeout(s.srv.ctx, s.srv.opts.pongTimeout)
	defer cancel()
	if s.ws.Ping(ctx) == nil {
		return
	}
	if !s.writing.Load() && reads%2 == 0 && reads == s.reads.Load() {
		s.shut(causeSilent, "")
	}
}
