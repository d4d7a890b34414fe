package quorum

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// TestReplacement proves who replaces whom: the voter that is silent for longest is
// replaced, by the first learner that is fit, and only while a majority of the voters
// answers.
func TestReplacement(t *testing.T) {
	voter := func(id uint64, silent int) Peer { return Peer{ID: id, Silent: silent, Match: 100} }
	fit := func(id uint64) Peer { return Peer{ID: id, Learner: true, Active: true, Match: 100} }
	for name, tc := range map[string]struct {
		peers    []Peer
		gone, by uint64
	}{
		"nobody is dead":               {peers: []Peer{voter(2, 0), voter(3, 99), fit(4)}},
		"one is":                       {peers: []Peer{voter(2, 0), voter(3, 100), fit(4)}, gone: 3, by: 4},
		"no learner":                   {peers: []Peer{voter(2, 0), voter(3, 100)}},
		"a dead learner":               {peers: []Peer{voter(2, 0), voter(3, 100), {ID: 4, Learner: true, Match: 100, Silent: 500}}},
		"a learner that lags":          {peers: []Peer{voter(2, 0), voter(3, 100), {ID: 4, Learner: true, Active: true, Match: 35}}},
		"a learner on a snapshot":      {peers: []Peer{voter(2, 0), voter(3, 100), {ID: 4, Learner: true, Active: true, Match: 100, Snapshot: true}}},
		"the second learner":           {peers: []Peer{voter(2, 0), voter(3, 100), {ID: 4, Learner: true}, fit(5)}, gone: 3, by: 5},
		"the majority is silent":       {peers: []Peer{voter(2, 10), voter(3, 100), fit(4)}},
		"the majority just answers":    {peers: []Peer{voter(2, 9), voter(3, 100), fit(4)}, gone: 3, by: 4},
		"two of five, the longer one":  {peers: []Peer{voter(2, 100), voter(3, 101), voter(4, 0), voter(5, 0), fit(6)}, gone: 3, by: 6},
		"two of five, and one silent":  {peers: []Peer{voter(2, 100), voter(3, 101), voter(4, 0), voter(5, 10), fit(6)}},
		"one of two has no majority":   {peers: []Peer{voter(2, 100), fit(3)}},
		"alike, the first one":         {peers: []Peer{voter(2, 100), voter(3, 100), voter(4, 0), voter(5, 0), fit(6)}, gone: 2, by: 6},
		"a lone voter has nobody dead": {peers: []Peer{fit(2), {ID: 3, Learner: true, Silent: 500}}},
	} {
		gone, by, ok := replacement(tc.peers, 100, 10, 100)
		if gone != tc.gone || by != tc.by || ok != (tc.gone != 0) {
			t.Errorf("%s: %d by %d, %t; want %d by %d", name, gone, by, ok, tc.gone, tc.by)
		}
	}
}

// TestStagedLearners proves which learners to be are taken, from a store or from
// another node: a voter of before that is none now.
func TestStagedLearners(t *testing.T) {
	for name, tc := range map[string]struct {
		m  *raftpb.ConfState
		ok bool
	}{
		"half replaced": {&raftpb.ConfState{Voters: []uint64{1, 2, 4}, VotersOutgoing: []uint64{1, 2, 3}, LearnersNext: []uint64{3}, AutoLeave: new(true)}, true},
		"no vote":       {&raftpb.ConfState{Voters: []uint64{1, 2, 4}, VotersOutgoing: []uint64{1, 2, 3}, LearnersNext: []uint64{5}, AutoLeave: new(true)}, false},
		"still a vote":  {&raftpb.ConfState{Voters: []uint64{1, 2, 3}, VotersOutgoing: []uint64{1, 2, 3}, LearnersNext: []uint64{3}, AutoLeave: new(true)}, false},
		"both":          {&raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}, VotersOutgoing: []uint64{1, 2, 3}, LearnersNext: []uint64{3}}, false},
		"not joint":     {&raftpb.ConfState{Voters: []uint64{1, 2}, LearnersNext: []uint64{3}}, false},
	} {
		if err := checkMembers(tc.m); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
