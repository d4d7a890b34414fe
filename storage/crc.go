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
// checksum of each and the length of the second. Appending n bytes multiplies
// the first checksum by x^8n modulo the polynomial.
func joinCRC(first, second uint32, n int) uint32 {
	product := uint32(one)
	for k := 3; n > 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			product = multiply(powers[k&31], product)
		}
	}
	return multiply(product, first) ^ second
}

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
