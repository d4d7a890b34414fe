package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"time"

	"leat/storage/record"
)

// Repaired says what a repair accepted as lost, and the bounds of the log after
// it.
type Repaired struct {
	Holes      []Hole
	Start, End int64
}

// Repair accepts the holes of a fenced log for good: where records are missing
// an empty batch has their offsets, so that readers pass over it, and the log
// takes records again. The damaged files stay in the quarantine. A log that is
// lost begins anew at its end; the caller makes that start durable. All is
// durable when Repair returns; a crash leaves the log fenced or repaired. A log
// that is not fenced stays as it is. ErrDamaged says that another hole was found
// meanwhile, which the next Repair accepts.
func (l *Log) Repair(ctx context.Context) (Repaired, error) {
	if !l.enter() {
		return Repaired{}, ErrClosed
	}
	defer l.leave()
	if err := l.takeRewriting(ctx); err != nil {
		return Repaired{}, err
	}
	defer l.giveRewriting()
	if !l.Fenced() {
		o := l.Offsets()
		return Repaired{Start: o.Start, End: o.End}, nil
	}
	if err := l.verifyAll(ctx); err != nil {
		return Repaired{}, err
	}
	out := Repaired{Holes: l.Holes()}
	err := l.repair(ctx)
	if err == nil {
		err = l.unfence()
	}
	o := l.Offsets()
	out.Start, out.End = o.Start, o.End
	if err != nil {
		return out, fmt.Errorf("repair %s: %w", l.path, err)
	}
	return out, nil
}

// verifyAll looks for what is damaged and was not read since the start, so that
// one repair is enough.
func (l *Log) verifyAll(ctx context.Context) error {
	l.mu.RLock()
	segments := l.mu.segments
	l.mu.RUnlock()
	for _, s := range segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.unread.Load() == nil {
			continue
		}
		l.mu.RLock()
		known := len(s.gaps)
		l.mu.RUnlock()
		if err := l.examine(s, known); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) repair(ctx context.Context) error {
	l.mu.RLock()
	lost := l.mu.lost
	l.mu.RUnlock()
	if lost != nil {
		return l.beginAnew()
	}
	if err := l.freshActive(); err != nil {
		return err
	}
	if err := l.settled(ctx); err != nil {
		return err
	}
	for {
		r, found := l.nextWound()
		if !found {
			return nil
		}
		if err := r.run(ctx); err != nil {
			return err
		}
	}
}

// freshActive sees to it that the last segment is one that can grow.
func (l *Log) freshActive() error {
	l.mu.RLock()
	last, end := l.activeLocked(), l.mu.end
	whole := len(last.gaps) == 0 && !last.sealed.Load()
	l.mu.RUnlock()
	fsys := l.dir.opts.FS
	if whole {
		if _, err := fsys.Stat(last.logPath()); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else {
		last = newSegment(l.path, end, 0)
	}
	if err := last.createFiles(fsys); err != nil {
		return err
	}
	if err := l.syncedDir(l.path); err != nil {
		return err
	}
	last.named = true
	if whole {
		return nil
	}
	l.mu.Lock()
	l.mu.segments = append(slices.Clip(l.mu.segments), last)
	l.mu.recent.reset()
	l.mu.changed = true
	l.mu.Unlock()
	l.dir.metrics.segments.Inc()
	return nil
}

// syncedDir makes the names in a directory durable.
func (l *Log) syncedDir(dir string) error {
	err := syncFault(dir, l.dir.opts.FS.SyncDir(dir))
	if err != nil {
		l.dir.fail(err)
	}
	return err
}

// settled waits until the durable mark has left the segments that are repaired.
func (l *Log) settled(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		l.mu.RLock()
		there := l.mu.durable.seg == l.activeLocked()
		l.mu.RUnlock()
		if err := l.dir.Failed(); there || err != nil {
			return err
		}
		l.dir.flusher.enqueue(l)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// segmentRepair puts a segment without gaps in the place of one that has some,
// or lacks what should be in front of it or behind it.
type segmentRepair struct {
	log        *Log
	seg        *segment
	gaps       []gap
	base, next int64 // what is to be covered
	lastAppend int64

	rw    *rewrite
	w     *segmentWriter
	bufs  []byte
	epoch int32
}

// nextWound is the first segment to repair. Where nothing but the active
// segment is left, the log begins there.
func (l *Log) nextWound() (*segmentRepair, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.mu.segments) - 1
	for i, s := range l.mu.segments[:last] {
		r := &segmentRepair{log: l, seg: s, gaps: s.gaps, base: s.base, next: l.mu.segments[i+1].base, lastAppend: s.lastAppend}
		if i == 0 && l.mu.start < s.base {
			r.base = l.mu.start
		}
		if len(r.gaps) > 0 || r.base < s.base || s.next < r.next {
			return r, true
		}
	}
	if last == 0 {
		l.mu.start = max(l.mu.start, l.mu.segments[0].base)
	}
	return nil, false
}

func (r *segmentRepair) run(ctx context.Context) error {
	if err := r.keep(); err != nil {
		return err
	}
	var err error
	if r.rw, err = r.log.beginRewrite(); err != nil {
		return err
	}
	defer r.rw.abandon()
	r.bufs = make([]byte, 0, rewriteBuffer)
	if err := r.write(ctx); err != nil {
		return err
	}
	if err := r.w.seal(r.lastAppend); err != nil {
		return err
	}
	return r.rw.swap([]*segment{r.seg})
}

// keep gives the damaged files names in the quarantine, where they stay.
func (r *segmentRepair) keep() error {
	d := r.log.dir
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
		from := r.seg.stem + suffix
		to := d.path(quarantineDir, asideName(r.log.id.dirName()+"."+filepath.Base(from), d.opts.Now()))
		if err := d.opts.FS.Link(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return r.log.syncedDir(d.path(quarantineDir))
}

// write copies what holds and fills what does not.
func (r *segmentRepair) write(ctx context.Context) error {
	h, err := r.log.dir.files.acquire(r.seg)
	if err != nil {
		return err
	}
	defer r.log.dir.files.release(h)
	if r.epoch, err = r.firstEpoch(h); err != nil {
		return err
	}
	if err := r.fill(r.base, r.seg.base); err != nil {
		return err
	}
	at := point{offset: r.seg.base}
	for i := range len(r.gaps) + 1 {
		limit := r.seg.size
		if i < len(r.gaps) {
			limit = r.gaps[i].from.pos
		}
		if err := r.copy(ctx, h, at, limit); err != nil {
			return err
		}
		if i < len(r.gaps) {
			at = r.gaps[i].to
			if err := r.fill(r.gaps[i].from.offset, at.offset); err != nil {
				return err
			}
		}
	}
	return r.fill(r.seg.next, r.next)
}

// firstEpoch is the leader epoch of the first batch that holds, in the segment or
// in the next one: what is filled in front of it gets it, so that epochs never
// fall.
func (r *segmentRepair) firstEpoch(h *handle) (int32, error) {
	read := func(s *segment, f io.ReaderAt, pos int64) (int32, bool, error) {
		if s.size-pos < record.HeaderSize {
			return 0, false, nil
		}
		b := make(record.Batch, record.HeaderSize)
		err := readFull(f, b, pos)
		return b.LeaderEpoch(), err == nil, err
	}
	first := int64(0)
	for _, g := range r.gaps {
		if g.from.pos <= first {
			first = g.to.pos
		}
	}
	if epoch, ok, err := read(r.seg, h, first); ok || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return epoch, err
	}
	l := r.log
	l.mu.RLock()
	next, newest := l.mu.segments[segmentIndex(l.mu.segments, r.next)], l.mu.epoch
	l.mu.RUnlock()
	switch {
	case next.size > 0:
	case newest == noEpochBound:
		return 0, nil
	default:
		return newest, nil
	}
	n, err := l.dir.files.acquire(next)
	if err != nil {
		return 0, err
	}
	defer l.dir.files.release(n)
	epoch, _, err := read(next, n, 0)
	return epoch, err
}

// copy adds the batches from a point up to a byte.
func (r *segmentRepair) copy(ctx context.Context, f io.ReaderAt, at point, limit int64) error {
	var failed error
	end, err := scan(f, r.seg, limit, at.pos, at.offset, -1, func(b record.Batch) {
		if failed == nil {
			failed = errors.Join(ctx.Err(), r.add(b))
		}
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return err
	case end.pos < limit:
		return &CorruptError{Path: r.seg.logPath(), Pos: end.pos, Err: orElseErr(end.why, errTorn)}
	}
	return nil
}

// fill adds batches without records for the offsets [from, to).
func (r *segmentRepair) fill(from, to int64) error {
	for from < to {
		end := min(to, from+math.MaxInt32)
		if err := r.add(record.AppendFiller(nil, from, end-1, r.epoch)); err != nil {
			return err
		}
		from = end
	}
	return nil
}

// add appends a batch, in a new segment where the last one has no offsets left.
func (r *segmentRepair) add(b record.Batch) error {
	if r.w != nil && b.LastOffset()-r.w.seg.base > maxOffsetDelta {
		if err := r.w.seal(r.lastAppend); err != nil {
			return err
		}
		r.w = nil
	}
	if r.w == nil {
		var err error
		if r.w, err = r.rw.create(b.BaseOffset(), r.bufs); err != nil {
			return err
		}
	}
	r.epoch = b.LeaderEpoch()
	return r.w.add(b)
}

// beginAnew makes an empty log at the end of one that is lost.
func (l *Log) beginAnew() error {
	d, fsys := l.dir, l.dir.opts.FS
	l.mu.RLock()
	s := l.activeLocked()
	rec := checkpointRecord{corrupt: true, logStart: s.base, activeBase: s.base, recoveryOffset: s.base, maxTimestamp: -1, leaderEpoch: l.mu.epoch}
	l.mu.RUnlock()
	d.setRecord(l.id, rec)
	if err := l.checkpointed(); err != nil {
		return err
	}
	aside := d.path(quarantineDir, asideName(l.id.dirName(), d.opts.Now()))
	if err := fsys.Rename(l.path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.MkdirAll(l.path); err != nil {
		return err
	}
	if err := errors.Join(d.describe(LogName{ID: l.id, Topic: l.name}), s.createFiles(fsys)); err != nil {
		return err
	}
	for _, dir := range []string{d.path(quarantineDir), l.path, d.path(logsDir)} {
		if err := l.syncedDir(dir); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.mu.start, l.mu.lost = s.base, nil
	l.mu.changed = true
	l.mu.Unlock()
	return nil
}

// checkpointed writes a checkpoint; a failed sync fails the directory.
func (l *Log) checkpointed() error {
	err := l.dir.writeCheckpoint()
	if errors.Is(err, errSync) {
		l.dir.fail(err)
	}
	return err
}

// unfence opens the log for records again. ErrDamaged if another hole was found
// meanwhile: the log stays fenced, and another repair is needed.
func (l *Log) unfence() error {
	l.mu.Lock()
	if len(l.holesLocked()) > 0 {
		l.mu.Unlock()
		return ErrDamaged
	}
	l.fenced.Store(false)
	l.mu.epochs = epochs{}
	l.mu.changed = true
	segments := l.mu.segments
	l.mu.Unlock()
	l.dir.keeper.rolls.by(0)
	for _, s := range segments[:len(segments)-1] {
		if !s.sealed.Load() {
			l.dir.keeper.seal(l, s)
		}
	}
	if rec, known := l.dir.record(l.id); known && rec.corrupt {
		rec.corrupt = false
		l.dir.setRecord(l.id, rec)
	}
	if err := l.checkpointed(); err != nil {
		l.mu.Lock()
		l.fenced.Store(true)
		l.mu.Unlock()
		return err
	}
	l.shed()
	return nil
}
