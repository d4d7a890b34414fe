package rest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"leat/api"
	"leat/auth"
)

const (
	// bodyBuffer is the smallest buffer of a body.
	bodyBuffer = 64 << 10
	// bodyKeep is the largest buffer that waits in the pool.
	bodyKeep = 1 << 20
	// bodyTrust is how much is allocated on the word of Content-Length alone.
	bodyTrust = 1 << 20
	// A client must send the whole of its body, or bodyPace bytes, within each
	// span of pace.body: what it holds of the budget is not for who trickles.
	bodyPace = 30 << 10
	// drainBytes is how much of a refused body is read so that the client sees
	// the answer, for at most drainTimeout.
	drainBytes   = 256 << 10
	drainTimeout = time.Second
	// A body that there is only no room for now is read to its end, for at most
	// patientDrain, so that its client learns when to come again.
	patientDrain = 5 * time.Second
	// maxRatio is how far a compressed body may expand, once it is above
	// ratioFloor bytes: short bodies of like records compress very well.
	maxRatio   = 100
	ratioFloor = 1 << 20
)

var (
	errTooLarge = errors.New("body too large")
	errRatio    = errors.New("body expands too far")
	errWindow   = errors.New("window of a compressed body too large")
	errChunks   = errors.New("malformed chunked coding")
)

// body is a request's body, decoded. bytes is valid until release.
type body struct {
	bytes []byte
	// taken is what the buffer counts for in the budget, on behalf of who.
	budget *api.Budget
	who    auth.Principal
	taken  int64
}

var bodyPool = sync.Pool{New: func() any {
	p := make([]byte, 0, bodyBuffer)
	return &p
}}

// release gives the buffer back.
func (b *body) release() {
	if cap(b.bytes) > 0 && cap(b.bytes) <= bodyKeep {
		p := b.bytes[:0]
		bodyPool.Put(&p)
	}
	b.bytes = nil
	b.budget.Give(b.who, b.taken)
	b.taken = 0
}

// readBody reads and decodes the request's body against limit. On an error
// the connection is closed after the answer, unless the body was read whole.
func (s *Server) readBody(w *responseWriter, r *http.Request, limit int64) (*body, error) {
	coding, err := contentCoding(w, r)
	if err != nil {
		return nil, err
	}
	w.unread = false
	b := &body{budget: s.opts.Budget, who: principal(r)}
	wire := &wireReader{src: r.Body, limit: limit, w: w, chunked: len(r.TransferEncoding) > 0, span: s.pace.body}
	defer func() { s.metrics.received.Add(float64(wire.n)) }()
	if r.ContentLength > limit {
		err = errTooLarge
	} else {
		err = s.decodeBody(b, wire, coding, r.ContentLength, limit)
	}
	_ = w.rc.SetReadDeadline(time.Time{})
	if err == nil {
		return b, nil
	}
	b.release()
	p := bodyProblem(err, limit, coding)
	if !wire.ended {
		p.Close = true
		// A client that waits for 100 Continue has sent nothing.
		if r.Header.Get("Expect") == "" && !errors.Is(err, os.ErrDeadlineExceeded) {
			most, patience := int64(drainBytes), drainTimeout
			if p.RetryAfterMS > 0 {
				most, patience = limit, patientDrain
			}
			_ = w.rc.SetReadDeadline(time.Now().Add(patience))
			_, _ = io.CopyN(io.Discard, r.Body, most)
		}
	}
	return nil, p
}

func (s *Server) decodeBody(b *body, wire *wireReader, coding string, length, limit int64) error {
	if coding == codingIdentity {
		return b.fill(wire, wire, max(length, 0), limit)
	}
	d, err := s.bodies.open(coding, wire)
	if err == nil {
		defer s.bodies.close(coding, d)
		err = b.fill(d, wire, 0, limit)
	}
	// What the decoder says of a source that failed is of no interest.
	if wire.err != nil {
		return wire.err
	}
	return err
}

// fill reads src to its end. expect is its length or 0.
func (b *body) fill(src io.Reader, wire *wireReader, expect, limit int64) error {
	pooled := *bodyPool.Get().(*[]byte)
	if err := b.budget.Take(b.who, int64(cap(pooled))); err != nil {
		bodyPool.Put(&pooled)
		return err
	}
	b.bytes, b.taken = pooled[:0], int64(cap(pooled))
	// One byte more than there is, so that the end shows without growing.
	if err := b.grow(min(expect, bodyTrust) + 1); err != nil {
		return err
	}
	for {
		if len(b.bytes) == cap(b.bytes) {
			if err := b.grow(min(2*int64(cap(b.bytes)), limit+1)); err != nil {
				return err
			}
		}
		n, err := src.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		size := int64(len(b.bytes))
		switch {
		case size > limit:
			return errTooLarge
		case src != io.Reader(wire) && size > ratioFloor && size > maxRatio*wire.n:
			return errRatio
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// grow makes room for size bytes in all.
func (b *body) grow(size int64) error {
	if size <= int64(cap(b.bytes)) {
		return nil
	}
	more := size - int64(cap(b.bytes))
	if err := b.budget.Grow(b.who, b.taken, more); err != nil {
		return err
	}
	b.taken += more
	bigger := make([]byte, len(b.bytes), size)
	copy(bigger, b.bytes)
	b.bytes = bigger
	return nil
}

// wireReader reads the body as sent: it counts, stops beyond limit, and sets
// the deadline by what has come.
type wireReader struct {
	src     io.Reader
	limit   int64
	n       int64
	w       *responseWriter
	chunked bool
	// due is how many bytes there must be once the span is over.
	span  time.Duration
	due   int64
	ended bool  // the body was read to its end
	err   error // the error that ended it otherwise
}

func (r *wireReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.n >= r.due {
		r.due = r.n + bodyPace
		_ = r.w.rc.SetReadDeadline(time.Now().Add(r.span))
	}
	n, err := r.src.Read(p)
	r.n += int64(n)
	switch {
	case r.n > r.limit:
		r.err = errTooLarge
		return 0, r.err
	case err == io.EOF:
		r.ended = true
	case err != nil && r.chunked && !cutOff(err):
		r.err = fmt.Errorf("%w: %w", errChunks, err)
		return n, r.err
	case err != nil:
		r.err = err
	}
	return n, err
}

// cutOff reports whether the error of a read is of the connection, so that all
// else is of what came over it.
func cutOff(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

func bodyProblem(err error, limit int64, coding string) *api.Problem {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return p // of the budget
	}
	large := &api.Problem{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Title: "Request too large", Limit: limit}
	switch {
	case errors.Is(err, errTooLarge):
		large.Detail = fmt.Sprintf("the body, as sent and decoded, may have %d bytes", limit)
		return large
	case errors.Is(err, errRatio):
		large.Detail = fmt.Sprintf("a compressed body may expand to %d times its size", maxRatio)
		return large
	case errors.Is(err, errWindow):
		large.Limit = zstdWindow
		large.Detail = fmt.Sprintf("the window of a zstd body, which is all of a frame in a single segment, may have %d bytes", zstdWindow)
		return large
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &api.Problem{
			Status: http.StatusRequestTimeout, Code: "request_timeout", Title: "Request timeout",
			Retriable: true, Detail: fmt.Sprintf("of the body came less than %d bytes within %g s, and not its end", bodyPace, usualPace.body.Seconds()),
		}
	case errors.Is(err, errChunks):
		return api.Malformed("the chunked body is malformed: a bad chunk size, chunk end or trailer")
	case coding != codingIdentity:
		return api.Malformed("the body is not valid " + coding + ", or ended early")
	default:
		return api.Malformed("the body ended early")
	}
}
