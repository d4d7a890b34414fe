package broker

import (
	"container/heap"
	"context"
)

// turn holds one token: who has taken it works alone, also over disk. It is a
// channel because waiting for it must end with the caller's context.
type turn chan struct{}

func newTurn() turn {
	t := make(turn, 1)
	t.give()
	return t
}

func (t turn) give() { t <- struct{}{} }

// take waits for the turn, unless ctx ends or the broker closes first.
func (b *Broker) take(ctx context.Context, t turn) error {
	select {
	case <-t:
	case <-b.done.Done():
		return ErrShuttingDown
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if b.done.Err() != nil { // both were ready
		t.give()
		return ErrShuttingDown
	}
	return nil
}

// waiter is told when an offset is reached. One waiter may stand in the lists
// of many partitions, with a place in each; it learns that something happened,
// not what.
type waiter struct {
	// woken holds at most one token, so that telling never blocks.
	woken chan struct{}
}

func newWaiter() *waiter { return &waiter{woken: make(chan struct{}, 1)} }

func (w *waiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// place is a waiter's entry in one list: wake it when the watermark is at
// least target.
type place struct {
	w      *waiter
	target int64
	index  int
}

// waiters is a heap of places by target, so that a rise of the watermark costs
// the woken only. The owner's lock guards it; its size is bounded by the
// requests in flight, which the doors bound.
type waiters []*place

func (ws *waiters) add(w *waiter, target int64) *place {
	p := &place{w: w, target: target}
	heap.Push(ws, p)
	return p
}

// remove takes a place out; one that was woken already is gone, which is fine.
func (ws *waiters) remove(p *place) {
	if p.index >= 0 {
		heap.Remove(ws, p.index)
	}
}

// reached takes out the waiters whose target is at most hw.
func (ws *waiters) reached(hw int64) []*waiter {
	var out []*waiter
	for len(*ws) > 0 && (*ws)[0].target <= hw {
		out = append(out, heap.Pop(ws).(*place).w)
	}
	return out
}

// Len, Less, Swap, Push and Pop are container/heap's.
func (ws waiters) Len() int           { return len(ws) }
func (ws waiters) Less(i, j int) bool { return ws[i].target < ws[j].target }

func (ws waiters) Swap(i, j int) {
	ws[i], ws[j] = ws[j], ws[i]
	ws[i].index, ws[j].index = i, j
}

// Push adds an entry at the end, for container/heap.
func (ws *waiters) Push(x any) {
	p := x.(*place)
	p.index = len(*ws)
	*ws = append(*ws, p)
}

// Pop removes the last entry, for container/heap.
func (ws *waiters) Pop() any {
	old := *ws
	p := old[len(old)-1]
	old[len(old)-1] = nil
	p.index = -1
	*ws = old[:len(old)-1]
	return p
}
