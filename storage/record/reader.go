package record

import (
	"io"
	"sync"
)

// Record is one record with its offset and timestamp (Unix milliseconds). A
// nil Key, Value or header Value is null; empty is not nil.
type Record struct {
	Offset, Timestamp int64
	Key, Value        []byte
	Headers           []Header
}

// Reader walks the records of one batch. It may be used again after Reset or
// Close; the zero Reader is at the end of nothing. It is not safe for
// concurrent use.
type Reader struct {
	// Grow, if there is one, is asked before the buffer that a batch is
	// expanded into becomes size bytes; its error is that of Reset. The first
	// 64 KiB are not asked for.
	Grow    func(size int64) error
	places  places
	p       []byte // records not read yet
	index   int
	buf     *[]byte  // holds the records if they came compressed
	headers []Header // all of the batch's headers so far
	f       fields
	err     error // sticky
}

const (
	// readerBuffer is what a Reader begins to expand into.
	readerBuffer = 64 << 10
	// readerKeep is the largest buffer that waits in the pool.
	readerKeep = 1 << 20
)

var readerBuffers = sync.Pool{New: func() any {
	p := make([]byte, 0, readerBuffer)
	return &p
}}

// Reset starts on b, which must be whole. A compressed batch is expanded to
// at most maxExpanded bytes (zero is DefaultMaxExpanded), else ErrTooLarge.
// The checksum is not looked at. Until the next Reset or Close, b must not
// change and what Next returned stays valid.
func (r *Reader) Reset(b Batch, maxExpanded int64) error {
	r.forget()
	r.err = r.open(b, maxExpanded)
	return r.err
}

func (r *Reader) open(b Batch, maxExpanded int64) error {
	if err := b.checkStored(); err != nil {
		return err
	}
	r.places = places{batch: b, last: -1}
	r.index, r.p = 0, b.Payload()
	if b.Codec() == None {
		return nil
	}
	x, err := expand(b, maxExpanded)
	if err != nil {
		return err
	}
	defer x.release()
	if r.buf == nil {
		r.buf = readerBuffers.Get().(*[]byte)
	}
	p := (*r.buf)[:0]
	for !x.done {
		if len(p) == cap(p) {
			if p, err = r.grow(p); err != nil {
				return err
			}
		}
		n, err := x.read(p[len(p):cap(p)])
		if err != nil {
			return err
		}
		p = p[:len(p)+n]
	}
	*r.buf, r.p = p, p
	return nil
}

// grow makes room behind p: small buffers double, large ones grow by a quarter.
func (r *Reader) grow(p []byte) ([]byte, error) {
	size := 2 * cap(p)
	if size > 2<<20 {
		size = cap(p) + cap(p)/4
	}
	if r.Grow != nil {
		if err := r.Grow(int64(size)); err != nil {
			return nil, err
		}
	}
	return append(make([]byte, 0, size), p...), nil
}

// Next reads the next record into rec, whose slices alias the batch or the
// Reader's own buffers. After the last record it returns io.EOF; an error
// stays. In a batch with log append time every record has the batch's time.
func (r *Reader) Next(rec *Record) error {
	if r.err != nil {
		return r.err
	}
	if r.index >= r.count() {
		r.err = io.EOF
		if len(r.p) > 0 {
			r.err = fault(ErrInvalid, "%d bytes after the last record", len(r.p))
		}
		return r.err
	}
	if err := r.next(rec); err != nil {
		r.err = err.at(r.index)
		return r.err
	}
	r.index++
	return nil
}

// count is the number of records; of a zero Reader, none.
func (r *Reader) count() int {
	if r.places.batch == nil {
		return 0
	}
	return int(r.places.batch.Count())
}

func (r *Reader) next(rec *Record) *Error {
	size, n := varint32(r.p)
	if n <= 0 {
		return badVarint("record length", n, 32)
	}
	p := r.p[n:]
	if size < 0 || size > int64(len(p)) {
		return fault(ErrInvalid, "record length %d, %d bytes left in the batch", size, len(p))
	}
	if err := r.f.parse(p[:size]); err != nil {
		return err
	}
	offset, ts, err := r.places.next(r.f.offsetDelta, r.f.timestampDelta)
	if err != nil {
		return err
	}
	headers, err := r.readHeaders()
	if err != nil {
		return err
	}
	*rec = Record{
		Offset: offset, Timestamp: ts,
		Key: r.f.key, Value: r.f.value, Headers: headers,
	}
	r.p = p[size:]
	return nil
}

// readHeaders takes the headers of r.f apart; nil if there are none.
func (r *Reader) readHeaders() ([]Header, *Error) {
	if r.f.headerCount == 0 {
		return nil, nil
	}
	from := len(r.headers)
	p := r.f.headers
	for i := range r.f.headerCount {
		key, value, rest, err := nextHeader(p, i)
		if err != nil {
			return nil, err
		}
		p = rest
		r.headers = append(r.headers, Header{Key: r.headerKey(key), Value: value})
	}
	if len(p) > 0 {
		return nil, trailing(len(p))
	}
	return r.headers[from:len(r.headers):len(r.headers)], nil
}

// headerKey makes a string of p, or takes the one that the record before has
// at the same place: header keys hardly ever differ within a batch.
func (r *Reader) headerKey(p []byte) string {
	if i := len(r.headers) - r.f.headerCount; i >= 0 && r.headers[i].Key == string(p) {
		return r.headers[i].Key
	}
	return string(p)
}

// Close gives the Reader's buffers back; what Next returned is no longer
// valid.
func (r *Reader) Close() {
	r.forget()
	r.err = io.EOF
	if r.buf == nil {
		return
	}
	if cap(*r.buf) <= readerKeep {
		readerBuffers.Put(r.buf)
	}
	r.buf = nil
}

// forget drops the batch.
func (r *Reader) forget() {
	clear(r.headers)
	r.places, r.p, r.headers = places{}, nil, r.headers[:0]
}
