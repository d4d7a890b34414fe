package controller

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Heartbeat is the sign of life of a broker (KIP-631).
type Heartbeat struct {
	ID    int32
	Epoch int64
	// Applied is the index up to which the broker has applied metadata.
	Applied uint64
	// WantFence asks to be taken out of service, WantShutDown to be let go: first
	// alone, so that others take over, and together with WantFence as the last word.
	WantFence, WantShutDown bool
}

// HeartbeatReply answers a Heartbeat.
type HeartbeatReply struct {
	// Err is ErrStaleBrokerEpoch if the life is over for certain: it ends for ever.
	// ErrNotController says that this controller does not know.
	Err error
	// CaughtUp says that the broker has applied its own registration, and that it was
	// put out of service if it is.
	CaughtUp bool
	// Fenced says that the broker is not in service, or soon will not be: the
	// heartbeat then extends no lease.
	Fenced bool
	// MayStop says that all that others can do is theirs, and that they know it.
	MayStop bool
}

// life is what is known, in this term, about one life of a broker.
type life struct {
	epoch int64
	// heard is when it was last heard of, or put into service.
	heard Instant
	// serving is how it was met last: put into service.
	serving bool
	// applied is the newest index that it said it has applied.
	applied uint64
	// registered and leaving are indexes at which its registration and its shutdown
	// are committed for certain, 0 if they are not.
	registered, leaving uint64
	// fenced is such an index of its being out of service, 0 while it is not.
	fenced uint64
	// gone says that it has said its last word.
	gone bool
	// takeovers are when others took its id over from a living one elsewhere.
	takeovers []Instant
}

// committed looks at the broker as it is committed as of index applied.
func (l *life) committed(b *Broker, applied uint64) {
	if b == nil || b.Epoch != l.epoch {
		return
	}
	if l.registered == 0 {
		l.registered = applied
	}
	if b.ShuttingDown && l.leaving == 0 {
		l.leaving = applied
	}
	switch {
	case !b.Fenced:
		l.fenced = 0
	case l.fenced == 0:
		l.fenced = applied
	}
}

// caughtUp reports whether a broker that has applied metadata up to an index knows
// of its registration, and of its fencing: one that was out of service without
// knowing would be back with a lease for what others lead now.
func (l *life) caughtUp(fenced bool, applied uint64) bool {
	known := func(index uint64) bool { return index > 0 && applied >= index }
	return known(l.registered) && (!fenced || known(l.fenced))
}

// meet brings the lives into line with the brokers of the overlay.
func (a *Active) meet(now Instant) {
	wasAlone := a.alone
	a.alone = len(a.overlay.brokers) == 1
	if wasAlone && !a.alone { // what has changed lately is not known
		a.rebalance = max(a.rebalance, now+a.o.Stable)
	}
	for id := range a.lives {
		if a.overlay.brokers[id] == nil {
			delete(a.lives, id)
		}
	}
	for id, b := range a.overlay.brokers {
		l := a.lives[id]
		if l == nil {
			l = &life{epoch: -1}
			a.lives[id] = l
		}
		if l.epoch != b.Epoch {
			*l = life{epoch: b.Epoch, heard: now, takeovers: l.takeovers}
		}
		if !b.Fenced && !l.serving || wasAlone && !a.alone {
			l.heard = now
		}
		l.serving = !b.Fenced
	}
}

// Heartbeat takes a sign of life, however long it waited, and says what is to be
// decided about the broker.
func (a *Active) Heartbeat(h Heartbeat, now Instant) (HeartbeatReply, []Event) {
	if err := a.checkLife(h.ID, h.Epoch); err != nil {
		return HeartbeatReply{Err: err}, nil
	}
	b, l := a.overlay.brokers[h.ID], a.lives[h.ID]
	l.heard, l.applied = max(l.heard, now), max(l.applied, h.Applied)
	l.gone = l.gone || h.WantFence && h.WantShutDown
	known := a.committed.brokers[h.ID]
	reply := HeartbeatReply{
		CaughtUp: l.caughtUp(b.Fenced, h.Applied),
		Fenced:   b.Fenced || known == nil || known.Epoch != h.Epoch || known.Fenced,
	}
	switch {
	case b.Fenced && (h.WantShutDown || l.gone): // a heartbeat of before its last word may come after it
		reply.MayStop = true
	case b.Fenced && reply.CaughtUp && !h.WantFence:
		return reply, []Event{&Unfence{ID: h.ID, Epoch: h.Epoch}}
	case b.Fenced:
	case h.WantFence:
		reply.Fenced, reply.MayStop = true, h.WantShutDown
		return reply, []Event{&Fence{ID: h.ID, Epoch: h.Epoch}}
	case b.ShuttingDown:
		reply.MayStop = h.WantShutDown && a.known(h.ID, l.leaving)
	case h.WantShutDown:
		return reply, []Event{&ShutDown{ID: h.ID, Epoch: h.Epoch}}
	}
	return reply, nil
}

// checkLife is checkEpoch for who ends for ever on ErrStaleBrokerEpoch: it is said
// only when it is committed. What is under way may come to nothing.
func (a *Active) checkLife(id int32, epoch int64) error {
	err := a.overlay.checkEpoch(id, epoch)
	if errors.Is(err, ErrStaleBrokerEpoch) && !errors.Is(a.committed.checkEpoch(id, epoch), ErrStaleBrokerEpoch) {
		return fmt.Errorf("%w for certain: the end of the life %d of broker %d is not committed", ErrNotController, epoch, id)
	}
	return err
}

// known reports whether every broker in service but one has applied index, 0
// being none.
func (a *Active) known(but int32, index uint64) bool {
	for id, b := range a.committed.brokers {
		if id != but && b.eligible(-1) && (a.lives[id] == nil || a.lives[id].applied < index) {
			return false
		}
	}
	return index > 0
}

// clones is how many times in a minute a living broker may be taken over by
// another address before that is taken for two copies of one directory.
const clones = 3

// takeover refuses a registration that takes the id over from a broker that was
// just heard of, for the third time in a minute from elsewhere: two processes with
// copies of one directory would go on to end each other for ever.
func (a *Active) takeover(ev *Register, now Instant) error {
	b, l := a.overlay.brokers[ev.ID], a.lives[ev.ID]
	if b == nil || l == nil || l.gone || a.alone || b.Epoch != ev.Known || now-l.heard >= a.o.Session || b.UUID != ev.UUID || b.Incarnation == ev.Incarnation || slices.Equal(b.Endpoints, ev.Endpoints) {
		return nil
	}
	l.takeovers = slices.DeleteFunc(l.takeovers, func(at Instant) bool { return now-at >= time.Minute })
	if len(l.takeovers) >= clones-1 {
		return fmt.Errorf("%w: %d lives at %v, and another process registers it at %v again and again", ErrDuplicateBroker, ev.ID, b.Endpoints, ev.Endpoints)
	}
	l.takeovers = append(l.takeovers, now)
	return nil
}
