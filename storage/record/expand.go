package record

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// zstdWindow is the largest window that a zstd frame may ask for: what zstd's
// levels up to 19 use, and what its specification asks every decoder to take.
const zstdWindow = 8 << 20

// expander gives the expanded bytes of one payload, never more than a limit.
// Expanders are pooled by codec, with their decoders and buffers.
type expander struct {
	codec  Codec
	source bytes.Reader
	stream io.Reader // decodes source; one of the next four
	gzip   *gzip.Reader
	snappy snappyReader
	lz4    *lz4.Reader
	zstd   *zstd.Decoder

	buf   []byte // for the owner's use
	limit int64
	left  int64 // what may still come
	total int64 // what came
	done  bool  // the end was reached and is sound
}

// expandBuffer is the size of expander.buf.
const expandBuffer = 64 << 10

var expanders [codecs]sync.Pool

// expand starts to expand b, which must be compressed; limit zero is
// DefaultMaxExpanded. The caller must release the expander.
func expand(b Batch, limit int64) (*expander, error) {
	codec := b.Codec()
	if codec >= codecs {
		return nil, fault(ErrUnsupportedCodec, "codec id %d", codec)
	}
	if limit <= 0 {
		limit = DefaultMaxExpanded
	}
	x, _ := expanders[codec].Get().(*expander)
	if x == nil {
		x = &expander{codec: codec, buf: make([]byte, expandBuffer)}
	}
	x.limit, x.left, x.total, x.done = limit, limit, 0, false
	x.source.Reset(b.Payload())
	if err := x.open(b.Payload()); err != nil {
		x.release()
		return nil, x.explain(err)
	}
	return x, nil
}

// open points the decoder at the payload.
func (x *expander) open(payload []byte) (err error) {
	switch x.codec {
	case Gzip:
		if x.gzip == nil {
			x.gzip = new(gzip.Reader)
		}
		x.stream = x.gzip
		err = x.gzip.Reset(&x.source)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // An empty payload is no gzip stream.
		}
	case Snappy:
		x.stream = &x.snappy
		err = x.snappy.reset(payload, x.limit)
	case LZ4:
		if x.lz4 == nil {
			x.lz4 = lz4.NewReader(nil)
		}
		x.stream = x.lz4
		x.lz4.Reset(&x.source)
		err = checkLZ4(payload)
	case Zstd:
		if x.zstd == nil {
			// With a concurrency of one there is no goroutine to stop, so
			// that the pool may drop the decoder without closing it.
			x.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
				zstd.WithDecoderMaxMemory(zstdWindow), zstd.WithDecoderMaxWindow(zstdWindow))
			if err != nil {
				return err
			}
		}
		x.stream = x.zstd
		err = x.zstd.Reset(&x.source)
	default:
		err = fault(ErrUnsupportedCodec, "codec id %d", x.codec)
	}
	return err
}

// read gives up to len(p) bytes, at least one unless done is or becomes true.
func (x *expander) read(p []byte) (int, *Error) {
	// One byte more than allowed tells a batch at the limit from one beyond.
	if int64(len(p)) > x.left+1 {
		p = p[:x.left+1]
	}
	var n int
	var err error
	for n == 0 && err == nil {
		n, err = x.stream.Read(p)
	}
	x.left -= int64(n)
	x.total += int64(n)
	if x.left < 0 {
		return 0, fault(ErrTooLarge, "the records have more than %d bytes", x.limit)
	}
	if err == io.EOF {
		x.done = true
		return n, nil
	}
	if err != nil {
		return 0, x.explain(err)
	}
	return n, nil
}

// explain makes an Error of what a decoder says.
func (x *expander) explain(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return fault(ErrInvalid, "zstd: the frame's window is larger than %d bytes", zstdWindow)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fault(ErrInvalid, "%s: the compressed records are cut", x.codec)
	}
	return fault(ErrInvalid, "%s: %v", x.codec, err)
}

// release gives x back to its pool.
func (x *expander) release() {
	x.source.Reset(nil)
	x.snappy.drop()
	if x.lz4 != nil {
		x.lz4.Reset(&x.source) // Gives back its block buffer.
	}
	expanders[x.codec].Put(x)
}
