package controller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"leat/storage"
)

// spread gives the replicas of the partitions [from, to) of a topic. Leaders go
// round the brokers in service, the start being another for each topic; followers
// are taken from as many racks as there are, and from other brokers in each round,
// so that what one broker leaves behind falls to all. Brokers that are fenced or
// shutting down become replicas only where the others are too few (KAFKA-13841).
func spread(s *State, id storage.TopicID, from, to int32, replication int) ([][]int32, error) {
	up, down := s.order(func(b int32) bool { return s.Eligible(b, -1) }), s.order(func(b int32) bool { return !s.Eligible(b, -1) })
	n := len(up)
	if n == 0 {
		return nil, fmt.Errorf("%w: %d, no node is in service", ErrInvalidReplicationFactor, replication)
	}
	start := rand.New(rand.NewPCG(uint64(id[0]), uint64(id[1]))).IntN(n)
	out := make([][]int32, to-from)
	for i := range out {
		at := int(from) + i
		first := start + at
		line := []int32{up[first%n]}
		for k := range n - 1 {
			line = append(line, up[(first+1+(at/n+k)%(n-1))%n])
		}
		for k := range down {
			line = append(line, down[(first+k)%len(down)])
		}
		out[i] = s.racks(line, n, replication)
	}
	return out, nil
}

// order lists brokers so that neighbours are in different racks: one of each rack,
// then the next of each.
func (s *State) order(take func(int32) bool) []int32 {
	racks := map[string][]int32{}
	total := 0
	for _, id := range s.Brokers() {
		if take(id) {
			rack := s.brokers[id].Rack
			racks[rack] = append(racks[rack], id)
			total++
		}
	}
	out := make([]int32, 0, total)
	names := slices.Sorted(maps.Keys(racks))
	for round := 0; len(out) < total; round++ {
		for _, name := range names {
			if round < len(racks[name]) {
				out = append(out, racks[name][round])
			}
		}
	}
	return out
}

// racks chooses replicas from a line of brokers of which the first n are in
// service: of those one of each rack, then any, then of the others in the same way.
func (s *State) racks(line []int32, n, replication int) []int32 {
	out := make([]int32, 0, replication)
	used := map[string]bool{}
	for _, part := range [][]int32{line[:n], line[n:]} {
		for _, strict := range []bool{true, false} {
			for _, id := range part {
				rack := s.brokers[id].Rack
				if len(out) < replication && !slices.Contains(out, id) && (!strict || !used[rack]) {
					out = append(out, id)
					used[rack] = true
				}
			}
		}
	}
	return out
}
