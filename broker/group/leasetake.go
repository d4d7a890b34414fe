package group

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// TakeRequest asks for leases.
type TakeRequest struct {
	Topics []TakeTopic
	// MaxPartitions bounds the leases.
	MaxPartitions int
	LeaseTerms
}

// TakeTopic is a topic that a take wants partitions of.
type TakeTopic struct {
	ID         [16]byte
	Partitions int32
	// Ends are where a group begins that has nothing of the topic yet, by
	// partition: they are committed. nil is the start of each log.
	Ends []int64
}

// take is a take that waits, or for which partitions are being read.
type take struct {
	token   Token
	req     *TakeRequest
	waiting bool
	slots   []*slot // reserved for it, unless they are another's since
	acked   []*slot // of the acks that it came with, likewise
}

// Knows reports whether the group has something of the topic: a TakeTopic needs
// no Ends then.
func (l *Leases) Knows(topic [16]byte) bool {
	t := l.topics[topic]
	return t != nil && slices.ContainsFunc(t.slots, func(s *slot) bool { return s.position() >= 0 })
}

// Take asks for partitions. They come as a Handout, in this step or a later one;
// Grant or Cancel must follow. r is the group's from now on.
func (l *Leases) Take(now time.Time, t Token, r *TakeRequest) LeaseEffects {
	_, e := l.AckAndTake(now, t, r, nil)
	return e
}

// AckAndTake is Take after the acks of whole leases. If there is something to
// hand out at once, what they change is among the effects of the Grant or Cancel
// that follows, so that one commit has all; until then nobody else gets their
// partitions. If not it is among the effects of this step.
func (l *Leases) AckAndTake(now time.Time, t Token, r *TakeRequest, acks []Acked) ([]AckResult, LeaseEffects) {
	l.used = now
	l.expire(now)
	if l.waiting >= l.cfg.MaxWaiting {
		l.out.Handouts = append(l.out.Handouts, Handout{Token: t, Err: fmt.Errorf("%w: %d", ErrTooManyWaiter, l.waiting)})
		results := l.ackAll(now, acks, nil)
		return results, l.done(now)
	}
	tk := &take{token: t, req: r, waiting: true}
	l.takes[t] = tk
	l.waiting++
	results := l.ackAll(now, acks, tk)
	for i := range r.Topics {
		topic := l.know(&r.Topics[i])
		if topic == nil {
			continue
		}
		topic.waiting = append(topic.waiting, tk)
		if len(topic.free) > 0 && !topic.offered {
			topic.offered = true
			l.ready = append(l.ready, topic)
		}
	}
	// Whoever has waited for what is free again has it before this take.
	tk.acked = slices.DeleteFunc(tk.acked, func(s *slot) bool {
		first := s.topic.first()
		others := first != nil && first != tk
		if others {
			l.settle(s)
		}
		return others
	})
	l.offer(now)
	if tk.waiting && slices.ContainsFunc(tk.acked, tk.wants) {
		l.reserve(now, tk)
	}
	if tk.waiting {
		l.giveUp(tk)
	}
	return results, l.done(now)
}

// wants reports whether the take can have a partition that it has acked.
func (tk *take) wants(s *slot) bool {
	asked := slices.ContainsFunc(tk.req.Topics, func(t TakeTopic) bool { return t.ID == s.at.Topic && s.at.Number < t.Partitions })
	return asked && tk.holds(s) && max(s.position(), s.start) < s.end
}

// holds reports whether a slot is still reserved for the take.
func (tk *take) holds(s *slot) bool { return s.phase == reserved && s.holder == tk.token }

// giveUp has the acks of a take committed that is handed out nothing.
func (l *Leases) giveUp(tk *take) {
	for _, s := range tk.acked {
		if tk.holds(s) {
			l.settle(s)
		}
	}
	tk.acked = nil
}

// Know begins to look for what a take will want, before it is asked for: else it
// would get the first partition that something is found in, and no other.
func (l *Leases) Know(now time.Time, r *TakeRequest) LeaseEffects {
	l.expire(now)
	for i := range r.Topics {
		l.know(&r.Topics[i])
	}
	return l.done(now)
}

// know makes slots of a topic's partitions; nil if it has none.
func (l *Leases) know(in *TakeTopic) *leasedTopic {
	if in.Partitions <= 0 {
		return nil
	}
	begin := in.Ends != nil && !l.Knows(in.ID)
	l.slot(Partition{in.ID, in.Partitions - 1}, true)
	t := l.topics[in.ID]
	for i, s := range t.slots {
		if begin && i < len(in.Ends) {
			s.committed = in.Ends[i]
			l.commit(s)
		}
		if s.phase == unknown {
			l.settle(s)
		}
	}
	return t
}

// commit has the slot's offset committed.
func (l *Leases) commit(s *slot) {
	l.out.Changes = append(l.out.Changes, LeaseChange{At: s.at, Commit: true, Offset: s.committed, Acked: s.acked})
}

// keep has the slot's record persisted.
func (l *Leases) keep(s *slot, r *LeaseRecord) {
	if r == nil && s.record == nil {
		return
	}
	s.record = r
	l.out.Changes = append(l.out.Changes, LeaseChange{At: s.at, Record: r})
}

// offer hands out what is free to those who wait for it, the oldest first.
func (l *Leases) offer(now time.Time) {
	for _, t := range l.ready {
		t.offered = false
		for len(t.free) > 0 {
			tk := t.first()
			if tk == nil {
				break
			}
			l.reserve(now, tk)
		}
	}
	l.ready = l.ready[:0]
}

// first is the take that has waited longest.
func (t *leasedTopic) first() *take {
	for len(t.waiting) > 0 {
		if tk := t.waiting[0]; tk.waiting {
			return tk
		}
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
	}
	return nil
}

// reserve gives a take what is free of its topics, what was not served for
// longest first.
func (l *Leases) reserve(now time.Time, tk *take) {
	h := Handout{Token: tk.token}
	for len(h.Reservations) < tk.req.MaxPartitions {
		var next *slot
		for i := range tk.req.Topics {
			t := l.topics[tk.req.Topics[i].ID]
			if t != nil && len(t.free) > 0 && (next == nil || t.free[0].served < next.served) {
				next = t.free[0]
			}
		}
		if next == nil {
			break
		}
		l.enter(next, reserved, now.Add(tk.req.Duration))
		next.holder = tk.token
		tk.slots = append(tk.slots, next)
		h.Reservations = append(h.Reservations, next.reservation(&tk.req.LeaseTerms))
	}
	// What it had until now was served last.
	for _, s := range tk.acked {
		if len(h.Reservations) < tk.req.MaxPartitions && tk.wants(s) {
			h.Reservations = append(h.Reservations, s.reservation(&tk.req.LeaseTerms))
		}
	}
	tk.slots = append(tk.slots, tk.acked...)
	l.stopWaiting(tk)
	l.out.Handouts = append(l.out.Handouts, h)
}

// reservation says how a slot is to be read. From the second delivery on it
// halves what it gives, and the last delivery is of one record, so that the one
// that workers fail at is found.
func (s *slot) reservation(terms *LeaseTerms) Reservation {
	r := Reservation{At: s.at, From: s.position(), Limit: math.MaxInt}
	if s.record != nil {
		r.Deliveries, r.Next = s.record.Deliveries, s.record.Next
	}
	last := terms.MaxDeliveries
	r.Dead = last > 0 && r.Deliveries >= last && terms.DeadLetter != ""
	switch {
	case r.Dead && last > 1:
	case last > 0 && r.Deliveries+1 >= last:
		r.Limit = 1
	case r.Deliveries > 0:
		r.Limit = max(1, int(s.record.Count)/2)
	}
	return r
}

func (l *Leases) stopWaiting(tk *take) {
	if tk.waiting {
		tk.waiting = false
		l.waiting--
	}
}

// Read is what was found in a reserved partition.
type Read struct {
	At Partition
	// Err is why it could not be read.
	Err error
	// The lease is to cover [First, Next), with Count records; First is behind
	// the reservation's From if the log begins later or Dead records went to the
	// dead letter topic. Equal they say that nothing is there.
	First, Next int64
	Count       int32
	Dead        bool
	// End is up to where the log has records.
	End   int64
	Nonce Nonce
}

// Grant leases what was read for a take, whose other reservations are free
// again. The leases are in the order of the reads; one that is not among them
// was taken from the take meanwhile.
func (l *Leases) Grant(now time.Time, t Token, reads []Read) ([]LeaseInfo, LeaseEffects) {
	l.used = now
	l.expire(now)
	tk := l.takes[t]
	if tk == nil {
		return nil, l.done(now)
	}
	var out []LeaseInfo
	for i := range reads {
		s := l.slot(reads[i].At, false)
		if s == nil || s.phase != reserved || s.holder != t {
			continue
		}
		if l.grant(now, s, &reads[i], &tk.req.LeaseTerms) {
			out = append(out, s.info())
		}
	}
	l.leave(tk)
	return out, l.done(now)
}

func (l *Leases) grant(now time.Time, s *slot, r *Read, terms *LeaseTerms) bool {
	l.flush(s)
	s.err = r.Err
	if r.Err != nil {
		s.holder = 0
		l.enter(s, delayed, now.Add(l.cfg.Aside))
		return false
	}
	s.start, s.end = r.First, r.End
	if r.Next == r.First && !r.Dead { // a gap is told with the lease behind it
		l.settle(s)
		return false
	}
	if from := s.position(); from >= 0 && from != r.First || r.Dead {
		s.committed = r.First
		l.commit(s)
		if r.Next == r.First {
			l.keep(s, nil)
			l.settle(s)
			return false
		}
		s.record = nil // the lease's takes its place
	}
	deliveries := int32(1)
	if s.record != nil {
		deliveries += s.record.Deliveries
	}
	l.served++
	s.served = l.served
	s.holder = 0
	until := now.Add(terms.Duration)
	l.keep(s, &LeaseRecord{
		Nonce: r.Nonce, LeaseTerms: *terms, Begin: r.First, First: r.First, Next: r.Next, Until: until, Span: terms.Duration, Deliveries: deliveries, Count: r.Count,
	})
	l.enter(s, leased, until)
	return true
}

// Waits reports whether a take waits for something to be handed out.
func (l *Leases) Waits(t Token) bool { return l.takes[t] != nil && l.takes[t].waiting }

// Parked are the takes that wait, in order.
func (l *Leases) Parked() []Token {
	var out []Token
	for t, tk := range l.takes { // sorted below
		if tk.waiting {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return out
}

// Cancel says that a take is wanted no more.
func (l *Leases) Cancel(now time.Time, t Token) LeaseEffects {
	if tk := l.takes[t]; tk != nil {
		l.leave(tk)
	}
	return l.done(now)
}

// leave forgets a take; what is reserved for it is free again.
func (l *Leases) leave(tk *take) {
	delete(l.takes, tk.token)
	for _, s := range tk.slots {
		if s.phase == reserved && s.holder == tk.token {
			l.settle(s)
		}
	}
	l.stopWaiting(tk)
	for i := range tk.req.Topics {
		if t := l.topics[tk.req.Topics[i].ID]; t != nil {
			t.forgetLeft()
		}
	}
}

// forgetLeft takes those out who do not wait any more, once they are many.
func (t *leasedTopic) forgetLeft() {
	t.left++
	if 2*t.left > len(t.waiting) {
		t.waiting = slices.DeleteFunc(t.waiting, func(tk *take) bool { return !tk.waiting })
		t.left = 0
	}
}

// Trouble is why partitions of the topics cannot be read, nil if there are none
// of which that is known.
func (l *Leases) Trouble(topics []TakeTopic) error {
	for i := range topics {
		if t := l.topics[topics[i].ID]; t != nil {
			for _, s := range t.slots {
				if s.err != nil {
					return s.err
				}
			}
		}
	}
	return nil
}
