package controller

import (
	"fmt"
	"testing"

	"leat/storage"
)

// big is a cluster of three brokers with so many topics of so many partitions each,
// on all three.
func big(tb testing.TB, topics, partitions int) *State {
	s := NewState()
	then := func(ev Event) {
		reply, records := Step(s, ev)
		for _, err := range reply.Errs {
			if err != nil {
				tb.Fatal(err)
			}
		}
		next, err := s.With(records)
		if err != nil {
			tb.Fatal(err)
		}
		s = next
	}
	for i := range int32(3) {
		r := register(i + 1)
		r.UUID = fmt.Sprint("u", i+1)
		then(r)
		then(&Unfence{ID: i + 1, Epoch: int64(i + 1)})
	}
	for i := range topics {
		then(&CreateTopics{Topics: []NewTopic{{ID: storage.TopicID{byte(i), byte(i >> 8), 15: 1}, Name: fmt.Sprint("t", i), Partitions: int32(partitions), Replication: 3}}})
	}
	return s
}

// BenchmarkFence fences one of three brokers that are replicas of 10,000 and of
// 100,000 partitions: the time grows as the partitions do.
func BenchmarkFence(b *testing.B) {
	for _, size := range [][2]int{{1000, 10}, {10_000, 1}, {1, 10_000}, {10_000, 10}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			s := big(b, size[0], size[1])
			b.ReportAllocs()
			for b.Loop() {
				_, records := Step(s, &Fence{ID: 2, Epoch: 2})
				if _, err := s.With(records); err != nil || len(records) != 1+size[0]*size[1] {
					b.Fatal(len(records), err)
				}
			}
		})
	}
}

// BenchmarkAlter changes one partition of 10,000, and of 100,000: the copy of the
// state is a small part of the topic and of the others.
func BenchmarkAlter(b *testing.B) {
	for _, size := range [][2]int{{1000, 10}, {10_000, 1}, {1, 10_000}, {1, 100_000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			s := big(b, size[0], size[1])
			id := storage.ID{Topic: s.TopicNamed("t0").ID}
			_, p := s.find(id)
			ev := &AlterPartitions{Broker: p.Leader, BrokerEpoch: int64(p.Leader), Partitions: []AlterPartition{{ID: id, ISR: []Member{{p.Leader, -1}}}}}
			b.ReportAllocs()
			for b.Loop() {
				_, records := Step(s, ev)
				if _, err := s.With(records); err != nil || len(records) != 1 {
					b.Fatal(len(records), err)
				}
			}
		})
	}
}
