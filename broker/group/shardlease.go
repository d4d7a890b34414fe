package group

import (
	"slices"
	"time"
)

// find calls fn with a group, nil if there is none and it is not to be made; if
// it is one of leases, they are in memory.
func (s *Shard) find(t Token, id string, create bool, now time.Time, fn func(h *held, now time.Time, err error)) {
	h, err := s.group(id, create, now)
	if err != nil || h == nil || h.ProtocolType() != LeaseType {
		fn(h, now, err)
		return
	}
	s.withLeases(t, h, now, fn)
}

// withLeases calls fn with a group whose leases are in memory, once the view has
// all that there is of it.
func (s *Shard) withLeases(t Token, h *held, now time.Time, fn func(h *held, now time.Time, err error)) {
	if h.leases != nil {
		fn(h, now, nil)
		return
	}
	if s.unsettled(h) {
		id := h.ID()
		s.quiet = append(s.quiet, quiet{t, func(now time.Time) {
			h, err := s.group(id, true, now)
			if err != nil {
				fn(nil, now, err)
				return
			}
			s.withLeases(t, h, now, fn)
		}})
		return
	}
	fn(h, now, s.loadLeases(h, now))
}

// loadLeases takes the leases of a group from the view.
func (s *Shard) loadLeases(h *held, now time.Time) error {
	l := NewLeases(s.opts.Leases, now)
	exists := func(at Partition) bool {
		_, n, ok := s.opts.Topics.Topic(at.Topic)
		return ok && at.Number >= 0 && at.Number < n
	}
	err := s.view.EachOffset(h.ID(), func(_ string, partition int32, o *Offset) error {
		if at := (Partition{o.Topic, partition}); exists(at) {
			l.RestoreOffset(at, o.Offset, o.Acked)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = s.view.EachLease(h.ID(), func(at Partition, r *LeaseRecord) error {
		if exists(at) {
			l.RestoreLease(now, at, r)
		}
		return nil
	})
	if err == nil {
		h.leases = l
	}
	return err
}

// lease does what a step of leases asks for.
func (s *Shard) lease(h *held, e LeaseEffects, now time.Time) {
	for i := range e.Changes {
		s.changeLease(h, &e.Changes[i], now)
	}
	for _, w := range e.Watches {
		s.out.Watches = append(s.out.Watches, Watch{h.ID(), w})
	}
	for _, o := range e.Handouts {
		s.answerNow(Answer{o.Token, o.Err, o.Reservations})
	}
	s.schedule(h)
}

func (s *Shard) changeLease(h *held, c *LeaseChange, now time.Time) {
	if !c.Commit {
		s.change(h, Change{Group: h.ID(), Leased: c.At.Topic, Partition: c.At.Number, Lease: c.Record})
		return
	}
	name, _, ok := s.opts.Topics.Topic(c.At.Topic)
	if !ok {
		return // and its name may be another's by now
	}
	s.change(h, Change{Group: h.ID(), Topic: name, Partition: c.At.Number, Offset: &Offset{
		Topic: c.At.Topic, Offset: c.Offset, Epoch: -1, At: now.UnixMilli(), Acked: c.Acked, Expires: -1,
	}})
}

// unwatch ends what is watched for a group.
func (s *Shard) unwatch(h *held) {
	if h.leases == nil {
		return
	}
	id := h.ID()
	s.out.Watches = slices.DeleteFunc(s.out.Watches, func(w Watch) bool { return w.Group == id })
	s.out.Unwatched = append(s.out.Unwatched, id)
}

// lapse forgets what is in memory of the leases of a group, because it is not
// what is committed; who waits is answered with err.
func (s *Shard) lapse(h *held, err error) {
	if h.leases == nil {
		return
	}
	for _, t := range h.leases.Parked() {
		s.answerNow(Answer{Token: t, Err: err})
	}
	s.unwatch(h)
	h.leases = nil
	s.schedule(h)
}

// Arrived says that watches of a group have come to their record.
func (s *Shard) Arrived(now time.Time, id string, at ...Partition) {
	if h := s.groups[id]; h != nil && h.leases != nil {
		s.lease(h, h.leases.Arrived(now, at...), now)
	}
}

// LeaseTake asks for leases; see Leases.AckAndTake.
type LeaseTake struct {
	Request *TakeRequest
	Acks    []Acked
	// NoWait has it answered at once, with no reservations if there is nothing.
	NoWait bool
	// Touch is how long a group of leases may be older than it says.
	Touch time.Duration
}

// TakeAcks is what became of the acks that came with a take.
type TakeAcks struct {
	Token   Token
	Results []AckResult
}

// waitingTake is a take before it has asked: what there is of its topics is told
// first, else it would get the first partition that something is found in, and no
// other.
type waitingTake struct {
	token Token
	id    string
	*LeaseTake
}

// Take asks for partitions of a group, which is one of leases from then on. The
// Value is a []Reservation, to be followed by Grant or CancelTake. q is the group's.
func (s *Shard) Take(now time.Time, t Token, id string, q *LeaseTake) {
	refuse := func(err error) { s.answerNow(Answer{Token: t, Err: err}) }
	h, err := s.group(id, true, now)
	if err == nil && h.state != Empty {
		err = ErrTypeConflict
	}
	if err != nil {
		refuse(err)
		return
	}
	s.withLeases(t, h, now, func(h *held, now time.Time, err error) {
		if err != nil {
			refuse(err)
			return
		}
		e, err := h.Lease(now, q.Touch)
		if err != nil {
			refuse(err)
			return
		}
		s.take(h, e)
		h.leases.Use(now)
		s.lease(h, h.leases.Know(now, q.Request), now)
		s.takes = append(s.takes, waitingTake{t, id, q})
	})
}

// takeWaiting has the takes ask.
func (s *Shard) takeWaiting(now time.Time) {
	takes := s.takes
	s.takes = nil
	for _, w := range takes {
		h := s.groups[w.id]
		if h == nil || h.leases == nil {
			s.answerNow(Answer{Token: w.token, Err: ErrGone})
			continue
		}
		results, e := h.leases.AckAndTake(now, w.token, w.Request, w.Acks)
		if len(results) > 0 {
			s.out.Acked = append(s.out.Acked, TakeAcks{w.token, results})
		}
		s.lease(h, e, now)
		if w.NoWait && h.leases.Waits(w.token) {
			s.lease(h, h.leases.Cancel(now, w.token), now)
			a := Answer{Token: w.token, Err: h.leases.Trouble(w.Request.Topics)}
			s.answer(h, a)
		}
	}
}

// CancelTake says that nobody waits for a take any more. The answer is why
// partitions of its topics cannot be read, if that is so.
func (s *Shard) CancelTake(now time.Time, t Token, id string, take Token, topics [][16]byte) {
	a := Answer{Token: t}
	s.takes = slices.DeleteFunc(s.takes, func(w waitingTake) bool { return w.token == take })
	if h := s.groups[id]; h != nil && h.leases != nil {
		s.lease(h, h.leases.Cancel(now, take), now)
		for _, topic := range topics {
			if a.Err == nil {
				a.Err = h.leases.Trouble([]TakeTopic{{ID: topic}})
			}
		}
		s.forget(h, now)
	}
	s.answerNow(a)
}

// Grant leases what was read for a take: the Value is a []LeaseInfo.
func (s *Shard) Grant(now time.Time, t Token, id string, take Token, reads []Read) {
	h := s.groups[id]
	if h == nil || h.leases == nil {
		s.answerNow(Answer{Token: t, Value: []LeaseInfo(nil)})
		return
	}
	infos, e := h.leases.Grant(now, take, reads)
	s.lease(h, e, now)
	s.answer(h, Answer{Token: t, Value: infos})
}

// GiveBack undoes leases that nobody will be told of.
func (s *Shard) GiveBack(now time.Time, id string, take Token, reads []Read) {
	h := s.groups[id]
	if h == nil || h.leases == nil {
		return
	}
	s.lease(h, h.leases.Cancel(now, take), now)
	for i := range reads {
		s.lease(h, h.leases.Return(now, reads[i].At, reads[i].Nonce), now)
	}
	s.forget(h, now)
}

// LeaseStep is a step about one lease.
type LeaseStep func(l *Leases, now time.Time) (LeaseInfo, LeaseEffects, error)

// Lease takes a step about one lease: the Value is its LeaseInfo. ErrLeaseLost is
// also for a group that is none of leases.
func (s *Shard) Lease(now time.Time, t Token, id string, step LeaseStep) {
	s.act(now, t, id, how{missing: ErrLeaseLost}, func(h *held, now time.Time) (any, error) {
		if h.leases == nil {
			return nil, ErrLeaseLost
		}
		i, e, err := step(h.leases, now)
		s.lease(h, e, now)
		return i, err
	})
}

// ListLeases answers with a []LeaseInfo of the leases that live, and the partitions
// that are delayed.
func (s *Shard) ListLeases(now time.Time, t Token, id string, missing error) {
	s.act(now, t, id, how{missing: missing}, func(h *held, now time.Time) (any, error) {
		if h.leases == nil {
			return []LeaseInfo(nil), nil
		}
		s.lease(h, h.leases.Tick(now), now)
		return h.leases.List(), nil
	})
}

// stateAt is where the group is: one of leases is stable while one of them lives.
func (h *held) stateAt(now time.Time) State {
	if h.leases != nil && h.leases.LiveAt(now) {
		return Stable
	}
	return h.state
}

// liveInView reports whether a lease of a group lives that is not in memory.
func (s *Shard) liveInView(id string, now time.Time) (live bool, err error) {
	err = s.view.EachLease(id, func(at Partition, r *LeaseRecord) error {
		_, _, exists := s.opts.Topics.Topic(at.Topic)
		live = live || !r.Delayed && now.Before(r.Until) && exists
		return nil
	})
	return live, err
}

// leaveLease takes note of an offset that others than a lease have committed, or
// with -1 removed.
func (s *Shard) leaveLease(h *held, now time.Time, at Partition, offset int64) {
	if h.leases != nil {
		s.lease(h, h.leases.Commit(now, at, offset), now)
	}
}

// expireLeases removes what is left of leases of topics that are gone, or with
// all of every lease. The view must have all that there is of the group.
func (s *Shard) expireLeases(h *held, now time.Time, all bool) error {
	return s.view.EachLease(h.ID(), func(at Partition, _ *LeaseRecord) error {
		_, _, exists := s.opts.Topics.Topic(at.Topic)
		if !exists && h.leases != nil {
			s.lease(h, h.leases.DropTopic(now, at.Topic), now)
		}
		if !exists || all {
			s.change(h, Change{Group: h.ID(), Leased: at.Topic, Partition: at.Number})
		}
		return nil
	})
}
