package controller

import (
	"fmt"
	"slices"

	"leat/storage"
)

// Register introduces a broker in a new life. It comes up fenced, out of every
// ISR, until Unfence; the answer is its broker epoch. The same life registering
// again keeps its epoch (KAFKA-16952).
type Register struct {
	ID                int32
	UUID, Incarnation string
	// PreviousEpoch is the broker epoch that the directory was closed in, or the last
	// that it ran in if all that it acknowledged is on disk for certain, except for
	// Lost. Any epoch but the registered one, as -1, says that acknowledged records of
	// every partition may be lost.
	PreviousEpoch int64
	// Known is the epoch in which the broker is registered by the metadata that it has
	// applied, -1 for not at all. If that is not the newest, the request came late or
	// the broker has to apply more: ErrStaleBrokerEpoch, and it may ask again. A late
	// request would take the id away from a later life, which may hold a lease.
	Known              int64
	Rack               string
	Endpoints          []Endpoint
	MinLevel, MaxLevel uint32
	// ReadyNow asks to be unfenced in the same step. It is for a cluster of one and
	// has no effect where another broker is registered.
	ReadyNow bool
	// Unclean lists the partitions whose log end may have gone back: the broker
	// does not lead them in the same leader epoch again.
	Unclean []storage.ID
	// Lost lists the partitions of which acknowledged records may be lost: after a
	// power cut, those that acknowledged in page-cache mode what was not on the disk
	// yet. Of the others the broker stays an eligible leader (KIP-966).
	Lost []storage.ID
}

func (ev *Register) step(s *State) (Reply, []Record) {
	old := s.brokers[ev.ID]
	alone := len(s.brokers) == 0 || len(s.brokers) == 1 && old != nil
	level, err := ev.level(s, alone)
	if err == nil && old != nil && old.UUID != ev.UUID && !old.Fenced && !alone {
		err = fmt.Errorf("%w: %d lives with the directory %s", ErrDuplicateBroker, ev.ID, old.UUID)
	}
	again := old != nil && old.UUID == ev.UUID && old.Incarnation == ev.Incarnation && ev.Incarnation != ""
	if epoch := s.BrokerEpoch(ev.ID); err == nil && !again && epoch != ev.Known {
		err = fmt.Errorf("%w: broker %d is registered in epoch %d, its process knows of %d", ErrStaleBrokerEpoch, ev.ID, epoch, ev.Known)
	}
	if err != nil {
		return Reply{Errs: []error{err}}, nil
	}
	b := Broker{
		ID: ev.ID, UUID: ev.UUID, Incarnation: ev.Incarnation, Epoch: s.nextEpoch, Rack: ev.Rack, Endpoints: slices.Clone(ev.Endpoints),
		MinLevel: ev.MinLevel, MaxLevel: ev.MaxLevel, Fenced: !ev.ReadyNow || !alone,
	}
	if again {
		b.Epoch, b.Fenced, b.ShuttingDown = old.Epoch, old.Fenced && b.Fenced, old.ShuttingDown
	}
	if level < clusterLevel { // which knows no more of the only broker
		b = Broker{ID: b.ID, UUID: b.UUID, Epoch: b.Epoch}
	}
	var out []Record
	if level > s.level {
		out = append(out, &FeatureLevel{Level: level})
	}
	after := *s
	after.level = level
	// See Divisible for the order. A broker that was out of service leads nothing
	// before the record that puts it into service.
	was := b
	if old != nil {
		was.Fenced, was.ShuttingDown = b.Fenced || old.Fenced, old.ShuttingDown
	}
	if !again {
		out = append(out, ev.restart(&view{State: &after, broker: &was}, old)...)
	}
	if old == nil || !old.equal(&b) {
		out = append(out, &BrokerRegistered{Broker: b})
	}
	if again || !was.equal(&b) {
		if s, err = s.With(out); err != nil {
			return Reply{Errs: []error{err}}, nil
		}
		out = append(out, (&view{State: s}).lead(ev.ID)...)
	}
	return Reply{Errs: []error{nil}, Epoch: b.Epoch}, out
}

// restart decides about the partitions of a broker that begins a new life.
func (ev *Register) restart(v *view, old *Broker) (out []Record) {
	wiped := old == nil || old.UUID != ev.UUID
	clean := !wiped && ev.PreviousEpoch == old.Epoch
	reset, lost := setOf(ev.Unclean), setOf(ev.Lost)
	for t, i := range v.partitions() {
		p := t.Partitions.At(i)
		if !slices.Contains(p.Replicas, ev.ID) {
			continue
		}
		c, id := v.begin(t, *p), storage.ID{Topic: t.ID, Partition: int32(i)}
		if !clean || lost[id] {
			c.lost, c.wiped = ev.ID, wiped
		}
		c.restarted = p.Leader == ev.ID && reset[id]
		if r := c.record(int32(i)); r != nil {
			out = append(out, r)
		}
	}
	return out
}

func setOf(ids []storage.ID) map[storage.ID]bool {
	out := make(map[storage.ID]bool, len(ids))
	for _, id := range ids {
		out[id] = true
	}
	return out
}

// lead elects leaders where there is none and broker id may be one.
func (v *view) lead(id int32) (out []Record) {
	if !v.eligible(id) {
		return nil
	}
	for t, i := range v.partitions() {
		if p := t.Partitions.At(i); p.Leader < 0 && slices.Contains(p.Replicas, id) {
			if r := v.begin(t, *p).record(int32(i)); r != nil {
				out = append(out, r)
			}
		}
	}
	return out
}

// leave takes broker id out of every ISR, with what follows for leaders.
func (v *view) leave(id int32) (out []Record) {
	for t, i := range v.partitions() {
		if p := t.Partitions.At(i); slices.Contains(p.ISR, id) {
			if r := v.begin(t, *p).record(int32(i)); r != nil {
				out = append(out, r)
			}
		}
	}
	return out
}

// Fence takes a broker out of service: it was not heard of for its session, asks
// for it, or says goodbye.
type Fence struct {
	ID    int32
	Epoch int64
}

// Unfence puts a registered broker into service. One that is has leaders elected
// where there is none and it may be one.
type Unfence struct {
	ID    int32
	Epoch int64
}

// ShutDown begins the end of a broker: others lead what they can, and it enters
// no ISR any more (KIP-841). What only it has in sync it leads until it is fenced.
type ShutDown struct {
	ID    int32
	Epoch int64
}

// Unregister ends a broker that is out of service: one that is in service may lead
// until its lease ends, and so must be fenced first. Where it is a replica it stays
// one, until its partitions are reassigned.
type Unregister struct {
	ID int32
	// Epoch is the broker epoch of the life that is meant. A request that comes late,
	// or again, does not end a later life, which is fenced while it starts:
	// ErrStaleBrokerEpoch.
	Epoch int64
}

func (ev *Fence) step(s *State) (Reply, []Record) {
	reply, v, record := s.recondition(ev.ID, ev.Epoch, func(b *Broker) { b.Fenced, b.ShuttingDown = true, false })
	if record == nil {
		return reply, nil
	}
	return reply, append(v.leave(ev.ID), record)
}

func (ev *Unfence) step(s *State) (Reply, []Record) {
	reply, v, record := s.recondition(ev.ID, ev.Epoch, func(b *Broker) { b.Fenced = false })
	if reply.Errs[0] != nil {
		return reply, nil
	}
	var out []Record
	if record != nil {
		out = append(out, record)
	}
	return reply, append(out, v.lead(ev.ID)...)
}

func (ev *ShutDown) step(s *State) (Reply, []Record) {
	reply, v, record := s.recondition(ev.ID, ev.Epoch, func(b *Broker) { b.ShuttingDown = !b.Fenced })
	if record == nil {
		return reply, nil
	}
	return reply, append(v.leave(ev.ID), record)
}

// recondition changes the condition of a broker: v has it in its new one, and there
// is no record if that is its old one or the reply refuses it.
func (s *State) recondition(id int32, epoch int64, change func(*Broker)) (reply Reply, v view, record Record) {
	err := s.checkEpoch(id, epoch)
	if err == nil && s.level < clusterLevel {
		err = fmt.Errorf("%w: %d, brokers come and go from %d on", ErrUnsupportedLevel, s.level, clusterLevel)
	}
	if err != nil {
		return Reply{Errs: []error{err}}, view{}, nil
	}
	b := *s.brokers[id]
	change(&b)
	if !b.equal(s.brokers[id]) {
		record = &BrokerRegistered{Broker: b}
	}
	return Reply{Errs: []error{nil}, Epoch: epoch}, view{State: s, broker: &b}, record
}

func (ev *Unregister) step(s *State) (Reply, []Record) {
	b := s.brokers[ev.ID]
	var err error
	switch {
	case b == nil:
		err = fmt.Errorf("%w: %d", ErrUnknownBroker, ev.ID)
	case s.level < clusterLevel:
		err = fmt.Errorf("%w: %d, brokers come and go from %d on", ErrUnsupportedLevel, s.level, clusterLevel)
	default:
		err = s.checkEpoch(ev.ID, ev.Epoch)
	}
	if err == nil && !b.Fenced {
		err = fmt.Errorf("%w: %d", ErrBrokerInService, ev.ID)
	}
	if err != nil {
		return Reply{Errs: []error{err}}, nil
	}
	// Out of service it is in no ISR. Its epoch may be the newest: it is not used again.
	return Reply{Errs: []error{nil}}, []Record{&BrokerUnregistered{ID: ev.ID}, &BrokerEpochsTaken{Next: s.nextEpoch}}
}
