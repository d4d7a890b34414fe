package broker

import (
	"testing"
	"time"
)

// Of the rounds of groups only those are remembered that may be applied yet: none
// that is, by itself or with others, and none of a leadership that has ended.
func TestRoundTimes(t *testing.T) {
	var r roundTimes
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	applied := func(to int64, want int, left int) {
		t.Helper()
		began, ok := r.applied(to)
		if ok != (want > 0) || ok && !began.Equal(at(want)) || len(r.rounds) != left {
			t.Errorf("applied to %d: %v %v, left %v", to, began, ok, r.rounds)
		}
	}
	r.lead(1, true)
	for i := 1; i <= 5; i++ {
		r.append(int64(10*i), at(i))
	}
	r.lead(1, true)
	applied(10, 1, 4)
	applied(30, 3, 2) // two rounds in one
	applied(45, 0, 1) // no end of a round
	r.lead(3, true)   // another has led meanwhile, and cut off the rest
	applied(50, 0, 0)
	r.append(60, at(6))
	r.lead(4, false)
	applied(60, 0, 0)
	for i := range 1000 { // fail-overs leave nothing behind
		r.lead(int32(5+i), true)
		r.append(int64(100+i), at(i))
	}
	applied(99, 0, 1)
}
