package storage

import (
	"errors"
	"io"
	"sync"

	"leat/storage/record"
)

// walkChunk is how many bytes a walk over batch headers reads at a time: a
// little more than the index interval of most logs.
const walkChunk = 8 << 10

var walkBuffers = sync.Pool{New: func() any { b := make([]byte, walkChunk); return &b }}

// walk goes from batch header to batch header in a part of a .log that is
// known to hold whole batches. It verifies the chain of offsets, not the
// checksums. Close gives its buffer back.
type walk struct {
	f     io.ReaderAt
	seg   *segment
	pos   int64 // of the next header
	next  int64 // its offset; -1 if any will do
	limit int64 // nothing at or behind it is read
	gaps  []gap // that are jumped over, those from pos on

	chunk  *[]byte
	loaded []byte // what the chunk holds
	from   int64  // position of loaded[0]
}

// newWalk begins at byte pos of the .log of s, where the batch with offset next
// is.
func newWalk(f io.ReaderAt, s *segment, pos, next, limit int64) *walk {
	return &walk{f: f, seg: s, pos: pos, next: next, limit: limit, chunk: walkBuffers.Get().(*[]byte)}
}

// header returns the next batch's header, valid until the next call, and
// moves behind the batch. io.EOF at the limit; damage is a *CorruptError.
func (w *walk) header() (record.Batch, error) {
	for ; len(w.gaps) > 0 && w.pos >= w.gaps[0].from.pos; w.gaps = w.gaps[1:] {
		if to := w.gaps[0].to; to.pos >= w.pos {
			w.pos, w.next = to.pos, to.offset
		}
	}
	if w.pos >= w.limit {
		return nil, io.EOF
	}
	if w.limit-w.pos < record.HeaderSize {
		return nil, w.damaged(errTorn)
	}
	off := w.pos - w.from
	if w.loaded == nil || off < 0 || off+record.HeaderSize > int64(len(w.loaded)) {
		p := (*w.chunk)[:min(walkChunk, w.limit-w.pos)]
		// The file may have been cut further on.
		n, err := w.f.ReadAt(p, w.pos)
		if n < record.HeaderSize {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, readFailed(w.seg, w.pos, err)
		}
		w.loaded, w.from, off = p[:n], w.pos, 0
	}
	h := record.Batch(w.loaded[off : off+record.HeaderSize])
	next := w.next
	if next < 0 {
		next = h.BaseOffset()
	}
	if err := checkStoredHeader(h, w.seg, w.limit-w.pos, next); err != nil {
		return nil, w.damaged(err)
	}
	w.pos += int64(h.Size())
	w.next = h.NextOffset()
	return h, nil
}

// batch reads the whole batch whose header was returned last, verifying its
// checksum.
func (w *walk) batch(h record.Batch) (record.Batch, error) {
	b := make(record.Batch, h.Size())
	pos := w.pos - int64(len(b))
	if err := readFull(w.f, b, pos); err != nil {
		return nil, readFailed(w.seg, w.pos, err)
	}
	if err := b.VerifyCRC(); err != nil {
		return nil, &CorruptError{Path: w.seg.logPath(), Pos: pos, Err: err}
	}
	return b, nil
}

func (w *walk) damaged(err error) error {
	return &CorruptError{Path: w.seg.logPath(), Pos: w.pos, Err: err}
}

func (w *walk) close() {
	walkBuffers.Put(w.chunk)
	w.chunk, w.loaded = nil, nil
}
