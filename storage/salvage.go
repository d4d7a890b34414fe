package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"leat/storage/record"
)

// gap is a part of a .log that holds no batches any more: the bytes between
// two points, and the offsets that were there. Nothing is lost where both
// offsets are the same: then the bytes are too many.
type gap struct {
	from, to point
	why      error
}

// salvage reads a damaged .log from one end to the other and says where the
// gaps are. It takes no batch for one of the segment that does not follow its
// neighbours: behind a gap they count again from a place that an index entry
// knows, or from one that leads to such a place batch by batch. So neither
// another partition's batch nor one inside of a record's value is taken for a
// record of the log; two gaps between the same two entries count as one.
type salvage struct {
	f   io.ReaderAt
	seg *segment
	// size is how much of the file there is; the file may have been cut.
	size int64
	// anchors are places where a batch begins for sure, in order.
	anchors []point
	// end is where the last batch ends. Its pos is -1 where only the offset is
	// known.
	end point
}

// all reads the segment from its beginning.
func (s *salvage) all(newest int32) ([]gap, error) {
	var gaps []gap
	order := epochOrder{newest: newest}
	at := point{offset: s.seg.base}
	for at.offset < s.end.offset || at.pos < s.end.pos {
		order.begin(at)
		end, err := scan(s.f, s.seg, s.limit(), at.pos, at.offset, -1, order.add)
		if err != nil {
			return nil, err
		}
		at = point{offset: end.next, pos: end.pos}
		gaps = append(gaps, order.take()...)
		if at == s.end || s.end.pos < 0 && at.offset >= s.end.offset {
			break
		}
		why := end.why
		if why == nil {
			why = errTorn
		}
		to, err := s.resync(at)
		if err != nil {
			return nil, err
		}
		gaps = append(gaps, gap{from: at, to: to, why: why})
		at = to
		if at.pos >= s.limit() {
			break
		}
	}
	return joinGaps(gaps), nil
}

// limit is the end of what is read.
func (s *salvage) limit() int64 {
	if s.end.pos < 0 {
		return s.size
	}
	return min(s.size, s.end.pos)
}

// resync is where the batches behind the damage at a point count again.
func (s *salvage) resync(at point) (point, error) {
	goal := s.next(at)
	if to, ok, err := s.behind(at, goal); ok || err != nil {
		return to, err
	}
	to, ok, err := s.search(at, goal)
	if err != nil || ok {
		return to, err
	}
	if goal.pos < 0 || goal.pos > s.size {
		goal.pos = s.size
	}
	return goal, nil
}

// next is the first anchor behind a point, or the end.
func (s *salvage) next(at point) point {
	i := lastTrue(len(s.anchors), func(i int) bool { return s.anchors[i].pos <= at.pos || s.anchors[i].offset < at.offset })
	if i+1 < len(s.anchors) && s.anchors[i+1].pos < s.limit() {
		return s.anchors[i+1]
	}
	return s.end
}

// behind tries the place where the damaged batch ends by its own header, which
// most damage leaves whole.
func (s *salvage) behind(at, goal point) (to point, ok bool, err error) {
	if s.size-at.pos < record.HeaderSize {
		return point{}, false, nil
	}
	var p [record.HeaderSize]byte
	if err := readFull(s.f, p[:], at.pos); err != nil {
		return point{}, false, err
	}
	size := int64(record.Batch(p[:]).Size())
	if size < record.HeaderSize || size > record.MaxBatchSize {
		return point{}, false, nil
	}
	to.pos = at.pos + size
	if to.pos == goal.pos {
		return goal, true, nil
	}
	if s.size-to.pos < record.HeaderSize {
		return point{}, false, nil
	}
	if err := readFull(s.f, p[:], to.pos); err != nil {
		return point{}, false, err
	}
	to.offset = record.Batch(p[:]).BaseOffset()
	_, ok, err = s.leads(to, at, goal)
	return to, ok, err
}

// search looks at every byte behind the damage.
func (s *salvage) search(at, goal point) (to point, ok bool, err error) {
	limit := s.limit()
	if goal.pos >= 0 {
		limit = min(limit, goal.pos)
	}
	chunk := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(chunk)
	for pos := at.pos + 1; limit-pos >= record.HeaderSize; {
		p := (*chunk)[:min(scanChunk, limit-pos)]
		if err := readFull(s.f, p, pos); err != nil {
			return point{}, false, err
		}
		i := 0
		for i+record.HeaderSize <= len(p) {
			h := record.Batch(p[i : i+record.HeaderSize])
			to = point{offset: h.BaseOffset(), pos: pos + int64(i)}
			if h.Magic() != 2 || checkStoredHeader(h, s.seg, limit-to.pos, to.offset) != nil {
				i++
				continue
			}
			broken, ok, err := s.leads(to, at, goal)
			if ok || err != nil {
				return to, ok, err
			}
			// What follows one another up to there fails there, too.
			if i += max(1, int(min(broken-to.pos, int64(len(p))))); broken > pos+int64(len(p)) {
				pos, i = broken, 0
				break
			}
		}
		pos += int64(i)
	}
	return point{}, false, nil
}

// leads reports whether batches that hold lead from a place behind the damage
// at a point to the goal; if not, broken is where they end.
func (s *salvage) leads(to, at, goal point) (broken int64, ok bool, err error) {
	if to.offset < at.offset || to.offset > goal.offset {
		return to.pos, false, nil
	}
	limit := s.limit()
	if goal.pos >= 0 {
		limit = min(limit, goal.pos)
	}
	end, err := scan(s.f, s.seg, limit, to.pos, to.offset, goal.offset, func(record.Batch) {})
	return end.pos, end.next == goal.offset && (goal.pos < 0 || end.pos == goal.pos), err
}

// joinGaps puts gaps in order and makes one of those that touch.
func joinGaps(gaps []gap) []gap {
	slices.SortStableFunc(gaps, func(a, b gap) int { return cmp.Compare(a.from.pos, b.from.pos) })
	var out []gap
	for _, g := range gaps {
		if n := len(out); n > 0 && out[n-1].to.pos >= g.from.pos {
			if g.to.pos >= out[n-1].to.pos {
				out[n-1].to = g.to
			}
			continue
		}
		out = append(out, g)
	}
	return out
}

// epochOrder finds the batches whose leader epoch cannot be: a later batch has
// a smaller one, or the newest of the log does. The epoch is outside of a
// batch's checksum, so this is all that shows its damage but the checksum of
// the whole file.
type epochOrder struct {
	newest  int32 // no batch has a greater one
	at      point
	before  int32 // the epoch before that of last; -1 none
	last    int32
	lastAt  point
	have    bool
	pending []gap
}

func (o *epochOrder) begin(at point) { o.at, o.have, o.before, o.last = at, false, -1, -1 }

func (o *epochOrder) add(b record.Batch) {
	at, epoch := o.at, b.LeaderEpoch()
	o.at = point{offset: b.NextOffset(), pos: at.pos + int64(len(b))}
	switch {
	case epoch > o.newest:
		o.pending = append(o.pending, gap{from: at, to: o.at, why: fmt.Errorf("leader epoch is %d, the newest is %d", epoch, o.newest)})
	case !o.have || epoch >= o.last:
		o.before, o.last, o.lastAt, o.have = o.last, epoch, at, true
	case epoch >= o.before:
		// Without either of the two all are in order, so neither is believed.
		o.pending = append(o.pending, gap{from: o.lastAt, to: o.at, why: fmt.Errorf("leader epoch is %d, that of the next batch %d", o.last, epoch)})
		o.last, o.have = o.before, false
	default:
		o.pending = append(o.pending, gap{from: at, to: o.at, why: fmt.Errorf("leader epoch is %d, that of the batch before %d", epoch, o.last)})
	}
}

// take gives what was found.
func (o *epochOrder) take() []gap {
	g := o.pending
	o.pending = nil
	return g
}

// noEpochBound is the newest epoch of a log of which it is not known.
const noEpochBound = math.MaxInt32

// isDamage says that an error is about what a .log holds.
func isDamage(err error) bool { return errors.Is(err, ErrCorrupt) }
