package broker

import (
	"time"

	"leat/broker/group"
	"leat/storage"
)

// watch looks for records of a partition for a leased group.
type watch struct {
	place
	h      *held
	at     group.Partition
	part   *partition // nil if it is gone
	parked bool
}

// find calls fn with a group, nil if there is none and it is not to be made; if
// it is one of leases, they are in memory.
func (s *shard) find(id string, create bool, now time.Time, fn func(h *held, now time.Time, err error)) {
	h, err := s.group(id, create, now)
	if err != nil || h == nil || h.ProtocolType() != group.LeaseType {
		fn(h, now, err)
		return
	}
	s.withLeases(h, now, fn)
}

// withLeases calls fn with a group whose leases are in memory, once the store
// has all that there is of it.
func (s *shard) withLeases(h *held, now time.Time, fn func(h *held, now time.Time, err error)) {
	if h.leases != nil {
		fn(h, now, nil)
		return
	}
	if h.changed || h.end > s.settled {
		id := h.ID()
		s.whenQuiet(func(now time.Time) {
			h, err := s.group(id, true, now)
			if err != nil {
				fn(nil, now, err)
				return
			}
			s.withLeases(h, now, fn)
		})
		return
	}
	fn(h, now, s.loadLeases(h, now))
}

// leaseConfig is the same for all groups.
var leaseConfig = &group.LeaseConfig{MaxWaiting: maxParkedTakes, Aside: 5 * time.Second, Linger: time.Minute}

// loadLeases takes the leases of a group from the store.
func (s *shard) loadLeases(h *held, now time.Time) error {
	l := group.NewLeases(leaseConfig, now)
	topics := s.broker.proposer.State()
	err := s.store.offsets(h.ID(), false, func(_, _ string, partition int32, o *committed) error {
		if t := topics.Topic(o.topic); t != nil && partition >= 0 && int(partition) < len(t.Partitions) {
			l.RestoreOffset(group.Partition{Topic: o.topic, Number: partition}, o.offset, o.acked)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = s.store.leases(h.ID(), false, func(_ string, topic TopicID, partition int32, v []byte) error {
		t := topics.Topic(topic)
		if t == nil || int(partition) >= len(t.Partitions) {
			return nil
		}
		r, err := decodeLease(v)
		if err == nil {
			l.RestoreLease(now, group.Partition{Topic: topic, Number: partition}, r)
		}
		return err
	})
	if err == nil {
		h.leases, h.watches = l, map[group.Partition]*watch{}
	}
	return err
}

// lease does what a step of leases asks for.
func (s *shard) lease(h *held, e group.LeaseEffects) {
	for i := range e.Changes {
		s.changeLease(h, &e.Changes[i])
	}
	for _, w := range e.Watches {
		s.watch(h, w)
	}
	for _, o := range e.Handouts {
		reply := s.takes[o.Token]
		delete(s.takes, o.Token)
		if reply != nil {
			reply(o)
		}
	}
	s.schedule(h)
}

func (s *shard) changeLease(h *held, c *group.LeaseChange) {
	if !c.Commit {
		s.change(h, change{group: h.ID(), leased: c.At.Topic, partition: c.At.Number, lease: c.Record})
		return
	}
	t := s.broker.proposer.State().Topic(c.At.Topic)
	if t == nil {
		return // and its name may be another's by now
	}
	s.change(h, change{group: h.ID(), topic: t.Name, partition: c.At.Number, offset: &committed{
		topic: t.ID, offset: c.Offset, epoch: -1, at: s.now().UnixMilli(), acked: c.Acked, expires: -1,
	}})
}

// watch parks a place for a leased group, or tells it at once. One that is parked
// moves, unless it was told: that is as good.
func (s *shard) watch(h *held, in group.LeaseWatch) {
	w := h.watches[in.At]
	if w == nil {
		for s.lastWatch++; s.lastWatch <= 0 || s.watches[s.lastWatch] != nil; s.lastWatch++ {
			s.lastWatch = max(s.lastWatch, 0)
		}
		w = &watch{h: h, at: in.At, place: place{Waiter: &s.wake.waiter, Index: s.lastWatch}}
		s.watches[w.Index], h.watches[in.At] = w, w
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
func (s *shard) unwatch(h *held) {
	for _, w := range h.watches {
		if w.parked && w.part != nil {
			w.part.unpark(&w.place)
		}
		delete(s.watches, w.Index)
	}
	h.watches = nil
}

// lapse forgets what is in memory of the leases of a group, because it is not
// what is committed; who waits is answered with err.
func (s *shard) lapse(h *held, err error) {
	if h.leases == nil {
		return
	}
	l := h.leases
	s.unwatch(h)
	h.leases = nil
	s.lease(h, l.Kill(err))
}

// collect takes what the places have told.
func (s *shard) collect() {
	for {
		pl, _ := s.wake.collect()
		if pl == nil {
			return
		}
		var groups []*held
		for pl != nil {
			next := pl.Next
			if pl.Index == 0 {
				s.parked = false
			} else if w := s.watches[pl.Index]; w != nil {
				w.parked = false
				if len(w.h.arrived) == 0 {
					groups = append(groups, w.h)
				}
				w.h.arrived = append(w.h.arrived, w.at)
			}
			pl = next
		}
		for _, h := range groups {
			e := h.leases.Arrived(s.now(), h.arrived...)
			h.arrived = h.arrived[:0]
			s.lease(h, e)
		}
	}
}

// state is where the group is: one of leases is stable while one of them lives.
func (h *held) state(now time.Time) group.State {
	if h.leases != nil && h.leases.LiveAt(now) {
		return group.Stable
	}
	state, _ := h.State()
	return state
}

// liveInStore reports whether a lease of a group lives that is not in memory.
func (s *shard) liveInStore(id string, now time.Time) (live bool, err error) {
	topics := s.broker.proposer.State()
	err = s.store.leases(id, false, func(_ string, topic TopicID, _ int32, v []byte) error {
		r, err := decodeLease(v)
		live = live || err == nil && !r.Delayed && now.Before(r.Until) && topics.Topic(topic) != nil
		return err
	})
	return live, err
}

// leaveLease takes note of an offset that others than a lease have committed, or
// with -1 removed.
func (s *shard) leaveLease(h *held, now time.Time, topic TopicID, partition int32, offset int64) {
	if h.leases != nil {
		s.lease(h, h.leases.Commit(now, group.Partition{Topic: topic, Number: partition}, offset))
	}
}

// expireLeases removes what is left of leases of topics that are gone, or with
// all of every lease. The store must have all that there is of the group.
func (s *shard) expireLeases(h *held, now time.Time, all bool) error {
	topics := s.broker.proposer.State()
	return s.store.leases(h.ID(), false, func(_ string, topic TopicID, partition int32, _ []byte) error {
		gone := topics.Topic(topic) == nil
		if gone && h.leases != nil {
			s.lease(h, h.leases.DropTopic(now, topic))
		}
		if gone || all {
			s.change(h, change{group: h.ID(), leased: topic, partition: partition})
		}
		return nil
	})
}
