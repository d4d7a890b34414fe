package kafka

import (
	"time"

	"leat/broker"
)

// fetchTopic is one topic of a request, as it must come back in the answer:
// its name, or from version 13 on its id, and how many of the query's
// partitions are its own.
type fetchTopic struct {
	name       string
	id         broker.TopicID
	partitions int
}

// maxFetchBytes bounds an answer whatever the client asks, as Kafka's
// fetch.max.bytes does by default.
const maxFetchBytes = 55 << 20

// decode reads a request straight into what the broker takes, with the memory
// of the one before. It takes and refuses the same bytes as kmsg.
//
//	int32 replica (to v14) | int32 max wait ms | int32 min bytes | int32 max bytes | int8 isolation
//	v7:  int32 session id | int32 session epoch
//	[]topics: string name, from v13 on uuid id
//	    []partitions: int32 index | v9: int32 leader epoch | int64 offset | v12: int32 last fetched epoch
//	                  v5: int64 log start | int32 max bytes | tags
//	    tags
//	v7:  []forgotten topics: name or id | []int32 partitions | tags
//	v11: string rack
//	tags: 0 cluster id, 1 replica's id and epoch
func (fc *fetchCall) decode(in *interner, body []byte, version int16) error {
	s, flexible := scan{p: body}, version >= 12
	if version <= 14 {
		s.int32()
	}
	q := &fc.query
	q.MaxWait = time.Duration(s.int32()) * time.Millisecond
	q.MinBytes = s.int32()
	q.MaxBytes = min(s.int32(), maxFetchBytes)
	q.ReadCommitted = s.int8() == 1
	fc.session = -1
	if version >= 7 {
		s.int32() // its id
		fc.session = int32(s.int32())
	}
	for n := s.array(flexible); n > 0 && !s.bad; n-- {
		fc.topic(&s, in, version, flexible)
	}
	if version >= 7 {
		forgottenTopics(&s, version, flexible)
	}
	if version >= 11 {
		s.string(flexible)
	}
	if flexible {
		s.eachTag(func(tag int, value *scan) {
			switch tag {
			case 0:
				value.compact()
			case 1:
				value.skip(4 + 8)
				value.tags()
			}
		})
	}
	if s.bad {
		return errCut
	}
	return nil
}

func (fc *fetchCall) topic(s *scan, in *interner, version int16, flexible bool) {
	var t fetchTopic
	if version <= 12 {
		t.name = in.name(s.string(flexible))
	} else {
		copy(t.id[:], s.take(len(t.id)))
	}
	for n := s.array(flexible); n > 0 && !s.bad; n-- {
		p := broker.FetchPartition{Topic: t.name, TopicID: t.id, Partition: int32(s.int32()), Epoch: -1}
		if version >= 9 {
			p.Epoch = int32(s.int32())
		}
		p.Offset = s.int64()
		if version >= 12 {
			s.int32()
		}
		if version >= 5 {
			s.int64()
		}
		p.MaxBytes = s.int32()
		if flexible {
			s.eachTag(partitionTag)
		}
		fc.query.Partitions = append(fc.query.Partitions, p)
		t.partitions++
	}
	if flexible {
		s.tags()
	}
	fc.topics = append(fc.topics, t)
}

// partitionTag checks a tag of a partition: 0 is the id of the follower's
// directory, 1 its high watermark.
func partitionTag(tag int, value *scan) {
	switch tag {
	case 0:
		value.skip(16)
	case 1:
		value.skip(8)
	}
}

// forgottenTopics skips what a session would forget.
func forgottenTopics(s *scan, version int16, flexible bool) {
	for n := s.array(flexible); n > 0 && !s.bad; n-- {
		if version <= 12 {
			s.string(flexible)
		} else {
			s.skip(16)
		}
		if k := s.array(flexible); k > 0 {
			s.skip(4 * k)
		}
		if flexible {
			s.tags()
		}
	}
}

const (
	// maxNames bounds the names that a connection remembers, and maxName
	// their length: a longer one is no topic's.
	maxNames = 256
	maxName  = 249
)

// interner gives the same string for the same bytes, so that a name that comes
// with every request costs no allocation. At maxNames it forgets all.
type interner struct{ known map[string]string }

func (in *interner) name(p []byte) string {
	if s, ok := in.known[string(p)]; ok {
		return s
	}
	s := string(p)
	if len(s) > maxName {
		return s
	}
	if in.known == nil || len(in.known) >= maxNames {
		in.known = map[string]string{}
	}
	in.known[s] = s
	return s
}
