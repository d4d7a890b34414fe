package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"path/filepath"

	"leat/storage/record"
)

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
	return d.syncedDir(d.path(quarantineDir))
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
