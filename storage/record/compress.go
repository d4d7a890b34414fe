package record

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const (
	// xerialBlock is how much one chunk of the xerial framing holds before
	// compression, as in the Java client.
	xerialBlock = 32 << 10
	// zstdEncoderWindow bounds an encoder's memory; batches are rarely larger.
	zstdEncoderWindow = 1 << 20
)

var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	lz4Writers  = sync.Pool{New: func() any { return newLZ4Writer() }}
	zstdWriters = sync.Pool{New: func() any { return newZstdWriter() }}
)

// appender is an io.Writer at the end of a slice.
type appender struct{ p []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.p = append(a.p, p...)
	return len(p), nil
}

// compress appends records, compressed, to dst.
func compress(dst, records []byte, codec Codec) ([]byte, error) {
	a := appender{p: dst}
	switch codec {
	case Gzip:
		w := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(w)
		w.Reset(&a)
		if err := writeAll(w, records); err != nil {
			return nil, fmt.Errorf("compress batch with gzip: %w", err)
		}
	case Snappy:
		return appendXerial(dst, records), nil
	case LZ4:
		w := lz4Writers.Get().(*lz4.Writer)
		defer lz4Writers.Put(w)
		w.Reset(&a)
		if err := writeAll(w, records); err != nil {
			return nil, fmt.Errorf("compress batch with lz4: %w", err)
		}
	case Zstd:
		w := zstdWriters.Get().(*zstd.Encoder)
		defer zstdWriters.Put(w)
		return w.EncodeAll(records, dst), nil
	default:
		return nil, fault(ErrUnsupportedCodec, "codec id %d", codec)
	}
	return a.p, nil
}

// writeAll writes one whole stream.
func writeAll(w interface {
	Write(p []byte) (int, error)
	Close() error
}, records []byte,
) error {
	if _, err := w.Write(records); err != nil {
		return err
	}
	return w.Close()
}

// appendXerial appends records in the xerial framing; see snappyReader.
func appendXerial(dst, records []byte) []byte {
	dst = append(dst, xerialMagic...)
	dst = binary.BigEndian.AppendUint32(dst, xerialVersion)
	dst = binary.BigEndian.AppendUint32(dst, xerialVersion)
	for len(records) > 0 {
		chunk := records[:min(len(records), xerialBlock)]
		records = records[len(chunk):]
		dst = appendXerialChunk(dst, chunk)
	}
	return dst
}

func appendXerialChunk(dst, chunk []byte) []byte {
	dst = slices.Grow(dst, 4+s2.MaxEncodedLen(len(chunk)))
	at := len(dst)
	block := s2.EncodeSnappy(dst[at+4:cap(dst)], chunk)
	dst = dst[:at+4+len(block)]
	binary.BigEndian.PutUint32(dst[at:], uint32(len(block)))
	return dst
}

func newLZ4Writer() *lz4.Writer {
	w := lz4.NewWriter(nil)
	// Independent blocks are what the Java client reads, and the default.
	mustApply(w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false)))
	return w
}

func newZstdWriter() *zstd.Encoder {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdEncoderWindow))
	mustApply(err)
	return w
}

// mustApply panics if a library refuses options that are constants here.
func mustApply(err error) {
	if err != nil {
		panic(err)
	}
}
