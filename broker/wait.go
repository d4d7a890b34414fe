package broker

import (
	"context"
	"sync"

	"leat/replication"
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
	pl.Next = w.mu.told
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

// collect takes what was told since the last time, as a list by Next.
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

// place is a waiter's entry in the list of one partition. Next links those that
// were told.
type place = replication.Place[*waiter]

// tellPlace gives a place back to its waiter.
func tellPlace(pl *place) { pl.Waiter.tell(pl) }
