package rest

import (
	"bufio"
	linked "container/list"
	"io"
	"net"
	"net/http"
	"time"
)

// writeTimeout is how long a client may leave one write of an answer waiting.
const writeTimeout = 30 * time.Second

// responseWriter is what handlers write to. It counts, renews the write
// deadline, and passes ReadFrom on, without which net/http cannot sendfile.
type responseWriter struct {
	http.ResponseWriter
	rc *http.ResponseController
	// id is the request's id, for problems and logs.
	id string
	// compression is what may be done with the answer's body.
	compression compression
	// unread says that nobody has taken the request's body on.
	unread bool
	// status is 0 until the header is written.
	status int
	sent   int64
	// counted is the part of sent that the metrics know of already.
	counted int64
	// timeout is how long a client may leave one write waiting.
	timeout  time.Duration
	deadline time.Time
	// stream says that the answer goes on, so its time is of no request.
	stream bool
	// flight is the request's place among those under way.
	flight *linked.Element
	// beforeHeader, if there is one, adds to the header just before it goes out;
	// only metered requests have it. spent is the part of sent that their quota
	// has counted.
	beforeHeader func(http.Header)
	spent        int64
}

func newResponseWriter(w http.ResponseWriter, id string) *responseWriter {
	rw := &responseWriter{ResponseWriter: w, rc: http.NewResponseController(w), id: id, timeout: writeTimeout}
	// A deadline that an earlier request left on the connection must not hit
	// what net/http writes by itself.
	rw.extend()
	return rw
}

// Unwrap serves http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the header.
func (w *responseWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.complete()
		w.extend()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends body bytes, what is long in slices, each with its own deadline.
func (w *responseWriter) Write(p []byte) (n int, err error) {
	for first := true; err == nil && (first || n < len(p)); first = false {
		w.begin()
		var sent int
		sent, err = w.ResponseWriter.Write(p[n:min(len(p), n+sendSlice)])
		n += sent
		w.sent += int64(sent)
	}
	return n, err
}

// ReadFrom sends what src has; from a file by sendfile where that is possible.
func (w *responseWriter) ReadFrom(src io.Reader) (int64, error) {
	w.begin()
	var n int64
	var err error
	if rf, ok := w.ResponseWriter.(io.ReaderFrom); ok {
		n, err = rf.ReadFrom(src)
	} else {
		n, err = io.Copy(struct{ io.Writer }{w.ResponseWriter}, src)
	}
	w.sent += n
	return n, err
}

// flush sends what is buffered, the header at least.
func (w *responseWriter) flush() error {
	w.begin()
	return w.rc.Flush()
}

func (w *responseWriter) begin() {
	if w.status == 0 {
		w.status = http.StatusOK
		w.complete()
	}
	w.extend()
}

func (w *responseWriter) complete() {
	if w.unread {
		// net/http reads some of it before the answer goes out, and would wait for
		// what does not come.
		_ = w.rc.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	if w.beforeHeader != nil {
		w.beforeHeader(w.Header())
	}
}

// relax lifts the deadline while nothing is written.
func (w *responseWriter) relax() {
	w.deadline = time.Time{}
	_ = w.rc.SetWriteDeadline(w.deadline)
}

// extend gives the client its timeout from now, at a grain of a second
// or a tenth of that.
func (w *responseWriter) extend() {
	now := time.Now()
	grain := min(time.Second, w.timeout/10)
	if left := w.deadline.Sub(now); left > w.timeout-grain && left <= w.timeout {
		return
	}
	w.deadline = now.Add(w.timeout)
	// A writer without deadlines, as in tests, cannot be held up either.
	_ = w.rc.SetWriteDeadline(w.deadline)
}

// Hijack hands the connection over to a protocol of its own. To this door it is
// gone then: whoever takes it bounds and counts it.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := w.rc.Hijack()
	if err == nil && w.status == 0 {
		w.status = http.StatusSwitchingProtocols
	}
	return c, rw, err
}
