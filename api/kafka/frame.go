package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
)

const (
	// readAhead is what a connection reads when it waits for a frame. Small
	// requests arrive in one read; of a large body little has to be copied.
	readAhead = 4 << 10
	// firstBody is the memory that an announced size gets before any of its
	// bytes have arrived, unless the connection has sent a larger frame.
	firstBody = 64 << 10
	// headSize is the part of a frame that names the API: size, key,
	// version, correlation id.
	headSize = 12
	// minFrame is the smallest size there is: the head and a client id.
	minFrame = headSize - 4 + 2
)

// refusal is why a connection is closed without an answer. The reason is a
// constant: it is a key of the log's rate limit and a label of the metrics.
type refusal struct {
	reason string
	detail string
	hint   string
}

func (r *refusal) Error() string {
	if r.detail == "" {
		return r.reason
	}
	return r.reason + ": " + r.detail
}

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, detail: fmt.Sprintf(format, args...)}
}

// The reasons of refusals.
const (
	reasonHTTP      = "http"
	reasonTLS       = "tls"
	reasonSize      = "size"
	reasonKey       = "unknown_api"
	reasonVersion   = "unsupported_version"
	reasonMalformed = "malformed"
	reasonLimit     = "too_many_connections"
)

// httpStarts are the first four bytes of HTTP requests, read as a size.
var httpStarts = [...]string{"GET ", "POST", "HEAD", "PUT ", "DELE", "OPTI", "PATC", "CONN", "TRAC", "PRI "}

// checkSize judges the first four bytes of a frame, before anything is
// allocated for them.
func checkSize(p []byte, maxBytes int) (int, error) {
	for _, start := range httpStarts {
		if string(p[:4]) == start {
			return 0, &refusal{reason: reasonHTTP, hint: "this is the Kafka port; HTTP is served on --http-addr"}
		}
	}
	if p[0] == 0x16 && p[1] == 0x03 {
		return 0, &refusal{reason: reasonTLS, hint: "this port speaks plain Kafka; set security.protocol=PLAINTEXT in the client"}
	}
	size := int32(binary.BigEndian.Uint32(p))
	if size < minFrame || int64(size) > int64(maxBytes) {
		return 0, refuse(reasonSize, "size %d, want %d to %d", size, minFrame, maxBytes)
	}
	return int(size), nil
}

// head is the fixed start of a request.
type head struct {
	size    int // of the frame without its size field
	key     int16
	version int16
	corr    int32
}

// frameReader cuts a connection's bytes into frames. The counters are read by
// the janitor and by the metrics.
type frameReader struct {
	nc       net.Conn
	scatter  *scatter // of nc; nil where that is not plain TCP
	maxBytes int
	budget   *budget
	ahead    [readAhead]byte
	r, w     int
	largest  int // the largest frame that arrived whole
	// buf has the body of the last frame, nil if that stayed in ahead. loan is what it counts in the budget.
	buf  *buffer
	loan loan

	got    atomic.Int64 // bytes read
	frames atomic.Int64 // frames read whole
	inside atomic.Bool  // a frame has begun and not ended
	within bool         // mirrors inside for the reader
}

func newFrameReader(nc net.Conn, maxBytes int, b *budget) *frameReader {
	return &frameReader{nc: nc, scatter: newScatter(nc), maxBytes: maxBytes, budget: b}
}

// head reads up to the correlation id of the next frame. io.EOF means that the
// client closed between two frames.
func (f *frameReader) head() (head, error) {
	if f.r == f.w {
		f.r, f.w = 0, 0
	}
	if err := f.fill(4); err != nil {
		return head{}, err
	}
	size, err := checkSize(f.ahead[f.r:f.w], f.maxBytes)
	if err != nil {
		return head{}, err
	}
	if err := f.fill(headSize); err != nil {
		return head{}, err
	}
	p := f.ahead[f.r:f.w]
	h := head{
		size:    size,
		key:     int16(binary.BigEndian.Uint16(p[4:])),
		version: int16(binary.BigEndian.Uint16(p[6:])),
		corr:    int32(binary.BigEndian.Uint32(p[8:])),
	}
	f.r += headSize
	return h, nil
}

// fill reads ahead until n bytes are there.
func (f *frameReader) fill(n int) error {
	if len(f.ahead)-f.r < n {
		f.w = copy(f.ahead[:], f.ahead[f.r:f.w])
		f.r = 0
	}
	for f.w-f.r < n {
		f.mark(f.w > f.r)
		k, err := f.read(f.ahead[f.w:])
		f.w += k
		if err != nil && f.w-f.r < n {
			if errors.Is(err, io.EOF) && f.w > f.r {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// mark says whether a frame has begun and not ended, before a read that may
// wait. A frame that comes in one read is never marked.
func (f *frameReader) mark(within bool) {
	if f.within != within {
		f.within = within
		f.inside.Store(within)
	}
}

// body reads what follows the head; it is the caller's until release. A body
// that came with its head stays where it is. The buffer of another grows as the
// bytes arrive, so an announcement alone costs at most firstBody, or what the
// connection's largest frame already cost.
func (f *frameReader) body(ctx context.Context, h head) ([]byte, error) {
	n := h.size - (headSize - 4)
	if f.w-f.r >= n {
		f.r += n
		f.mark(false)
		f.frames.Add(1)
		return f.ahead[f.r-n : f.r : f.r], nil
	}
	if err := f.grow(ctx, min(n, max(firstBody, f.largest))); err != nil {
		return nil, err
	}
	have := copy(f.buf.b[:min(n, cap(f.buf.b))], f.ahead[f.r:f.w])
	f.r += have
	for have < n {
		if have == cap(f.buf.b) {
			f.buf.b = f.buf.b[:have]
			if err := f.grow(ctx, min(n, 2*have)); err != nil {
				return nil, err
			}
		}
		f.mark(true)
		k, err := f.readRest(f.buf.b[have:min(n, cap(f.buf.b))], have, n)
		have += k
		if err != nil && have < n {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	f.largest = max(f.largest, n)
	f.mark(false)
	f.frames.Add(1)
	return f.buf.b[:n], nil
}

// grow makes room for n bytes in buf, within the budget. While it waits for
// that the client is not to blame.
func (f *frameReader) grow(ctx context.Context, n int) error {
	f.mark(false)
	if err := f.budget.take(ctx, &f.loan, int64(bufferSize(n))); err != nil {
		return err
	}
	bigger := getBuffer(n)
	if f.buf != nil {
		bigger.b = append(bigger.b, f.buf.b...)
		f.buf.put()
	}
	f.buf = bigger
	return nil
}

// release ends the use of the last body.
func (f *frameReader) release() {
	if f.buf != nil {
		f.buf.put()
		f.buf = nil
		f.budget.give(&f.loan)
	}
}

func (f *frameReader) read(p []byte) (int, error) {
	n, err := f.nc.Read(p)
	f.got.Add(int64(n))
	return n, err
}

// readRest is read for the part of a body of n bytes that p has room for, from
// byte `have` on, when nothing is in ahead. If that is all the rest, what has
// come behind it goes into ahead with the same system call: a client that does
// not wait for answers has sent the next head.
func (f *frameReader) readRest(p []byte, have, n int) (int, error) {
	if f.scatter == nil || have+len(p) < n {
		return f.read(p)
	}
	k, err := f.scatter.read(p, f.ahead[:])
	f.got.Add(int64(k))
	f.r, f.w = 0, max(k-len(p), 0)
	return min(k, len(p)), err
}

// scan reads the fields of a body that are not left to kmsg. After the first
// field that does not fit, bad is set and all reads give zero.
type scan struct {
	p   []byte
	bad bool
}

func (s *scan) skip(n int) { s.take(n) }

// take returns the next n bytes.
func (s *scan) take(n int) []byte {
	if n < 0 || n > len(s.p) {
		s.p, s.bad = nil, true
		return nil
	}
	p := s.p[:n]
	s.p = s.p[n:]
	return p
}

func (s *scan) int8() int8 {
	if p := s.take(1); p != nil {
		return int8(p[0])
	}
	return 0
}

func (s *scan) int16() int {
	if p := s.take(2); p != nil {
		return int(int16(binary.BigEndian.Uint16(p)))
	}
	return 0
}

func (s *scan) int32() int {
	if p := s.take(4); p != nil {
		return int(int32(binary.BigEndian.Uint32(p)))
	}
	return 0
}

func (s *scan) int64() int64 {
	if p := s.take(8); p != nil {
		return int64(binary.BigEndian.Uint64(p))
	}
	return 0
}

// uvarint reads at most 32 bits.
func (s *scan) uvarint() int {
	if len(s.p) > 0 && s.p[0] < 0x80 {
		v := int(s.p[0])
		s.p = s.p[1:]
		return v
	}
	v, n := binary.Uvarint(s.p[:min(len(s.p), 5)])
	if n <= 0 || v > 1<<32-1 {
		s.p, s.bad = nil, true
		return 0
	}
	s.p = s.p[n:]
	return int(v)
}

// nullableString returns the bytes of a string whose length is an int16, -1 for
// null.
func (s *scan) nullableString() []byte { return s.take(max(s.int16(), 0)) }

// compact is nullableString for a length that is an uvarint of n+1, 0 for null.
func (s *scan) compact() []byte { return s.take(max(s.uvarint()-1, 0)) }

// string returns the bytes of a string that cannot be null.
func (s *scan) string(flexible bool) []byte {
	if flexible {
		return s.take(s.uvarint() - 1)
	}
	return s.take(s.int16())
}

// array is the length of an array, negative for null. One that is longer than
// the bytes behind it is bad.
func (s *scan) array(flexible bool) int {
	var n int
	if flexible {
		n = int(int32(s.uvarint()) - 1) // as kmsg: 32 bits
	} else {
		n = s.int32()
	}
	if n > len(s.p) {
		s.p, s.bad = nil, true
		return 0
	}
	return n
}

// tags skips a section of tagged fields and returns how many there were.
func (s *scan) tags() int { return s.eachTag(nil) }

// eachTag reads a section of tagged fields, lets see read the value of each,
// and returns how many there were. A value that see finds bad is bad.
func (s *scan) eachTag(see func(tag int, value *scan)) int {
	n := s.uvarint()
	for i := 0; i < n && !s.bad; i++ {
		tag := s.uvarint()
		value := scan{p: s.take(s.uvarint())}
		if see == nil {
			continue
		}
		if see(tag, &value); value.bad {
			s.p, s.bad = nil, true
		}
	}
	return n
}

// payload returns the client id of the request header and the frame's body
// behind that.
func payload(p []byte, flexible bool) (client, body []byte, ok bool) {
	s := scan{p: p}
	client = s.nullableString()
	if flexible {
		s.tags()
	}
	return client, s.p, !s.bad
}
