package ws

import (
	"sync"
	"time"
)

// wheel fires for a T after a time. Many share one timer, which runs only while
// somebody waits, and goes by ticks, so that those of one tick cost one.
type wheel[T any] struct {
	tick time.Duration
	base time.Time
	fire func(T)
	mu   struct {
		sync.Mutex
		timer *time.Timer
		slots [][]T
		spare []T
		// at is the last tick that was fired; count is how many wait.
		at      int64
		count   int
		stopped bool
	}
}

// newWheel makes a wheel for waits of up to slots-1 ticks. fire is called with
// no lock held.
func newWheel[T any](tick time.Duration, slots int, fire func(T)) *wheel[T] {
	w := &wheel[T]{tick: tick, base: time.Now(), fire: fire}
	w.mu.slots = make([][]T, slots)
	return w
}

// add fires for t once, after at least d, cut to what the wheel can wait.
func (w *wheel[T]) add(t T, d time.Duration) {
	now := time.Since(w.base)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.stopped {
		return
	}
	if w.mu.count == 0 {
		w.mu.at = int64(now / w.tick)
		if w.mu.timer == nil {
			w.mu.timer = time.AfterFunc(w.tick, w.turn)
		} else {
			w.mu.timer.Reset(w.tick)
		}
	}
	w.mu.count++
	target := int64((now + d + w.tick - 1) / w.tick)
	target = min(max(target, w.mu.at+1), w.mu.at+int64(len(w.mu.slots))-1)
	slot := &w.mu.slots[target%int64(len(w.mu.slots))]
	*slot = append(*slot, t)
}

// turn fires for those whose tick has come.
func (w *wheel[T]) turn() {
	for {
		w.mu.Lock()
		now := int64(time.Since(w.base) / w.tick)
		var due []T
		for w.mu.at < now && w.mu.count > 0 && due == nil {
			w.mu.at++
			slot := &w.mu.slots[w.mu.at%int64(len(w.mu.slots))]
			if len(*slot) > 0 {
				due, *slot, w.mu.spare = *slot, w.mu.spare, nil
			}
		}
		w.mu.count -= len(due)
		if due == nil && w.mu.count > 0 && !w.mu.stopped {
			w.mu.timer.Reset(time.Until(w.base.Add(time.Duration(w.mu.at+1) * w.tick)))
		}
		w.mu.Unlock()
		if due == nil {
			return
		}
		for _, t := range due {
			w.fire(t)
		}
		clear(due)
		w.mu.Lock()
		w.mu.spare = due[:0]
		w.mu.Unlock()
	}
}

// stop forgets everybody who waits.
func (w *wheel[T]) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.stopped = true
	clear(w.mu.slots)
	w.mu.count = 0
	if w.mu.timer != nil {
		w.mu.timer.Stop()
	}
}
