package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"leat/storage/record"
)

// replayProducers rebuilds the state of idempotent producers: from the newest
// snapshot, and the headers of the batches behind it. Snapshots that are of
// batches that are gone, or are not whole, are removed.
func (r *recovery) replayProducers(ctx context.Context) error {
	l := r.log
	if err := r.removeStale(); err != nil {
		return err
	}
	f := l.newFold(l.mu.end, l.mu.snapshots)
	for _, next := range l.mu.snapshots {
		if r.dir.Unclean() && next != f.from && !slices.Contains(f.bad, next) {
			if _, err := l.readSnapshot(next); errors.Is(err, errBadSnapshot) {
				f.bad = append(f.bad, next) // torn, and it may be needed one day
			}
		}
	}
	for _, next := range f.bad {
		if err := l.removeSnapshot(next); err != nil {
			return err
		}
	}
	l.mu.snapshots = slices.DeleteFunc(l.mu.snapshots, func(next int64) bool { return slices.Contains(f.bad, next) })
	for i, s := range l.mu.segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.size == 0 {
			continue
		}
		v, at := view{log: l, seg: s, tail: s.tail, sealed: s.indexOnDisk(), gaps: s.gaps}, point{offset: s.base}
		if i == len(l.mu.segments)-1 && !v.sealed {
			at, s.producers = r.knownProducers(s)
		}
		if s.producers {
			at = point{offset: -1} // nothing in front of the snapshot is of interest
		}
		err := f.segment(&v, s.lastAppend, at, s.size)
		if isDamage(err) && l.examine(s, len(s.gaps)) == nil {
			v.gaps = s.gaps
			err = f.segment(&v, s.lastAppend, at, s.size)
		}
		if err != nil {
			return err
		}
		if !v.sealed {
			s.producers = s.producers || f.found
		}
	}
	l.remember(f.done())
	return nil
}

// removeStale removes the snapshots of what is not in the log, so durably that
// none comes back when the log has grown past it again; and what is of no use:
// more than are kept, and what is of an offset below the log's files, because
// producers may have written in between and would seem to have left a gap.
func (r *recovery) removeStale() error {
	l := r.log
	slices.Sort(r.snapshots)
	end := l.mu.end
	if r.begun {
		end = -1 // they were of another log
	}
	n := lastTrue(len(r.snapshots), func(i int) bool { return r.snapshots[i] <= end }) + 1
	useless := lastTrue(n, func(i int) bool { return r.snapshots[i] < l.mu.segments[0].base }) + 1
	stale, old := r.snapshots[n:], r.snapshots[:max(n-snapshotsKept, useless)]
	l.mu.snapshots = r.snapshots[len(old):n:n]
	for _, next := range slices.Concat(stale, old) {
		if err := l.removeSnapshot(next); err != nil {
			return err
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return r.synced(l.path, r.dir.opts.FS.SyncDir(l.path))
}

// knownProducers is how far into the segment the header of its index says that
// no idempotent producer wrote, or that one did.
func (r *recovery) knownProducers(s *segment) (without point, wrote bool) {
	without = point{offset: s.base}
	p, err := readHead(r.dir.opts.FS, s.stem+indexSuffix)
	if err != nil {
		return without, false
	}
	h, err := decodeHeader(p, indexMagic)
	switch {
	case err != nil || h.flags&sealedFlag != 0 || h.base != s.base || h.logBytes > s.size || h.next > s.next:
		return without, false
	case h.flags&producersFlag != 0:
		return without, true
	default:
		return point{offset: h.next, pos: h.logBytes}, false
	}
}

// fold makes the producers' state of a log at an offset, segment by segment.
type fold struct {
	log     *Log
	state   *producers
	keys    *keys
	now     time.Time
	from    int64   // batches below are in the snapshot
	until   int64   // batches from here on are not looked at
	unsaved int64   // bytes of producers' batches behind it
	bad     []int64 // snapshots that are not whole
	found   bool    // some producer wrote the segment that was looked at
}

// newFold begins with the newest of the snapshots that is not past end. Without
// one the producers are unknown, and go on as they like.
func (l *Log) newFold(end int64, snapshots []int64) *fold {
	cfg := l.config.Load()
	f := &fold{
		log: l, now: l.dir.opts.Now(), until: end,
		state: newProducers(cfg.ProducerExpiration, 0), keys: newKeys(newKeyring(cfg.KeyRetention, cfg.MaxKeys)),
	}
	for _, next := range slices.Backward(snapshots) {
		if next > end {
			continue
		}
		s, err := l.readSnapshot(next)
		if err == nil {
			f.from = next
			f.state.load(s, f.now)
			f.keys.load(s, f.now)
			break
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has become too old meanwhile
		}
		l.dir.opts.Logger.Warn("what was known of idempotent producers is unreadable; the log is read instead", slog.Any("err", err))
		if errors.Is(err, errBadSnapshot) {
			f.bad = append(f.bad, next)
		}
	}
	return f
}

// segment folds in the batches of a segment, up to byte limit, that the snapshot
// does not have, and says in found whether a producer wrote any from at on; with
// an offset of -1 it does not look. Sealed segments in which none wrote are
// skipped, and so are those that ended longer ago than a producer is remembered.
func (f *fold) segment(v *view, lastAppend int64, at point, limit int64) error {
	f.found = false
	if v.sealed {
		if !v.tail.producers || lastAppend < f.now.Add(-max(f.state.expiration, f.keys.ring.retention)).UnixMilli() {
			return nil
		}
		at.offset = -1
	}
	if at.offset < 0 && v.tail.next <= f.from {
		return nil
	}
	h, err := f.log.dir.files.acquire(v.seg)
	if err != nil {
		return err
	}
	defer f.log.dir.files.release(h)
	switch {
	case at.offset >= 0:
	case len(v.gaps) > 0:
		at = point{offset: v.seg.base} // the snapshot may end in one
	default:
		if at, err = v.find(h, max(f.from, v.seg.base)); err != nil {
			return err
		}
	}
	w := newWalk(h, v.seg, at.pos, at.offset, limit)
	w.gaps = v.gaps
	defer w.close()
	for {
		b, err := w.header()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if b.BaseOffset() >= f.until {
			return nil
		}
		if b.ProducerID() < 0 {
			continue
		}
		f.found = true
		if b.BaseOffset() >= f.from {
			f.batch(lastAppend, b)
		}
	}
}

// batch folds in a producer's batch. When it was written only the topic's log
// append time says; otherwise it was not after the segment's last append, and to
// remember a producer longer than its time is harmless.
func (f *fold) batch(lastAppend int64, b record.Batch) {
	stamp, written := int64(-1), f.now
	if lastAppend > 0 {
		written = f.now.Add(min(time.UnixMilli(lastAppend).Sub(f.now), 0))
	}
	if b.LogAppendTime() {
		stamp = b.MaxTimestamp()
		if at := time.UnixMilli(stamp); at.Before(written) {
			written = f.now.Add(at.Sub(f.now))
		}
	}
	f.unsaved += int64(b.Size())
	s := sequenceOf(b, stamp)
	if s.keyed() {
		if s.stamp < 0 { // the age is all that is left of it
			s.stamp = written.UnixMilli()
		}
		f.keys.record(s, f.now)
		return
	}
	f.state.record(s, written)
}

// done is the state that came out.
func (f *fold) done() idempotence {
	f.state.forget(f.now)
	return idempotence{producers: f.state, found: f.keys, unsaved: f.unsaved}
}

// remember takes over what a fold has found. writing must be held, unless the
// log is not open yet.
func (l *Log) remember(state idempotence) {
	l.keys.replace(state.found, l.dir.opts.Now())
	state.found = nil
	l.writing.idempotence = state
}

// producersAt is what the log knows of producers at an offset, or at the durable
// mark if that is less: what is behind may be gone after a crash, and then the
// batches that it has pushed out of a producer's window are in it again.
func (l *Log) producersAt(offset int64) (idempotence, error) {
	l.mu.RLock()
	offset = min(offset, l.mu.durable.offset)
	l.mu.RUnlock()
	state, _, err := l.idempotenceAt(point{offset: offset, pos: -1})
	return state, err
}

// idempotenceAt is what the log knows of producers at a point, of which the
// position may be unknown (-1), and the segments that it was learned from.
func (l *Log) idempotenceAt(at point) (idempotence, []view, error) {
	l.mu.RLock()
	// Those below the start, too: they have what a snapshot may not have.
	views := make([]view, len(l.mu.segments))
	appends := make([]int64, len(views))
	for i, s := range l.mu.segments {
		views[i], appends[i] = view{log: l, seg: s, tail: s.tail, sealed: s.indexOnDisk(), gaps: s.gaps}, s.lastAppend
	}
	snapshots := slices.DeleteFunc(slices.Clone(l.mu.snapshots), func(next int64) bool { return next < views[0].tail.base })
	l.mu.RUnlock()
	f := l.newFold(at.offset, snapshots)
	for i := range views {
		v := &views[i]
		if v.tail.base >= at.offset {
			break
		}
		limit := v.tail.size
		if at.pos >= 0 && at.offset < v.tail.next {
			limit = at.pos
		}
		if err := f.segment(v, appends[i], point{offset: -1}, limit); err != nil {
			return idempotence{}, nil, err
		}
	}
	return f.done(), views, nil
}
