package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"leat/storage"
)

// MaxPartitions bounds the partitions of one topic.
const MaxPartitions = 100_000

// Event is something that happened or is asked for.
type Event interface {
	step(s *State) (Reply, []Record)
}

// Reply says what became of an event.
type Reply struct {
	// Errs holds a result for each item of the event, nil for done.
	Errs []error
	// First is the first of the producer ids of an AllocateProducerIDs.
	First int64
	// Epoch is the broker epoch of a Register.
	Epoch int64
	// Partitions are those of an AlterPartitions as they are after it.
	Partitions []Partition
}

// Proposer commits decisions. It is the only writer of metadata: local on one
// node, a quorum in a cluster.
type Proposer interface {
	// Propose steps the current state with ev, makes the records durable,
	// and returns when State shows them. An error means that nothing is known
	// of the outcome.
	Propose(ctx context.Context, ev Event) (Reply, error)
	// State is the newest committed state.
	State() *State
}

// Step decides what ev does to s. It changes nothing: the records it returns
// must be committed, then given to With.
func Step(s *State, ev Event) (Reply, []Record) { return ev.step(s) }

// NewTopic is one topic of a CreateTopics.
type NewTopic struct {
	ID   storage.TopicID
	Name string
	// Partitions and Replication are exact; the caller resolved defaults.
	Partitions  int32
	Replication int16
	// Assignments, if not nil, gives the replicas of each partition and rules
	// over the two counts.
	Assignments map[int32][]int32
	// Configs are checked by the caller.
	Configs map[string]string
}

// CreateTopics makes topics, each by itself: Reply.Errs tells which. A topic that is
// too large, or too much with those before it in the request, has ErrTooLarge. A request
// that comes again, and late, does not bring back what was deleted meanwhile: brokers
// may yet have to remove the data of that id.
type CreateTopics struct{ Topics []NewTopic }

func (ev *CreateTopics) step(s *State) (Reply, []Record) {
	reply := Reply{Errs: make([]error, len(ev.Topics))}
	var out items
	seen, ids := map[string]bool{}, map[storage.TopicID]bool{}
	for i := range ev.Topics {
		t := &ev.Topics[i]
		if s.TopicNamed(t.Name) != nil || seen[t.Name] {
			reply.Errs[i] = fmt.Errorf("%w: %q", ErrTopicExists, t.Name)
			continue
		}
		var replicas [][]int32
		err := out.fits(partitionBytes * max(int(min(t.Partitions, MaxPartitions)), len(t.Assignments)))
		if err == nil {
			replicas, err = assign(s, t)
		}
		if err == nil && (s.topics.get(t.ID) != nil || s.Dying(t.ID) || ids[t.ID]) {
			err = fmt.Errorf("%w, or did: the id %s of %q is taken", ErrTopicExists, t.ID, t.Name)
		}
		if err != nil {
			reply.Errs[i] = err
			continue
		}
		made := []Record{&TopicCreated{ID: t.ID, Name: t.Name}}
		for p, r := range replicas {
			made = append(made, newPartition(s, t.ID, int32(p), r))
		}
		for _, name := range slices.Sorted(maps.Keys(t.Configs)) {
			v := t.Configs[name]
			made = append(made, &TopicConfigSet{Topic: t.ID, Name: name, Value: &v})
		}
		if reply.Errs[i] = out.add(made); reply.Errs[i] == nil {
			seen[t.Name], ids[t.ID] = true, true
		}
	}
	return reply, out.records
}

// newPartition is a partition that nobody wrote to: who is eligible is in sync
// (KAFKA-13083).
func newPartition(s *State, id storage.TopicID, index int32, replicas []int32) *PartitionChanged {
	p := Partition{Replicas: replicas, ISR: pick(replicas, func(r int32) bool { return s.Eligible(r, -1) })}
	p.Leader = p.ISR[0]
	return &PartitionChanged{Topic: id, Index: index, Partition: p}
}

// assign gives the replicas of each partition of a new topic.
func assign(s *State, t *NewTopic) ([][]int32, error) {
	if t.Assignments != nil {
		return assigned(s, t.Assignments)
	}
	if t.Partitions < 1 || t.Partitions > MaxPartitions {
		return nil, fmt.Errorf("%w: %d, must be 1 to %d", ErrInvalidPartitions, t.Partitions, MaxPartitions)
	}
	if nodes := len(s.brokers); t.Replication < 1 || int(t.Replication) > nodes {
		return nil, fmt.Errorf("%w: %d, must be 1 to %d, the number of nodes", ErrInvalidReplicationFactor, t.Replication, nodes)
	}
	return spread(s, t.ID, 0, t.Partitions, int(t.Replication))
}

// assigned checks an assignment that the caller made.
func assigned(s *State, wanted map[int32][]int32) ([][]int32, error) {
	if len(wanted) == 0 || len(wanted) > MaxPartitions {
		return nil, fmt.Errorf("%w: %d partitions, must be 1 to %d", ErrInvalidAssignment, len(wanted), MaxPartitions)
	}
	out := make([][]int32, len(wanted))
	for p := range out {
		replicas, ok := wanted[int32(p)]
		if !ok {
			return nil, fmt.Errorf("%w: no replicas for partition %d of %d", ErrInvalidAssignment, p, len(wanted))
		}
		if len(replicas) == 0 || len(replicas) != len(wanted[0]) {
			return nil, fmt.Errorf("%w: partition %d has %d replicas, partition 0 has %d",
				ErrInvalidAssignment, p, len(replicas), len(wanted[0]))
		}
		if err := checkReplicas(s, int32(p), replicas); err != nil {
			return nil, err
		}
		out[p] = slices.Clone(replicas)
	}
	return out, nil
}

// checkReplicas checks the replicas of a partition that begins: one of them must be
// able to lead.
func checkReplicas(s *State, partition int32, replicas []int32) error {
	if err := knownReplicas(s, partition, replicas); err != nil {
		return err
	}
	if !slices.ContainsFunc(replicas, func(r int32) bool { return s.Eligible(r, -1) }) {
		return fmt.Errorf("%w: partition %d names only nodes that are not in service: %v", ErrInvalidAssignment, partition, replicas)
	}
	return nil
}

func knownReplicas(s *State, partition int32, replicas []int32) error {
	for i, node := range replicas {
		if _, ok := s.brokers[node]; !ok {
			return fmt.Errorf("%w: partition %d names unknown node %d", ErrInvalidAssignment, partition, node)
		}
		if slices.Contains(replicas[:i], node) {
			return fmt.Errorf("%w: partition %d names node %d twice", ErrInvalidAssignment, partition, node)
		}
	}
	return nil
}

// DeleteTopics removes topics by id, each by itself.
type DeleteTopics struct{ IDs []storage.TopicID }

func (ev *DeleteTopics) step(s *State) (Reply, []Record) {
	reply := Reply{Errs: make([]error, len(ev.IDs))}
	var out []Record
	seen := map[storage.TopicID]bool{}
	for i, id := range ev.IDs {
		if s.topics.get(id) == nil || seen[id] {
			reply.Errs[i] = fmt.Errorf("%w: %s", ErrUnknownTopic, id)
			continue
		}
		seen[id] = true
		out = append(out, &TopicRemoved{ID: id})
	}
	return reply, out
}

// ForgetTopics ends what is left of removed topics once their data is gone.
type ForgetTopics struct{ IDs []storage.TopicID }

func (ev *ForgetTopics) step(s *State) (Reply, []Record) {
	var out []Record
	for _, id := range ev.IDs {
		if s.Dying(id) {
			out = append(out, &TopicGone{ID: id})
		}
	}
	return Reply{}, out
}

// AllocateProducerIDs takes a block of Count producer ids, never to be given
// out again.
type AllocateProducerIDs struct{ Count int64 }

func (ev *AllocateProducerIDs) step(s *State) (Reply, []Record) {
	first := s.nextProducerID
	if ev.Count < 1 || ev.Count > storage.FirstKeyID-first {
		return Reply{Errs: []error{ErrNoProducerIDs}}, nil
	}
	return Reply{Errs: []error{nil}, First: first}, []Record{&ProducerIDsTaken{Next: first + ev.Count}}
}
