package controller

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"leat/storage"
)

// Instant is a moment of a process's own monotonic clock, as the time since
// another that the process chose.
type Instant = time.Duration

// Never is after every Instant.
const Never Instant = math.MaxInt64

// ActiveOptions are the times of an Active; zero values stand for the defaults.
type ActiveOptions struct {
	// Session is for how long a broker lives without a heartbeat; 2 s.
	Session time.Duration
	// Rebalance is how often leaderships go back to the preferred replicas, 30 s;
	// Stable for how long a partition has to be unchanged before that, 60 s; Moves
	// how many go at a time, 100.
	Rebalance, Stable time.Duration
	Moves             int
}

func (o *ActiveOptions) setDefaults() {
	o.Session = cmp.Or(o.Session, 2*time.Second)
	o.Rebalance = cmp.Or(o.Rebalance, 30*time.Second)
	o.Stable = cmp.Or(o.Stable, time.Minute)
	o.Moves = cmp.Or(o.Moves, 100)
}

// Active is what the active controller has beyond the committed state: what it
// has proposed and not seen committed (the overlay, on which it decides), and
// when each broker was heard of last. It exists only in a term whose barrier is
// applied, and is thrown away with it. It is not safe for concurrent use.
type Active struct {
	o ActiveOptions
	// committed is the state that is committed, overlay what it becomes, and before the
	// overlay that the last Step met.
	committed, overlay, before *State
	// stepped is when the last Step was.
	stepped Instant
	lives   map[int32]*life
	// were are the lives before the last Step, nil if that has changed no broker, and
	// wereAlone is alone before it.
	were      map[int32]*life
	wereAlone bool
	// alone says that there is one broker: nobody could take over from it, so it
	// has no session.
	alone bool
	// changed holds when partitions last changed, for as long as that matters: a
	// broker that is alone leads all that it can.
	changed   map[storage.ID]Instant
	rebalance Instant
	// unled says that there may be partitions without a leader that a broker in
	// service could lead: of a decision only the first parts may be committed.
	unled bool
}

// Activate begins a term of office, with s committed as of index applied. Every
// broker in service has a whole session from now on; fenced ones have none
// (KAFKA-19130).
func Activate(s *State, applied uint64, o ActiveOptions, now Instant) *Active {
	o.setDefaults()
	a := &Active{o: o, overlay: s, before: s, lives: map[int32]*life{}, changed: map[storage.ID]Instant{}, alone: len(s.brokers) == 1, rebalance: now + o.Stable, unled: true}
	a.meet(now)
	a.Committed(s, applied)
	return a
}

// State is the overlay: the state once all that was proposed is committed.
func (a *Active) State() *State { return a.overlay }

// Step decides about ev on the overlay and adds the records to it. An answer
// without records rests on the overlay too.
func (a *Active) Step(ev Event, now Instant) (Reply, []Record) {
	a.before, a.stepped, a.were = a.overlay, now, nil
	if r, ok := ev.(*Register); ok {
		if err := a.takeover(r, now); err != nil {
			return Reply{Errs: []error{err}}, nil
		}
	}
	reply, records := Step(a.overlay, ev)
	if len(records) == 0 {
		return reply, nil
	}
	next, err := a.overlay.With(records)
	if err != nil {
		panic(fmt.Sprintf("controller: %T decides what cannot be: %v", ev, err))
	}
	a.overlay = next
	for _, r := range records {
		switch r := r.(type) {
		case *PartitionChanged:
			if !a.alone {
				a.changed[storage.ID{Topic: r.Topic, Partition: r.Index}] = now
			}
		case *BrokerRegistered, *BrokerUnregistered:
			a.keepLives()
			a.meet(now)
		}
	}
	return reply, records
}

// keepLives keeps the lives as they are for Undo, once a Step.
func (a *Active) keepLives() {
	if a.were != nil {
		return
	}
	a.were, a.wereAlone = make(map[int32]*life, len(a.lives)), a.alone
	for id, l := range a.lives {
		c := *l
		a.were[id] = &c
	}
}

// Undo takes back what the last Step added to the overlay but the first records,
// which alone were proposed. A broker that they are not about is as it was before:
// one whose session is over is due again.
func (a *Active) Undo(proposed []Record) {
	a.overlay = a.before
	if len(proposed) > 0 {
		next, err := a.before.With(proposed)
		if err != nil {
			panic(fmt.Sprintf("controller: a part of a decision cannot be: %v", err))
		}
		a.overlay, a.unled = next, true
	}
	if a.were != nil {
		a.lives, a.alone, a.were = a.were, a.wereAlone, nil
	}
	a.meet(a.stepped)
}

// Committed says that s is committed as of index applied.
func (a *Active) Committed(s *State, applied uint64) {
	a.committed = s
	if s.applied >= a.overlay.applied {
		a.overlay, a.before = s, s
	}
	for id, l := range a.lives {
		l.committed(s.brokers[id], applied)
	}
}

// Due is what has to be decided at now: the end of one broker whose session is
// over, if there is one, elections that the controller before this one has left
// undone, and leaderships that go back to preferred replicas.
func (a *Active) Due(now Instant) []Event {
	if a.alone {
		return nil
	}
	if ev := a.expired(now); ev != nil {
		return []Event{ev}
	}
	if a.unled {
		if ev := a.stranded(); ev != nil {
			return []Event{ev}
		}
		a.unled = false
	}
	if now < a.rebalance {
		return nil
	}
	a.rebalance = now + a.o.Rebalance
	maps.DeleteFunc(a.changed, func(_ storage.ID, at Instant) bool { return now-at >= a.o.Stable })
	if ids := a.astray(); len(ids) > 0 {
		return []Event{&Elect{IDs: ids, Kind: Preferred}}
	}
	return nil
}

// Next is when Due has something to say at the earliest.
func (a *Active) Next() Instant {
	switch {
	case a.alone:
		return Never
	case a.unled:
		return a.stepped
	}
	next := a.rebalance
	for id, l := range a.lives {
		if b := a.overlay.brokers[id]; b != nil && !b.Fenced {
			next = min(next, l.heard+a.o.Session)
		}
	}
	return next
}

// expired ends the session that is over for longest. One at a time: heartbeats
// that waited meanwhile are heard before the next.
func (a *Active) expired(now Instant) Event {
	var out *Fence
	for _, id := range slices.Sorted(maps.Keys(a.lives)) {
		l, b := a.lives[id], a.overlay.brokers[id]
		if b == nil || b.Fenced || now-l.heard < a.o.Session {
			continue
		}
		if out == nil || l.heard < a.lives[out.ID].heard {
			out = &Fence{ID: id, Epoch: b.Epoch}
		}
	}
	if out == nil {
		return nil
	}
	return out
}

// stranded has a broker in service elected where it may lead and nobody does.
func (a *Active) stranded() Event {
	if a.overlay.level < clusterLevel {
		return nil
	}
	v := viewOf(a.overlay)
	for t, i := range a.overlay.partitions() {
		if p := t.Partitions.At(i); p.Leader < 0 {
			if next, _ := v.begin(t, *p).build(); next.Leader >= 0 {
				return &Unfence{ID: next.Leader, Epoch: a.overlay.brokers[next.Leader].Epoch}
			}
		}
	}
	return nil
}

// astray lists partitions that their preferred replica could lead and does not,
// all replicas being in sync and nothing having changed for a while.
func (a *Active) astray() (out []storage.ID) {
	for t, i := range a.overlay.partitions() {
		p, id := t.Partitions.At(i), storage.ID{Topic: t.ID, Partition: int32(i)}
		if len(p.Replicas) == 0 || p.Leader == p.Replicas[0] || len(p.ISR) < len(p.Replicas) {
			continue
		}
		if _, lately := a.changed[id]; lately {
			continue
		}
		if out = append(out, id); len(out) == a.o.Moves {
			break
		}
	}
	return out
}
