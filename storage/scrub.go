package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

const (
	// scrubRest is the pause between two passes, so that a small directory is
	// not read over and over.
	scrubRest = 10 * time.Second
	// scrubLook is how long the scrub waits at most before it looks again
	// whether it still has something to do.
	scrubLook = time.Second
	// scrubPiece bounds one read of the scrub; a slower rate reads smaller ones.
	scrubPiece    = scanChunk
	minScrubPiece = 4 << 10
)

// scrubber is the one goroutine of a directory that reads again, slowly and
// without end, what was written long ago, so that damage is found while there
// may be another copy. It reads only sealed segments, for nothing of them
// changes any more: each batch, the chain of offsets, the checksum of the whole
// file, and both indexes against the log. It holds no lock while it reads and
// keeps nobody from removing what it reads: it notices within a second and goes
// on elsewhere. It remembers nothing over a restart and begins anywhere.
type scrubber struct {
	dir  *Dir
	rate atomic.Int64  // bytes a second; none is off
	wake chan struct{} // the rate has changed

	// Of the one goroutine: when the next read may begin, where the next pass
	// goes on, and the segments of which damage was told.
	due    time.Time
	cursor int
	told   map[*segment]bool
}

func newScrubber(d *Dir, rate int64) *scrubber {
	s := &scrubber{dir: d, wake: make(chan struct{}, 1), cursor: rand.Int(), told: make(map[*segment]bool)}
	s.rate.Store(rate)
	return s
}

// SetScrubRate sets how many bytes a second are read to find damage in what was
// written long ago; 0 or less is none. A new rate begins a new pass.
func (d *Dir) SetScrubRate(bytes int64) {
	if d.scrubber.rate.Swap(bytes) == bytes {
		return
	}
	select {
	case d.scrubber.wake <- struct{}{}:
	default: // it was woken already
	}
}

// errScrubEnded says that a segment need not be read to its end: it has left
// its log, or the scrub was switched off.
var errScrubEnded = errors.New("the scrub of a segment has ended")

// run makes pass after pass until ctx ends.
func (s *scrubber) run(ctx context.Context) {
	for {
		var rested <-chan time.Time // never, while the scrub is off
		if s.rate.Load() > 0 {
			s.pass(ctx)
			rested = time.After(scrubRest)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			s.due = time.Time{}
		case <-rested:
		}
	}
}

// pass reads all sealed segments once, of one log after the other.
func (s *scrubber) pass(ctx context.Context) {
	began := time.Now()
	logs := s.dir.openLogs()
	slices.SortFunc(logs, func(a, b *Log) int { return compareIDs(a.id, b.id) })
	told := make(map[*segment]bool)
	var sum scrubbed
	for range logs {
		l := logs[s.cursor%len(logs)]
		for _, seg := range l.sealedSegments() {
			sum.add(s.segment(ctx, l, seg))
			if s.told[seg] {
				told[seg] = true
			}
		}
		if ctx.Err() != nil || s.rate.Load() <= 0 {
			return // the next pass begins with this log
		}
		s.cursor++
	}
	s.told = told // others are gone
	s.dir.metrics.scrubPass.SetToCurrentTime()
	level := slog.LevelDebug
	if sum.fresh > 0 {
		level = slog.LevelError
	}
	s.dir.opts.Logger.Log(ctx, level, "sealed segments were read again to find damage",
		slog.Int("segments", sum.segments), slog.Int64("bytes", sum.bytes), slog.Int("damages", sum.found),
		slog.Duration("took", time.Since(began)))
}

// sealedSegments are the log's segments that do not change any more.
func (l *Log) sealedSegments() []*segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.closed {
		return nil
	}
	var out []*segment
	for _, s := range l.mu.segments {
		if s.sealed.Load() {
			out = append(out, s)
		}
	}
	return out
}

// scrubbed is what a scrub has read and found, and how much of that was not
// known before.
type scrubbed struct {
	segments, found, fresh int
	bytes                  int64
}

func (s *scrubbed) add(o scrubbed) {
	s.segments += o.segments
	s.found += o.found
	s.fresh += o.fresh
	s.bytes += o.bytes
}

// segment reads one segment and deals with what is wrong with it.
func (s *scrubber) segment(ctx context.Context, l *Log, seg *segment) scrubbed {
	c := &segmentScrub{scrubber: s, log: l, seg: seg, ctx: ctx}
	err := c.run()
	switch {
	case err == nil:
	case ctx.Err() != nil, c.over(), errors.Is(err, errRetired):
		return scrubbed{}
	default:
		c.found++
		if !s.told[seg] {
			s.dir.opts.Logger.Error("segment could not be read again",
				slog.String("topic", l.name), slog.Int("partition", int(l.id.Partition)), slog.Any("err", err))
		}
	}
	out := scrubbed{segments: 1, bytes: c.read, found: c.found + c.rebuilt, fresh: c.rebuilt}
	if c.found > 0 && !s.told[seg] {
		s.told[seg] = true
		out.fresh += c.found
	}
	s.dir.metrics.scrubDamages.Add(float64(out.fresh))
	return out
}

// segmentScrub is the scrub of one segment.
type segmentScrub struct {
	*scrubber
	ctx  context.Context // of the one run
	log  *Log
	seg  *segment
	file disk.File
	read int64
	// found counts damages of the .log, rebuilt indexes that were damaged.
	found, rebuilt int
}

// over says that nobody needs to know any more.
func (c *segmentScrub) over() bool {
	c.log.mu.RLock()
	closed := c.log.mu.closed
	c.log.mu.RUnlock()
	return closed || c.rate.Load() <= 0 || c.dir.files.retired(c.seg)
}

// ReadAt reads the .log at the scrub's pace.
func (c *segmentScrub) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		piece := int(min(max(c.rate.Load()/4, minScrubPiece), scrubPiece))
		part := p[n:min(n+piece, len(p))]
		if err := c.pace(len(part)); err != nil {
			return n, err
		}
		var got int
		got, err = c.file.ReadAt(part, off+int64(n))
		n += got
		c.read += int64(got)
		c.dir.metrics.scrubBytes.Add(float64(got))
	}
	return n, err
}

// pace waits until n more bytes may be read.
func (c *segmentScrub) pace(n int) error {
	for {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if c.over() {
			return errScrubEnded
		}
		now := time.Now()
		wait := c.due.Sub(now)
		if wait <= 0 {
			// What was not read before is not caught up.
			c.due = now.Add(time.Duration(float64(n) / float64(max(c.rate.Load(), 1)) * float64(time.Second)))
			return nil
		}
		timer := time.NewTimer(min(wait, scrubLook))
		select {
		case <-c.ctx.Done():
		case <-c.wake:
			c.due = time.Time{} // it was reckoned by the old rate
		case <-timer.C:
		}
		timer.Stop()
	}
}

// run reads the segment. The error is of reading.
func (c *segmentScrub) run() error {
	h, err := c.dir.files.acquire(c.seg)
	if err != nil {
		return err
	}
	defer c.dir.files.release(h)
	c.file = h
	index, err := c.readIndexes()
	if err != nil {
		return err
	}
	if err := c.batches(index); err != nil || c.found > 0 || index.bad == nil {
		return err
	}
	c.rebuilt++
	return c.rebuild(index.bad)
}

// batches goes through the .log and tells of each batch that does not hold.
func (c *segmentScrub) batches(index *scrubIndex) error {
	c.log.mu.RLock()
	want := c.seg.tail
	c.log.mu.RUnlock()
	seen := newTail(c.seg.base)
	at := scanned{next: c.seg.base}
	for {
		var err error
		at, err = scan(c, c.seg, want.size, at.pos, at.next, want.next, func(b record.Batch) {
			index.batch(uint32(b.BaseOffset()-c.seg.base), &seen)
			at.pos += int64(len(b))
			seen.extend(b, maxSegmentBytes)
			c.dir.metrics.scrubBatches.Inc()
		})
		switch {
		case errors.Is(err, errScrubEnded):
			return err
		case err != nil:
			return fmt.Errorf("scrub %s: %w", c.seg.logPath(), err)
		case at.next == want.next && at.pos == want.size:
			if c.found == 0 && seen.crc != want.crc {
				return c.changed(index, &want)
			}
			return nil
		}
		to, ok, err := resync(c, c.seg, want.size, at, want.next)
		if err != nil {
			return err
		}
		if !ok {
			to = point{offset: want.next, pos: want.size}
		}
		c.wound(gap{from: point{at.next, at.pos}, to: to, why: orElseErr(at.why, errTorn)}, at.pos)
		if !ok {
			return nil
		}
		index.skip(uint32(to.offset - c.seg.base))
		seen.skip(to)
		at = scanned{pos: to.pos, next: to.offset}
	}
}

// changed finds what has changed in a .log of which each batch holds, but not the
// whole.
func (c *segmentScrub) changed(index *scrubIndex, want *tail) error {
	v := view{seg: c.seg, tail: *want}
	changed, err := changedParts(c, c.seg, v.sums(index.offsets), nil)
	if err != nil {
		return fmt.Errorf("scrub %s: %w", c.seg.logPath(), err)
	}
	for _, x := range changed {
		c.wound(x.gap, x.pos)
	}
	return nil
}

// wound tells of a gap, of which the byte at pos is the first that is wrong.
func (c *segmentScrub) wound(g gap, pos int64) {
	if c.over() {
		return // a truncation may have cut the file
	}
	c.found++
	if c.told[c.seg] {
		return
	}
	c.dir.opts.Logger.Error("damage was found in a sealed segment", slog.String("topic", c.log.name),
		slog.Int("partition", int(c.log.id.Partition)), slog.Int64("from_offset", g.from.offset), slog.Int64("to_offset", g.to.offset),
		slog.String("file", c.seg.logPath()), slog.Int64("position", pos), slog.Any("err", g.why))
	c.log.wound(c.seg, g)
}

// rebuild makes the indexes anew from a .log that holds.
func (c *segmentScrub) rebuild(why *badIndex) error {
	if !c.log.enter() {
		return errScrubEnded
	}
	defer c.log.leave()
	err := c.replaceIndexes(why)
	if errors.Is(err, errSync) {
		c.dir.fail(err)
	}
	return err
}

// replaceIndexes does it, unless the segment has left its log.
func (c *segmentScrub) replaceIndexes(why *badIndex) error {
	t := c.dir.tables
	t.repair.Lock()
	defer t.repair.Unlock()
	if c.dir.files.retired(c.seg) {
		return errRetired
	}
	c.dir.opts.Logger.Warn("index file is damaged and is rebuilt from the log",
		slog.String("path", why.path), slog.Any("err", why.err))
	return rebuildSealed(t, c.dir.files, c.seg, c.log.config.Load().IndexInterval)
}
