package controller

import (
	"errors"
	"fmt"
	"slices"

	"leat/storage"
)

// Errors of elections that were asked for (KIP-460).
var (
	// ErrElectionNotNeeded says that the partition is led as asked for already.
	ErrElectionNotNeeded = errors.New("election not needed")
	// ErrPreferredNotAvailable says that the preferred replica cannot lead.
	ErrPreferredNotAvailable = errors.New("preferred leader not available")
	// ErrNobodyEligible says that no replica is alive.
	ErrNobodyEligible = errors.New("eligible leaders not available")
)

// ElectionKind says which election is asked for.
type ElectionKind uint8

const (
	// Preferred gives the leadership to the first replica, if it is in sync.
	Preferred ElectionKind = iota
	// Unclean lets a replica lead that is not in sync, where there is no leader. What
	// it lacks is lost. It is the word of an operator: it needs no config.
	Unclean
)

// Elect elects leaders, for each partition by itself: Reply.Errs tells which.
type Elect struct {
	IDs  []storage.ID
	Kind ElectionKind
}

func (ev *Elect) step(s *State) (Reply, []Record) {
	reply := Reply{Errs: make([]error, len(ev.IDs))}
	var out []Record
	v := viewOf(s)
	seen := make(map[storage.ID]bool, len(ev.IDs))
	for i, id := range ev.IDs {
		t, p := s.find(id)
		switch {
		case t == nil:
			reply.Errs[i] = fmt.Errorf("%w: partition %d of %s", ErrUnknownTopic, id.Partition, id.Topic)
			continue
		case seen[id]:
			reply.Errs[i] = fmt.Errorf("%w: %s/%d is named twice", ErrInvalidRequest, t.Name, id.Partition)
			continue
		}
		seen[id] = true
		next, err := v.elect(t, p, ev.Kind)
		if reply.Errs[i] = err; err == nil {
			out = append(out, &PartitionChanged{Topic: t.ID, Index: id.Partition, Partition: next})
		}
	}
	return reply, out
}

func (v *view) elect(t *Topic, p *Partition, kind ElectionKind) (Partition, error) {
	c := v.begin(t, *p)
	first := p.Replicas[0]
	switch {
	case kind == Unclean && p.Leader >= 0:
		return *p, fmt.Errorf("%w: broker %d leads %s", ErrElectionNotNeeded, p.Leader, t.Name)
	case kind == Unclean:
		c.mode = unclean
	case p.Leader == first:
		return *p, fmt.Errorf("%w: broker %d leads %s", ErrElectionNotNeeded, first, t.Name)
	case !v.eligible(first) || !slices.Contains(p.ISR, first): // KAFKA-9866
		return *p, fmt.Errorf("%w: broker %d of %s", ErrPreferredNotAvailable, first, t.Name)
	default:
		c.mode = preferred
	}
	next, ok := c.build()
	if !ok {
		return *p, fmt.Errorf("%w: of %v for %s", ErrNobodyEligible, p.Replicas, t.Name)
	}
	return next, nil
}
