package storage

import (
	"errors"
	"io"
	"math"

	"leat/storage/record"
)

// maxStoredExpanded is how far a lookup follows a stored batch as it expands:
// the most that batch.max.expanded.bytes can be, so that everything that
// passed the deep check is read, however much the topic's limit was lowered
// since. No memory depends on it. It bounds the time that a lookup can take
// where leat.validate=header let a batch in unseen; one that expands further
// is record.ErrTooLarge.
const maxStoredExpanded = math.MaxInt32

// FindTime finds the first record below upTo whose timestamp is ts or later,
// looking into the batch for it. -1 and -1 if there is none.
func (l *Log) FindTime(ts, upTo int64) (offset, timestamp int64, err error) {
	if !l.enter() {
		return -1, -1, ErrClosed
	}
	defer l.leave()
	for {
		cuts := l.cuts.Load()
		offset, timestamp, err = l.findTime(ts, upTo)
		if err = l.since(cuts, err); !errors.Is(err, errRetired) {
			return offset, timestamp, err
		}
		// A segment has left the log meanwhile: it is gone, or another has its
		// place.
	}
}

func (l *Log) findTime(ts, upTo int64) (offset, timestamp int64, err error) {
	for _, v := range l.views(upTo) {
		if v.tail.maxTimestamp < ts {
			continue
		}
		offset, timestamp, err = v.findTime(upTo, ts)
		if err != nil || offset >= 0 {
			return offset, timestamp, l.orDamage(&v, err)
		}
	}
	return -1, -1, nil
}

// findTime is the segment's first record of the log below upTo whose timestamp
// is ts or later; -1 and -1 if there is none.
func (v *view) findTime(upTo, ts int64) (offset, timestamp int64, err error) {
	e, err := v.beforeTime(ts)
	if err != nil {
		return -1, -1, err
	}
	return v.firstRecord(max(int64(e.rel), v.startRel()), upTo, ts)
}

// startRel is the log's start relative to the segment's base, 0 if it is
// before that.
func (v *view) startRel() int64 { return max(v.log.Offsets().Start-v.seg.base, 0) }

// FindMaxTime finds the first record below upTo that has the greatest
// timestamp of all below upTo. -1 and -1 if no record has one.
func (l *Log) FindMaxTime(upTo int64) (offset, timestamp int64, err error) {
	if !l.enter() {
		return -1, -1, ErrClosed
	}
	defer l.leave()
	for {
		cuts := l.cuts.Load()
		offset, timestamp, err = l.findMaxTime(upTo)
		if err = l.since(cuts, err); !errors.Is(err, errRetired) {
			return offset, timestamp, err
		}
		// A segment has left the log meanwhile: there is one less to look at.
	}
}

func (l *Log) findMaxTime(upTo int64) (offset, timestamp int64, err error) {
	best, latest, start := (*view)(nil), int64(-1), l.Offsets().Start
	views := l.views(upTo)
	for i := range views {
		v := &views[i]
		greatest := v.tail.maxTimestamp
		if greatest > latest && (v.tail.next > upTo || v.startRel() > 0) {
			if greatest, err = v.maxWithin(upTo); err != nil {
				return -1, -1, l.orDamage(v, err)
			}
		}
		if greatest > latest {
			best, latest = v, greatest
		}
	}
	if best == nil {
		return -1, -1, nil
	}
	if offset, timestamp, err = best.findTime(upTo, latest); err != nil {
		return -1, -1, l.orDamage(best, err)
	}
	if err == nil && offset < 0 && l.Offsets().Start != start {
		err = errRetired
	}
	return offset, timestamp, err
}

// views looks at all segments that begin below upTo, in order.
func (l *Log) views(upTo int64) []view {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var vs []view
	for _, s := range l.mu.segments {
		if s.base >= min(upTo, l.mu.end) {
			break
		}
		if s.next <= l.mu.start {
			continue
		}
		vs = append(vs, view{log: l, seg: s, tail: s.tail, sealed: s.indexOnDisk(), gaps: s.gaps})
	}
	return vs
}

// firstRecord is the first record from the batch at the relative offset rel on
// and below upTo whose timestamp is ts or later; -1 and -1 if there is none.
func (v *view) firstRecord(rel, upTo, ts int64) (offset, timestamp int64, err error) {
	offset, timestamp = -1, -1
	err = v.eachBatch(rel, upTo, func(w *walk, h record.Batch) (bool, error) {
		if newestIn(h) < ts {
			return false, nil
		}
		b, err := w.batch(h)
		if err != nil {
			return false, err
		}
		offset, timestamp, err = firstIn(b, v.log.Offsets().Start, upTo, ts)
		return offset >= 0, err
	})
	if err != nil || offset < 0 || timestamp < 0 {
		return -1, -1, err
	}
	return offset, timestamp, nil
}

// maxWithin is the greatest timestamp of the segment's records from the log's
// start on and below upTo.
func (v *view) maxWithin(upTo int64) (int64, error) {
	e, err := v.knownMax(upTo)
	if err != nil {
		return -1, err
	}
	latest, start := e.ts, v.seg.base+v.startRel()
	err = v.eachBatch(int64(e.rel), upTo, func(w *walk, h record.Batch) (bool, error) {
		if h.BaseOffset() >= start && h.NextOffset() <= upTo {
			latest = max(latest, newestIn(h))
			return false, nil
		}
		if newestIn(h) <= latest {
			return false, nil
		}
		b, err := w.batch(h)
		if err != nil {
			return false, err
		}
		return false, record.Times(b, maxStoredExpanded, func(offset, timestamp int64) bool {
			if offset >= start && offset < upTo {
				latest = max(latest, timestamp)
			}
			return offset < upTo
		})
	})
	return latest, err
}

// knownMax is the greatest timestamp of the segment's records from the log's
// start up to some offset not past upTo, as far as the index knows it: it counts
// from the segment's beginning, and a record below the start may be the one with
// the greatest timestamp.
func (v *view) knownMax(upTo int64) (timeEntry, error) {
	end := min(upTo, v.tail.next) - v.seg.base
	e, err := v.floorTime(uint32(end))
	rel := v.startRel()
	if err != nil || rel == 0 {
		return e, err
	}
	if first, err := v.beforeTime(e.ts); err != nil || e.ts >= 0 && int64(first.rel) >= rel {
		return e, err
	}
	return timeEntry{ts: -1, rel: uint32(min(rel, end))}, nil
}

// eachBatch calls fn with the headers of the batches from the one at the
// relative offset rel on, for those that begin below upTo, until fn is done.
func (v *view) eachBatch(rel, upTo int64, fn func(w *walk, h record.Batch) (done bool, err error)) error {
	h, err := v.log.dir.files.acquire(v.seg)
	if err != nil {
		return err
	}
	defer v.log.dir.files.release(h)
	at, err := v.find(h, v.seg.base+rel)
	if err != nil {
		return err
	}
	w := newWalk(h, v.seg, at.pos, -1, v.tail.size)
	defer w.close()
	for {
		if err := v.inGap(w.pos); err != nil {
			return err
		}
		pos := w.pos
		b, err := w.header()
		if errors.Is(err, io.EOF) || err == nil && b.BaseOffset() >= upTo {
			return nil
		}
		if err == nil {
			err = v.verify(h, point{offset: b.BaseOffset(), pos: pos}, point{offset: w.next, pos: w.pos})
		}
		if err != nil {
			return err
		}
		if done, err := fn(w, b); done || err != nil {
			return err
		}
	}
}

// firstIn is the first record of b at or past start and below upTo whose
// timestamp is ts or later; -1 and -1 if there is none.
func firstIn(b record.Batch, start, upTo, ts int64) (offset, timestamp int64, err error) {
	offset, timestamp = -1, -1
	err = record.Times(b, maxStoredExpanded, func(at, t int64) bool {
		if at >= start && at < upTo && t >= ts {
			offset, timestamp = at, t
		}
		return offset < 0 && at < upTo
	})
	return offset, timestamp, err
}
