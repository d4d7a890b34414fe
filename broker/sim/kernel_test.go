package sim

import (
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"
)

// event is something that will happen at an instant. Events of one instant
// happen in the order in which they were made.
type event struct {
	at  time.Duration
	seq uint64
	// of is the life that the event belongs to: when that is over it does not
	// happen. nil: the world's.
	of  *life
	run func()
}

// maxStill is how many events one instant may have: more is a loop.
const maxStill = 100_000

// life is one run of a process. What a process has under way ends with it.
type life struct {
	over bool
	// paused is until when nothing of it happens: SIGSTOP.
	paused time.Duration
}

// kernel is virtual time: a queue of events and the one source of chance.
// Nothing in a simulation happens outside an event.
type kernel struct {
	now   time.Duration
	seq   uint64
	queue []event // a binary heap
	rng   *rand.Rand
	// more is another source of chance, for what a seed has beside.
	more *rand.Rand
	// sum is a hash over all that happened: equal runs have equal sums.
	sum   uint64
	steps int
	// still counts the events since time has moved, which was at since.
	still int
	since time.Duration
	// after is called behind each event.
	after func()
	// log, if there is one, gets a line for what happens.
	log io.Writer
}

func newKernel(seed uint64) *kernel {
	return &kernel{rng: rand.New(rand.NewPCG(seed, 0x1ea7)), more: rand.New(rand.NewPCG(seed, 0x1ea8)), after: func() {}}
}

// at has run called after d, unless the life is over by then.
func (k *kernel) at(d time.Duration, of *life, run func()) {
	k.seq++
	k.push(event{at: k.now + max(d, 0), seq: k.seq, of: of, run: run})
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (k *kernel) push(e event) {
	k.queue = append(k.queue, e)
	q := k.queue
	i := len(q) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !q[i].before(&q[parent]) {
			return
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

func (k *kernel) pop() event {
	q := k.queue
	first := q[0]
	last := len(q) - 1
	q[0], q[last] = q[last], event{}
	q = q[:last]
	k.queue = q
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if child+1 < last && q[child+1].before(&q[child]) {
			child++
		}
		if !q[child].before(&q[i]) {
			return first
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}

// run lets events happen up to an instant, and stops early when stop says so.
func (k *kernel) run(until time.Duration, stop func() bool) {
	for len(k.queue) > 0 && k.queue[0].at <= until && !stop() {
		e := k.pop()
		k.now = e.at
		if e.of != nil && e.of.over {
			continue
		}
		if e.of != nil && e.of.paused > e.at {
			k.at(e.of.paused-e.at, e.of, e.run)
			continue
		}
		k.steps++
		if e.at > k.since {
			k.since, k.still = e.at, 0
		} else if k.still++; k.still > maxStill {
			panic("time stands still")
		}
		k.mix(uint64(e.at) ^ e.seq<<40)
		e.run()
		k.after()
	}
	if !stop() {
		k.now = until
	}
}

// mix adds to the hash of the run.
func (k *kernel) mix(v uint64) { k.sum = (bits.RotateLeft64(k.sum, 5) ^ v) * 0x9e3779b97f4a7c15 }

// tracing reports whether somebody reads what happens.
func (k *kernel) tracing() bool { return k.log != nil }

// trace tells what happens. Call it under tracing where its arguments cost.
func (k *kernel) trace(format string, args ...any) {
	if k.log != nil {
		_, _ = fmt.Fprintf(k.log, "%12.6f  %s\n", k.now.Seconds(), fmt.Sprintf(format, args...))
	}
}

// chance is true with that probability.
func (k *kernel) chance(p float64) bool { return p > 0 && k.rng.Float64() < p }

// between is an instant of [from, to].
func (k *kernel) between(from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(k.rng.Int64N(int64(to-from)+1))
}

// pick is one of the choices.
func pick[T any](rng *rand.Rand, choices ...T) T { return choices[rng.IntN(len(choices))] }

// Events come in order of time, those of one instant in the order they were
// made, and none of a life that is over.
func TestKernel(t *testing.T) {
	k := newKernel(1)
	var got []int
	gone := &life{}
	k.at(3, nil, func() { got = append(got, 4) })
	k.at(1, nil, func() {
		got = append(got, 1)
		k.at(0, nil, func() { got = append(got, 2) })
		k.at(1, gone, func() { got = append(got, -1) })
		gone.over = true
	})
	k.at(2, nil, func() { got = append(got, 3) })
	k.at(9, nil, func() { got = append(got, -2) })
	steps := 0
	k.after = func() { steps++ }
	k.run(5, func() bool { return false })
	if fmt.Sprint(got) != "[1 2 3 4]" || k.now != 5 || steps != 4 || len(k.queue) != 1 {
		t.Errorf("%v at %v after %d steps, %d left", got, k.now, steps, len(k.queue))
	}
	k.run(20, func() bool { return k.now == 9 })
	if k.now != 9 {
		t.Errorf("stopped at %v", k.now)
	}
}

// The heap gives thousands of events back in order.
func TestKernelOrder(t *testing.T) {
	k := newKernel(2)
	last, n := time.Duration(-1), 0
	for range 5000 {
		k.at(k.between(0, 500), nil, func() {
			if k.now < last {
				t.Fatalf("%v after %v", k.now, last)
			}
			last = k.now
			n++
			if n < 20000 && k.chance(0.5) {
				k.at(k.between(0, 50), nil, func() { n++ })
			}
		})
	}
	k.run(1000, func() bool { return false })
	if n < 5000 || len(k.queue) != 0 {
		t.Errorf("%d events, %d left", n, len(k.queue))
	}
}
