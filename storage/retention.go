package storage

import (
	"log/slog"
	"sync"
	"time"
)

// Retention says how much of a log is to be kept. Whole segments go, the oldest
// first, and none behind one that stays.
type Retention struct {
	// MaxBytes is retention.bytes: a segment goes while what is left without it
	// has at least so many bytes. Negative is no limit.
	MaxBytes int64
	// MaxAge is retention.ms: a segment goes when it is older. Negative is no
	// limit.
	MaxAge time.Duration
	// Bound is an offset, the high watermark: a segment that reaches past it
	// stays.
	Bound int64
}

// Expired is what a log need not keep any more.
type Expired struct {
	// Start is where the log may begin; its start if everything is to be kept.
	Start int64
	// BySize and ByAge are the bytes of the segments below Start, by why they go.
	BySize, ByAge int64
}

// Expired says what r lets go as of now. It changes nothing; the caller makes
// Start durable and calls SetStart. What is not durable stays, so that after a
// crash the log does not end below its start. The segment that grows is like
// any other once it has records.
func (l *Log) Expired(now time.Time, r Retention) Expired {
	ahead := l.config.Load().TimestampAfter.Milliseconds()
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.fenced.Load() {
		return Expired{Start: l.mu.start}
	}
	r.Bound = min(r.Bound, l.mu.durable.offset)
	return expired(l.mu.segments, l.mu.start, now.UnixMilli(), ahead, &r)
}

// expired is the rule; ahead is how far a record's time may be ahead of the
// clock that it was appended by.
func expired(segments []*segment, start, nowMillis, ahead int64, r *Retention) Expired {
	for len(segments) > 0 && segments[0].next <= start {
		segments = segments[1:] // they are on their way out, or empty
	}
	var left int64
	for _, s := range segments {
		left += s.size
	}
	out := Expired{Start: start}
	for _, s := range segments {
		if s.size == 0 || s.next > r.Bound {
			break
		}
		left -= s.size
		switch {
		case r.MaxBytes >= 0 && left >= r.MaxBytes:
			out.BySize += s.size
		case r.MaxAge >= 0 && nowMillis-newest(s, ahead) > r.MaxAge.Milliseconds():
			out.ByAge += s.size
		default:
			return out
		}
		out.Start = s.next
	}
	return out
}

// newest is the time from which the segment's age counts: that of its records,
// or of the last append if they have none. A time that was further in the
// future than the topic lets it be keeps the segment no longer than that.
func newest(s *segment, ahead int64) int64 {
	if s.maxTimestamp < 0 {
		return s.lastAppend
	}
	return min(s.maxTimestamp, saturate(s.lastAppend, ahead))
}

const (
	// clockBack and clockAhead are how far the wall clock may step before
	// nothing is deleted by age; clockSettles is how long it must run evenly
	// until it is trusted again.
	clockBack    = time.Minute
	clockAhead   = 24 * time.Hour
	clockSettles = 10 * time.Minute
)

// clockWatch compares the wall clock with the monotonic one. All is in
// milliseconds.
type clockWatch struct {
	ahead int64 // of the monotonic clock, at the last look
	// unsteady says that the clock has stepped, at the time since of the
	// monotonic clock.
	unsteady bool
	since    int64
}

// newClockWatch begins with a look; last is the wall clock when the directory
// was last known to be in use, 0 if it never was. However long ago that is, it
// is no step ahead.
func newClockWatch(last, wall, mono int64) clockWatch {
	return clockWatch{ahead: max(last, wall) - mono}
}

// look says whether ages may be told by the wall clock, and by how much it has
// stepped since the last look; 0 for what is no step.
func (c *clockWatch) look(wall, mono int64) (steady bool, step int64) {
	step = wall - mono - c.ahead
	c.ahead += step
	switch {
	case step < -clockBack.Milliseconds() || step > clockAhead.Milliseconds():
		c.unsteady, c.since = true, mono
		return false, step
	case c.unsteady && mono-c.since >= clockSettles.Milliseconds():
		c.unsteady = false
	}
	return !c.unsteady, 0
}

// guardedClock is the directory's clockWatch.
type guardedClock struct {
	sync.Mutex
	clockWatch
}

// Steady reports whether ages may be told by the wall clock, which shows now:
// not for ten minutes after it has gone back by more than one, be it over a
// restart, or has leapt a day ahead. It says so once in the log. Whoever
// deletes by age asks each time.
func (d *Dir) Steady(now time.Time) bool {
	d.wall.Lock()
	was := !d.wall.unsteady
	steady, step := d.wall.look(now.UnixMilli(), d.clock())
	d.wall.Unlock()
	switch {
	case step != 0:
		d.opts.Logger.Warn("the wall clock was set; nothing is deleted by age until it has run evenly for a while",
			slog.Duration("step", time.Duration(step)*time.Millisecond), slog.Duration("for", clockSettles))
		d.metrics.clockUnsteady.Set(1)
	case steady && !was:
		d.opts.Logger.Info("the wall clock runs evenly; records are deleted by age again")
		d.metrics.clockUnsteady.Set(0)
	}
	return steady
}
