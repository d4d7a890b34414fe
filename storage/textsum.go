package storage

import (
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
)

// sumTail is how a text that people may read ends with the checksum of what is
// before it: a format with one %08x.
type sumTail string

const (
	partitionSum sumTail = "crc: %08x\n"
	identitySum  sumTail = "  \"crc\": \"%08x\"\n}\n"
)

// seal adds the checksum to a text.
func (s sumTail) seal(text []byte) []byte {
	return fmt.Appendf(text, string(s), crc32.Checksum(text, castagnoli))
}

// verify says whether a text has a checksum and whether it matches; pos is the
// byte that has changed, or 0 if that is not one bit.
func (s sumTail) verify(b []byte) (has, holds bool, pos int64) {
	body := len(b) - len(fmt.Sprintf(string(s), 0))
	if body < 0 {
		return false, false, 0
	}
	text, tail := b[:body], b[body:]
	want := fmt.Sprintf(string(s), crc32.Checksum(text, castagnoli))
	if string(tail) == want {
		return true, true, 0
	}
	changed, at := 0, 0
	for i, c := range tail {
		if n := bits.OnesCount8(c ^ want[i]); n > 0 {
			changed, at = changed+n, i
		}
	}
	if changed == 1 {
		return true, false, int64(body + at)
	}
	var sum uint32
	if _, err := fmt.Sscanf(string(tail), string(s), &sum); err != nil || fmt.Sprintf(string(s), sum) != string(tail) {
		return false, false, int64(body)
	}
	i, _ := findBit(text, crc32.Checksum(text, castagnoli)^sum)
	return true, false, int64(i)
}

// findBit finds the one bit of p that explains the exclusive or of its checksum
// and of what that should be; see findFlip.
func findBit(p []byte, difference uint32) (at int, ok bool) {
	var by [8]uint32 // what a change of each bit of the byte at i changes
	for bit := range by {
		by[bit] = castagnoli[1<<bit]
	}
	for i := range slices.Backward(p) {
		for bit, d := range by {
			if d == difference {
				return i, true
			}
			by[bit] = castagnoli[d&0xff] ^ d>>8
		}
	}
	return 0, false
}
