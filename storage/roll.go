package storage

import (
	"slices"
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
	return (len(t.entries)+1)*entrySize > cfg.SegmentIndexBytes || (len(t.times)+1)*timeEntrySize > cfg.SegmentIndexBytes
}

// tooOld goes by the wall clock since the first append and not by the
// records' timestamps, so that neither idle partitions nor odd timestamps
// keep a segment open.
func tooOld(firstAppend, nowMillis int64, cfg *Config) bool {
	age := cfg.SegmentAge
	if cfg.Compact {
		age = min(age, cfg.MaxCompactionLag)
	}
	return nowMillis-firstAppend >= age.Milliseconds()
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

// rollIfOver ends the active segment, append or not, if it is old enough, or if
// the log's start is past all of it: then its room can only come back with it.
func (l *Log) rollIfOver(now time.Time) error {
	if !l.enter() {
		return nil
	}
	defer l.leave()
	cfg := l.config.Load()
	over := func() *segment {
		l.mu.RLock()
		defer l.mu.RUnlock()
		if seg := l.activeLocked(); seg.size > 0 && (seg.next <= l.mu.start || tooOld(seg.firstAppend, now.UnixMilli(), cfg)) {
			return seg
		}
		return nil
	}
	if over() == nil || l.dir.Failed() != nil {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	seg := over() // an append may have ended it meanwhile
	if seg == nil {
		return nil
	}
	_, err := l.roll(seg)
	return err
}
