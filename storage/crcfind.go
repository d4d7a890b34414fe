package storage

import (
	"errors"
	"io"
	"math/bits"
	"slices"

	"leat/storage/record"
)

// epochAt is where the leader epoch is in a batch, the one field that neither
// the batch's checksum nor the chain of offsets covers.
const epochAt = 12

// xOrder is the least n > 0 with x^n = 1 modulo Castagnoli's polynomial.
const xOrder = 1<<31 - 1

// xPower is x^n modulo the polynomial, for 0 ≤ n < 2^32.
func xPower(n int64) uint32 {
	product := uint32(one)
	for k := 0; n > 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			product = multiply(powers[k&31], product)
		}
	}
	return product
}

// flip is a bit of a leader epoch that is not what was written: its byte, and
// the offsets of the batch.
type flip struct {
	pos, offset, next int64
	begin, end        int64 // the batch's bytes
}

// findFlip finds the one bit of a leader epoch in s's .log, from a point on and up
// to byte end, that explains why the checksum up to there differs from what it
// should be, given the exclusive or of both. Every batch holds otherwise. A checksum
// is linear: a change D of four bytes with n bytes behind them changes it by
// D·x^(32+8n), so each batch tells which change of its epoch it would have been. Only
// a change of one bit is believed, and only if no other batch would do. ok is false
// if there is none.
func findFlip(f io.ReaderAt, s *segment, from point, end int64, difference uint32) (found flip, ok bool, err error) {
	w := newWalk(f, s, from.pos, from.offset, end)
	defer w.close()
	const behind = epochAt + 4
	// x^-(32+8n) for the batch at w.pos.
	inverse := xPower(xOrder - (32+8*(end-from.pos-behind))%xOrder)
	for {
		pos := w.pos
		h, err := w.header()
		if errors.Is(err, io.EOF) {
			return found, ok, nil
		}
		if err != nil {
			return flip{}, false, err
		}
		if d := multiply(difference, inverse); bits.OnesCount32(d) == 1 {
			if ok {
				return flip{}, false, nil
			}
			ok = true
			found = flip{pos: pos + epochAt + int64(bits.TrailingZeros32(d)/8), offset: h.BaseOffset(), next: h.NextOffset(), begin: pos, end: w.pos}
		}
		inverse = multiply(inverse, xPower(8*(w.pos-pos)))
	}
}

// errChanged says that a .log differs from what was written where the batches'
// own checksums do not reach.
var errChanged = errors.New("the file does not match its checksum: bytes have changed that the batches' own checksums do not cover")

// change is a part of a .log in which the byte at pos, or which cannot be told, is
// not what was written.
type change struct {
	gap
	pos int64
}

func changeOf(from, to point, why error) change {
	return change{gap: gap{from: from, to: to, why: why}, pos: from.pos}
}

// changedPart is the batch of a segment, from a point on up to another, of which a
// byte has changed outside its checksum, given the exclusive or of the file's
// checksum and of what that should be; all of it if that does not tell.
func changedPart(f io.ReaderAt, s *segment, from, to point, difference uint32) (change, error) {
	found, ok, err := findFlip(f, s, from, to.pos, difference)
	if err != nil || !ok {
		return changeOf(from, to, errChanged), err
	}
	c := changeOf(point{found.offset, found.begin}, point{found.next, found.end}, errChanged)
	c.pos = found.pos
	return c, nil
}

// summed is a place in a .log of which the checksum of all in front of it is known.
type summed struct {
	point
	crc uint32
}

// summed is the end of a segment.
func (t *tail) summed() summed { return summed{point{t.next, t.size}, t.crc} }

// summed is where the batch of an index entry begins.
func (v *view) summed(e entry) summed { return summed{v.point(e), e.crc} }

// sums are the places of a segment that its index knows the checksums of.
func (v *view) sums(entries []entry) []summed {
	known := []summed{{point: point{offset: v.seg.base}}}
	for _, e := range entries {
		known = append(known, v.summed(e))
	}
	return append(known, v.tail.summed())
}

// between says whether a gap is between two bytes, the checksum of which tells
// nothing then.
func between(gaps []gap, from, to int64) bool {
	return slices.ContainsFunc(gaps, func(g gap) bool { return g.to.pos > from && (g.from.pos < to || g.to.pos == to) })
}

// changedParts holds what is between two gaps of s's .log against the checksums
// that are known of it. Every batch there holds.
func changedParts(f io.ReaderAt, s *segment, known []summed, gaps []gap) (changed []change, err error) {
	for len(known) > 1 {
		n := 1 // of the places that have no gap between them
		for n < len(known) && !between(gaps, known[n-1].pos, known[n].pos) {
			n++
		}
		a := audit{seg: s, known: known[:n], at: known[0].point, crc: known[0].crc}
		known = known[n:]
		if n == 1 {
			continue
		}
		if err := a.run(f); err != nil {
			return nil, err
		}
		changed = append(changed, a.changed...)
	}
	return changed, nil
}

// audit reads a part of a .log without gaps, from the first of the known places to
// the last.
type audit struct {
	seg     *segment
	known   []summed // from the last one that was passed on
	at      point
	crc     uint32
	wrong   []difference
	changed []change
}

// difference is a part of a .log that has another checksum than it should; of 0 is
// one in which no batch begins at a known place.
type difference struct {
	from, to point
	of       uint32
}

func (a *audit) run(f io.ReaderAt) error {
	last := a.known[len(a.known)-1]
	end, err := scan(f, a.seg, last.pos, a.at.pos, a.at.offset, -1, a.batch)
	if err != nil {
		return err
	}
	if from := a.known[0].point; end.point() != last.point {
		a.changed = append(a.changed, changeOf(from, last.point, orElseErr(end.why, errTorn)))
	}
	for _, d := range a.wrong {
		c := changeOf(d.from, d.to, errChanged)
		if d.of != 0 {
			if c, err = changedPart(f, a.seg, d.from, d.to, d.of); err != nil {
				return err
			}
		}
		a.changed = append(a.changed, c)
	}
	return nil
}

func (a *audit) batch(b record.Batch) {
	a.crc = extendCRC(a.crc, b)
	a.at = point{offset: b.NextOffset(), pos: a.at.pos + int64(len(b))}
	i := lastTrue(len(a.known), func(i int) bool { return a.known[i].pos <= a.at.pos })
	if i == 0 || a.known[i].point != a.at {
		return
	}
	if of := a.crc ^ a.known[i].crc; of != 0 || i > 1 {
		a.wrong = append(a.wrong, difference{from: a.known[0].point, to: a.at, of: of})
	}
	a.known, a.crc = a.known[i:], a.known[i].crc
}
