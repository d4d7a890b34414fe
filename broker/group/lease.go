package group

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"
)

// LeaseType is the protocol type of groups whose partitions are leased. Members
// of that type are refused.
const LeaseType = "lease"

// Partition names a partition for ever, by its topic's id.
type Partition struct {
	Topic  [16]byte
	Number int32
}

// Nonce is what of a lease's id cannot be guessed. The zero Nonce is nobody's.
type Nonce [16]byte

// LeaseConfig bounds the leases of a group.
type LeaseConfig struct {
	// MaxWaiting is how many takes may wait.
	MaxWaiting int
	// Aside is for how long a partition that cannot be read is left alone.
	Aside time.Duration
	// Linger is for how long leases that nobody uses are kept in memory.
	Linger time.Duration
}

// Leases is the leases of one group: which partition of which topic is handed
// out, until when, and who waits for one. It is not safe for concurrent use.
type Leases struct {
	cfg    *LeaseConfig
	topics map[[16]byte]*leasedTopic
	takes  map[Token]*take
	// ready are the topics that have a partition to hand out since the last
	// offer.
	ready []*leasedTopic
	due   ordered[*slot]
	// served counts what was handed out, so that partitions have their turn.
	served  int64
	live    int
	waiting int
	expired int64
	used    time.Time
	out     LeaseEffects
}

// leasedTopic is a topic's partitions.
type leasedTopic struct {
	id    [16]byte
	slots []*slot
	free  ordered[*slot] // with something to hand out, the longest not served first
	// waiting are the takes that want the topic, in the order in which they
	// came; those that wait no more are left out when they are met.
	waiting []*take
	left    int  // so many of them have left since
	offered bool // in Leases.ready
}

// phase is what a partition is doing.
type phase int8

const (
	unknown  phase = iota // nobody looks whether there is something to hand out
	watched               // nothing to hand out until Arrived
	free                  // something to hand out
	reserved              // being read for a take
	leased
	delayed
)

// slot is one partition.
type slot struct {
	at        Partition
	topic     *leasedTopic
	phase     phase
	watching  bool // Arrived will be called, for a record at or behind watched
	watched   int64
	committed int64 // -1 for nothing
	// The log begins at start or later, and has records up to end at least.
	start, end int64
	acked      Nonce
	record     *LeaseRecord // nil for none
	until      time.Time    // of the lease, the reservation or the delay
	holder     Token        // of the reservation
	// pending is what an ack has changed that came with a take which has the slot
	// reserved since: it is committed with what the take leads to.
	pending []LeaseChange
	err     error // why it cannot be read
	served  int64
	// Where it is in a heap: free by turns, or due; a slot is in one at most.
	index int
}

// before orders by time or by turn: a slot that waits has until, or not.
func (s *slot) before(o *slot) bool {
	return cmp.Or(s.until.Compare(o.until), cmp.Compare(s.served, o.served), cmp.Compare(s.at.Number, o.at.Number)) < 0
}

func (s *slot) place() *int { return &s.index }

// NewLeases makes the leases of a group that has none. cfg must stay unchanged.
func NewLeases(cfg *LeaseConfig, now time.Time) *Leases {
	return &Leases{cfg: cfg, topics: map[[16]byte]*leasedTopic{}, takes: map[Token]*take{}, used: now}
}

// RestoreOffset says what the group has committed for a partition, and the lease
// that was acked last, before anything else is asked of it.
func (l *Leases) RestoreOffset(at Partition, offset int64, acked Nonce) {
	s := l.slot(at, true)
	s.committed, s.acked = offset, acked
}

// RestoreLease takes over what was persisted of a partition. A lease that lives
// has what is left of its time, at most the whole: the wall clock may have gone
// anywhere meanwhile.
func (l *Leases) RestoreLease(now time.Time, at Partition, r *LeaseRecord) {
	s := l.slot(at, true)
	if s.committed >= 0 && s.committed != r.First {
		return // it is of an offset that was left since
	}
	s.record = r
	left := r.Until.Sub(now)
	s.end = r.Next // for it was read before
	if r.Until.IsZero() || left <= 0 {
		return
	}
	p := leased
	if r.Delayed {
		p = delayed
	}
	l.enter(s, p, now.Add(min(left, r.Span)))
}

// MaxLease is the longest lease and the longest delay.
const MaxLease = 15 * time.Minute

// slot finds a partition; nil if it is not known and not to be made.
func (l *Leases) slot(at Partition, make bool) *slot {
	t := l.topics[at.Topic]
	if t == nil {
		if !make {
			return nil
		}
		t = &leasedTopic{id: at.Topic}
		l.topics[at.Topic] = t
	}
	if at.Number < 0 || int(at.Number) >= len(t.slots) && !make {
		return nil
	}
	for n := len(t.slots); n <= int(at.Number); n++ {
		t.slots = append(t.slots, &slot{at: Partition{at.Topic, int32(n)}, topic: t, committed: -1, index: -1})
	}
	return t.slots[at.Number]
}

// enter moves a slot to a phase; until is when it leaves it by itself, zero for
// never.
func (l *Leases) enter(s *slot, p phase, until time.Time) {
	if s.index >= 0 {
		h := &l.due
		if s.phase == free {
			h = &s.topic.free
		}
		heap.Remove(h, s.index)
	}
	if s.phase == leased {
		l.live--
	}
	l.flush(s)
	s.phase, s.until = p, until
	switch p {
	case leased:
		l.live++
		heap.Push(&l.due, s)
	case reserved, delayed:
		heap.Push(&l.due, s)
	case free:
		heap.Push(&s.topic.free, s)
		if !s.topic.offered {
			s.topic.offered = true
			l.ready = append(l.ready, s.topic)
		}
	case unknown, watched:
	}
}

// flush has committed what is pending.
func (l *Leases) flush(s *slot) {
	l.out.Changes = append(l.out.Changes, s.pending...)
	s.pending = nil
}

// position is where the next lease begins, as far as it is known: a log may
// begin later.
func (s *slot) position() int64 {
	switch {
	case s.committed >= 0:
		return s.committed
	case s.record != nil:
		return s.record.First
	default:
		return -1
	}
}

// settle finds the phase of a slot that nobody holds: free if the log is known
// to have more, else it is watched, for which Arrived is asked for. An Arrived
// too many does no harm.
func (l *Leases) settle(s *slot) {
	s.holder = 0
	from := max(s.position(), s.start)
	if from < s.end {
		l.enter(s, free, time.Time{})
		return
	}
	l.enter(s, watched, time.Time{})
	if (!s.watching || from < s.watched) && from < math.MaxInt64 { // no log has a record there
		s.watching, s.watched = true, from
		l.out.Watches = append(l.out.Watches, LeaseWatch{At: s.at, From: from})
	}
}

// Arrived says that what the watches of partitions waited for is there, or that
// they are gone, which whoever reads them finds out. What is told together is
// handed out together.
func (l *Leases) Arrived(now time.Time, all ...Partition) LeaseEffects {
	for _, at := range all {
		s := l.slot(at, false)
		if s == nil {
			continue
		}
		s.watching = false
		if from := max(s.position(), s.start); s.phase == watched && from < math.MaxInt64 {
			s.end = from + 1
			l.settle(s)
		}
	}
	return l.done(now)
}

// done offers what became free to those who wait and hands out the effects.
func (l *Leases) done(now time.Time) LeaseEffects {
	l.offer(now)
	out := l.out
	l.out = LeaseEffects{}
	return out
}

// Live is how many leases live.
func (l *Leases) Live() int { return l.live }

// LiveAt reports whether a lease lives, also before Tick was called.
func (l *Leases) LiveAt(now time.Time) bool {
	for _, s := range l.due {
		if s.phase == leased && now.Before(s.until) {
			return true
		}
	}
	return false
}

// Waiting is how many takes wait.
func (l *Leases) Waiting() int { return l.waiting }

// Expired counts the leases that came to their deadline since they came into
// memory.
func (l *Leases) Expired() int64 { return l.expired }

// Idle reports whether nobody has used the leases for a while, so that they may
// be forgotten and restored.
func (l *Leases) Idle(now time.Time) bool {
	return len(l.takes) == 0 && l.live == 0 && now.Sub(l.used) >= l.cfg.Linger
}

// InUse reports whether a lease lives or somebody wants one.
func (l *Leases) InUse() bool { return l.live > 0 || len(l.takes) > 0 }

// Deadline is when Tick is to be called at the latest.
func (l *Leases) Deadline() time.Time {
	idle := l.used.Add(l.cfg.Linger)
	if len(l.due) > 0 && l.due[0].until.Before(idle) {
		return l.due[0].until
	}
	return idle
}

// Tick ends what is over by now. Leases that are Idle then and cannot be
// forgotten must be told that they are still used.
func (l *Leases) Tick(now time.Time) LeaseEffects {
	l.expire(now)
	if l.InUse() {
		l.used = now
	}
	return l.done(now)
}

// Use puts off the time at which the leases are Idle.
func (l *Leases) Use(now time.Time) { l.used = now }

// expire ends the leases, reservations and delays that are over.
func (l *Leases) expire(now time.Time) {
	for len(l.due) > 0 && !now.Before(l.due[0].until) {
		s := l.due[0]
		if s.phase == leased {
			l.expired++
		}
		l.settle(s)
	}
}

// List describes the leases that live and the partitions that are delayed, by
// topic and partition, as of the last step.
func (l *Leases) List() []LeaseInfo {
	var out []LeaseInfo
	for _, t := range l.topics {
		for _, s := range t.slots {
			if s.record != nil && (s.phase == leased || s.phase == delayed && s.record.Delayed) {
				out = append(out, s.info())
			}
		}
	}
	slices.SortFunc(out, func(a, b LeaseInfo) int {
		return cmp.Or(slices.Compare(a.At.Topic[:], b.At.Topic[:]), cmp.Compare(a.At.Number, b.At.Number))
	})
	return out
}

// info describes a slot.
func (s *slot) info() LeaseInfo {
	i := LeaseInfo{At: s.at, Committed: s.committed}
	if r := s.record; r != nil {
		i.Nonce, i.First, i.Next, i.Duration, i.Deliveries, i.DeadLetter = r.Nonce, r.First, r.Next, r.Duration, r.Deliveries, r.DeadLetter
		i.Until, i.Live, i.Delayed = s.until, s.phase == leased, s.phase == delayed
	}
	return i
}
