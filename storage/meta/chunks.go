package meta

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"slices"

	"leat/storage/disk"
)

// The WAL and the manifest are Pebble's record files: blocks of 32 KiB with
// chunks, each of which has a checksum:
//
//	checksum u32 · length u16 · type u8 · [log number u32 · [sync offset u64]] · payload
//
// The types 1–4 have no log number, 5–8 no sync offset, 9–12 both; the checksum
// covers what follows the length. Behind the last chunk are zeros, a chunk with
// the next log number, or what is left of an earlier life of the file.
//
// Pebble takes a chunk that does not hold for the torn end of the file where
// nothing behind it says that more was synced. A check must be stricter: a
// changed bit in the last chunk looks like that, too, but only there does one
// bit make the chunk whole.
const (
	chunkBlock  = 32 << 10
	chunkHeader = 7
	chunkTypes  = 12
	// maxChunkHeader is that of the types 9–12. Less room at the end of a block
	// is zeros.
	maxChunkHeader = chunkHeader + 4 + 8
	// chunkCovered is where the bytes begin that the checksum covers.
	chunkCovered = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkCRC is the checksum that a chunk has in its first four bytes, without
// what Pebble does to it.
func chunkCRC(p []byte) uint32 {
	return bits.RotateLeft32(binary.LittleEndian.Uint32(p)-0xa282ead8, 15)
}

// chunk is what begins at some byte of a block.
type chunk struct {
	size   int    // with its header; 0 if that cannot be
	number uint32 // of the log; only if numbered
	synced uint64 // up to which byte the file was durable; 0 if it does not say
	// numbered says that the chunk has a log number.
	numbered, holds bool
}

// parseChunk reads the chunk at the beginning of p, the rest of a block.
func parseChunk(p []byte) (c chunk) {
	kind := p[6]
	if kind == 0 || kind > chunkTypes {
		return c
	}
	header := chunkHeader
	if kind > 4 {
		c.numbered = true
		header += 4
	}
	if kind > 8 {
		header += 8
	}
	size := header + int(binary.LittleEndian.Uint16(p[4:]))
	if size > len(p) {
		return c
	}
	c.size = size
	if c.numbered {
		c.number = binary.LittleEndian.Uint32(p[chunkHeader:])
	}
	if kind > 8 {
		c.synced = binary.LittleEndian.Uint64(p[chunkHeader+4:])
	}
	c.holds = crc32.Checksum(p[chunkCovered:size], castagnoli) == chunkCRC(p)
	return c
}

// ours says whether it is a chunk of the log with the number.
func (c chunk) ours(number uint32) bool { return c.holds && (!c.numbered || c.number == number) }

// trailer is what a log with the number ends with: a chunk of the next number
// that has no payload and no checksum.
func trailer(number uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, 5}, number+1)
}

// differ is how many bits of p, in the length of want, differ from it, and the
// byte of the first.
func differ(p, want []byte) (n, at int) {
	if len(p) < len(want) {
		return 8 * len(want), 0
	}
	for i, b := range want {
		if d := bits.OnesCount8(p[i] ^ b); d > 0 {
			if n == 0 {
				at = i
			}
			n += d
		}
	}
	return n, at
}

// mend looks for the one bit of p that makes it begin with a chunk of the log;
// at is its byte.
func mend(p []byte, number uint32) (c chunk, at int, ok bool) {
	p = slices.Clone(p)
	for bit := 8 * 4; bit < 8*chunkHeader; bit++ { // length and type
		p[bit/8] ^= 1 << (bit % 8)
		c, was := parseChunk(p), bit/8
		p[bit/8] ^= 1 << (bit % 8)
		if c.ours(number) {
			return c, was, true
		}
	}
	c = parseChunk(p)
	if c.size == 0 {
		return chunk{}, 0, false
	}
	for bit := range 8 * 4 { // the checksum
		p[bit/8] ^= 1 << (bit % 8)
		c := parseChunk(p)
		p[bit/8] ^= 1 << (bit % 8)
		if c.ours(number) {
			return c, bit / 8, true
		}
	}
	// A checksum is linear: a changed bit changes it by what depends only on
	// how many bytes are behind it.
	difference := crc32.Checksum(p[chunkCovered:c.size], castagnoli) ^ chunkCRC(p)
	var by [8]uint32
	for bit := range by {
		by[bit] = castagnoli[1<<bit]
	}
	for i := c.size - 1; i >= chunkCovered; i-- {
		for bit, d := range by {
			if d == difference {
				p[i] ^= 1 << bit
				c := parseChunk(p)
				return c, i, c.ours(number)
			}
			by[bit] = castagnoli[d&0xff] ^ d>>8
		}
	}
	return chunk{}, 0, false
}

var (
	errBit     = errors.New("a bit has changed")
	errChunk   = errors.New("a chunk does not hold, but one behind it does")
	errTail    = errors.New("the last chunk does not hold")
	errPadding = errors.New("bytes that must be zero are not")
)

// chunkCheck is the check of one record file.
type chunkCheck struct {
	path     string
	number   uint32 // of the log; a manifest's chunks have none
	manifest bool
	end      int64 // behind the trailer, -1 if there is none
	damages  []Damage
}

func (c *chunkCheck) found(pos int64, harmless bool, err error) {
	c.damages = append(c.damages, Damage{Path: c.path, Pos: pos, Err: err, Harmless: harmless})
}

// run reads a record file to its end. The error is of reading.
func (c *chunkCheck) run(ctx context.Context, fsys disk.FS) error {
	f, err := fsys.OpenFile(c.path, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	block := make([]byte, chunkBlock)
	torn := int64(-1) // where a chunk does not hold
	c.end = -1
	for at := int64(0); ; at += chunkBlock {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", c.path, err)
		}
		ended := c.block(block[:n], at, &torn)
		if ended || n < chunkBlock {
			break
		}
	}
	switch {
	case torn < 0:
		torn = c.end
	case c.manifest:
		c.found(torn, true, errTail)
		return nil
	}
	return c.rest(ctx, f, torn)
}

// rest looks at what is behind the end of a log, from byte at on. It is zeros
// unless the file had an earlier life; a single bit in them has changed.
func (c *chunkCheck) rest(ctx context.Context, f io.ReaderAt, at int64) error {
	block := make([]byte, chunkBlock)
	where, set := int64(-1), 0
	for at >= 0 && set < 2 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(block, at)
		for i, b := range block[:n] {
			if b != 0 {
				where, set = at+int64(i), set+bits.OnesCount8(b)
			}
		}
		if at += int64(n); errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", c.path, err)
		}
	}
	if set == 1 {
		c.found(where, true, errPadding)
	}
	return nil
}

// block looks at one block. torn is where a chunk has not held; from there on
// only a chunk that does is of interest. It reports whether the file has ended.
func (c *chunkCheck) block(p []byte, at int64, torn *int64) (ended bool) {
	for pos := 0; pos < len(p); {
		rest := p[pos:]
		if len(rest) < chunkHeader || allZero(rest[:chunkHeader]) {
			switch {
			case allZero(rest):
			case len(rest) < maxChunkHeader:
				c.found(at+int64(pos), true, errPadding)
			case *torn < 0:
				*torn = at + int64(pos)
			}
			return false
		}
		k := parseChunk(rest)
		wrong, where := differ(rest, trailer(c.number))
		switch {
		case wrong == 1 && !c.manifest:
			c.found(at+int64(pos+where), true, errBit)
			return true
		case wrong == 0 && !c.manifest:
			c.end = at + int64(pos+len(trailer(c.number)))
			return true
		case k.ours(c.number):
			if *torn >= 0 {
				// What was not synced yet may have become durable in any order.
				c.found(*torn, !c.manifest && k.synced <= uint64(*torn), errChunk)
				*torn = -1
			}
			pos += k.size
		case k.holds:
			return true // what was left of an earlier life
		case *torn >= 0:
			return false // of a block that cannot be read only its beginning is known
		default:
			m, bad, ok := mend(rest, c.number)
			if !ok {
				*torn = at + int64(pos)
				return false
			}
			c.found(at+int64(pos+bad), false, errBit)
			pos += m.size
		}
	}
	return false
}

func allZero(p []byte) bool {
	return !slices.ContainsFunc(p, func(b byte) bool { return b != 0 })
}
