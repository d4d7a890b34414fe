package broker

import (
	"math/rand/v2"
	"testing"
)

// A waiter is woken once for each time that it was armed, by a place or by news,
// and not at all once it is closed.
func TestWaiterWakes(t *testing.T) {
	woken := 0
	w := &waiter{wake: func() { woken++ }}
	var a, b place
	a.Waiter, b.Waiter = w, w
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
		if told, news := w.collect(); told == nil || told.Next == nil || news {
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
