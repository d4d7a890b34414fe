package storage

import (
	"errors"
	"io"
	"math/bits"
)

// epochAt is where the leader epoch is in a batch, the one field that neither
// the batch's checksum nor the chain of offsets covers.
const epochAt = 12

// xOrder is the least n > 0 with x^n = 1 modulo Castagnoli's polynomial.
const xOrder = 1<<31 - 1

// xPower is x^n modulo the polynomial, for n ≥ 0.
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

// findFlip finds the one bit of a leader epoch in the first size bytes of s's
// .log that explains why their checksum differs from what it should be, given
// the exclusive or of both. Every batch holds otherwise. A checksum is linear:
// a change D of four bytes with n bytes behind them changes it by D·x^(32+8n),
// so each batch tells which change of its epoch it would have been. Only a
// change of one bit is believed, and only if no other batch would do. ok is
// false if there is none.
func findFlip(f io.ReaderAt, s *segment, size int64, difference uint32) (found flip, ok bool, err error) {
	w := newWalk(f, s, 0, s.base, size)
	defer w.close()
	const behind = epochAt + 4
	// x^-(32+8n) for the batch at w.pos.
	inverse := xPower(xOrder - (32+8*(size-behind))%xOrder)
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

// changedPart is the batch of a whole segment of which a byte has changed
// outside its checksum, and where that byte is, given the exclusive or of the
// file's checksum and of what that should be; all of the segment if that does
// not tell.
func changedPart(f io.ReaderAt, s *segment, difference uint32) (g gap, pos int64, err error) {
	found, ok, err := findFlip(f, s, s.size, difference)
	if err != nil {
		return gap{}, 0, err
	}
	if !ok {
		found = flip{next: s.next, offset: s.base, end: s.size}
	}
	return gap{from: point{found.offset, found.begin}, to: point{found.next, found.end}, why: errChanged}, found.pos, nil
}
