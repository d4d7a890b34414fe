package rest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"leat/broker"
	"leat/storage/record"
)

// planWindow is how much of a section is read at a time, at least. A section
// that fits is read once for both walks over it.
const planWindow = 1 << 20

// batchWalk reads a section batch by batch through one buffer.
type batchWalk struct {
	sec record.Section
	// buf holds the section's bytes [from, from+len(buf)).
	buf  []byte
	from int64
	pos  int64
}

var windowPool = sync.Pool{New: func() any {
	p := make([]byte, 0, 64<<10)
	return &p
}}

func newWalk(sec record.Section) *batchWalk {
	return &batchWalk{sec: sec, buf: *windowPool.Get().(*[]byte)}
}

func (bw *batchWalk) release() {
	if cap(bw.buf) <= planWindow {
		p := bw.buf[:0]
		windowPool.Put(&p)
	}
	bw.buf = nil
}

func (bw *batchWalk) rewind() { bw.pos = 0 }

// next is the next batch, good until the next call; io.EOF after the last.
func (bw *batchWalk) next() (record.Batch, error) {
	left := bw.sec.Len() - bw.pos
	if left == 0 {
		return nil, io.EOF
	}
	head, err := bw.view(min(left, record.HeaderSize))
	if err != nil {
		return nil, err
	}
	size := int64(-1)
	if len(head) == record.HeaderSize {
		size = int64(record.Batch(head).Size())
	}
	if size < record.HeaderSize || size > left {
		return nil, fmt.Errorf("%w: batch length %d with %d bytes left in the section", record.ErrCorrupt, size, left)
	}
	whole, err := bw.view(size)
	if err != nil {
		return nil, err
	}
	bw.pos += size
	return record.Batch(whole), nil
}

// view is the next n bytes, which are there.
func (bw *batchWalk) view(n int64) ([]byte, error) {
	if bw.pos < bw.from || bw.pos+n > bw.from+int64(len(bw.buf)) {
		window := min(max(n, planWindow), bw.sec.Len()-bw.pos)
		err := bw.load(window)
		if err != nil && n < window {
			// What cannot be read may stand behind what is wanted.
			err = bw.load(n)
		}
		if err != nil {
			return nil, err
		}
	}
	at := bw.pos - bw.from
	return bw.buf[at : at+n : at+n], nil
}

func (bw *batchWalk) load(n int64) error {
	if int64(cap(bw.buf)) < n {
		bw.buf = make([]byte, 0, n)
	}
	bw.buf, bw.from = bw.buf[:n], bw.pos
	got, err := bw.sec.ReadAt(bw.buf, bw.pos)
	if int64(got) < n {
		bw.buf = bw.buf[:0]
		return fmt.Errorf("read %d bytes of a section: %w", n, err)
	}
	return nil
}

// plan is which records of a section an answer has: those in [from, end).
type plan struct {
	from, end int64
	records   int64
}

// limits bound an answer. At least one record is taken all the same.
type limits struct {
	records int64
	bytes   int64
}

// planner finds out where an answer ends, before its first byte is written,
// so that Next-Offset can stand in the header.
type planner struct {
	plan
	left   limits
	reader record.Reader
}

// planSection plans the answer to a fetch from the offset from. It ends before
// a batch that is damaged or cannot be read, and fails if that is the first
// that has records to give.
func planSection(bw *batchWalk, from int64, most limits) (plan, error) {
	pl := &planner{plan: plan{from: from, end: from}, left: most}
	defer pl.reader.Close()
	for {
		good := pl.plan
		more, err := pl.step(bw)
		switch {
		case err != nil && good.records == 0:
			return good, damagedAt(good.end, err)
		case err != nil:
			// The next fetch begins here and tells of it.
			return good, nil
		case !more:
			return pl.plan, nil
		}
	}
}

// damageError is a stored batch that cannot be given out. It is also the kind
// broker.ErrDamaged.
type damageError struct {
	offset int64
	err    error
}

func (e *damageError) Error() string {
	return fmt.Sprintf("%v: batch with offset %d: %v", broker.ErrDamaged, e.offset, e.err)
}

func (e *damageError) Unwrap() []error { return []error{broker.ErrDamaged, e.err} }

// damagedAt says that the batch with the offset is damaged, unless err is of
// the file system and says nothing of the batch.
func damagedAt(offset int64, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return err
	}
	return &damageError{offset: offset, err: err}
}

// step adds the next batch and reports whether to go on behind it.
func (pl *planner) step(bw *batchWalk) (bool, error) {
	b, err := bw.next()
	if err == io.EOF { //nolint:errorlint // next's own signal is never wrapped
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// A Kafka client checks the sum itself; the reader of JSON cannot.
	if err := b.VerifyCRC(); err != nil {
		return false, err
	}
	return pl.take(b)
}

// take adds the batch and reports whether all of it was taken.
func (pl *planner) take(b record.Batch) (whole bool, err error) {
	count := int64(b.Count())
	switch {
	case pl.records > 0 && pl.left.records < 1:
		return false, nil
	case b.Control() || b.NextOffset() <= pl.from:
		pl.end = max(pl.end, b.NextOffset())
		return true, nil
	case b.Codec() == record.None && b.BaseOffset() >= pl.from && count <= pl.left.records && int64(b.Size()) <= pl.left.bytes:
		// All of it fits, whatever is in it.
		pl.left.records -= count
		pl.left.bytes -= int64(b.Size())
		pl.records += count
		pl.end = b.NextOffset()
		return true, nil
	}
	if err := pl.reader.Reset(b, maxExpanded); err != nil {
		return false, err
	}
	var rec record.Record
	for {
		switch err := pl.reader.Next(&rec); {
		case err == io.EOF: //nolint:errorlint // Next's own signal is never wrapped
			pl.end = b.NextOffset()
			return true, nil
		case err != nil:
			return false, err
		case rec.Offset < pl.from:
			continue
		}
		size := recordBytes(&rec)
		if pl.records > 0 && (pl.left.records < 1 || pl.left.bytes < size) {
			return false, nil
		}
		pl.left.records--
		pl.left.bytes -= size
		pl.records++
		pl.end = rec.Offset + 1
	}
}

// maxExpanded is how far a stored batch may expand to be shown as records. It
// is above what a topic lets in by default, because a topic may be configured
// to let in more.
const maxExpanded = 256 << 20

// recordBytes is the size of a record as max_bytes counts it.
func recordBytes(rec *record.Record) int64 {
	n := len(rec.Key) + len(rec.Value)
	for i := range rec.Headers {
		n += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return int64(n)
}
