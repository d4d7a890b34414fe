package storage

import (
	"fmt"
	"math"

	"leat/storage/record"
)

// bundle is segments that are rewritten together into as few as hold what is
// left of them.
type bundle struct {
	*pass
	rw         *rewrite // nil before the first
	w          *segmentWriter
	clean      bool // what w holds
	sealed     int64
	old        []*segment
	changed    bool
	lastAppend int64
	// Of the offsets from gapFrom on and below gapTo nothing is left, and
	// nothing stands for them yet.
	gapFrom, gapTo int64
	gapEpoch       int32
}

// full says that the bundle must end before s, which may not fit into it.
func (g *bundle) full(s *segment) bool {
	size := g.sealed + s.size
	if g.w != nil {
		size += g.w.seg.size
	}
	return g.rw != nil && size > g.cfg.SegmentBytes
}

// begin takes s into the bundle.
func (g *bundle) begin(s *segment) error {
	if !g.log.dir.room.reserve(s.size) {
		return noRoomFor(s)
	}
	if g.rw == nil {
		rw, err := g.log.beginRewrite()
		if err != nil {
			return err
		}
		*g = bundle{pass: g.pass, rw: rw}
	}
	g.old = append(g.old, s)
	g.lastAppend = max(g.lastAppend, s.lastAppend)
	return nil
}

func noRoomFor(s *segment) error {
	return fmt.Errorf("%w: compacting %s may take %d bytes for a while", ErrFull, s.logPath(), s.size)
}

// skip leaves a batch out. A run of them within one leader epoch becomes one
// batch without records.
func (g *bundle) skip(b record.Batch) error {
	if g.gapTo > g.gapFrom && (g.gapEpoch != b.LeaderEpoch() || b.LastOffset()-g.gapFrom > math.MaxInt32) {
		if err := g.fill(); err != nil {
			return err
		}
	}
	if g.gapTo == g.gapFrom {
		g.gapFrom, g.gapEpoch = b.BaseOffset(), b.LeaderEpoch()
	}
	// A filler that stays one is no change.
	g.changed = g.changed || b.Count() > 0 || b.ProducerID() >= 0 || g.gapTo > g.gapFrom
	g.gapTo = b.NextOffset()
	return nil
}

// fill writes what stands for the gap. All of it is below the boundary, since
// what is behind keeps its records.
func (g *bundle) fill() error {
	if g.gapTo <= g.gapFrom {
		return nil
	}
	g.filler = record.AppendFiller(g.filler[:0], g.gapFrom, g.gapTo-1, g.gapEpoch)
	g.gapFrom = g.gapTo
	return g.emit(g.filler, true)
}

// add writes a batch; clean says that it is below the boundary.
func (g *bundle) add(b record.Batch, clean bool) error {
	if err := g.fill(); err != nil {
		return err
	}
	return g.emit(b, clean)
}

// emit writes a batch to the segment that is being written or to another one,
// if it does not belong or does not fit into that.
func (g *bundle) emit(b record.Batch, clean bool) (err error) {
	if g.w != nil && (g.clean != clean || g.overflows(b)) {
		if err := g.seal(); err != nil {
			return err
		}
	}
	if g.w == nil {
		g.clean = clean
		if g.w, err = g.rw.create(b.BaseOffset(), g.out); err != nil {
			return err
		}
	}
	g.done.Written += int64(len(b))
	if g.unpaced += len(b); g.unpaced >= scanChunk {
		if err := g.pace(g.unpaced); err != nil {
			return err
		}
		g.unpaced = 0
	}
	return g.w.add(b)
}

func (g *bundle) overflows(b record.Batch) bool {
	t := &g.w.seg.tail
	return t.size+int64(len(b)) > g.cfg.SegmentBytes || b.LastOffset()-t.base > maxOffsetDelta || indexFull(t, g.cfg)
}

// seal ends the segment that is being written.
func (g *bundle) seal() error {
	g.w.seg.clean = g.clean
	g.sealed += g.w.seg.size
	w := g.w
	g.w = nil
	return w.seal(g.lastAppend)
}

// end puts what was written in the place of the bundle's segments, unless it is
// the same.
func (g *bundle) end() error {
	if g.rw == nil {
		return nil
	}
	if err := g.fill(); err != nil {
		return err
	}
	if err := g.seal(); err != nil {
		return err
	}
	rw, old, fresh := g.rw, g.old, g.rw.fresh
	if !g.changed && len(old) == 1 && len(fresh) == 1 && old[0].clean == fresh[0].seg.clean {
		g.abandon()
		return nil
	}
	if err := rw.swap(old); err != nil {
		return err
	}
	g.rw = nil
	g.done.Before += len(old)
	g.done.After += len(fresh)
	return nil
}

// abandon removes what was written and not put in any place.
func (g *bundle) abandon() {
	if g.rw != nil {
		g.rw.abandon()
		g.rw = nil
	}
}
