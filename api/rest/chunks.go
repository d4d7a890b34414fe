package rest

import (
	"net/http"
	"strconv"
	"sync"
)

// chunkSize is how much of an answer is collected before it is sent.
const chunkSize = 64 << 10

// chunks is an answer under way: it is appended to and sent a chunk at a time,
// so its memory does not follow its length. An answer of one chunk gets its
// Content-Length.
type chunks struct {
	w      *responseWriter
	status int
	buf    []byte
	sent   bool
	// enc compresses what is sent; nil for an answer that goes as it is.
	enc *encoding
	err error
}

var chunkPool = sync.Pool{New: func() any {
	p := make([]byte, 0, chunkSize+chunkSize/4)
	return &p
}}

func newChunks(w *responseWriter, status int, media string) *chunks {
	w.Header().Set("Content-Type", media)
	return &chunks{w: w, status: status, buf: *chunkPool.Get().(*[]byte)}
}

// release gives the buffer back.
func (c *chunks) release() {
	if cap(c.buf) <= 4*chunkSize {
		p := c.buf[:0]
		chunkPool.Put(&p)
	}
	c.buf = nil
	if c.enc != nil {
		c.enc.release()
		c.enc = nil
	}
}

func (c *chunks) text(s string) { c.buf = append(c.buf, s...) }

func (c *chunks) integer(n int64) { c.buf = strconv.AppendInt(c.buf, n, 10) }

// flushFull sends what there is if it is a chunk or more.
func (c *chunks) flushFull() {
	if len(c.buf) >= chunkSize {
		c.flush()
	}
}

func (c *chunks) flush() {
	c.send(c.buf)
	c.buf = c.buf[:0]
	if cap(c.buf) > 4*chunkSize {
		c.buf = *chunkPool.Get().(*[]byte)
	}
}

func (c *chunks) send(p []byte) {
	if c.err != nil || len(p) == 0 {
		return
	}
	if !c.sent {
		c.begin(len(p))
	}
	if c.enc != nil {
		_, c.err = c.enc.Write(p)
		return
	}
	_, c.err = c.w.Write(p)
}

// begin sends the header of an answer that has size bytes or more.
func (c *chunks) begin(size int) {
	c.sent = true
	if c.enc = c.w.compressChunks(size); c.enc != nil {
		c.w.Header().Del("Content-Length")
	}
	c.w.WriteHeader(c.status)
}

// finish sends the rest. Once a part is out there is no other answer to give,
// so it breaks off if that fails.
func (c *chunks) finish() {
	if !c.sent {
		c.w.Header().Set("Content-Length", strconv.Itoa(len(c.buf)))
		if len(c.buf) == 0 {
			c.begin(0)
		}
	}
	c.flush()
	if c.enc != nil && c.err == nil {
		c.err = c.enc.Close()
	}
	if c.err != nil {
		// The client must not take what it has for the whole.
		panic(http.ErrAbortHandler)
	}
}
