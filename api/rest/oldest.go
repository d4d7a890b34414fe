package rest

import (
	linked "container/list"
	"sync"
	"time"
)

// oldest knows the requests under way in the order in which they came, so that
// one that hangs is seen from outside. Streams are not among them. It is safe for
// concurrent use.
type oldest struct {
	mu    sync.Mutex
	began linked.List // of time.Time, the oldest first
}

// enter adds a request; leave takes it out again.
func (o *oldest) enter(now time.Time) *linked.Element {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.began.PushBack(now)
}

// leave does nothing for one that has left.
func (o *oldest) leave(e *linked.Element) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.began.Remove(e)
}

// age is for how long the oldest is under way, 0 if there is none.
func (o *oldest) age(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.began.Front()
	if first == nil {
		return 0
	}
	return max(now.Sub(first.Value.(time.Time)), 0)
}
