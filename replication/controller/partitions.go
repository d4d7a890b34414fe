package controller

import (
	"fmt"
	"slices"

	"leat/storage"
)

// AddPartitions gives topics more partitions, each by itself: Reply.Errs tells
// which. ErrTooLarge is as for CreateTopics.
type AddPartitions struct{ Topics []MorePartitions }

// MorePartitions is one topic of an AddPartitions.
type MorePartitions struct {
	ID storage.TopicID
	// Count is how many partitions there will be.
	Count int32
	// Assignments, if not nil, gives the replicas of each new partition.
	Assignments [][]int32
}

func (ev *AddPartitions) step(s *State) (Reply, []Record) {
	reply := Reply{Errs: make([]error, len(ev.Topics))}
	var out items
	seen := map[storage.TopicID]bool{}
	for i := range ev.Topics {
		more := &ev.Topics[i]
		t := s.topics.get(more.ID)
		if t == nil {
			reply.Errs[i] = fmt.Errorf("%w: %s", ErrUnknownTopic, more.ID)
			continue
		}
		if seen[more.ID] {
			reply.Errs[i] = fmt.Errorf("%w: topic %q is named twice", ErrInvalidPartitions, t.Name)
			continue
		}
		var replicas [][]int32
		err := out.fits(partitionBytes * max(int(min(more.Count, MaxPartitions))-t.Partitions.Len(), 0))
		if err == nil {
			replicas, err = more.assign(s, t)
		}
		if err != nil {
			reply.Errs[i] = err
			continue
		}
		var made []Record
		for p, r := range replicas {
			made = append(made, newPartition(s, more.ID, int32(t.Partitions.Len()+p), r))
		}
		if reply.Errs[i] = out.add(made); reply.Errs[i] == nil {
			seen[more.ID] = true
		}
	}
	return reply, out.records
}

// assign gives the replicas of each new partition: as many as partition 0 has.
func (more *MorePartitions) assign(s *State, t *Topic) ([][]int32, error) {
	have, replication := int32(t.Partitions.Len()), t.Partitions.At(0).Factor()
	if more.Count <= have || more.Count > MaxPartitions {
		return nil, fmt.Errorf("%w: %d, topic %q has %d; it must be more, at most %d", ErrInvalidPartitions, more.Count, t.Name, have, MaxPartitions)
	}
	if more.Assignments == nil {
		if replication > len(s.brokers) {
			return nil, fmt.Errorf("%w: %d, there are %d nodes", ErrInvalidReplicationFactor, replication, len(s.brokers))
		}
		return spread(s, t.ID, have, more.Count, replication)
	}
	if len(more.Assignments) != int(more.Count-have) {
		return nil, fmt.Errorf("%w: %d new partitions have %d assignments", ErrInvalidAssignment, more.Count-have, len(more.Assignments))
	}
	out := make([][]int32, len(more.Assignments))
	for i, replicas := range more.Assignments {
		if len(replicas) != replication {
			return nil, fmt.Errorf("%w: partition %d has %d replicas, topic %q has %d", ErrInvalidAssignment, int(have)+i, len(replicas), t.Name, replication)
		}
		if err := checkReplicas(s, have+int32(i), replicas); err != nil {
			return nil, err
		}
		out[i] = slices.Clone(replicas)
	}
	return out, nil
}
