package storage

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// shouldRoll says whether the segment must end before a batch of size bytes
// whose last record is lastDelta offsets behind its first: the batch would
// not fit into the limits of the format or of the topic, or the segment is
// too old. An empty segment never ends.
func shouldRoll(t *tail, firstAppend, size, lastDelta, nowMillis int64, cfg *Config) bool {
	return t.size > 0 && (t.size+size > cfg.SegmentBytes ||
		t.next-t.base+lastDelta > maxOffsetDelta ||
		indexFull(t, cfg) ||
		tooOld(firstAppend, nowMillis, cfg))
}

// indexFull says that one of the indexes has no room for another entry.
func indexFull(t *tail, cfg *Config) bool {
	return (len(t.entries)+1)*entrySize > cfg.SegmentIndexBytes || (len(t.times)+1)*entrySize > cfg.SegmentIndexBytes
}

// tooOld goes by the wall clock since the first append and not by the
// records' timestamps, so that neither idle partitions nor odd timestamps
// keep a segment open.
func tooOld(firstAppend, nowMillis int64, cfg *Config) bool {
	return nowMillis >= endsAt(firstAppend, cfg)
}

// endsAt is when a segment is too old. Of a compacted log it must end before
// its oldest record has waited too long for compaction.
func endsAt(firstAppend int64, cfg *Config) int64 {
	age := cfg.SegmentAge
	if cfg.Compact {
		age = min(age, cfg.MaxCompactionLag)
	}
	return saturate(firstAppend, age.Milliseconds())
}

// roll ends the active segment and begins one at the log's end. It makes no
// file durable: the flusher syncs the directory before data in the new
// segment counts as durable. writing must be held.
func (l *Log) roll(old *segment) (*segment, error) {
	seg := newSegment(l.path, old.next, 0)
	if err := seg.createFiles(l.dir.opts.FS); err != nil {
		seg.removeFiles(l.dir.opts.FS)
		return nil, writeError(seg, err)
	}
	l.mu.Lock()
	l.mu.segments = append(slices.Clip(l.mu.segments), seg)
	l.mu.recent.reset()
	l.mu.changed = true
	l.mu.Unlock()
	l.dir.metrics.rolls.Inc()
	l.dir.metrics.segments.Inc()
	l.takeSnapshot(seg.base)
	l.dir.keeper.seal(l, old)
	return seg, nil
}

// never is a time, in ms, that does not come.
const never = math.MaxInt64

// over is the wall clock, in ms, from which the active segment must end, append
// or not: when it is old enough, or now, if the log's start is past all of it
// and its room can only come back with it. mu must be held.
func (l *Log) overLocked() int64 {
	switch seg := l.activeLocked(); {
	case seg.size == 0 || l.fenced.Load():
		return never
	case seg.next <= l.mu.start:
		return 0
	default:
		return endsAt(seg.firstAppend, l.config.Load())
	}
}

// rollIfOver ends the active segment if its time is over, and says when that of
// the one that is active then will be.
func (l *Log) rollIfOver(now time.Time) (over int64, err error) {
	if !l.enter() {
		return never, nil
	}
	defer l.leave()
	ended := func() (seg *segment, over int64) {
		l.mu.RLock()
		defer l.mu.RUnlock()
		return l.activeLocked(), l.overLocked()
	}
	if _, over := ended(); over > now.UnixMilli() || l.dir.Failed() != nil {
		return over, nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	seg, over := ended() // an append may have ended it meanwhile
	if over > now.UnixMilli() {
		return over, nil
	}
	_, err = l.roll(seg)
	return never, err
}

// rollTime is when the keeper must look for segments whose time is over, in ms
// of the wall clock, so that it need not look at every log each second.
type rollTime struct{ at atomic.Int64 }

// by has the keeper look no later than that.
func (r *rollTime) by(at int64) {
	for was := r.at.Load(); at < was && !r.at.CompareAndSwap(was, at); was = r.at.Load() {
		continue
	}
}

// due says whether to look now; what is to be looked at later is told by by,
// also meanwhile.
func (r *rollTime) due(now int64) bool {
	if now < r.at.Load() {
		return false
	}
	r.at.Store(never)
	return true
}
