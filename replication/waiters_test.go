package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Whatever is added, taken out and reached, exactly those places are told whose
// target is reached, each once, and one level stands for one target.
func TestWaitersModel(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var ws Waiters[string]
		places := make([]Place[string], 40)
		parked := map[int]int64{}
		for i := range places {
			places[i] = Place[string]{Waiter: "w", Index: int32(i)}
		}
		hw := int64(0)
		for range 500 {
			i := rng.IntN(len(places))
			_, is := parked[i]
			switch {
			case rng.IntN(10) == 0:
				hw += rng.Int64N(3)
				var got, want []int
				ws.Reached(hw).Each(func(pl *Place[string]) { got = append(got, int(pl.Index)) })
				for i, target := range parked {
					if target <= hw {
						want = append(want, i)
						delete(parked, i)
					}
				}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: at %d told %v, want %v", seed, hw, got, want)
				}
			case is:
				if !ws.Remove(&places[i]) {
					t.Fatalf("seed %d: place %d was not in the list", seed, i)
				}
				delete(parked, i)
			default:
				if ws.Remove(&places[i]) {
					t.Fatalf("seed %d: place %d was in the list", seed, i)
				}
				parked[i] = hw + 1 + rng.Int64N(5)
				ws.Add(&places[i], parked[i])
			}
			targets := map[int64]bool{}
			for _, target := range parked {
				targets[target] = true
			}
			if len(ws.levels) != len(targets) || !slices.IsSortedFunc(ws.levels, func(a, b *level[string]) int { return int(a.target - b.target) }) {
				t.Fatalf("seed %d: %d levels for %d targets", seed, len(ws.levels), len(targets))
			}
		}
	}
}

// Who is told may park again at once, also for what is reached already, and is
// told of that at the next rise.
func TestWaitersParkAgain(t *testing.T) {
	var ws Waiters[int]
	a, b := &Place[int]{Index: 1}, &Place[int]{Index: 2}
	ws.Add(a, 1)
	ws.Add(b, 2)
	told := 0
	ws.Reached(2).Each(func(pl *Place[int]) {
		told++
		ws.Add(pl, 2)
	})
	if told != 2 {
		t.Fatalf("told %d, want 2", told)
	}
	ws.Reached(2).Each(func(*Place[int]) { told++ })
	if told != 4 || len(ws.levels) != 0 {
		t.Fatalf("told %d, %d levels", told, len(ws.levels))
	}
}

// BenchmarkWake is a watermark that rises under many waiters which stand at the
// end, and their parking again.
func BenchmarkWake(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var ws Waiters[*int]
			places := make([]Place[*int], n)
			for i := range places {
				ws.Add(&places[i], 1)
			}
			b.ReportAllocs()
			hw := int64(0)
			for b.Loop() {
				hw++
				ws.Reached(hw).Each(func(*Place[*int]) {})
				for i := range places {
					ws.Add(&places[i], hw+1)
				}
			}
		})
	}
}
