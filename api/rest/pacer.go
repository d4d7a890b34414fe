package rest

import (
	"sync/atomic"
	"time"
)

const (
	// pacerWindow is the time over which sends are counted.
	pacerWindow = 100 * time.Millisecond
	// busySends is how many sends a second all streams may make before each
	// waits a little for more to send at a time: a send costs about 10 µs.
	busySends = 8000
	// maxGather bounds that wait.
	maxGather = 25 * time.Millisecond
)

// pacer keeps the sends of all streams from taking the processors when many
// clients follow a topic that is written to often. The interval between two
// sends of one stream grows while there are too many and shrinks when there are
// few. It is safe for concurrent use.
type pacer struct {
	window atomic.Int64 // the number of the window that is being counted
	count  atomic.Int64
	gather atomic.Int64 // the interval in ns
}

// interval is the least time from one send of a stream to its next.
func (p *pacer) interval() time.Duration { return time.Duration(p.gather.Load()) }

// sent counts a send.
func (p *pacer) sent(now time.Time) {
	window := now.UnixNano() / int64(pacerWindow)
	if before := p.window.Load(); window > before && p.window.CompareAndSwap(before, window) {
		count := p.count.Swap(0)
		if window > before+1 {
			count = 0 // there was a window without sends
		}
		p.gather.Store(int64(adapt(p.interval(), count*int64(time.Second/pacerWindow))))
	}
	p.count.Add(1)
}

// adapt is the interval after a window with so many sends a second.
func adapt(interval time.Duration, sends int64) time.Duration {
	switch {
	case sends > busySends:
		return min(interval+interval/2+time.Millisecond, maxGather)
	case sends > busySends/2:
		return interval
	case interval < time.Millisecond:
		return 0
	default:
		return interval / 2
	}
}
