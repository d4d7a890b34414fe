package record

import "math/bits"

// Varints are Kafka's: zigzag, then seven bits a byte, low bits first.

// maxVarint is the longest varint in bytes, maxVarint32 the longest of a field
// that clients read as an int of 32 bits: a longer one, even of a small number,
// they refuse, and with it all that follows.
const (
	maxVarint   = 10
	maxVarint32 = 5
)

// varint reads one; n is its length, 0 if p ends within it, negative if it
// does not fit 64 bits. Nearly all have one or two bytes.
func varint(p []byte) (v int64, n int) {
	if len(p) > 0 && p[0] < 0x80 {
		return int64(p[0]>>1) ^ -int64(p[0]&1), 1
	}
	if len(p) > 1 && p[1] < 0x80 {
		u := uint64(p[0]&0x7f) | uint64(p[1])<<7
		return int64(u>>1) ^ -int64(u&1), 2
	}
	var u uint64
	for i, c := range p {
		if i == maxVarint-1 && c > 1 {
			return 0, -1
		}
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), i + 1
		}
	}
	return 0, 0
}

// varint32 is varint for fields of 32 bits, which are all but the timestamp
// delta.
func varint32(p []byte) (v int64, n int) {
	v, n = varint(p)
	if n > maxVarint32 || v != int64(int32(v)) {
		return 0, -1
	}
	return v, n
}

// zigzag folds the sign into the lowest bit.
func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

// varintSize is the length of v as a varint.
func varintSize(v int64) int { return uvarintSize(zigzag(v)) }

func uvarintSize(u uint64) int { return (bits.Len64(u|1) + 6) / 7 }

// appendVarint appends v.
func appendVarint(dst []byte, v int64) []byte {
	u := zigzag(v)
	for u >= 0x80 {
		dst = append(dst, byte(u)|0x80)
		u >>= 7
	}
	return append(dst, byte(u))
}

// putUvarint writes u at p[i] and returns the index after it.
func putUvarint(p []byte, i int, u uint64) int {
	for u >= 0x80 {
		p[i] = byte(u) | 0x80
		u >>= 7
		i++
	}
	p[i] = byte(u)
	return i + 1
}
