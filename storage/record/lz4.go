package record

import "encoding/binary"

// checkLZ4 sees to it that the payload is one LZ4 frame and nothing else: the
// decoder would also take several frames, skippable and legacy ones, of which
// Java's consumers read the first or none.
//
//	magic u32 | FLG | BD | [content size u64] | [dictionary u32] | HC |
//	{ size u32 (high bit: stored) | bytes | [checksum u32] } … | 0 u32 |
//	[content checksum u32]
//
// Little endian; the decoder itself verifies checksums and sizes.
// Source: lz4_Frame_format.md 1.6.
func checkLZ4(p []byte) error {
	const (
		magic           = 0x184D2204
		blockChecksum   = 1 << 4
		contentSize     = 1 << 3
		contentChecksum = 1 << 2
		dictionary      = 1 << 0
		stored          = 1 << 31
	)
	if len(p) < 7 || binary.LittleEndian.Uint32(p) != magic {
		return fault(ErrInvalid, "lz4: no LZ4 frame")
	}
	flags := p[4]
	n := 7
	if flags&contentSize != 0 {
		n += 8
	}
	if flags&dictionary != 0 {
		n += 4
	}
	for {
		if len(p)-n < 4 {
			return fault(ErrInvalid, "lz4: the frame is cut")
		}
		size := int(binary.LittleEndian.Uint32(p[n:]) &^ stored)
		n += 4
		if size == 0 {
			break
		}
		if flags&blockChecksum != 0 {
			size += 4
		}
		if size > len(p)-n {
			return fault(ErrInvalid, "lz4: a block of %d bytes, %d left", size, len(p)-n)
		}
		n += size
	}
	if flags&contentChecksum != 0 {
		n += 4
	}
	if n != len(p) {
		return fault(ErrInvalid, "lz4: the frame has %d bytes, the payload %d", n, len(p))
	}
	return nil
}
