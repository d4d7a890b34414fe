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
	for _, v := range l.views(upTo) {
		if v.tail.maxTimestamp < ts {
			continue
		}
		e, err := v.beforeTime(ts)
		if err != nil {
			return -1, -1, err
		}
		offset, timestamp, err = v.firstRecord(int64(e.rel), upTo, ts)
		if err != nil || offset >= 0 {
			return offset, timestamp, err
		}
	}
	return -1, -1, nil
}

// FindMaxTime finds the first record below upTo that has the greatest
// timestamp of all below upTo. -1 and -1 if no record has one.
func (l *Log) FindMaxTime(upTo int64) (offset, timestamp int64, err error) {
	if !l.enter() {
		return -1, -1, ErrClosed
	}
	defer l.leave()
	best, latest := (*view)(nil), int64(-1)
	views := l.views(upTo)
	for i := range views {
		v := &views[i]
		greatest := v.tail.maxTimestamp
		if greatest > latest && v.tail.next > upTo {
			if greatest, err = v.maxBefore(upTo); err != nil {
				return -1, -1, err
			}
		}
		if greatest > latest {
			best, latest = v, greatest
		}
	}
	if best == nil {
		return -1, -1, nil
	}
	e, err := best.beforeTime(latest)
	if err != nil {
		return -1, -1, err
	}
	return best.firstRecord(int64(e.rel), upTo, latest)
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
		vs = append(vs, view{log: l, seg: s, tail: s.tail, sealed: s.sealed.Load()})
	}
	return vs
}

// firstRecord is the first record from the batch at the relative offset rel on
// and below upTo whose timestamp is ts or later; -1 and -1 if there is none.
func (v *view) firstRecord(rel, upTo, ts int64) (offset, timestamp int64, err error) {
	offset, timestamp = -1, -1
	err = v.eachBatch(rel, upTo, func(w *walk, h record.Batch) (bool, error) {
		if h.MaxTimestamp() < ts {
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

// maxBefore is the greatest timestamp of the segment's records below upTo.
func (v *view) maxBefore(upTo int64) (int64, error) {
	e, err := v.floorTime(uint32(upTo - v.seg.base))
	if err != nil {
		return -1, err
	}
	latest := e.ts
	err = v.eachBatch(int64(e.rel), upTo, func(w *walk, h record.Batch) (bool, error) {
		if h.NextOffset() <= upTo {
			latest = max(latest, h.MaxTimestamp())
			return false, nil
		}
		b, err := w.batch(h)
		if err != nil {
			return false, err
		}
		return true, record.Times(b, maxStoredExpanded, func(offset, timestamp int64) bool {
			if offset < upTo {
				latest = max(latest, timestamp)
			}
			return offset < upTo
		})
	})
	return latest, err
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
	w := newWalk(h, v.seg.logPath(), v.seg.base, at.pos, -1, v.tail.size)
	defer w.close()
	for {
		b, err := w.header()
		if errors.Is(err, io.EOF) || err == nil && b.BaseOffset() >= upTo {
			return nil
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
