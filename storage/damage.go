package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"leat/storage/disk"
	"leat/storage/record"
)

// Hole is a part of a log that is damaged: the records with offsets in [From, To) are lost or
// cannot be trusted, because of what is at byte Pos of the file Path. To is From
// where no records are missing and the file has bytes too many.
type Hole struct {
	From, To int64
	Path     string
	Pos      int64
	Err      error
}

// Fenced reports whether the log has holes, or had when it was last open: it
// gives out what is outside of them and takes nothing until it is repaired.
func (l *Log) Fenced() bool { return l.fenced.Load() }

// Holes lists the holes that are known, in order. A log may be fenced and have
// none: then they have not been met again since the start.
func (l *Log) Holes() []Hole {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.holesLocked()
}

func (l *Log) holesLocked() []Hole {
	if l.mu.lost != nil {
		d := Hole{From: l.mu.start, To: l.mu.end, Path: l.path, Err: l.mu.lost}
		if c, ok := errors.AsType[*CorruptError](l.mu.lost); ok {
			d.Path, d.Pos, d.Err = c.Path, c.Pos, c.Err
		}
		return []Hole{d}
	}
	var out []Hole
	add := func(from, to int64, s *segment, pos int64, err error) {
		if to > l.mu.start {
			out = append(out, Hole{From: max(from, l.mu.start), To: to, Path: s.logPath(), Pos: pos, Err: err})
		}
	}
	next := l.mu.start
	for _, s := range l.mu.segments {
		if next < s.base {
			add(next, s.base, s, 0, missing(next, s.base))
		}
		for _, g := range s.gaps {
			add(g.from.offset, g.to.offset, s, g.from.pos, g.why)
		}
		next = max(next, s.next)
	}
	return out
}

// inHoleLocked is the error for a read from an offset that is in a hole, or nil.
func (l *Log) inHoleLocked(offset int64) error {
	if !l.fenced.Load() {
		return nil
	}
	for _, d := range l.holesLocked() {
		if d.From <= offset && offset < d.To {
			return d.corrupt()
		}
	}
	return nil
}

// corrupt is the error of a read that meets the hole.
func (d *Hole) corrupt() *CorruptError {
	return &CorruptError{Path: d.Path, Pos: d.Pos, Err: d.Err, From: d.From, To: d.To}
}

// Suspect has the log look whether the batch with an offset is what was stored,
// for a reader of it who doubts that. *CorruptError if it is not: then the log is
// fenced. nil says that it is, whatever it may hold.
func (l *Log) Suspect(offset int64) error {
	if !l.enter() {
		return ErrClosed
	}
	defer l.leave()
	for tries := 0; ; {
		cuts := l.cuts.Load()
		v, found, err := l.view(offset, math.MaxInt64)
		if err != nil || !found {
			return err
		}
		err = l.since(cuts, v.suspect(offset))
		switch {
		case errors.Is(err, errRetired):
			continue
		case !isDamage(err) || tries > 0:
			return err
		}
		tries++
		if failed := l.examine(v.seg, len(v.gaps)); failed != nil {
			return failed
		}
	}
}

// suspect verifies one batch, whether that was done before or not.
func (v *view) suspect(offset int64) error {
	h, err := v.log.dir.files.acquire(v.seg)
	if err != nil {
		return err
	}
	defer v.log.dir.files.release(h)
	at, err := v.find(h, offset)
	if err != nil {
		return err
	}
	w := newWalk(h, v.seg, at.pos, at.offset, v.tail.size)
	defer w.close()
	b, err := w.header()
	if err == nil {
		_, err = w.batch(b)
	}
	return err
}

// hole describes the gap of a segment.
func (g *gap) hole(s *segment) *Hole {
	return &Hole{From: g.from.offset, To: g.to.offset, Path: s.logPath(), Pos: g.from.pos, Err: g.why}
}

// meets is what a reader is told that met damage: the segment is examined, so
// that the log knows all of its holes. The error is that of the hole that was
// met; err if there is none.
func (l *Log) meets(v *view, err error) error {
	if failed := l.examine(v.seg, len(v.gaps)); failed != nil {
		return failed
	}
	met, ok := errors.AsType[*CorruptError](err)
	if !ok {
		return err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	after := view{seg: v.seg, gaps: v.seg.gaps}
	if hole := after.inGap(met.Pos); hole != nil && met.Path == v.seg.logPath() {
		return hole
	}
	return err
}

// orDamage is meets for an error that may be about something else, or nil.
func (l *Log) orDamage(v *view, err error) error {
	if !isDamage(err) {
		return err
	}
	return l.meets(v, err)
}

// examined has the segment examined that an error says is damaged.
func (l *Log) examined(err error) error {
	met, ok := errors.AsType[*CorruptError](err)
	if !ok {
		return err
	}
	l.mu.RLock()
	i := slices.IndexFunc(l.mu.segments, func(s *segment) bool { return s.logPath() == met.Path })
	var v view
	if i >= 0 {
		v = view{seg: l.mu.segments[i], gaps: l.mu.segments[i].gaps}
	}
	l.mu.RUnlock()
	if i < 0 {
		return err
	}
	return l.meets(&v, err)
}

// examine reads all of a segment in which something is damaged and fences the
// log if that is so. known is how many gaps of it the caller knew: if there are
// others by now, somebody else has examined it. The error is of reading.
func (l *Log) examine(s *segment, known int) error {
	l.examining.Lock()
	fresh, err := l.examineLocked(s, known)
	l.examining.Unlock()
	l.dir.found(l, fresh)
	return err
}

// examineLocked does it with examining held, and returns the holes that nobody
// knew.
func (l *Log) examineLocked(s *segment, known int) ([]Hole, error) {
	l.mu.RLock()
	v := view{log: l, seg: s, tail: s.tail, sealed: s.indexOnDisk(), gaps: s.gaps}
	newest, there := l.mu.epoch, slices.Contains(l.mu.segments, s)
	l.mu.RUnlock()
	if !there || len(v.gaps) != known {
		return nil, nil
	}
	h, err := l.dir.files.acquire(s)
	if errors.Is(err, errRetired) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer l.dir.files.release(h)
	info, err := h.Stat()
	if err != nil {
		return nil, err
	}
	entries, indexed := l.trusted(&v)
	sums := v.sums(entries)
	doctor := salvage{f: h, seg: s, size: info.Size(), anchors: pointsOf(sums[1 : len(sums)-1]), end: v.tail.summed().point}
	gaps, err := doctor.all(newest)
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", s.logPath(), err)
	}
	gaps = joinGaps(slices.Concat(v.gaps, gaps))
	changed, err := changedParts(h, s, sums, gaps)
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", s.logPath(), err)
	}
	for _, c := range changed {
		gaps = append(gaps, c.gap)
	}
	gaps = joinGaps(gaps)
	var index *tail
	if !indexed {
		if index, err = l.reindex(h, s, gaps, doctor.limit()); err != nil {
			return nil, err
		}
	}
	fresh := l.publishGaps(s, gaps, index)
	s.unread.Store(nil) // all of it was read, and who reads on knows the gaps
	return fresh, nil
}

// trusted are the entries of the segment's index; false if it is damaged, too.
func (l *Log) trusted(v *view) (entries []entry, ok bool) {
	if !v.sealed {
		return v.tail.entries, true
	}
	entries, err := readSealedEntries(l.dir.opts.FS, v.seg, v.tail.next, v.tail.size)
	if err != nil {
		return nil, false
	}
	_, err = v.tables().beforeTime(0)
	return entries, err == nil
}

func pointsOf(sums []summed) []point {
	at := make([]point, len(sums))
	for i := range sums {
		at[i] = sums[i].point
	}
	return at
}

// reindex makes an index of what is between the gaps.
func (l *Log) reindex(h *handle, s *segment, gaps []gap, size int64) (*tail, error) {
	t := newTail(s.base)
	interval := l.config.Load().IndexInterval
	at := point{offset: s.base}
	for i := range len(gaps) + 1 {
		until := size
		if i < len(gaps) {
			until = gaps[i].from.pos
		}
		if _, err := scan(h, s, until, at.pos, at.offset, -1, func(b record.Batch) { t.extend(b, interval) }); err != nil {
			return nil, err
		}
		if i < len(gaps) {
			at = gaps[i].to
			t.skip(at)
		}
	}
	return &t, nil
}

// wound adds a gap that somebody found in a segment, and fences the log.
func (l *Log) wound(s *segment, g gap) {
	l.examining.Lock()
	l.mu.RLock()
	gaps := joinGaps(slices.Concat(s.gaps, []gap{g}))
	l.mu.RUnlock()
	fresh := l.publishGaps(s, gaps, nil)
	l.examining.Unlock()
	l.dir.found(l, fresh)
}

// publishGaps makes the gaps of a segment known, and returns the holes that
// nobody knew. index is for a segment whose own is damaged. examining must be
// held.
func (l *Log) publishGaps(s *segment, gaps []gap, index *tail) (fresh []Hole) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.mu.segments, s) {
		return nil // a truncation may have cut the file meanwhile
	}
	before := l.holesLocked()
	s.gaps = gaps
	if index != nil {
		s.entries, s.times, s.indexed = index.entries, index.times, true
	}
	if len(gaps) > 0 && !l.fenced.Swap(true) {
		l.mu.changed = true
	}
	return slices.DeleteFunc(l.holesLocked(), func(h Hole) bool {
		return slices.ContainsFunc(before, func(b Hole) bool { return b.From == h.From && b.To == h.To && b.Path == h.Path })
	})
}

// found tells of holes. No lock may be held.
func (d *Dir) found(l *Log, holes []Hole) {
	for _, h := range holes {
		d.metrics.holes.Inc()
		if d.opts.OnDamage != nil {
			d.opts.OnDamage(l, h)
		}
	}
}

// readSealedEntries reads the .index of a sealed segment, if it is whole.
func readSealedEntries(fs disk.FS, s *segment, next, size int64) ([]entry, error) {
	p, err := readFile(fs, s.stem+indexSuffix, maxSegmentBytes)
	if err != nil {
		return nil, err
	}
	h, err := decodeSeal(p, indexMagic)
	if err != nil {
		return nil, err
	}
	body := p[sealSize:]
	if h.base != s.base || h.next != next || h.logBytes != size || int64(len(body)) != int64(h.count)*entrySize || crc32.Checksum(body, castagnoli) != h.entriesCRC {
		return nil, errBadIndex
	}
	return parseEntries(body, next-s.base, size)
}
