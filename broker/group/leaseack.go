package group

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"time"
)

// find looks a lease up that lives.
func (l *Leases) find(now time.Time, at Partition, n Nonce) (*slot, error) {
	l.used = now
	l.expire(now)
	s := l.slot(at, false)
	if s == nil || s.phase != leased || !s.record.Nonce.is(n) {
		return s, ErrLeaseLost
	}
	return s, nil
}

// is compares without telling by its time how much was right.
func (n Nonce) is(other Nonce) bool {
	return n != (Nonce{}) && subtle.ConstantTimeCompare(n[:], other[:]) == 1
}

// Lease describes a lease that lives.
func (l *Leases) Lease(now time.Time, at Partition, n Nonce) (LeaseInfo, LeaseEffects, error) {
	s, err := l.find(now, at, n)
	if err != nil {
		return LeaseInfo{}, l.done(now), err
	}
	return s.info(), l.done(now), nil
}

// upTo checks an offset to commit, -1 for all, and says whether it is new.
func (r *LeaseRecord) upTo(upto int64) (int64, bool, error) {
	if upto < 0 {
		upto = r.Next
	}
	if upto < r.Begin || upto > r.Next {
		return 0, false, fmt.Errorf("%w: %d is not from %d to %d", ErrLeaseRange, upto, r.Begin, r.Next)
	}
	return upto, upto > r.First, nil
}

// advance moves the committed offset within the lease, and returns what is left
// of its record. The record that is the first now was handed out once at least.
func (l *Leases) advance(s *slot, upto int64) *LeaseRecord {
	s.committed = upto
	r := *s.record
	r.First = upto
	r.Deliveries, r.Count = 1, int32(min(int64(r.Count), r.Next-upto))
	if upto == r.Next {
		s.acked = r.Nonce
		r.Deliveries = 0
	}
	l.commit(s)
	return &r
}

// Ack commits what a lease has done, up to the offset upto or with -1 all. The
// lease goes on if something is left.
func (l *Leases) Ack(now time.Time, at Partition, n Nonce, upto int64) (LeaseInfo, LeaseEffects, error) {
	i, err := l.ack(now, at, n, upto, l.settle)
	return i, l.done(now), err
}

// Acked names a lease of which all was done.
type Acked struct {
	At    Partition
	Nonce Nonce
}

// AckResult is what became of an Acked.
type AckResult struct {
	Info LeaseInfo
	Err  error
}

// ackAll acks whole leases. Their slots stay reserved for the take, if there is
// one, and what was changed is pending there.
func (l *Leases) ackAll(now time.Time, acks []Acked, tk *take) []AckResult {
	results := make([]AckResult, len(acks))
	for i, a := range acks {
		before := len(l.out.Changes)
		results[i].Info, results[i].Err = l.ack(now, a.At, a.Nonce, -1, func(s *slot) {
			if tk == nil {
				l.settle(s)
				return
			}
			l.enter(s, reserved, now.Add(tk.req.Duration))
			s.holder = tk.token
			s.pending = slices.Clone(l.out.Changes[before:])
			l.out.Changes = l.out.Changes[:before]
			tk.acked = append(tk.acked, s)
		})
	}
	return results
}

// ack calls over with a slot whose lease is over.
func (l *Leases) ack(now time.Time, at Partition, n Nonce, upto int64, over func(*slot)) (LeaseInfo, error) {
	s, err := l.find(now, at, n)
	if err != nil {
		if s != nil && s.acked.is(n) {
			return LeaseInfo{At: at, Nonce: n, First: s.committed, Next: s.committed, Committed: s.committed, AlreadyCommitted: true}, nil
		}
		return LeaseInfo{}, err
	}
	upto, news, err := s.record.upTo(upto)
	if err != nil {
		return LeaseInfo{}, err
	}
	if !news {
		i := s.info()
		i.AlreadyCommitted = s.record.First > s.record.Begin
		return i, nil
	}
	r := l.advance(s, upto)
	if upto < r.Next {
		l.keep(s, r)
		return s.info(), nil
	}
	l.keep(s, nil)
	over(s)
	return LeaseInfo{At: at, Nonce: n, First: upto, Next: upto, Committed: upto}, nil
}

// Extend has a lease end d from now, or with 0 after its own duration.
func (l *Leases) Extend(now time.Time, at Partition, n Nonce, d time.Duration) (LeaseInfo, LeaseEffects, error) {
	s, err := l.find(now, at, n)
	if err != nil {
		return LeaseInfo{}, l.done(now), err
	}
	r := *s.record
	if r.Span = d; d == 0 {
		r.Span = r.Duration
	}
	r.Until = now.Add(r.Span)
	l.keep(s, &r)
	l.enter(s, leased, r.Until)
	return s.info(), l.done(now), nil
}

// Release commits up to upto, unless it is -1, and ends the lease. Nobody gets
// the partition for the time of delay.
func (l *Leases) Release(now time.Time, at Partition, n Nonce, upto int64, delay time.Duration) (LeaseInfo, LeaseEffects, error) {
	s, err := l.find(now, at, n)
	if err != nil {
		return LeaseInfo{}, l.done(now), err
	}
	if upto < 0 {
		upto = s.record.First
	}
	upto, news, err := s.record.upTo(upto)
	if err != nil {
		return LeaseInfo{}, l.done(now), err
	}
	left := *s.record
	r := &left
	if news {
		r = l.advance(s, upto)
	}
	r.Nonce, r.Until, r.Span, r.Delayed = Nonce{}, time.Time{}, delay, delay > 0
	if delay > 0 {
		r.Until = now.Add(delay)
	}
	switch {
	case delay > 0:
		l.keep(s, r)
		l.enter(s, delayed, r.Until)
	case r.First == r.Next:
		l.keep(s, nil)
		l.settle(s)
	default:
		l.keep(s, r)
		l.settle(s)
	}
	i := LeaseInfo{At: at, First: r.First, Next: r.Next, Committed: s.committed, Until: r.Until, Delayed: r.Delayed, Deliveries: r.Deliveries, DeadLetter: r.DeadLetter}
	return i, l.done(now), nil
}

// Return undoes a lease that nobody was told of.
func (l *Leases) Return(now time.Time, at Partition, n Nonce) LeaseEffects {
	if s, err := l.find(now, at, n); err == nil {
		r := *s.record
		r.Nonce, r.Until, r.Span = Nonce{}, time.Time{}, 0
		r.Deliveries--
		l.keep(s, &r)
		l.settle(s)
	}
	return l.done(now)
}

// Commit takes note of an offset that others have committed, or with -1 removed;
// only what goes with it is among the effects. No lease may live.
func (l *Leases) Commit(now time.Time, at Partition, offset int64) LeaseEffects {
	l.expire(now)
	s := l.slot(at, offset >= 0)
	if s == nil {
		return l.done(now)
	}
	for _, c := range s.pending {
		if !c.Commit { // that is less than what others have committed since
			l.out.Changes = append(l.out.Changes, c)
		}
	}
	s.pending = nil
	l.keep(s, nil)
	s.committed, s.acked = offset, Nonce{}
	if s.phase != unknown {
		l.settle(s)
	}
	return l.done(now)
}

// DropTopic forgets a topic that is gone, whose records are the caller's to remove.
func (l *Leases) DropTopic(now time.Time, topic [16]byte) LeaseEffects {
	if t := l.topics[topic]; t != nil {
		for _, s := range t.slots {
			l.enter(s, unknown, time.Time{})
		}
		delete(l.topics, topic)
	}
	return l.done(now)
}
