package record

import (
	"encoding/binary"
	"io"
)

// Snappy comes in two forms, told apart by the first eight bytes: a raw
// block, as librdkafka and franz-go write it, and the xerial framing of the
// Java client, Sarama and others:
//
//	82 "SNAPPY" 00 | version int32 | compatible int32 | { length int32 | block } …
//
// Big endian. No raw block begins like the header: the first element would
// be a copy, and from nothing. Source: snappy-java's SnappyOutputStream.
const (
	xerialMagic      = "\x82SNAPPY\x00"
	xerialHeaderSize = len(xerialMagic) + 8
	xerialVersion    = 1
)

const (
	// snappyWindow is how far back a copy may reach in a block larger than
	// twice that. Encoders stay within 64 KiB or a block's size.
	snappyWindow = 8 << 20
	// snappyKeep is the largest buffer that waits in a pool.
	snappyKeep = 1 << 20
	// longestCopy is the largest length of a copy element.
	longestCopy = 64
)

// snappyReader decodes both forms as a stream. It is strict: the S2 extension
// of copies with offset 0, which other decoders refuse, is an error.
type snappyReader struct {
	rest    []byte // xerial: the chunks after the current one
	limit   int64  // how much all blocks may still claim
	block   []byte // elements of the current block, not decoded yet
	left    int    // bytes that the block still owes
	literal int    // bytes of a literal at the head of block, begun already

	window []byte // decoded bytes, window[:w]; of them window[:r] were read
	r, w   int
}

// reset starts on a payload whose blocks may claim limit bytes.
func (s *snappyReader) reset(p []byte, limit int64) error {
	s.limit = limit
	s.rest, s.block, s.left, s.literal, s.r, s.w = nil, nil, 0, 0, 0, 0
	if len(p) < len(xerialMagic) || string(p[:len(xerialMagic)]) != xerialMagic {
		return s.open(p)
	}
	if len(p) < xerialHeaderSize {
		return fault(ErrInvalid, "snappy: the framing header is cut")
	}
	if v := int32(binary.BigEndian.Uint32(p[len(xerialMagic):])); v < xerialVersion {
		return fault(ErrInvalid, "snappy: framing version %d", v)
	}
	s.rest = p[xerialHeaderSize:]
	return nil
}

// drop forgets the payload, and a window too large to keep.
func (s *snappyReader) drop() {
	s.rest, s.block = nil, nil
	if cap(s.window) > snappyKeep {
		s.window = nil
	}
}

// Read implements io.Reader.
func (s *snappyReader) Read(p []byte) (int, error) {
	for s.r == s.w {
		if s.left > 0 {
			if err := s.decode(); err != nil {
				return 0, err
			}
			continue
		}
		if len(s.block) > 0 {
			return 0, fault(ErrInvalid, "snappy: %d bytes after the block's end", len(s.block))
		}
		if len(s.rest) == 0 {
			return 0, io.EOF
		}
		if err := s.nextChunk(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.window[s.r:s.w])
	s.r += n
	return n, nil
}

func (s *snappyReader) nextChunk() error {
	if len(s.rest) < 4 {
		return fault(ErrInvalid, "snappy: a chunk's length is cut")
	}
	size := int64(binary.BigEndian.Uint32(s.rest))
	s.rest = s.rest[4:]
	if size > int64(len(s.rest)) {
		return fault(ErrInvalid, "snappy: a chunk of %d bytes, %d left", size, len(s.rest))
	}
	block := s.rest[:size]
	s.rest = s.rest[size:]
	return s.open(block)
}

// open starts on a block. Nothing is allocated on the word of a block that
// cannot hold what it claims.
func (s *snappyReader) open(block []byte) error {
	claimed, n := binary.Uvarint(block)
	if n <= 0 || claimed > 1<<32-1 {
		return fault(ErrInvalid, "snappy: no block length")
	}
	if int64(claimed) > s.limit {
		return fault(ErrTooLarge, "snappy blocks claim %d bytes more than allowed", int64(claimed)-s.limit)
	}
	s.limit -= int64(claimed)
	s.block = block[n:]
	// The densest element is a copy of 64 bytes in 3.
	if most := (uint64(len(s.block))/3 + 1) * longestCopy; claimed > most {
		return fault(ErrInvalid, "snappy: %d bytes claim to expand to %d", len(s.block), claimed)
	}
	s.left = int(claimed)
	s.r, s.w = 0, 0
	if need := min(s.left, 2*snappyWindow); cap(s.window) < need {
		s.window = make([]byte, need)
	} else {
		s.window = s.window[:need]
	}
	return nil
}

// decode writes elements to the window until it is full or the block ends;
// all of the window has been read.
func (s *snappyReader) decode() error {
	if len(s.window)-s.w < min(s.left, longestCopy) {
		s.w = copy(s.window, s.window[s.w-snappyWindow:s.w])
		s.r = s.w
	}
	for s.left > 0 {
		if s.literal > 0 {
			if s.copyLiteral(); s.literal > 0 {
				return nil // The window is full.
			}
			continue
		}
		if len(s.block) == 0 {
			return fault(ErrInvalid, "snappy: the block ends %d bytes early", s.left)
		}
		if s.block[0]&3 == 0 {
			if err := s.openLiteral(); err != nil {
				return err
			}
			continue
		}
		length, offset, n := snappyCopy(s.block)
		switch {
		case n == 0:
			return fault(ErrInvalid, "snappy: a copy is cut")
		case offset == 0 || offset > s.w:
			return fault(ErrInvalid, "snappy: a copy from %d back with %d bytes there", offset, s.w)
		case length > s.left:
			return fault(ErrInvalid, "snappy: the block is longer than it claims")
		case length > len(s.window)-s.w:
			return nil
		}
		s.block = s.block[n:]
		s.left -= length
		// A copy may overlap itself: each round copies what is there so far.
		from, end := s.w-offset, s.w+length
		for s.w < end {
			s.w += copy(s.window[s.w:end], s.window[from:s.w])
		}
	}
	return nil
}

// openLiteral reads a literal's tag.
func (s *snappyReader) openLiteral() error {
	const inTag = 60 // Lengths less one up to here are in the tag itself.
	size, n := int(s.block[0]>>2), 1
	if size >= inTag {
		n += size - inTag + 1
		if len(s.block) < n {
			return fault(ErrInvalid, "snappy: a literal's length is cut")
		}
		size = 0
		for i := n - 1; i > 0; i-- {
			size = size<<8 | int(s.block[i])
		}
	}
	size++
	s.block = s.block[n:]
	if size > len(s.block) {
		return fault(ErrInvalid, "snappy: a literal of %d bytes, %d left", size, len(s.block))
	}
	if size > s.left {
		return fault(ErrInvalid, "snappy: the block is longer than it claims")
	}
	s.literal = size
	return nil
}

func (s *snappyReader) copyLiteral() {
	n := copy(s.window[s.w:], s.block[:s.literal])
	s.w += n
	s.block = s.block[n:]
	s.literal -= n
	s.left -= n
}

// snappyCopy reads a copy's tag of n bytes; n is 0 if it is cut.
func snappyCopy(p []byte) (length, offset, n int) {
	tag := p[0]
	switch tag & 3 {
	case 1:
		if len(p) >= 2 {
			return 4 + int(tag>>2&7), int(tag&0xe0)<<3 | int(p[1]), 2
		}
	case 2:
		if len(p) >= 3 {
			return 1 + int(tag>>2), int(binary.LittleEndian.Uint16(p[1:])), 3
		}
	case 3:
		if len(p) >= 5 {
			return 1 + int(tag>>2), int(binary.LittleEndian.Uint32(p[1:])), 5
		}
	}
	return 0, 0, 0
}
