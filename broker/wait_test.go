package broker

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
		var ws waiters
		w := &waiter{wake: func() { t.Error("woken without being armed") }}
		places := make([]place, 40)
		parked := map[int]int64{}
		for i := range places {
			places[i] = place{w: w, index: int32(i)}
		}
		hw := int64(0)
		for range 500 {
			i := rng.IntN(len(places))
			_, is := parked[i]
			switch {
			case rng.IntN(10) == 0:
				hw += rng.Int64N(3)
				tellAll(ws.reached(hw))
				told, _ := w.collect()
				var got, want []int
				for ; told != nil; told = told.next {
					got = append(got, int(told.index))
				}
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
				if !ws.remove(&places[i]) {
					t.Fatalf("seed %d: place %d was not in the list", seed, i)
				}
				delete(parked, i)
			default:
				if ws.remove(&places[i]) {
					t.Fatalf("seed %d: place %d was in the list", seed, i)
				}
				parked[i] = hw + 1 + rng.Int64N(5)
				ws.add(&places[i], parked[i])
			}
			targets := map[int64]bool{}
			for _, target := range parked {
				targets[target] = true
			}
			if len(ws) != len(targets) || !slices.IsSortedFunc(ws, func(a, b *level) int { return int(a.target - b.target) }) {
				t.Fatalf("seed %d: %d levels for %d targets", seed, len(ws), len(targets))
			}
		}
	}
}

// A waiter is woken once for each time that it was armed, by a place or by news,
// and not at all once it is closed.
func TestWaiterWakes(t *testing.T) {
	woken := 0
	w := &waiter{wake: func() { woken++ }}
	var a, b place
	a.w, b.w = w, w
	step := func(name string, want int, do func()) {
		t.Helper()
		do()
		if woken != want {
			t.Fatalf("%s: woken %d times, want %d", name, woken, want)
		}
	}
	step("not armed", 0, func() { w.tell(&a) })
	step("there is something to collect", 0, func() {
		if w.arm() {
			t.Error("armed beside a told place")
		}
		w.collect()
	})
	step("armed", 1, func() { w.arm(); w.tell(&a) })
	step("once only", 1, func() { w.tell(&b) })
	step("collected", 1, func() {
		if told, news := w.collect(); told == nil || told.next == nil || news {
			t.Error("both places were told, and no news")
		}
	})
	step("news", 2, func() { w.arm(); w.stir(false) })
	step("news are collected", 2, func() {
		if w.arm() {
			t.Error("armed beside news")
		}
		if told, news := w.collect(); told != nil || !news {
			t.Error("news are lost")
		}
	})
	step("always", 3, func() { w.stir(true) })
	step("closed", 3, func() {
		w.collect()
		w.arm()
		if !w.close() || w.close() {
			t.Error("close is to say whether it was the first")
		}
		w.tell(&a)
		w.stir(true)
	})
}

// A ring gives back what went in, in order, however it grows and turns.
func TestRing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var r ring
	var want []int32
	for i := range int32(1000) {
		if len(want) > 0 && rng.IntN(2) == 0 {
			if got := r.pop(); got != want[0] {
				t.Fatalf("got %d, want %d", got, want[0])
			}
			want = want[1:]
		}
		r.push(i)
		want = append(want, i)
		if r.n != len(want) {
			t.Fatalf("%d in the ring, want %d", r.n, len(want))
		}
	}
}

// BenchmarkWake is a watermark that rises under many tails which stand at the
// end, and their parking again.
func BenchmarkWake(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var ws waiters
			places := make([]place, n)
			for i := range places {
				places[i].w = &waiter{wake: func() {}}
				ws.add(&places[i], 1)
			}
			b.ReportAllocs()
			hw := int64(0)
			for b.Loop() {
				hw++
				tellAll(ws.reached(hw))
				for i := range places {
					places[i].w.collect()
					ws.add(&places[i], hw+1)
				}
			}
		})
	}
}
