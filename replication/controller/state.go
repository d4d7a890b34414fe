package controller

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"leat/storage"
)

// Level is the newest feature level that this binary knows. Level 2 has
// BrokerConfigSet, level 3 all that more than one broker needs.
const Level = 3

// clusterLevel is the level from which there may be more than one broker.
const clusterLevel = 3

// ErrInconsistent says that a record does not fit the state it meets. It means
// damage or a bug, never bad input.
var ErrInconsistent = errors.New("inconsistent metadata")

// State is the metadata at one point of the log. It is immutable: With makes
// the next one. Everything reached through it must only be read.
type State struct {
	level   uint32
	brokers map[int32]*Broker
	topics  table[storage.TopicID, *Topic]
	names   table[string, storage.TopicID]
	dying   table[storage.TopicID, struct{}]
	configs map[int32]map[string]string // of brokers
	// nextEpoch is the epoch of the next registration.
	nextEpoch      int64
	nextProducerID int64
	// applied counts the records that led here in this process.
	applied uint64
}

// Topic is one topic of a State.
type Topic struct {
	ID         storage.TopicID
	Name       string
	Partitions Partitions
	// Configs holds what was set for the topic, by name; the rest is default.
	Configs map[string]string
}

// Partition is what is decided about one partition.
type Partition struct {
	// Leader is the node that leads, or -1.
	Leader int32
	// LeaderEpoch grows with each change of leader, each restart of a leader that
	// may have lost the end of its log (KIP-101), and when replicas are taken away.
	LeaderEpoch int32
	// Epoch grows with each change of the partition.
	Epoch int32
	// Replicas holds all nodes in preference order, ISR those in sync.
	Replicas, ISR []int32
	// ELR holds who left the ISR while it was below min.insync.replicas: the high
	// watermark stood still since, so they hold all that is committed (KIP-966).
	ELR []int32
	// Adding and Removing say which of Replicas a reassignment brings and takes
	// away (KIP-455).
	Adding, Removing []int32
	// Recovering says that the leader was elected uncleanly and has not said yet
	// that it is done with the consequences.
	Recovering bool
}

// NewState is the metadata before the first record.
func NewState() *State {
	return &State{
		brokers:   map[int32]*Broker{},
		topics:    newTable[storage.TopicID, *Topic](hashID),
		names:     newTable[string, storage.TopicID](hashName),
		dying:     newTable[storage.TopicID, struct{}](hashID),
		configs:   map[int32]map[string]string{},
		nextEpoch: 1,
	}
}

func hashID(id storage.TopicID) (h byte) {
	for _, b := range id {
		h = h*31 + b
	}
	return h
}

func hashName(name string) (h byte) {
	for i := range len(name) {
		h = h*31 + name[i]
	}
	return h
}

// Level is the feature level of the log, 0 before the first record.
func (s *State) Level() uint32 { return s.level }

// Broker finds a registered broker.
func (s *State) Broker(id int32) (Broker, bool) {
	if b := s.brokers[id]; b != nil {
		return *b, true
	}
	return Broker{}, false
}

// BrokerEpoch is the epoch in which a broker is registered, -1 for not at all.
func (s *State) BrokerEpoch(id int32) int64 {
	if b := s.brokers[id]; b != nil {
		return b.Epoch
	}
	return -1
}

// Brokers lists the ids of the registered brokers in order.
func (s *State) Brokers() []int32 { return slices.Sorted(maps.Keys(s.brokers)) }

// BrokerConfigs is what was set for a broker, or for AllBrokers, by name.
func (s *State) BrokerConfigs(id int32) map[string]string { return s.configs[id] }

// Topic finds a topic by id, or returns nil.
func (s *State) Topic(id storage.TopicID) *Topic { return s.topics.get(id) }

// TopicNamed finds a topic by name, or returns nil.
func (s *State) TopicNamed(name string) *Topic { return s.topics.get(s.names.get(name)) }

// Topics lists all topics by name.
func (s *State) Topics() []*Topic {
	out := make([]*Topic, 0, s.topics.len)
	for _, t := range s.topics.all() {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Dying reports whether the topic was removed and its data may still be there.
func (s *State) Dying(id storage.TopicID) bool {
	return s.dying.has(id)
}

// DyingTopics lists the removed topics whose data may still be there, in
// order.
func (s *State) DyingTopics() []storage.TopicID {
	return sortedIDs(&s.dying)
}

func (s *State) topicIDs() []storage.TopicID { return sortedIDs(&s.topics) }

func sortedIDs[V any](t *table[storage.TopicID, V]) []storage.TopicID {
	out := make([]storage.TopicID, 0, t.len)
	for id := range t.all() {
		out = append(out, id)
	}
	slices.SortFunc(out, compareIDs)
	return out
}

func compareIDs(a, b storage.TopicID) int { return bytes.Compare(a[:], b[:]) }

// With is the state after the records. The receiver is unchanged, and what the
// records do not touch is shared between the two.
func (s *State) With(records []Record) (*State, error) {
	next := *s
	next.brokers, next.configs = maps.Clone(s.brokers), maps.Clone(s.configs)
	next.topics, next.names, next.dying = s.topics.edit(), s.names.edit(), s.dying.edit()
	owned, needs := map[storage.TopicID]bool{}, uint32(0)
	for _, r := range records {
		if id, ok := touches(r); ok && !owned[id] {
			if t := next.topics.get(id); t != nil {
				next.topics.set(id, t.clone())
			}
			owned[id] = true
		}
		if err := r.apply(&next); err != nil {
			return nil, err
		}
		needs = max(needs, r.level())
	}
	// At the end, since a state read by key has the level after the brokers.
	if needs > next.level {
		return nil, fmt.Errorf("%w: a record needs feature level %d, the log is at %d", ErrInconsistent, needs, next.level)
	}
	for id := range owned {
		if t := next.topics.get(id); t != nil {
			t.Partitions.seal()
		}
	}
	next.topics.seal()
	next.names.seal()
	next.dying.seal()
	next.applied += uint64(len(records))
	return &next, nil
}

func (t *Topic) clone() *Topic {
	c := *t
	c.Partitions = t.Partitions.edit()
	c.Configs = maps.Clone(t.Configs)
	return &c
}

// touches names the topic whose contents r changes in place.
func touches(r Record) (storage.TopicID, bool) {
	switch r := r.(type) {
	case *PartitionChanged:
		return r.Topic, true
	case *TopicConfigSet:
		return r.Topic, true
	default:
		return storage.TopicID{}, false
	}
}

func (r *FeatureLevel) apply(s *State) error {
	if r.Level > Level {
		return fmt.Errorf("%w: feature level %d, this binary knows %d", ErrUnknownRecord, r.Level, Level)
	}
	s.level = r.Level
	return nil
}

func (r *BrokerRegistered) apply(s *State) error {
	b := r.Broker
	s.brokers[r.ID] = &b
	s.nextEpoch = max(s.nextEpoch, r.Epoch+1)
	return nil
}

func (r *BrokerUnregistered) apply(s *State) error {
	delete(s.brokers, r.ID)
	return nil
}

func (r *BrokerEpochsTaken) apply(s *State) error {
	s.nextEpoch = max(s.nextEpoch, r.Next)
	return nil
}

func (r *TopicCreated) apply(s *State) error {
	if s.names.has(r.Name) {
		return fmt.Errorf("%w: topic %q exists", ErrInconsistent, r.Name)
	}
	s.topics.set(r.ID, &Topic{ID: r.ID, Name: r.Name, Configs: map[string]string{}})
	s.names.set(r.Name, r.ID)
	return nil
}

func (r *PartitionChanged) apply(s *State) error {
	t := s.topics.get(r.Topic)
	switch {
	case t == nil:
		return fmt.Errorf("%w: partition of unknown topic %s", ErrInconsistent, r.Topic)
	case r.Index < 0 || int(r.Index) > t.Partitions.Len():
		return fmt.Errorf("%w: topic %q has %d partitions, no place for %d", ErrInconsistent, t.Name, t.Partitions.Len(), r.Index)
	}
	t.Partitions.set(int(r.Index), r.Partition)
	return nil
}

func (r *TopicConfigSet) apply(s *State) error {
	t := s.topics.get(r.Topic)
	if t == nil {
		return fmt.Errorf("%w: config of unknown topic %s", ErrInconsistent, r.Topic)
	}
	if r.Value == nil {
		delete(t.Configs, r.Name)
	} else {
		t.Configs[r.Name] = *r.Value
	}
	return nil
}

func (r *BrokerConfigSet) apply(s *State) error {
	set := maps.Clone(s.configs[r.Broker])
	if r.Value != nil {
		if set == nil {
			set = map[string]string{}
		}
		set[r.Name] = *r.Value
	} else {
		delete(set, r.Name)
	}
	if len(set) == 0 {
		delete(s.configs, r.Broker)
	} else {
		s.configs[r.Broker] = set
	}
	return nil
}

func (r *TopicRemoved) apply(s *State) error {
	if t := s.topics.get(r.ID); t != nil {
		s.names.remove(t.Name)
		s.topics.remove(r.ID)
	}
	s.dying.set(r.ID, struct{}{})
	return nil
}

func (r *TopicGone) apply(s *State) error {
	s.dying.remove(r.ID)
	return nil
}

func (r *ProducerIDsTaken) apply(s *State) error {
	if r.Next < s.nextProducerID {
		return fmt.Errorf("%w: producer ids go back from %d to %d", ErrInconsistent, s.nextProducerID, r.Next)
	}
	s.nextProducerID = r.Next
	return nil
}
