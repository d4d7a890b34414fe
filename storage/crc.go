package storage

import (
	"hash/crc32"

	"leat/storage/record"
)

const (
	// crcCovers is where the bytes begin that a batch's own checksum covers.
	crcCovers = 21
	// combineAbove is the batch size in bytes from which joining two
	// checksums is cheaper than reading the bytes once more.
	combineAbove = 8 << 10
)

// extendCRC continues crc, the checksum of a file so far, over a batch whose
// own checksum is known to be right. The bytes of a large batch are not read
// again: the two checksums are joined.
func extendCRC(crc uint32, b record.Batch) uint32 {
	if len(b) < combineAbove {
		return crc32.Update(crc, castagnoli, b)
	}
	return joinCRC(crc32.Update(crc, castagnoli, b[:crcCovers]), b.CRC(), len(b)-crcCovers)
}

// joinCRC is the checksum of two byte strings one after the other, from the
// checksum of each and the length of the second, below 4 GiB. Appending n bytes
// multiplies the first checksum by x^8n modulo the polynomial.
func joinCRC(first, second uint32, n int) uint32 {
	for i := 0; n > 0; i, n = i+1, n>>8 {
		if digit := n & 0xff; digit != 0 {
			first = multiply(shifts[i][digit], first)
		}
	}
	return first ^ second
}

// shifts[i][d] is x^8n modulo the polynomial for n = d·256^i: with one for each
// byte of a length, joining costs a multiplication for each that is not zero.
var shifts = func() (all [4][0x100]uint32) {
	for i := range all {
		all[i][0] = one
		for d := 1; d < len(all[i]); d++ {
			all[i][d] = multiply(all[i][d-1], powers[8*i+3])
		}
	}
	return all
}()

// one is x^0 in the reflected representation, where the highest bit has the
// lowest power.
const one = 1 << 31

// powers[k] is x^(2^k) modulo the polynomial.
var powers = func() (p [32]uint32) {
	p[0] = one >> 1
	for k := 1; k < len(p); k++ {
		p[k] = multiply(p[k-1], p[k-1])
	}
	return p
}()

// multiply is the product of two polynomials modulo Castagnoli's. Masks stand
// where branches would be, because the bits of a checksum are random.
func multiply(a, b uint32) uint32 {
	var product uint32
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
	return product
}
