package controller

import (
	"hash/fnv"
	"iter"
	"maps"
	"slices"
)

// Records gives the state as records, always in the same order: a new state with
// them equals it. Snapshots and hashes are made of them. They belong to the state
// and must only be read.
func (s *State) Records() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		if s.level > 0 && !yield(&FeatureLevel{Level: s.level}) {
			return
		}
		_ = s.brokerRecords(yield) && s.topicRecords(yield) && (s.nextProducerID == 0 || yield(&ProducerIDsTaken{Next: s.nextProducerID}))
	}
}

func (s *State) brokerRecords(yield func(Record) bool) bool {
	told := int64(1)
	for _, id := range s.Brokers() {
		b := s.brokers[id]
		told = max(told, b.Epoch+1)
		if !yield(&BrokerRegistered{Broker: *b}) {
			return false
		}
	}
	if told < s.nextEpoch && !yield(&BrokerEpochsTaken{Next: s.nextEpoch}) {
		return false
	}
	for _, id := range slices.Sorted(maps.Keys(s.configs)) {
		for _, name := range slices.Sorted(maps.Keys(s.configs[id])) {
			v := s.configs[id][name]
			if !yield(&BrokerConfigSet{Broker: id, Name: name, Value: &v}) {
				return false
			}
		}
	}
	return true
}

func (s *State) topicRecords(yield func(Record) bool) bool {
	for _, id := range s.topicIDs() {
		t := s.topics.get(id)
		if !yield(&TopicCreated{ID: id, Name: t.Name}) {
			return false
		}
		for i := range t.Partitions.Len() {
			if !yield(&PartitionChanged{Topic: id, Index: int32(i), Partition: *t.Partitions.At(i)}) {
				return false
			}
		}
		for _, name := range slices.Sorted(maps.Keys(t.Configs)) {
			v := t.Configs[name]
			if !yield(&TopicConfigSet{Topic: id, Name: name, Value: &v}) {
				return false
			}
		}
	}
	for _, id := range s.DyingTopics() {
		if !yield(&TopicRemoved{ID: id}) {
			return false
		}
	}
	return true
}

// Hash is a number that equal states share, and others almost never.
func (s *State) Hash() uint64 {
	h := fnv.New64a()
	var size [4]byte
	for r := range s.Records() {
		p := Encode(r)
		size[0], size[1], size[2], size[3] = byte(len(p)), byte(len(p)>>8), byte(len(p)>>16), byte(len(p)>>24)
		_, _ = h.Write(size[:])
		_, _ = h.Write(p)
	}
	return h.Sum64()
}
