package broker

import (
	"container/heap"
	"time"
)

// timers are the groups that wait for something, the earliest first.
type timers []*held

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due.Before(t[j].due) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push is for container/heap.
func (t *timers) Push(x any) {
	h := x.(*held)
	h.index = len(*t)
	*t = append(*t, h)
}

// Pop is for container/heap.
func (t *timers) Pop() any {
	last := len(*t) - 1
	h := (*t)[last]
	(*t)[last] = nil
	*t, h.index = (*t)[:last], -1
	return h
}

// schedule sees to it that the group is looked at in time, and counts it.
func (s *shard) schedule(h *held) {
	s.broker.metrics.groups.count(h)
	s.broker.metrics.leases.count(h)
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

func (s *shard) untilDue() time.Duration {
	if len(s.timers) == 0 {
		return time.Hour
	}
	return max(s.timers[0].due.Sub(s.now()), 0)
}

// tick does what is due.
func (s *shard) tick() {
	now := s.now()
	for len(s.timers) > 0 && !s.timers[0].due.After(now) {
		h := s.timers[0]
		s.take(h, h.Tick(now))
		if h.leases != nil {
			s.lease(h, h.leases.Tick(now))
		}
		s.forget(h)
		if h.leases != nil && h.leases.Idle(now) && s.groups[h.ID()] == h { // a change is on its way
			h.leases.Use(now)
			s.schedule(h)
		}
	}
}
