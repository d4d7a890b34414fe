package storage

import (
	"errors"
	"io"
	"math"
	"os"
	"sync/atomic"

	"leat/storage/record"
)

// Read returns the whole batches from the one that contains offset from on,
// never a byte of a batch at or past upTo, as one section of at most maxBytes
// but at least one batch. It is nil where there is nothing below upTo. A
// section never reaches from one segment into the next.
//
// A reader that goes on where the last section ended costs no read of the
// .log: sections end at index entries or at positions that are known anyway.
//
// Errors: *OffsetError unless Start <= from <= End; *CorruptError; ErrClosed.
func (l *Log) Read(from int64, maxBytes int, upTo int64) (record.Section, error) {
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.leave()
	for tries := 0; ; {
		cuts := l.cuts.Load()
		v, found, err := l.view(from, upTo)
		if err != nil || !found {
			return nil, err
		}
		s, err := v.read(from, int64(maxBytes))
		if err = l.since(cuts, err); err != nil && s != nil {
			s.Release()
		}
		switch {
		case errors.Is(err, errRetired):
			// The segment has left the log meanwhile: another one has the offset,
			// or it is below the start.
			continue
		case isDamage(err) && tries == 0:
			// With the hole known, what is in front of it or behind can be read.
			tries++
			if err := l.examine(v.seg, len(v.gaps)); err != nil {
				return nil, err
			}
			continue
		case s == nil || err != nil:
			return nil, err
		}
		return s, nil
	}
}

// read makes the section for a read from an offset on; nil if there is nothing.
func (v *view) read(from, maxBytes int64) (*section, error) {
	files := v.log.dir.files
	h, err := files.acquireInTime(v.seg)
	if err != nil {
		return nil, err
	}
	start, end, err := v.bounds(h, from, maxBytes, v.upTo)
	if err == nil && start.pos < end.pos {
		err = v.verify(h, start, end)
	}
	if err != nil || start.pos >= end.pos {
		files.release(h)
		return nil, err
	}
	return &section{files: files, handle: h, start: start.pos, size: end.pos - start.pos, next: end.offset}, nil
}

// Locate finds the batch that has an offset: its file, and the position in it.
// The errors are those of Read, and ErrOffsetOutOfRange at the log's end.
func (l *Log) Locate(offset int64) (file string, pos int64, err error) {
	if !l.enter() {
		return "", 0, ErrClosed
	}
	defer l.leave()
	for {
		cuts := l.cuts.Load()
		file, pos, err = l.locate(offset)
		if err = l.since(cuts, err); !errors.Is(err, errRetired) {
			return file, pos, err
		}
	}
}

func (l *Log) locate(offset int64) (file string, pos int64, err error) {
	v, found, err := l.view(offset, math.MaxInt64)
	if err != nil {
		return "", 0, err
	}
	if !found {
		return "", 0, ErrOffsetOutOfRange
	}
	h, err := l.dir.files.acquire(v.seg)
	if err != nil {
		return "", 0, err
	}
	defer l.dir.files.release(h)
	at, err := v.find(h, offset)
	return v.seg.logPath(), at.pos, err
}

// view is a consistent look at the segment that has an offset.
type view struct {
	log      *Log
	seg      *segment
	tail     tail // entries only if the segment is not sealed
	sealed   bool
	gaps     []gap // of the segment
	upTo     int64 // where the read must end, not behind the next gap
	startPos int64 // of from; -1 if it must be looked up
	limitPos int64 // of upTo within the segment; -1 if it must be looked up
}

// view finds the segment for a read; found is false if there is nothing to
// read.
func (l *Log) view(from, upTo int64) (v view, found bool, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	upTo = min(upTo, l.mu.end)
	if from < l.mu.start || from > l.mu.end {
		return view{}, false, &OffsetError{Offset: from, Start: l.mu.start, End: l.mu.end}
	}
	if from >= upTo {
		return view{}, false, nil
	}
	if err := l.inHoleLocked(from); err != nil {
		return view{}, false, err
	}
	s := l.mu.segments[segmentIndex(l.mu.segments, from)]
	v = view{log: l, seg: s, tail: s.tail, sealed: s.indexOnDisk(), gaps: s.gaps, upTo: upTo}
	v.startPos = l.knownPosLocked(s, from)
	v.limitPos = l.knownPosLocked(s, upTo)
	if len(v.gaps) > 0 {
		v.between(from)
	}
	return v, true, nil
}

// between keeps the read between two gaps; from is in none.
func (v *view) between(from int64) {
	for i := range v.gaps {
		g := &v.gaps[i]
		if g.to.offset > from {
			if g.from.offset <= v.upTo {
				v.upTo, v.limitPos = g.from.offset, g.from.pos
			}
			return
		}
		if g.to.offset == from {
			v.startPos = g.to.pos
		}
	}
}

// inGap is the error for a byte of the segment that is in a gap, or nil.
func (v *view) inGap(pos int64) error {
	for i := range v.gaps {
		if g := &v.gaps[i]; g.from.pos <= pos && (pos < g.to.pos || pos == g.from.pos) {
			return g.hole(v.seg).corrupt()
		}
	}
	return nil
}

// segmentIndex is the index of the segment that has the offset.
func segmentIndex(segments []*segment, offset int64) int {
	return max(lastTrue(len(segments), func(i int) bool { return segments[i].base <= offset }), 0)
}

// knownPosLocked is the byte position in s of the batch that begins at
// offset, or s's size for an offset behind s; -1 if that is not known without
// looking.
func (l *Log) knownPosLocked(s *segment, offset int64) int64 {
	switch d := &l.mu.durable; {
	case offset == s.base:
		return 0
	case offset >= s.next:
		return s.size
	case d.seg == s && d.offset == offset:
		return d.pos
	case s == l.activeLocked():
		if pos, ok := l.mu.recent.find(offset); ok {
			return pos
		}
	}
	return -1
}

// The lookups answer from the segment's indexes, wherever they are. There is no
// interface for the two places, because a view behind one would cost every
// read an allocation.

func (v *view) floorOffset(rel uint32) (entry, error) {
	if v.sealed {
		return v.tables().floorOffset(rel)
	}
	return v.tail.floorOffset(rel), nil
}

func (v *view) floorPos(pos uint32) (entry, error) {
	if v.sealed {
		return v.tables().floorPos(pos)
	}
	return v.tail.floorPos(pos), nil
}

func (v *view) ceilPos(pos uint32) (e entry, ok bool, err error) {
	if v.sealed {
		return v.tables().ceilPos(pos)
	}
	e, ok = v.tail.ceilPos(pos)
	return e, ok, nil
}

func (v *view) beforeTime(ts int64) (timeEntry, error) {
	if v.sealed {
		return v.tables().beforeTime(ts)
	}
	return v.tail.beforeTime(ts), nil
}

func (v *view) floorTime(rel uint32) (timeEntry, error) {
	if v.sealed {
		return v.tables().floorTime(rel)
	}
	return v.tail.floorTime(rel), nil
}

func (v *view) tables() *sealedLookup {
	return &sealedLookup{tables: v.log.dir.tables, files: v.log.dir.files, seg: v.seg, interval: v.log.config.Load().IndexInterval}
}

// bounds finds where a read begins and ends.
func (v *view) bounds(h *handle, from, maxBytes, upTo int64) (start, end point, err error) {
	start = point{offset: from, pos: v.startPos}
	if start.pos < 0 {
		if start, err = v.find(h, from); err != nil {
			return point{}, point{}, err
		}
	}
	atMost := min(start.pos+max(maxBytes, 0), maxSegmentBytes)
	limit, err := v.limit(h, upTo, atMost)
	if err != nil || limit.pos <= atMost {
		return start, limit, err
	}
	// Entries are batch boundaries, so the greatest one within reach is where
	// the next read can go on without looking.
	cut, err := v.floorPos(uint32(atMost))
	if err != nil {
		return point{}, point{}, err
	}
	if int64(cut.pos) > start.pos {
		return start, v.point(cut), nil
	}
	end, err = v.walkTo(h, start, atMost, limit.pos)
	return start, end, err
}

// point is where the batch of an index entry begins.
func (v *view) point(e entry) point {
	return point{offset: v.seg.base + int64(e.rel), pos: int64(e.pos)}
}

// limit is where the batch begins that contains upTo, which may be given too
// small if its position is greater than enough anyway.
func (v *view) limit(h *handle, upTo, enough int64) (point, error) {
	if v.limitPos >= 0 {
		return point{offset: min(upTo, v.tail.next), pos: v.limitPos}, nil
	}
	e, err := v.floorOffset(uint32(upTo - v.seg.base))
	if err != nil || int64(e.pos) > enough {
		return v.point(e), err
	}
	return v.find(h, upTo)
}

// find is where the batch begins that contains offset.
func (v *view) find(h *handle, offset int64) (point, error) {
	e, err := v.floorOffset(uint32(offset - v.seg.base))
	if err != nil {
		return point{}, err
	}
	at := v.point(e)
	if i := lastTrue(len(v.gaps), func(i int) bool { return v.gaps[i].to.offset <= offset }); i >= 0 && v.gaps[i].to.pos > at.pos {
		at = v.gaps[i].to
	}
	if at.offset == offset {
		return at, nil
	}
	if err := v.inGap(at.pos); err != nil {
		return point{}, err
	}
	w := newWalk(h, v.seg, at.pos, at.offset, v.tail.size)
	defer w.close()
	for {
		pos := w.pos
		b, err := w.header()
		if errors.Is(err, io.EOF) {
			return point{offset: v.tail.next, pos: v.tail.size}, nil
		}
		if err != nil {
			return point{}, err
		}
		if b.NextOffset() > offset {
			return point{offset: b.BaseOffset(), pos: pos}, nil
		}
	}
}

// walkTo goes from batch to batch: the end of the last one that ends at
// atMost or before, or of the one at start if that is longer. Nothing behind
// limit is looked at.
func (v *view) walkTo(h *handle, start point, atMost, limit int64) (point, error) {
	w := newWalk(h, v.seg, start.pos, start.offset, limit)
	defer w.close()
	end := start
	for {
		_, err := w.header()
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return point{}, err
		}
		if end.pos > start.pos && w.pos > atMost {
			return end, nil
		}
		end = point{offset: w.next, pos: w.pos}
	}
}

// section is a record.Section over a segment's .log.
type section struct {
	files       *files
	handle      *handle
	start, size int64
	next        int64
	released    atomic.Bool
}

// ReadAt reads at off bytes from the section's start.
func (s *section) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= s.size {
		return 0, io.EOF
	}
	short := int64(len(p)) > s.size-off
	if short {
		p = p[:s.size-off]
	}
	n, err := s.handle.ReadAt(p, s.start+off)
	if cut := s.handle.seg.cutAt.Load(); cut > 0 && s.start+off+int64(len(p)) >= cut {
		return 0, &OffsetError{Offset: s.next - 1, Start: s.handle.seg.base, End: s.handle.seg.base}
	}
	if n == len(p) {
		err = nil
		if short {
			err = io.EOF
		}
	} else if errors.Is(err, io.EOF) {
		err = &CorruptError{Path: s.handle.seg.logPath(), Pos: s.start + off + int64(n), Err: errTorn}
	}
	return n, err
}

// Len is the section's size in bytes.
func (s *section) Len() int64 { return s.size }

// File is the file of the operating system and the section's position in it.
func (s *section) File() (*os.File, int64) { return s.handle.OSFile(), s.start }

// NextOffset is the offset after the last record.
func (s *section) NextOffset() int64 { return s.next }

// Release gives the segment's file back.
func (s *section) Release() {
	if s.released.CompareAndSwap(false, true) {
		s.files.release(s.handle)
	}
}
