package kafka

import (
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
// the janitor.
type frameReader struct {
	nc       net.Conn
	maxBytes int
	ahead    [readAhead]byte
	r, w     int
	largest  int // the largest frame that arrived whole

	got    atomic.Int64 // bytes read
	frames atomic.Int64 // frames read whole
	inside atomic.Bool  // a frame has begun and not ended
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
	f.inside.Store(f.w > f.r)
	for f.w-f.r < n {
		k, err := f.read(f.ahead[f.w:])
		f.w += k
		if err != nil && f.w-f.r < n {
			if errors.Is(err, io.EOF) && f.w > f.r {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		f.inside.Store(true)
	}
	return nil
}

// body reads what follows the head. The buffer grows as the bytes arrive, so
// an announcement alone costs at most firstBody, or what the connection's
// largest frame already cost.
func (f *frameReader) body(h head) (*buffer, error) {
	n := h.size - (headSize - 4)
	buf := getBuffer(min(n, max(firstBody, f.largest)))
	have := copy(buf.b[:min(n, cap(buf.b))], f.ahead[f.r:f.w])
	f.r += have
	for have < n {
		if have == cap(buf.b) {
			bigger := getBuffer(min(n, 2*have))
			copy(bigger.b[:have], buf.b[:have])
			buf.put()
			buf = bigger
		}
		k, err := f.read(buf.b[have:min(n, cap(buf.b))])
		have += k
		if err != nil && have < n {
			buf.put()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	buf.b = buf.b[:n]
	f.largest = max(f.largest, n)
	f.inside.Store(false)
	f.frames.Add(1)
	return buf, nil
}

func (f *frameReader) read(p []byte) (int, error) {
	n, err := f.nc.Read(p)
	f.got.Add(int64(n))
	return n, err
}

// scan reads the few fields that are looked at before kmsg decodes a body.
// After the first field that does not fit, bad is set and all reads give zero.
type scan struct {
	p   []byte
	bad bool
}

func (s *scan) skip(n int) {
	if n < 0 || n > len(s.p) {
		s.p, s.bad = nil, true
		return
	}
	s.p = s.p[n:]
}

func (s *scan) int16() int {
	if len(s.p) < 2 {
		s.skip(2)
		return 0
	}
	v := int16(binary.BigEndian.Uint16(s.p))
	s.p = s.p[2:]
	return int(v)
}

func (s *scan) int32() int {
	if len(s.p) < 4 {
		s.skip(4)
		return 0
	}
	v := int32(binary.BigEndian.Uint32(s.p))
	s.p = s.p[4:]
	return int(v)
}

// uvarint reads at most 32 bits.
func (s *scan) uvarint() int {
	v, n := binary.Uvarint(s.p[:min(len(s.p), 5)])
	if n <= 0 || v > 1<<32-1 {
		s.p, s.bad = nil, true
		return 0
	}
	s.p = s.p[n:]
	return int(v)
}

// nullableString skips a string whose length is an int16, -1 for null.
func (s *scan) nullableString() { s.skip(max(s.int16(), 0)) }

// compact skips a string or bytes whose length is an uvarint of n+1, 0 for
// null.
func (s *scan) compact() { s.skip(max(s.uvarint()-1, 0)) }

// tags skips a section of tagged fields and returns how many there were.
func (s *scan) tags() int {
	n := s.uvarint()
	for i := 0; i < n && !s.bad; i++ {
		s.uvarint()
		s.skip(s.uvarint())
	}
	return n
}

// payload returns a frame's body behind the rest of the request header.
func payload(p []byte, flexible bool) ([]byte, bool) {
	s := scan{p: p}
	s.nullableString()
	if flexible {
		s.tags()
	}
	return s.p, !s.bad
}
