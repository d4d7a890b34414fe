package storage

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"leat/storage/record"
)

// scanChunk is how many bytes of a .log are read at a time; a larger batch
// gets a buffer of its own. The first read is of scanFirst, because most logs
// end where the scan begins.
const (
	scanChunk = 1 << 20
	scanFirst = 4 << 10
)

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, scanChunk); return &b }}

// errTorn is the reason for the end of a scan where the file has fewer bytes
// than a batch needs.
var errTorn = errors.New("the file ends within a batch")

// scanned says where a scan ended.
type scanned struct {
	pos  int64 // behind the last valid batch
	next int64 // offset after it
	why  error // nil at the end of the file: why the bytes at pos are no batch
}

func (s *scanned) point() point { return point{offset: s.next, pos: s.pos} }

// scan reads the .log f of size bytes from byte pos, where the batch with
// offset next is expected, for as long as the batches are valid, and passes
// each to use. It ends at offset until (-1 for none), where the next segment
// begins: what an append that failed may have left behind that is no part of
// the log. f is the .log of s. The error is of reading.
func scan(f io.ReaderAt, s *segment, size, pos, next, until int64, use func(record.Batch)) (scanned, error) {
	chunk := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(chunk)
	at := scanned{pos: pos, next: next}
	buf, want := *chunk, scanFirst
	for ; at.pos < size && at.next != until; want = min(16*want, len(buf)) {
		n := min(int64(want), size-at.pos)
		if err := readFull(f, buf[:n], at.pos); err != nil {
			return at, err
		}
		rest := buf[:n]
		for len(rest) > 0 && at.next != until {
			need, err := checkStored(rest, s, size-at.pos, at.next)
			if err != nil {
				at.why = err
				return at, nil
			}
			if need > len(rest) {
				if need > len(buf) {
					buf = make([]byte, need)
				}
				want = max(want, need)
				break // read again from at.pos
			}
			b := record.Batch(rest[:need:need])
			use(b)
			at.pos += int64(need)
			at.next = b.NextOffset()
			rest = rest[need:]
		}
	}
	return at, nil
}

// checkStored applies the rule for a batch that is stored in s and expected to
// have offset next. p is the beginning of the left bytes that the file has from
// here on. It returns how many bytes are needed to judge the batch: if that is
// more than len(p), the rest was not checked yet; otherwise it is the size of
// a valid batch.
func checkStored(p []byte, s *segment, left, next int64) (need int, err error) {
	if left < record.HeaderSize {
		return 0, errTorn
	}
	if len(p) < record.HeaderSize {
		return record.HeaderSize, nil
	}
	h := record.Batch(p)
	if err := checkStoredHeader(h, s, left, next); err != nil {
		return 0, err
	}
	if h.Size() > len(p) {
		return h.Size(), nil
	}
	return h.Size(), record.Batch(p[:h.Size()]).VerifyCRC()
}

// checkStoredHeader is the part of the rule that needs the header only. The
// offsets are a chain without gaps in every segment, but in one that was
// rewritten a batch may have lost some or all of its records.
func checkStoredHeader(h record.Batch, s *segment, left, next int64) error {
	size := int64(h.Size())
	switch {
	case h.Magic() != 2:
		return fmt.Errorf("magic is %d, not 2", h.Magic())
	case size < record.HeaderSize || size > record.MaxBatchSize:
		return fmt.Errorf("batch length %d is impossible", size)
	case size > left:
		return errTorn
	case h.BaseOffset() != next:
		return fmt.Errorf("base offset is %d, not %d", h.BaseOffset(), next)
	case h.LastOffsetDelta() < 0 || h.LastOffset()-s.base > maxOffsetDelta:
		return fmt.Errorf("last offset delta %d is impossible", h.LastOffsetDelta())
	case h.Count() < 0, int64(h.Count()) > int64(h.LastOffsetDelta())+1, s.gen == 0 && h.Count() <= h.LastOffsetDelta():
		return fmt.Errorf("%d records for %d offsets", h.Count(), int64(h.LastOffsetDelta())+1)
	}
	return nil
}

// zeroReader is a file that knows where it holds nothing.
type zeroReader interface {
	io.ReaderAt
	NextData(off int64) (int64, error)
}

// allZero says whether [pos, size) of f holds nothing but zeros. What the file
// system knows to be zeros, such as what was preallocated, is not read.
func allZero(f zeroReader, pos, size int64) (bool, error) {
	chunk := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(chunk)
	for want := scanFirst; pos < size; want = min(16*want, scanChunk) {
		next, err := f.NextData(pos)
		if errors.Is(err, io.EOF) || err == nil && next >= size {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		p := (*chunk)[:min(int64(want), size-next)]
		if err := readFull(f, p, next); err != nil {
			return false, err
		}
		if !isZero(p) {
			return false, nil
		}
		pos = next + int64(len(p))
	}
	return true, nil
}

// readFull fills p from pos; a file that is too short is io.ErrUnexpectedEOF.
func readFull(f io.ReaderAt, p []byte, pos int64) error {
	n, err := f.ReadAt(p, pos)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readFailed is the error of a read of s's .log at pos, which must have had all of
// it: it tells a file that is shorter than it must be from an error of the disk.
func readFailed(s *segment, pos int64, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &CorruptError{Path: s.logPath(), Pos: pos, Err: errTorn}
	}
	return fmt.Errorf("read %s at byte %d: %w", s.logPath(), pos, err)
}

func isZero(p []byte) bool {
	for len(p) >= 8 {
		if le.Uint64(p) != 0 {
			return false
		}
		p = p[8:]
	}
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}
