package sim

import (
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
// limits, so each lets a few things happen often, or many things once.
var slicesOfAll = []slice{
	{exploreLimits{records: 4, elections: 1, fences: 1}, nil},
	{exploreLimits{records: 2, elections: 2, fences: 2, alters: 1}, nil},
	{exploreLimits{records: 1, elections: 3, fences: 3}, nil},
	{exploreLimits{records: 2, elections: 1, restarts: 1, losses: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: 2, restarts: 2, losses: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: 1, fences: 1, late: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: 1, fences: 1, ticks: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: 1, fences: 1, alters: 1, lagging: everybody}, nil},
	// A new leader that does not know yet that its log is committed loses a
	// follower, which comes back without what it had.
	{exploreLimits{records: 1, elections: 2, restarts: 1, losses: 1, late: 1, fences: 1, alters: 1, lagging: 2}, []string{
		"append to 1", "2 fetches", "2 fetches", "3 fetches", "3 fetches", "fence 1",
		"2 learns of leader 2, epoch 1, in sync [2 3], eligible []",
	}},
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
		t.Logf("%+v: %d states, %d steps, %d healed", part, x.states, x.steps, x.healed)
		if x.found != "" {
			t.Fatal(x.found)
		}
		states += x.states
		steps += x.steps
	}
	t.Logf("%d states by %d steps in %v", states, steps, time.Since(start).Round(time.Millisecond))
	if states < 100_000 {
		t.Error("it stopped early")
	}
}
