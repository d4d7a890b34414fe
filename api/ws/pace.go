package ws

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultDelay is the longest that records wait to share a frame with those
	// after them, unless the client says otherwise.
	defaultDelay = 25 * time.Millisecond
	// quietRate and busyRate are the server's data frames a second up to which
	// no frame waits, and from which on each waits its longest.
	quietRate = 1000
	busyRate  = 10_000
	// paceWindow is how often the rate is taken, and paceMemory how long the
	// past counts: without it, delay and rate would chase each other.
	paceWindow = 50 * time.Millisecond
	paceMemory = 250 * time.Millisecond
)

// pace turns the rate of frames of the whole server into the delay of each. It
// costs nothing while nothing is sent, and is safe for concurrent use. Times are
// in ns of any one clock.
type pace struct {
	frames atomic.Int64
	ends   atomic.Int64
	load   atomic.Uint64 // bits of a float64 from 0 to 1
	mu     struct {
		sync.Mutex
		began int64
		rate  float64
	}
}

// sent counts a frame.
func (p *pace) sent(now int64) {
	p.frames.Add(1)
	if now >= p.ends.Load() {
		p.turn(now)
	}
}

// delay is how long a subscription that allows most waits between frames.
func (p *pace) delay(now int64, most time.Duration) time.Duration {
	if now >= p.ends.Load() {
		p.turn(now)
	}
	return time.Duration(math.Float64frombits(p.load.Load()) * float64(most))
}

// turn ends a window.
func (p *pace) turn(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Duration(now - p.mu.began)
	if took < paceWindow {
		return // another was quicker
	}
	rate := float64(p.frames.Swap(0)) / took.Seconds()
	// The weight of the past falls with time, so that a pause of any length
	// counts for what it is.
	past := math.Exp(-took.Seconds() / paceMemory.Seconds())
	p.mu.rate = past*p.mu.rate + (1-past)*rate
	p.mu.began = now
	load := min(max((p.mu.rate-quietRate)/(busyRate-quietRate), 0), 1)
	p.load.Store(math.Float64bits(load))
	p.ends.Store(now + int64(paceWindow))
}
