package controller

import (
	"errors"
	"fmt"
	"slices"

	"leat/storage"
)

// ErrNoReassignment says that the partition is not on its way to other replicas.
var ErrNoReassignment = errors.New("no reassignment in progress")

// Reassign moves partitions to other replicas (KIP-455), each by itself:
// Reply.Errs tells which. The new replicas are added, and once every one that is
// to stay is in sync the old ones go (KAFKA-15665). A reassignment that is on its
// way is replaced. ErrTooLarge is as for CreateTopics.
type Reassign struct{ Partitions []Reassignment }

// Reassignment is one partition of a Reassign.
type Reassignment struct {
	ID storage.ID
	// Replicas are the wanted ones in order of preference; nil goes back to those
	// before the reassignment on its way.
	Replicas []int32
}

func (ev *Reassign) step(s *State) (Reply, []Record) {
	reply := Reply{Errs: make([]error, len(ev.Partitions))}
	var out items
	v := viewOf(s)
	seen := map[storage.ID]bool{}
	for i := range ev.Partitions {
		r := &ev.Partitions[i]
		t, p := s.find(r.ID)
		switch {
		case s.level < clusterLevel:
			reply.Errs[i] = fmt.Errorf("%w: %d, replicas move from %d on", ErrUnsupportedLevel, s.level, clusterLevel)
			continue
		case t == nil:
			reply.Errs[i] = fmt.Errorf("%w: partition %d of %s", ErrUnknownTopic, r.ID.Partition, r.ID.Topic)
			continue
		case seen[r.ID]:
			reply.Errs[i] = fmt.Errorf("%w: %s/%d is named twice", ErrInvalidRequest, t.Name, r.ID.Partition)
			continue
		}
		seen[r.ID] = true
		c, err := v.reassign(t, p, r)
		if reply.Errs[i] = err; err != nil {
			continue
		}
		if rec := c.record(r.ID.Partition); rec != nil {
			reply.Errs[i] = out.add([]Record{rec})
		}
	}
	return reply, out.records
}

func (v *view) reassign(t *Topic, p *Partition, r *Reassignment) (*change, error) {
	c := v.begin(t, *p)
	before := without(p.Replicas, p.Adding)
	n := &c.next
	switch {
	case r.Replicas == nil && len(p.Adding)+len(p.Removing) == 0:
		return nil, fmt.Errorf("%w: %s/%d", ErrNoReassignment, t.Name, r.ID.Partition)
	case r.Replicas == nil:
		n.Replicas, n.Adding, n.Removing = before, nil, nil
	case len(r.Replicas) == 0:
		return nil, fmt.Errorf("%w: no replicas for partition %d", ErrInvalidAssignment, r.ID.Partition)
	default:
		if err := knownReplicas(v.State, r.ID.Partition, r.Replicas); err != nil {
			return nil, err
		}
		n.Adding, n.Removing = without(r.Replicas, before), without(before, r.Replicas)
		n.Replicas = slices.Concat(r.Replicas, n.Removing)
	}
	holders := p.ISR
	if len(holders) == 0 {
		holders = p.ELR
	}
	if len(holders) > 0 && len(without(holders, n.Replicas)) == len(holders) {
		return nil, fmt.Errorf("%w: only %v hold all of partition %d, and none of them is among %v", ErrInvalidAssignment, holders, r.ID.Partition, n.Replicas)
	}
	return c, nil
}
