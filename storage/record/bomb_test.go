package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// zeros gives n zeros after a prefix.
func zeros(prefix []byte, n int64) io.Reader {
	return io.MultiReader(bytes.NewReader(prefix), io.LimitReader(zero{}, n))
}

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// bomb compresses zeros as one record's value (66 MiB with snappy,
// which is not as dense), or at least 66 MiB as the values of many.
func bomb(t testing.TB, codec Codec, valueSize int64) Batch {
	t.Helper()
	total := int64(66 << 20)
	if valueSize > total && codec != Snappy {
		total = valueSize
	}
	valueSize = min(valueSize, total)
	count := (total + valueSize - 1) / valueSize
	var out bytes.Buffer
	var w io.WriteCloser
	switch codec {
	case Gzip:
		w = gzip.NewWriter(&out)
	case LZ4:
		w = lz4.NewWriter(&out)
	case Zstd:
		var err error
		if w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20)); err != nil {
			t.Fatal(err)
		}
	default:
		out.WriteString(string(xerial(1)))
		w = xerialWriter{&out}
	}
	chunk := make([]byte, 1<<20)
	for i := range count {
		body := appendVarint(appendVarint([]byte{0, 0}, i), -1)
		body = appendVarint(body, valueSize)
		head := appendVarint(nil, int64(len(body))+valueSize+1)
		if _, err := io.CopyBuffer(struct{ io.Writer }{w}, zeros(append(head, body...), valueSize+1), chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 5<<20 {
		t.Fatalf("%s: the bomb has %d bytes", codec, out.Len())
	}
	b := withPayload(build(t, None, Record{}), codec, out.Bytes())
	binary.BigEndian.PutUint32(b[offCount:], uint32(count))
	binary.BigEndian.PutUint32(b[offLastDelta:], uint32(count-1))
	b.seal()
	return b
}

type xerialWriter struct{ out *bytes.Buffer }

func (w xerialWriter) Write(p []byte) (int, error) {
	block := s2.EncodeSnappy(nil, p)
	w.out.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block))))
	w.out.Write(block)
	return len(p), nil
}

func (xerialWriter) Close() error { return nil }

// A few megabytes that expand to bombSize are refused as too large by Check
// and Reader, and Check takes little memory to find out.
func TestBombs(t *testing.T) {
	for _, codec := range []Codec{Gzip, Snappy, LZ4, Zstd} {
		for _, valueSize := range []int64{1 << 10, 20 << 20, bombSize} {
			b := bomb(t, codec, valueSize)
			if got := allocated(func() {
				if _, err := Check(b, Limits{}); !errors.Is(err, ErrTooLarge) {
					t.Errorf("%s, values of %d bytes: %v, want ErrTooLarge", codec, valueSize, err)
				}
			}); got > 20<<20 {
				t.Errorf("%s, values of %d bytes: Check allocated %d bytes", codec, valueSize, got)
			}
			var r Reader
			if err := r.Reset(b, 1<<20); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s, values of %d bytes: Reader: %v, want ErrTooLarge", codec, valueSize, err)
			}
			r.Close()
		}
	}
}

// A snappy block is not believed before anything is allocated for it, neither
// one that claims more than the limit nor one that cannot hold its claim.
func TestSnappyClaims(t *testing.T) {
	plain := build(t, None, Record{})
	for _, tc := range []struct {
		claim uint64
		kind  error
	}{
		{1<<32 - 1, ErrTooLarge},
		{DefaultMaxExpanded + 1, ErrTooLarge},
		{DefaultMaxExpanded, ErrInvalid},
		{1 << 20, ErrInvalid},
		{1 << 32, ErrInvalid},
	} {
		block := append(binary.AppendUvarint(nil, tc.claim), 0, 'x')
		for _, payload := range [][]byte{block, xerial(1, block)} {
			b := withPayload(plain, Snappy, payload)
			if got := allocated(func() {
				if _, err := Check(b, Limits{}); !errors.Is(err, tc.kind) {
					t.Errorf("claim of %d: %v, want %v", tc.claim, err, tc.kind)
				}
			}); got > 2*expandBuffer {
				t.Errorf("claim of %d: allocated %d bytes", tc.claim, got)
			}
		}
	}
}

// allocated is how many bytes fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
