package controller

import (
	"errors"
	"fmt"
	"slices"

	"leat/storage"
)

// Member is a broker in the life that its fetches name.
type Member struct {
	ID int32
	// Epoch is its broker epoch, -1 if the asker does not know it.
	Epoch int64
}

// AlterPartitions is asked by a leader to change who is in sync (KIP-497, KIP-841,
// KIP-903). Reply.Errs and Reply.Partitions say of each what became of it and
// what it is now.
//
// A refusal for an ineligible replica commits the partition anew with a higher
// epoch: a copy of the request that comes late cannot succeed once the broker
// has become eligible again, when the leader waits for it no more.
type AlterPartitions struct {
	Broker      int32
	BrokerEpoch int64
	Partitions  []AlterPartition
}

// AlterPartition is one partition of an AlterPartitions: the state that the
// leader knows it in, and who shall be in sync.
type AlterPartition struct {
	ID                          storage.ID
	LeaderEpoch, PartitionEpoch int32
	ISR                         []Member
	// Recovered says that a leader that was elected uncleanly is done with that.
	Recovered bool
}

func (ev *AlterPartitions) step(s *State) (Reply, []Record) {
	reply := Reply{Errs: make([]error, len(ev.Partitions)), Partitions: make([]Partition, len(ev.Partitions))}
	if err := s.checkEpoch(ev.Broker, ev.BrokerEpoch); err != nil {
		for i := range reply.Errs {
			reply.Errs[i] = err
		}
		return reply, nil
	}
	var out []Record
	v := viewOf(s)
	seen := map[storage.ID]bool{}
	for i := range ev.Partitions {
		a := &ev.Partitions[i]
		t, p := s.find(a.ID)
		if t == nil {
			reply.Errs[i] = fmt.Errorf("%w: partition %d of %s", ErrUnknownTopic, a.ID.Partition, a.ID.Topic)
			continue
		}
		if seen[a.ID] {
			reply.Partitions[i], reply.Errs[i] = *p, fmt.Errorf("%w: %s/%d is named twice", ErrInvalidRequest, t.Name, a.ID.Partition)
			continue
		}
		seen[a.ID] = true
		next, err := v.alter(t, p, ev.Broker, a)
		reply.Partitions[i], reply.Errs[i] = next, err
		if next.Epoch != p.Epoch {
			out = append(out, &PartitionChanged{Topic: t.ID, Index: a.ID.Partition, Partition: next})
		}
	}
	return reply, out
}

// checkEpoch compares the life that a broker claims with the one registered. A
// life that is newer than all that s knows was registered with another controller:
// that is no word about the life.
func (s *State) checkEpoch(id int32, epoch int64) error {
	b := s.brokers[id]
	switch {
	case b == nil && epoch >= s.nextEpoch:
		return fmt.Errorf("%w: broker %d is at epoch %d, the next known is %d", ErrNotController, id, epoch, s.nextEpoch)
	case b == nil:
		return fmt.Errorf("%w: broker %d is not registered", ErrStaleBrokerEpoch, id)
	case epoch > b.Epoch:
		return fmt.Errorf("%w: broker %d is at epoch %d, known is %d", ErrNotController, id, epoch, b.Epoch)
	case epoch < b.Epoch:
		return fmt.Errorf("%w: broker %d is at epoch %d, registered is %d", ErrStaleBrokerEpoch, id, epoch, b.Epoch)
	}
	return nil
}

// alter is the partition after what its leader asks for.
func (v *view) alter(t *Topic, p *Partition, asker int32, a *AlterPartition) (Partition, error) {
	done, err := v.checkAlter(p, asker, a)
	c := v.begin(t, *p)
	switch {
	case done || err != nil && !errors.Is(err, ErrIneligibleReplica):
		return *p, err
	case err != nil:
		c.touched = true
	default:
		c.next.ISR = members(a.ISR)
		c.next.Recovering = p.Recovering && !a.Recovered
	}
	next, _ := c.build()
	if err == nil && next.Leader != p.Leader {
		err = fmt.Errorf("%w: broker %d", ErrNewLeaderElected, next.Leader)
	}
	return next, err
}

// checkAlter checks in the order of Kafka, so that each asker learns the first
// thing that it must do about it; done says that the partition is as asked for.
func (v *view) checkAlter(p *Partition, asker int32, a *AlterPartition) (done bool, err error) {
	isr := members(a.ISR)
	switch {
	case a.LeaderEpoch > p.LeaderEpoch || a.PartitionEpoch > p.Epoch:
		return false, fmt.Errorf("%w: the asker is at leader epoch %d and partition epoch %d, known are %d and %d",
			ErrNotController, a.LeaderEpoch, a.PartitionEpoch, p.LeaderEpoch, p.Epoch)
	case a.LeaderEpoch < p.LeaderEpoch:
		return false, fmt.Errorf("%w: %d, it is %d", ErrFencedLeaderEpoch, a.LeaderEpoch, p.LeaderEpoch)
	case asker != p.Leader:
		return false, fmt.Errorf("%w: broker %d asks, %d leads", ErrInvalidRequest, asker, p.Leader)
	case sameMembers(isr, p.ISR) && (!a.Recovered || !p.Recovering):
		// Asked again since the answer was lost (KAFKA-12751, KAFKA-14144).
		return true, nil
	case a.PartitionEpoch < p.Epoch:
		return false, fmt.Errorf("%w: %d, it is %d", ErrInvalidUpdateVersion, a.PartitionEpoch, p.Epoch)
	case !slices.Contains(isr, asker):
		return false, fmt.Errorf("%w: the leader %d is not in the ISR %v", ErrInvalidRequest, asker, isr)
	case len(without(isr, p.Replicas)) > 0 || len(slices.Compact(slices.Sorted(slices.Values(isr)))) < len(isr):
		return false, fmt.Errorf("%w: the ISR %v is no part of the replicas %v", ErrInvalidRequest, isr, p.Replicas)
	case p.Recovering && !a.Recovered && len(isr) > 1:
		return false, fmt.Errorf("%w: the leader is recovering, nobody else can be in the ISR %v", ErrInvalidRequest, isr)
	}
	for _, m := range a.ISR {
		if !v.find(m.ID).eligible(m.Epoch) && (m.ID != asker || !v.draining(asker)) {
			return false, fmt.Errorf("%w: broker %d in the life %d", ErrIneligibleReplica, m.ID, m.Epoch)
		}
	}
	return false, nil
}

func members(in []Member) []int32 {
	out := make([]int32, len(in))
	for i, m := range in {
		out[i] = m.ID
	}
	return out
}

// sameMembers compares two lists without repetition, in any order.
func sameMembers(a, b []int32) bool {
	return len(a) == len(b) && len(without(a, b)) == 0 && len(without(b, a)) == 0
}
