package broker

import (
	"cmp"
	"context"
	"slices"
	"sync"
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

// waiter waits at places in the lists of partitions. A place that is reached,
// or whose partition ends, is taken out of its list and told to the waiter, who
// collects it and may park it anew; the other places stay where they are.
// Telling never blocks and comes from any goroutine.
type waiter struct {
	// wake is called once for each time that the waiter was armed, and by stir,
	// with no lock held. It must not block.
	wake func()
	mu   struct {
		sync.Mutex
		told *place
		// news says that something beside the places changed.
		news bool
		// armed says that the waiter sleeps and wants wake.
		armed, closed bool
	}
}

// tell gives a place back that was taken out of its list.
func (w *waiter) tell(pl *place) {
	w.mu.Lock()
	pl.next = w.mu.told
	w.mu.told = pl
	w.rouse(false)
}

// stir says that there is news. With always the waiter is woken even if it
// does not sleep.
func (w *waiter) stir(always bool) {
	w.mu.Lock()
	w.mu.news = true
	w.rouse(always)
}

// rouse unlocks and wakes.
func (w *waiter) rouse(always bool) {
	wake := (w.mu.armed || always) && !w.mu.closed
	w.mu.armed = false
	w.mu.Unlock()
	if wake {
		w.wake()
	}
}

// collect takes what was told since the last time, as a list by next.
func (w *waiter) collect() (told *place, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	told, news = w.mu.told, w.mu.news
	w.mu.told, w.mu.news = nil, false
	return told, news
}

// arm asks to be woken; false if there is something to collect already.
func (w *waiter) arm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.armed = w.mu.told == nil && !w.mu.news
	return w.mu.armed
}

// close ends the waking; false if it was ended already.
func (w *waiter) close() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.mu.closed
	w.mu.closed = true
	return !was
}

// sleeper is a waiter that is a goroutine.
type sleeper struct {
	waiter
	woken chan struct{}
}

func newSleeper() *sleeper {
	s := &sleeper{woken: make(chan struct{}, 1)}
	s.wake = func() {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	}
	return s
}

// place is a waiter's entry in the list of one partition. It belongs to the
// list while it is parked, and to the waiter once it was told or taken out.
type place struct {
	w          *waiter
	level      *level
	next, prev *place
	// index says to the waiter which of its places this is.
	index int32
}

// level is the places that wait for one offset.
type level struct {
	target int64
	first  *place
	// reached says that the level has left the list, with all its places.
	reached bool
	next    *level // among those that were reached
}

// waiters lists levels by target, the lowest first, so that a rise of the
// watermark finds its waiters without looking at others, and a thousand who
// wait for the same record cost one entry. The owner's lock guards it. Its size
// is bounded by the requests and streams in flight, which the doors bound.
type waiters []*level

func (ws waiters) find(target int64) (int, bool) {
	return slices.BinarySearchFunc(ws, target, func(l *level, target int64) int { return cmp.Compare(l.target, target) })
}

func (ws *waiters) add(pl *place, target int64) {
	i, ok := ws.find(target)
	if !ok {
		*ws = slices.Insert(*ws, i, &level{target: target})
	}
	l := (*ws)[i]
	pl.level, pl.prev, pl.next = l, nil, l.first
	if l.first != nil {
		l.first.prev = pl
	}
	l.first = pl
}

// remove takes a place out, and reports whether it was there: if not, it was
// told or soon will be.
func (ws *waiters) remove(pl *place) bool {
	l := pl.level
	if l == nil || l.reached {
		return false
	}
	if pl.prev != nil {
		pl.prev.next = pl.next
	} else {
		l.first = pl.next
	}
	if pl.next != nil {
		pl.next.prev = pl.prev
	}
	pl.level, pl.prev, pl.next = nil, nil, nil
	if l.first == nil {
		i, _ := ws.find(l.target)
		*ws = slices.Delete(*ws, i, i+1)
	}
	return true
}

// reached takes out the levels whose target is at most hw, for tellAll once the
// lock is given back.
func (ws *waiters) reached(hw int64) *level {
	n := 0
	for n < len(*ws) && (*ws)[n].target <= hw {
		(*ws)[n].reached = true
		n++
	}
	if n == 0 {
		return nil
	}
	for i := range n - 1 {
		(*ws)[i].next = (*ws)[i+1]
	}
	first := (*ws)[0]
	*ws = slices.Delete(*ws, 0, n)
	return first
}

// tellAll tells everyone in levels that were taken out. A place may be parked
// again at once, so nothing is looked at after it was told.
func tellAll(l *level) {
	for l != nil {
		pl, next := l.first, l.next
		l.first, l.next = nil, nil
		for pl != nil {
			after := pl.next
			pl.w.tell(pl)
			pl = after
		}
		l = next
	}
}
