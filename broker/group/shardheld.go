package group

import (
	"container/heap"
	"time"
)

// held is a group in memory: one that has members or leases, or whose newest
// change is on its way.
type held struct {
	*Group
	// end is the offset after its newest record in the log, as far as it was
	// appended since the group came into memory.
	end int64
	// changed says that the round being filled has a record of it, appending that
	// the one has that is on its way to the log.
	changed, appending bool
	// leases are those of a group of them, nil until they are needed.
	leases *Leases

	due   time.Time
	index int // in timers, -1 for none
	tally tally
}

// unsettled reports whether the view lacks something of the group.
func (s *Shard) unsettled(h *held) bool {
	return h.changed || h.appending || h.end > s.applied.Next
}

// group finds a group, from the view if need be; nil if there is none and it is
// not to be made.
func (s *Shard) group(id string, create bool, now time.Time) (*held, error) {
	if err := s.Serves(); err != nil {
		return nil, err
	}
	if h := s.groups[id]; h != nil {
		return h, nil
	}
	r, err := s.view.Members(id)
	exists := create || r != nil
	if err == nil && !exists {
		exists, err = s.view.Exists(id)
	}
	if err != nil || !exists {
		return nil, err
	}
	h := &held{index: -1}
	if r != nil {
		h.Group = Restore(id, s.cfg, r, now)
	} else {
		h.Group = New(id, s.cfg, now)
	}
	s.keep(h)
	return h, nil
}

// keep takes a group into memory.
func (s *Shard) keep(h *held) {
	h.tally.generation = h.Generation()
	s.groups[h.ID()] = h
	s.schedule(h)
}

// forget lets a group go that is in the view as it is.
func (s *Shard) forget(h *held, now time.Time) {
	unused := h.Idle() && (h.leases == nil || h.leases.Idle(now))
	if unused && !s.unsettled(h) && s.groups[h.ID()] == h {
		s.leave(h)
	}
}

// leave takes a group out of memory.
func (s *Shard) leave(h *held) {
	s.unwatch(h)
	h.leases = nil
	s.count(h, tally{generation: h.tally.generation})
	delete(s.groups, h.ID())
	if h.index >= 0 {
		heap.Remove(&s.timers, h.index)
	}
}

// take does what a step of a group asks for.
func (s *Shard) take(h *held, e Effects) {
	if e.Record != nil {
		s.change(h, Change{Group: h.ID(), Members: e.Record})
	}
	for i := range e.Joins {
		s.answer(h, Answer{e.Joins[i].Token, e.Joins[i].Err, e.Joins[i]})
	}
	for i := range e.Syncs {
		s.answer(h, Answer{e.Syncs[i].Token, e.Syncs[i].Err, e.Syncs[i]})
	}
	s.schedule(h)
}

// ShardStats is what a shard has in memory, and has done since it was made.
type ShardStats struct {
	Groups     [Dead + 1]int // by State
	Members    int
	Rebalances int64
	// Leases live, and Takes wait; so many leases have Expired.
	Leases, Takes int
	Expired       int64
}

// Stats says what there is.
func (s *Shard) Stats() ShardStats { return s.stats }

// tally is what the stats have of a group.
type tally struct {
	held          bool
	state         State
	members       int
	generation    int32
	leases, takes int
	expired       int64
}

// count brings the stats up to date with a group.
func (s *Shard) count(h *held, is tally) {
	was := h.tally
	if is == was {
		return
	}
	h.tally = is
	if was.held {
		s.stats.Groups[was.state]--
	}
	if is.held {
		s.stats.Groups[is.state]++
	}
	s.stats.Members += is.members - was.members
	s.stats.Leases += is.leases - was.leases
	s.stats.Takes += is.takes - was.takes
	if is.generation > was.generation && is.members > 0 {
		s.stats.Rebalances++
	}
	s.stats.Expired += max(is.expired-was.expired, 0)
}

// before orders by time, and by name where that is the same, so that a shard does
// the same things in the same order whenever the same is asked of it.
func (h *held) before(o *held) bool {
	if c := h.due.Compare(o.due); c != 0 {
		return c < 0
	}
	return h.ID() < o.ID()
}

func (h *held) place() *int { return &h.index }

// schedule sees to it that the group is looked at in time, and counts it.
func (s *Shard) schedule(h *held) {
	is := tally{held: true, state: h.state, members: h.Size(), generation: h.Generation(), expired: h.tally.expired}
	if h.leases != nil {
		is.leases, is.takes, is.expired = h.leases.Live(), h.leases.Waiting(), h.leases.Expired()
	}
	s.count(h, is)
	due, ok := h.deadline()
	switch {
	case !ok && h.index >= 0:
		heap.Remove(&s.timers, h.index)
	case !ok:
	case h.index < 0:
		h.due = due
		heap.Push(&s.timers, h)
	case !due.Equal(h.due):
		h.due = due
		heap.Fix(&s.timers, h.index)
	}
}

// deadline is when the group is to be looked at.
func (h *held) deadline() (time.Time, bool) {
	due, ok := h.Deadline()
	if h.leases != nil {
		if d := h.leases.Deadline(); !ok || d.Before(due) {
			return d, true
		}
	}
	return due, ok
}

// Deadline is when Tick is to be called at the latest; false for never.
func (s *Shard) Deadline() (time.Time, bool) {
	if len(s.timers) == 0 {
		return time.Time{}, false
	}
	return s.timers[0].due, true
}

// Tick does what is due. Requests that came in time and wait must be served
// before: a slow coordinator is no reason to lose a member.
func (s *Shard) Tick(now time.Time) {
	for len(s.timers) > 0 && !s.timers[0].due.After(now) {
		h := s.timers[0]
		s.take(h, h.Tick(now))
		if h.leases != nil {
			s.lease(h, h.leases.Tick(now), now)
		}
		s.forget(h, now)
		if h.leases != nil && h.leases.Idle(now) && s.groups[h.ID()] == h { // a change is on its way
			h.leases.Use(now)
			s.schedule(h)
		}
	}
}
