package replication

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"leat/replication/controller"
)

// SessionOptions are the times of a broker's session.
type SessionOptions struct {
	// Session is for how long the controller takes the broker for alive without a
	// heartbeat, 0 for 2 s; Interval is how often it sends one, 0 for 250 ms.
	Session, Interval time.Duration
	// Alone says that there is no other broker: nobody could be elected instead.
	Alone bool
}

// Phase is how far a broker has come in its life (KIP-631).
type Phase uint8

// The phases, in their order. A broker that loses its session is Fenced again.
const (
	Registering Phase = iota // the controller does not know this life
	Fenced                   // it does, and has not put it into service
	Running                  // in service
	Draining                 // wants to stop: others take over what it leads
	Parting                  // may stop
	Ended                    // has stopped, or another life took over: see Err
)

func (p Phase) String() string {
	return [...]string{"registering", "fenced", "running", "draining", "parting", "ended"}[p]
}

// Session is a broker's side of its registration with the controller: what to
// send when, the broker epoch, and the lease, which is for how long the
// controller cannot have taken the broker for dead and elected others. It is
// pure; its owner sends what Next says and brings back the answers, whenever they
// come.
type Session struct {
	o        SessionOptions
	register controller.Register
	phase    Phase
	epoch    int64
	err      error
	lease    Instant
	applied  uint64
	// known is the broker epoch in the metadata that was applied, -1 for none.
	known int64
	// ready says that the logs are recovered, wantFence that the broker wants
	// out of service, as one whose disk stalls.
	ready, wantFence bool
	// asking says that the answer to a registration is to come.
	asking bool
	retry  backoff
	// due is when the next heartbeat is to be sent, sent the number of the last.
	due  Instant
	sent uint64
	// told is the number of the newest that was answered. From fenced on no
	// heartbeat of an earlier number renews the lease: the controller was asked to
	// fence the broker, or said that it is.
	told, fenced uint64
}

// NewSession begins a life. What is registered does not change in it.
func NewSession(o SessionOptions, register controller.Register) *Session {
	o.Session = cmp.Or(o.Session, 2*time.Second)
	o.Interval = cmp.Or(o.Interval, 250*time.Millisecond)
	return &Session{o: o, register: register, epoch: -1, known: -1, lease: never}
}

// Phase is how far the broker has come.
func (s *Session) Phase() Phase { return s.phase }

// Epoch is the broker epoch of this life, -1 before it has one. It never
// changes: who registers again in the same life gets the same (KAFKA-16952).
func (s *Session) Epoch() int64 { return s.epoch }

// Err is why the session has ended against the broker's will, or nil.
func (s *Session) Err() error { return s.err }

// Lease is how long the broker may act as a leader. It falls only when the broker
// is fenced or asks for it, ends, or has got company.
func (s *Session) Lease() Instant { return s.lease }

// Applied says up to which index the broker has applied the metadata log, and the
// epoch in which it is registered there, -1 for not at all. A registration that was
// refused because the controller knew of a later one (Register.Known) is sent again
// as soon as that one is applied.
func (s *Session) Applied(index uint64, registered int64) {
	s.applied = max(s.applied, index)
	if s.known != registered {
		s.known = registered
		s.retry = backoff{}
	}
}

// Ready says that the logs are recovered: the broker wants into service.
func (s *Session) Ready(now Instant) {
	s.ready, s.due = true, now
}

// WantFence takes the broker out of service, or lets it back.
func (s *Session) WantFence(out bool, now Instant) {
	if s.wantFence != out {
		s.wantFence, s.due = out, now
	}
}

// SetAlone says whether this broker is the only one, whose lease has no end. The
// first other that comes ends that lease, before it can be elected; from then on
// heartbeats renew it. A broker that is left alone has a lease without end at once
// if it is in service, and if it is fenced as soon as it is back in service. If it
// waits for others to take over what it leads, it may stop.
func (s *Session) SetAlone(alone bool, now Instant) {
	switch {
	case alone == s.o.Alone:
		return
	case alone && s.phase == Running:
		s.lease = Forever
	case alone && s.phase == Draining:
		s.phase = Parting
	case !alone:
		s.lease, s.due = min(s.lease, now), now
	}
	s.o.Alone = alone
}

// Stop says that the broker wants to stop. When it is Parting it may: it ends
// what it serves, makes everything durable and says Goodbye. It need not wait for
// that for ever.
func (s *Session) Stop(now Instant) {
	switch {
	case s.phase >= Draining:
	case s.phase == Registering || s.o.Alone:
		s.phase = Parting
	default:
		s.phase, s.due = Draining, now
	}
}

// Goodbye ends the session. It returns the last word to the controller, to which
// nobody waits for an answer; false if there is none to say.
func (s *Session) Goodbye(now Instant) (controller.Heartbeat, bool) {
	was := s.phase
	s.phase, s.lease = Ended, min(s.lease, now)
	if s.epoch < 0 || s.o.Alone || was == Ended {
		return controller.Heartbeat{}, false
	}
	h := s.heartbeat()
	h.WantFence, h.WantShutDown = true, true
	return h, true
}

// Send is one message to the controller: one of the two is not nil. At is when
// it is sent.
type Send struct {
	Register  *controller.Register
	Heartbeat *controller.Heartbeat
	At        Instant

	number uint64
}

// Next is what to send now, if anything. A registration must come back to
// Registered, with an error if it was lost; before that there is no other. A
// heartbeat comes back to Answered, or not at all: one that hangs holds up no
// later one, so the owner gives each up after a session.
func (s *Session) Next(now Instant) (Send, bool) {
	switch {
	case now < s.Due() || s.phase == Ended:
		return Send{}, false
	case s.phase == Registering:
		s.asking = true
		r := s.register
		r.Known = s.known
		return Send{Register: &r, At: now}, true
	default:
		s.due = now + s.o.Interval
		s.sent++
		h := s.heartbeat()
		if h.WantFence {
			s.lease, s.fenced = min(s.lease, now), s.sent
		}
		return Send{Heartbeat: &h, At: now, number: s.sent}, true
	}
}

// Due is when Next has something to say at the earliest.
func (s *Session) Due() Instant {
	switch {
	case s.phase == Ended || s.asking || s.phase > Fenced && s.o.Alone || s.phase >= Parting && s.epoch < 0:
		return Forever
	case s.phase == Registering:
		return s.retry.until
	default:
		return s.due
	}
}

func (s *Session) heartbeat() controller.Heartbeat {
	return controller.Heartbeat{
		ID: s.register.ID, Epoch: s.epoch, Applied: s.applied,
		WantFence: !s.ready || s.wantFence, WantShutDown: s.phase == Draining || s.phase == Parting,
	}
}

// Registered takes the answer to a registration, or why there is none.
func (s *Session) Registered(reply controller.Reply, err error, now Instant) {
	if s.phase == Ended {
		return
	}
	s.asking = false
	if err = errors.Join(append([]error{err}, reply.Errs...)...); err != nil {
		if errors.Is(err, controller.ErrUnsupportedLevel) {
			s.end(err)
			return
		}
		// Another process with this id may be gone soon.
		s.retry.next(now)
		return
	}
	s.epoch, s.due = reply.Epoch, now
	switch {
	case s.phase != Registering: // it stops already
	case s.o.Alone && s.register.ReadyNow:
		s.phase, s.lease = Running, Forever
	default:
		s.phase = Fenced
	}
}

// Answered takes the answer to a heartbeat, or why there is none. An answer that
// comes late is worth what it was when the heartbeat was sent.
func (s *Session) Answered(sent Send, reply controller.HeartbeatReply, err error, now Instant) {
	err = errors.Join(err, reply.Err)
	switch {
	case s.phase == Ended || s.phase == Registering:
		return
	case errors.Is(err, controller.ErrStaleBrokerEpoch):
		s.end(err)
		return
	case err != nil:
		if sent.number > s.told { // the next one may find the controller
			s.retry.next(now)
			s.due = min(s.due, s.retry.until)
		}
		return
	}
	if !reply.Fenced && sent.number > s.fenced {
		s.lease = max(s.lease, sent.At+s.o.Session*3/4)
	}
	if sent.number < s.told {
		return // a later one has said how things stand
	}
	s.told, s.retry = sent.number, backoff{}
	switch {
	case reply.Fenced:
		s.lease, s.fenced = min(s.lease, now), max(s.fenced, sent.number)
		if s.phase == Running {
			s.phase = Fenced
		}
	case s.phase == Fenced:
		s.phase = Running
		if s.o.Alone {
			s.lease = Forever
		}
	}
	if s.phase == Draining && reply.MayStop {
		s.phase = Parting
	}
}

// end is the end against the broker's will: it must serve nobody any more.
func (s *Session) end(err error) {
	s.phase, s.lease, s.err = Ended, never, err
}

// String shows the state for tests and logs.
func (s *Session) String() string {
	out := fmt.Sprintf("%v epoch=%d", s.phase, s.epoch)
	switch s.lease {
	case never:
	case Forever:
		out += " lease without end"
	default:
		out += fmt.Sprintf(" lease until %v", s.lease)
	}
	if s.err != nil {
		out += fmt.Sprintf(": %v", s.err)
	}
	return out
}
