package rest

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"leat/api"
)

// The content codings of request bodies.
const (
	codingIdentity = "identity"
	codingGzip     = "gzip"
	codingZstd     = "zstd"
)

// zstdWindow is the largest window that a body may ask for, in bytes
// (RFC 8878 section 3.1.1.1.2 recommends 8 MiB).
const zstdWindow = 8 << 20

// contentCoding is the one coding of the request's body.
func contentCoding(w *responseWriter, r *http.Request) (string, error) {
	given := strings.Join(r.Header["Content-Encoding"], ",")
	switch coding := strings.ToLower(strings.TrimSpace(given)); coding {
	case "", codingIdentity:
		return codingIdentity, nil
	case codingGzip, codingZstd:
		return coding, nil
	}
	w.Header().Set("Accept-Encoding", "gzip, zstd, identity")
	return "", &api.Problem{
		Status: http.StatusUnsupportedMediaType, Code: "unsupported_content_encoding", Title: "Unsupported content encoding",
		Detail: "Content-Encoding " + strconv.Quote(api.Clip(given)) + " is not one of gzip, zstd, identity",
	}
}

// decoders keeps idle decoders. Their memory is bounded by the windows.
type decoders struct {
	maxBytes   int64
	gzip, zstd sync.Pool
}

// open gives a decoder that reads src.
func (d *decoders) open(coding string, src io.Reader) (io.Reader, error) {
	if coding == codingGzip {
		if z, ok := d.gzip.Get().(*gzip.Reader); ok {
			return z, z.Reset(src)
		}
		return gzip.NewReader(src)
	}
	if z, ok := d.zstd.Get().(*zstd.Decoder); ok {
		return zstdReader{z}, z.Reset(src)
	}
	z, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderMaxMemory(uint64(d.maxBytes)+zstdWindow))
	return zstdReader{z}, err
}

// close takes a decoder back.
func (d *decoders) close(coding string, r io.Reader) {
	switch z := r.(type) {
	case *gzip.Reader:
		d.gzip.Put(z)
	case zstdReader:
		// Without a source the decoder holds on to nothing of the request.
		if err := z.Reset(nil); err == nil {
			d.zstd.Put(z.Decoder)
		}
	default:
		panic("rest: no decoder of " + coding)
	}
}

// zstdReader gives the windows that the decoder refuses the door's own error.
// The window of a frame in a single segment is its content, and the decoder
// tells of one that is too large as of a decoded size.
type zstdReader struct{ *zstd.Decoder }

func (z zstdReader) Read(p []byte) (int, error) {
	n, err := z.Decoder.Read(p)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = errWindow
	}
	return n, err
}
