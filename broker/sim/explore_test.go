package sim

import (
	"cmp"
	"os"
	"runtime/debug"
	"testing"
	"time"
)

// slice is a part of what three replicas can do: all that can come after some
// steps, within limits.
type slice struct {
	exploreLimits
	after []string
}

// Each slice is gone through to its end. The states grow with the product of the
// limits, so all but the last let a few things happen often, or many things once.
var slicesOfAll = []slice{
	{exploreLimits{records: 4, elections: 1, fences: 1}, nil},
	{exploreLimits{records: 2, elections: 1, restarts: 1, losses: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: unlimited, restarts: 2, losses: 1, alters: unlimited, flying: 1}, nil},
	{exploreLimits{records: 1, elections: unlimited, restarts: 1, losses: 1, fences: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: unlimited, late: 1, fences: 2, alters: 2}, nil},
	{exploreLimits{records: 1, elections: unlimited, ticks: unlimited, fences: 1, alters: 2}, nil},
	{exploreLimits{records: 1, elections: unlimited, fences: 1, alters: unlimited, flying: 1, lagging: everybody}, nil},
	// A new leader that does not know yet that its log is committed loses a
	// follower, which comes back without what it had.
	{exploreLimits{records: 1, elections: 2, restarts: 1, losses: 1, late: 1, fences: 1, alters: 1, lagging: 2}, []string{
		"append to 1", "2 fetches", "2 fetches", "3 fetches", "3 fetches", "fence 1",
		"2 learns of leader 2, epoch 1, in sync [2 3], eligible []",
	}},
	{anyElections(2), nil},
}

// anyElections is everything with so many records: brokers are fenced and come
// back, the set in sync is changed and leaders are elected as often as they may be.
// One request to the controller is under way at a time; an answer may be lost.
func anyElections(records int) exploreLimits {
	return exploreLimits{records: records, elections: unlimited, fences: unlimited, alters: unlimited, flying: 1}
}

// All that three replicas can do with few records, elections and crashes is
// right, and from each state a cluster without faults gets well again.
func TestExplore(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	start := time.Now()
	states, steps := 0, 0
	for _, part := range slicesOfAll {
		x := newExploration(part.exploreLimits)
		x.run(part.after...)
		t.Logf("%+v: %d states, %d steps, %d healed", part, x.states.n, x.steps, x.healed)
		if x.found != "" {
			t.Fatal(x.found)
		}
		states += int(x.states.n)
		steps += x.steps
	}
	t.Logf("%d states by %d steps in %v", states, steps, time.Since(start).Round(time.Millisecond))
	if states < 500_000 {
		t.Error("it stopped early")
	}
}

// mostStates keep an exploration within some 5 GB.
const mostStates = 150_000_000

// All that three replicas can do with one record, or as many as LEAT_EXPLORE says, is
// right, whatever the number of elections.
func TestExploreWhole(t *testing.T) {
	x := newExploration(anyElections(int(mustNumber(t, cmp.Or(os.Getenv("LEAT_EXPLORE"), "1")))))
	x.most = mostStates
	start := time.Now()
	x.progress = func() {
		t.Logf("%v: %d states, of which %d are gone through, %d steps, %d healed",
			time.Since(start).Round(time.Second), x.states.n, x.at, x.steps, x.healed)
	}
	if x.run(); x.found != "" {
		t.Fatal(x.found)
	}
	t.Logf("%+v: %d states, %d steps, %d healed, in %v; %d states of one node, %d changes of one",
		x.limits, x.states.n, x.steps, x.healed, time.Since(start).Round(time.Second), len(x.nodes), x.memory.n)
}
