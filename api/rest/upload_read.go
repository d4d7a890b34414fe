package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"leat/api"
)

// errEnd is a body that was read to its end.
var errEnd = errors.New("end of the body")

// read reads the body, decoded, until it ends or the upload does. Of what a
// client still sends after that it reads a little, so that the client sees the
// last words of the answer.
func (u *upload) read(ctx context.Context) {
	var src io.Reader = &u.wire
	var openErr error
	if u.coding != codingIdentity {
		// Opening reads, too.
		d, err := u.s.bodies.open(u.coding, &u.wire)
		if openErr = err; err == nil {
			defer u.s.bodies.close(u.coding, d)
			src = d
		}
	}
	var decoded int64
	for {
		var buf []byte
		select {
		case buf = <-u.free:
		case <-ctx.Done():
			u.wire.discard()
			return
		}
		n, err := 0, openErr
		if err == nil {
			n, err = src.Read(buf[:uploadChunk])
		}
		decoded += int64(n)
		switch {
		case u.wire.err != nil:
			// What the decoder says of a source that failed is of no interest.
			err = u.wire.err
		case u.coding != codingIdentity && decoded > ratioFloor && decoded > maxRatio*u.wire.n:
			err = errRatio
		case errors.Is(err, io.EOF):
			err = errEnd
		}
		select {
		case u.chunks <- uploadRead{buf[:n], err}:
		case <-ctx.Done():
			u.wire.discard()
			return
		}
		if err != nil {
			return
		}
	}
}

// uploadWire reads the body as sent. Only the time without any byte is bounded.
type uploadWire struct {
	src     io.Reader
	w       *responseWriter
	idle    time.Duration
	chunked bool
	count   func(float64)
	n       int64
	err     error // that ended it before its end

	mu struct {
		sync.Mutex
		deadline time.Time
		stopped  bool
	}
}

func (r *uploadWire) Read(p []byte) (int, error) {
	r.arm()
	n, err := r.src.Read(p)
	r.n += int64(n)
	r.count(float64(n))
	switch {
	case err == nil, err == io.EOF:
	case r.chunked && !cutOff(err):
		r.err = fmt.Errorf("%w: %w", errChunks, err)
		err = r.err
	default:
		r.err = err
	}
	return n, err
}

// arm gives the client its time from now, at a grain of a tenth of it.
func (r *uploadWire) arm() {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.stopped && r.mu.deadline.Sub(now) < r.idle-r.idle/10 {
		r.mu.deadline = now.Add(r.idle)
		_ = r.w.rc.SetReadDeadline(r.mu.deadline)
	}
}

// stop ends a read under way: at once, or once a client had the time to see that
// it should send no more.
func (r *uploadWire) stop(atOnce bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.stopped = true
	wait := drainTimeout
	if atOnce {
		wait = 0
	}
	_ = r.w.rc.SetReadDeadline(time.Now().Add(wait))
}

// linger gives a client that goes on sending the time to read the trailer, which
// leaves when the handler has returned: what came of it unread would reset the
// connection, and the trailer with it.
func (r *uploadWire) linger() { _ = r.w.rc.SetReadDeadline(time.Now().Add(drainTimeout)) }

// discard reads what is left, as far as stop lets it. Of a client that goes on
// sending it has read enough before the deadline of stop: a read that fails ends
// the body, and linger could do nothing for it.
func (r *uploadWire) discard() {
	buf := make([]byte, 4<<10)
	until := time.Now().Add(drainTimeout / 2)
	for left := drainBytes; left > 0 && time.Now().Before(until); {
		n, err := r.src.Read(buf)
		if err != nil {
			return
		}
		left -= n
	}
}

// problem says what the error of a read means.
func (r *uploadWire) problem(err error, coding string) *api.Problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &api.Problem{
			Status: http.StatusRequestTimeout, Code: "request_timeout", Title: "Request timeout",
			Retriable: true, Detail: fmt.Sprintf("no byte of the body came for %g s", r.idle.Seconds()),
		}
	}
	return bodyProblem(err, 0, coding)
}
