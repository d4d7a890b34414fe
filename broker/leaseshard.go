package broker

import (
	"time"

	"leat/broker/group"
	"leat/storage"
)

// leaseConfig is the same for all groups.
var leaseConfig = &group.LeaseConfig{MaxWaiting: maxParkedTakes, Aside: 5 * time.Second, Linger: time.Minute}

// watch looks for records of a partition for a leased group.
type watch struct {
	place
	group  string
	at     group.Partition
	part   *partition // nil if it is gone
	parked bool
}

// watch parks a place for a leased group, or tells it at once. One that is parked
// moves, unless it was told: that is as good.
func (s *shard) watch(in *group.Watch) {
	of := s.watching[in.Group]
	if of == nil {
		of = map[group.Partition]*watch{}
		s.watching[in.Group] = of
	}
	w := of[in.At]
	if w == nil {
		for s.lastWatch++; s.lastWatch <= 0 || s.watches[s.lastWatch] != nil; s.lastWatch++ {
			s.lastWatch = max(s.lastWatch, 0)
		}
		w = &watch{group: in.Group, at: in.At, place: place{Waiter: &s.wake.waiter, Index: s.lastWatch}}
		s.watches[w.Index], of[in.At] = w, w
	}
	if w.parked && (w.part == nil || !w.part.unpark(&w.place)) {
		return
	}
	w.parked = true
	if w.part = s.broker.served(storage.ID{Topic: in.At.Topic, Partition: in.At.Number}); w.part == nil {
		s.wake.tell(&w.place)
		return
	}
	w.part.park(&w.place, max(in.From, w.part.log.Offsets().Start)+1)
}

// unwatch ends what is watched for a group. A place that was told meanwhile is
// nobody's when it is collected.
func (s *shard) unwatch(id string) {
	for _, w := range s.watching[id] {
		if w.parked && w.part != nil {
			w.part.unpark(&w.place)
		}
		delete(s.watches, w.Index)
	}
	delete(s.watching, id)
}

// collect takes what the places have told.
func (s *shard) collect() {
	for {
		pl, _ := s.wake.collect()
		if pl == nil {
			return
		}
		var order []string // of groups, as they are told of
		arrived := map[string][]group.Partition{}
		for pl != nil {
			next := pl.Next
			if pl.Index == 0 {
				s.parked = false
			} else if w := s.watches[pl.Index]; w != nil {
				w.parked = false
				if arrived[w.group] == nil {
					order = append(order, w.group)
				}
				arrived[w.group] = append(arrived[w.group], w.at)
			}
			pl = next
		}
		for _, id := range order {
			s.core.Arrived(s.now(), id, arrived[id]...)
		}
	}
}
