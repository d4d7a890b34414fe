package rest

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"leat/api"
	"leat/auth"
)

const (
	// compressFloor is the size from which an answer is worth compressing.
	compressFloor = 1 << 10
	// encoderBytes is what the tables and the window of an encoder count for in
	// the budget, encoderWindow the window of zstd.
	encoderBytes  = 1 << 20
	encoderWindow = 256 << 10
)

// answerCoding is the content coding that the client likes best for an answer
// (RFC 9110 section 12.5.3); of equals it is zstd. only says that the client takes
// no answer as it is. An answer that is told to have
// none of those that there are, not even identity, has that all the same, as
// openapi.yaml says.
func answerCoding(h http.Header) (coding string, only bool) {
	given := map[string]float64{}
	for item := range strings.SplitSeq(strings.Join(h["Accept-Encoding"], ","), ",") {
		name, weight, weighted := strings.Cut(item, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "x-gzip" {
			name = codingGzip
		}
		q := 1.0
		if weighted {
			q = qvalue(weight)
		}
		if _, twice := given[name]; !twice {
			given[name] = q
		}
	}
	best, most := codingIdentity, given[codingIdentity]
	for _, coding := range []string{codingZstd, codingGzip} {
		q, named := given[coding]
		if !named {
			q = given["*"]
		}
		if q > 0 && (q > most || q == most && best == codingIdentity) {
			best, most = coding, q
		}
	}
	q, named := given[codingIdentity]
	if !named {
		q, named = given["*"]
	}
	return best, named && q == 0 && best != codingIdentity
}

// qvalue reads a weight, "q=0.5"; what is none weighs nothing.
func qvalue(text string) float64 {
	name, value, _ := strings.Cut(strings.TrimSpace(text), "=")
	q, err := strconv.ParseFloat(value, 64)
	if err != nil || !strings.EqualFold(name, "q") || !(q >= 0 && q <= 1) {
		return 0
	}
	return q
}

// encoders keeps idle encoders. Those at work count for their client in the
// budget; where that has no room an answer goes as it is.
type encoders struct {
	budget     *api.Budget
	gzip, zstd sync.Pool
}

// compressor is an encoder of either coding.
type compressor interface {
	io.WriteCloser
	Reset(dst io.Writer)
}

// compression is how the answer to a request may be compressed.
type compression struct {
	of     *encoders
	coding string
	// floor is the size from which an answer is compressed.
	floor int
	who   auth.Principal
}

func (s *Server) compressionFor(r *http.Request) compression {
	coding, only := answerCoding(r.Header)
	c := compression{of: &s.answers, coding: coding, floor: compressFloor, who: principal(r)}
	if only {
		c.floor = 0
	}
	return c
}

// encoding is an answer that is being compressed.
type encoding struct {
	compressor
	by *compression
}

// open begins to compress for dst; nil if that is not to be.
func (c *compression) open(dst io.Writer) *encoding {
	if c.coding == codingIdentity || c.of == nil || c.of.budget.Take(c.who, encoderBytes) != nil {
		return nil
	}
	e := &encoding{by: c}
	if c.coding == codingGzip {
		if e.compressor, _ = c.of.gzip.Get().(compressor); e.compressor == nil {
			e.compressor, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is one that there is
		}
	} else {
		if e.compressor, _ = c.of.zstd.Get().(compressor); e.compressor == nil {
			z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
				zstd.WithWindowSize(encoderWindow), zstd.WithLowerEncoderMem(true))
			if err != nil {
				panic(err) // the options are of those that there are
			}
			e.compressor = z
		}
	}
	e.Reset(dst)
	return e
}

// release gives the encoder back, also one that was not closed.
func (e *encoding) release() {
	e.Reset(nil)
	if e.by.coding == codingGzip {
		e.by.of.gzip.Put(e.compressor)
	} else {
		e.by.of.zstd.Put(e.compressor)
	}
	e.by.of.budget.Give(e.by.who, encoderBytes)
}

// mayCompress says, before anything else is said of it, that the answer is one
// that may be compressed. One with an entity tag is not: the tag is of its very
// bytes, and clients send it back whatever they accept then.
func (w *responseWriter) mayCompress() bool {
	h := w.Header()
	if h.Get("ETag") != "" {
		return false
	}
	if !slices.Contains(h["Vary"], "Accept-Encoding") {
		h.Add("Vary", "Accept-Encoding")
	}
	return true
}

// compressWhole is a text as it is sent, with the header that says so.
func (w *responseWriter) compressWhole(text []byte) []byte {
	if !w.mayCompress() || len(text) < w.compression.floor {
		return text
	}
	var out bytes.Buffer
	e := w.compression.open(&out)
	if e == nil {
		return text
	}
	defer e.release()
	_, err := e.Write(text)
	if err == nil {
		err = e.Close()
	}
	if err != nil || out.Len() >= len(text) && w.compression.floor > 0 {
		return text
	}
	w.Header().Set("Content-Encoding", w.compression.coding)
	return out.Bytes()
}

// compressChunks begins the body of an answer of which size bytes are there; nil
// if it goes as it is.
func (w *responseWriter) compressChunks(size int) *encoding {
	if !w.mayCompress() || size < w.compression.floor {
		return nil
	}
	e := w.compression.open(struct{ io.Writer }{w})
	if e != nil {
		w.Header().Set("Content-Encoding", w.compression.coding)
	}
	return e
}
