package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// withPayload is a batch of plain's records with a payload made elsewhere.
func withPayload(plain Batch, codec Codec, payload []byte) Batch {
	b := remade(plain, payload)
	b[offAttributes+1] = byte(codec)
	b.seal()
	return b
}

// streamed compresses with a streaming writer.
func streamed(t testing.TB, w io.WriteCloser, out *bytes.Buffer, p []byte) []byte {
	t.Helper()
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func lz4Frame(t testing.TB, p []byte, options ...lz4.Option) []byte {
	t.Helper()
	var out bytes.Buffer
	w := lz4.NewWriter(&out)
	if err := w.Apply(options...); err != nil {
		t.Fatal(err)
	}
	return streamed(t, w, &out, p)
}

func gzipMember(t testing.TB, p []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	return streamed(t, gzip.NewWriter(&out), &out, p)
}

func zstdFrame(t testing.TB, p []byte, options ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, options...)
	if err != nil {
		t.Fatal(err)
	}
	return streamed(t, w, &out, p)
}

// xerial frames blocks.
func xerial(version uint32, blocks ...[]byte) []byte {
	p := binary.BigEndian.AppendUint32([]byte(xerialMagic), version)
	p = binary.BigEndian.AppendUint32(p, 1)
	for _, b := range blocks {
		p = binary.BigEndian.AppendUint32(p, uint32(len(b)))
		p = append(p, b...)
	}
	return p
}

// linkedLZ4 is a frame of two linked blocks: the first stored, the second one
// copy from the first and the rest as a literal. p must repeat its first half
// at 1000 for 20 bytes.
func linkedLZ4(t testing.TB, p []byte) []byte {
	t.Helper()
	head := []byte{0x04, 0x22, 0x4D, 0x18, 0x40, 0x70, 0}
	for ok := false; !ok; head[6]++ {
		if ok, _ = lz4.ValidFrameHeader(head); ok {
			break
		}
	}
	frame := binary.LittleEndian.AppendUint32(head, 1000|1<<31)
	frame = append(frame, p[:1000]...)
	rest := p[1020:]
	block := []byte{15, 1000 & 0xff, 1000 >> 8, 1, 0xf0} // copy 20 from 1000 back; literal 15 + …
	n := len(rest) - 15
	for ; n >= 255; n -= 255 {
		block = append(block, 255)
	}
	block = append(append(block, byte(n)), rest...)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(block)))
	return append(append(frame, block...), 0, 0, 0, 0)
}

// Every form of every codec that clients write is accepted and reads equal;
// whatever is cut, has garbage behind it or is another format is refused.
func TestForms(t *testing.T) {
	value := make([]byte, 300_000)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range value {
		value[i] = "abcdefgh"[rng.IntN(8)]
	}
	records := []Record{{Timestamp: 1, Value: value}, {Offset: 1, Timestamp: 2, Key: []byte("k"), Value: value[:3000]}}
	plain := build(t, None, records...)
	p := plain.Payload()
	copy(p[1000:1020], p[:20]) // For linkedLZ4; in the first record's value.
	records[0].Value = slices.Clone(value)
	copy(records[0].Value, p[len(p)-len(value)-3014:])
	records = readAll(t, plain)

	half := len(p) / 2
	var flushed bytes.Buffer
	zw, err := zstd.NewWriter(&flushed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zw.Write(p[:half]); err != nil {
		t.Fatal(err)
	}
	if err := zw.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what    string
		codec   Codec
		payload []byte
		want    string // beginning of the reason; "" is accepted
	}{
		{"one member", Gzip, gzipMember(t, p), ""},
		{"two members", Gzip, slices.Concat(gzipMember(t, p[:half]), gzipMember(t, p[half:])), ""},
		{"nothing", Gzip, nil, "gzip: the compressed records are cut"},
		{"cut", Gzip, gzipMember(t, p)[:5000], "gzip: the compressed records are cut"},
		{"checksum cut", Gzip, gzipMember(t, p)[:len(gzipMember(t, p))-1], "gzip: the compressed records are cut"},
		{"garbage behind", Gzip, append(gzipMember(t, p), "garbage garbage"...), "gzip: "},
		{"plain", Gzip, p, "gzip: "},
		{"raw block", Snappy, s2.EncodeSnappy(nil, p), ""},
		{"better raw block", Snappy, s2.EncodeSnappyBetter(nil, p), ""},
		{"xerial, one block", Snappy, xerial(1, s2.EncodeSnappy(nil, p)), ""},
		{"xerial, two and an empty one", Snappy, xerial(1, s2.EncodeSnappy(nil, p[:half]), []byte{0}, s2.EncodeSnappy(nil, p[half:])), ""},
		{"xerial, little-endian version", Snappy, xerial(1<<24, s2.EncodeSnappy(nil, p)), ""},
		{"xerial, version 0", Snappy, xerial(0, s2.EncodeSnappy(nil, p)), "snappy: framing version 0"},
		{"xerial, header cut", Snappy, []byte(xerialMagic), "snappy: the framing header is cut"},
		{"xerial, nothing", Snappy, xerial(1), "the payload ends before it"},
		{"xerial, empty chunk", Snappy, xerial(1, nil), "snappy: no block length"},
		{"xerial, cut length", Snappy, append(xerial(1, s2.EncodeSnappy(nil, p)), 0, 0), "snappy: a chunk's length is cut"},
		{"xerial, chunk too large", Snappy, append(xerial(1, s2.EncodeSnappy(nil, p)), 0, 0, 1, 0, 9), "snappy: a chunk of 256 bytes, 1 left"},
		{"nothing", Snappy, nil, "snappy: no block length"},
		{"garbage behind", Snappy, append(s2.EncodeSnappy(nil, p), 0, 'x'), "snappy: 2 bytes after the block's end"},
		{"cut", Snappy, []byte{10, 0, 'x'}, "snappy: the block ends 9 bytes early"},
		{"literal cut", Snappy, []byte{10, 8, 'x'}, "snappy: a literal of 3 bytes, 1 left"},
		{"literal length cut", Snappy, []byte{10, 61 << 2, 'x'}, "snappy: a literal's length is cut"},
		{"literal too long", Snappy, []byte{1, 4, 'x', 'y'}, "snappy: the block is longer than it claims"},
		{"copy cut", Snappy, []byte{10, 0, 'x', 2, 1}, "snappy: a copy is cut"},
		{"copy too long", Snappy, []byte{3, 0, 'x', 63<<2 | 2, 1, 0}, "snappy: the block is longer than it claims"},
		{"copy from before", Snappy, []byte{9, 0, 'x', 63<<2 | 2, 2, 0}, "snappy: a copy from 2 back with 1 bytes there"},
		{"S2's repeat", Snappy, []byte{9, 0, 'x', 1, 0}, "snappy: a copy from 0 back with 1 bytes there"},
		{"S2 frames", Snappy, []byte("\xff\x06\x00\x00S2sTwO"), "snappy: "},
		{"64 KiB blocks", LZ4, lz4Frame(t, p, lz4.BlockSizeOption(lz4.Block64Kb)), ""},
		{"4 MiB blocks", LZ4, lz4Frame(t, p), ""},
		{"all checksums", LZ4, lz4Frame(t, p, lz4.BlockChecksumOption(true), lz4.ChecksumOption(true)), ""},
		{"content size", LZ4, lz4Frame(t, p, lz4.SizeOption(uint64(len(p)))), ""},
		{"linked blocks", LZ4, linkedLZ4(t, p), ""},
		{"nothing", LZ4, nil, "lz4: no LZ4 frame"},
		{"legacy frame", LZ4, lz4Frame(t, p, lz4.LegacyOption(true)), "lz4: no LZ4 frame"},
		{"two frames", LZ4, slices.Concat(lz4Frame(t, p[:half]), lz4Frame(t, p[half:])), "lz4: the frame has "},
		{"garbage behind", LZ4, append(lz4Frame(t, p), 0), "lz4: the frame has "},
		{"cut in a block", LZ4, lz4Frame(t, p)[:1000], "lz4: a block of "},
		{"end mark cut", LZ4, lz4Frame(t, p, lz4.ChecksumOption(false))[:len(lz4Frame(t, p, lz4.ChecksumOption(false)))-1], "lz4: the frame is cut"},
		{"checksum cut", LZ4, lz4Frame(t, p)[:len(lz4Frame(t, p))-1], "lz4: the frame has "},
		{"broken header checksum", LZ4, flip(lz4Frame(t, p), 6), "lz4: "},
		{"broken checksum", LZ4, flip(lz4Frame(t, p), len(lz4Frame(t, p))-1), "lz4: "},
		{"one frame", Zstd, zstdFrame(t, p), ""},
		{"two frames and a skippable one", Zstd, slices.Concat(
			zstdFrame(t, p[:half]), []byte{0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 'h', 'i'}, zstdFrame(t, p[half:])), ""},
		{"window of 8 MiB", Zstd, zstdFrame(t, p, zstd.WithWindowSize(8<<20)), ""},
		{"window of 16 MiB", Zstd, zstdFrame(t, slices.Concat(p, make([]byte, 20<<20)), zstd.WithWindowSize(16<<20)), "zstd: the frame's window is larger than 8388608 bytes"},
		{"nothing", Zstd, nil, "the payload ends before it"},
		{"garbage behind", Zstd, append(zstdFrame(t, p), "garbage"...), "zstd: "},
		{"cut", Zstd, flushed.Bytes(), "zstd: the compressed records are cut"},
		{"broken checksum", Zstd, flip(zstdFrame(t, p), len(zstdFrame(t, p))-1), "zstd: "},
		{"plain", Zstd, p, "zstd: "},
	} {
		b := withPayload(plain, tc.codec, tc.payload)
		sum, err := Check(b, Limits{})
		if tc.want == "" {
			if err != nil || sum.Expanded != int64(len(p)) {
				t.Errorf("%s, %s: %+v, %v", tc.codec, tc.what, sum, err)
				continue
			}
			wantRecords(t, readAll(t, b), records)
			continue
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || !errors.Is(e, ErrInvalid) || !strings.HasPrefix(e.Reason, tc.want) {
			t.Errorf("%s, %s: %v, want %q", tc.codec, tc.what, err, tc.want)
		}
		var r Reader
		if err := r.Reset(b, 0); err == nil {
			err = r.Next(new(Record))
			if err == nil {
				t.Errorf("%s, %s: read", tc.codec, tc.what)
			}
		}
	}
}

func flip(p []byte, i int) []byte {
	p[i] ^= 1
	return p
}

// A raw snappy block larger than the window, whose copies reach back far,
// decodes to the same bytes.
func TestSnappyWindow(t *testing.T) {
	big := make([]byte, 40<<20)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := 0; i < len(big); i += 1 << 16 {
		if n := rng.IntN(100); n < 30 || i < 1<<22 {
			for j := range 1 << 16 {
				big[i+j] = byte(rng.Uint32())
			}
		} else {
			copy(big[i:i+1<<16], big[i-rng.IntN(min(i, snappyWindow))-1:])
		}
	}
	var s snappyReader
	if err := s.reset(s2.EncodeSnappy(nil, big), int64(len(big))); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(&s)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(big))
	}
	if cap(s.window) > 2*snappyWindow {
		t.Errorf("window of %d bytes", cap(s.window))
	}
	if s.drop(); s.window != nil {
		t.Error("a large window is kept")
	}
}

// The limit is exact: records of as many bytes pass, of one more do not.
func TestExpandedLimit(t *testing.T) {
	plain := build(t, None, sample()...)
	size := int64(len(plain.Payload()))
	for _, codec := range allCodecs[1:] {
		b := compressed(t, plain, codec)
		if _, err := Check(b, Limits{MaxExpanded: size}); err != nil {
			t.Errorf("%s at the limit: %v", codec, err)
		}
		var r Reader
		if err := r.Reset(b, size); err != nil {
			t.Errorf("%s at the limit: Reader: %v", codec, err)
		}
		if _, err := Check(b, Limits{MaxExpanded: size - 1}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s beyond the limit: %v", codec, err)
		}
		if err := r.Reset(b, size-1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s beyond the limit: Reader: %v", codec, err)
		}
	}
	if _, err := Check(plain, Limits{MaxExpanded: 1}); err != nil {
		t.Errorf("the limit is not for batches that are not compressed: %v", err)
	}
}

// Check, Reader and Builder share pools of decoders and encoders; used at the
// same time, after failures too, they do not disturb each other.
func TestConcurrentUse(t *testing.T) {
	records := sample()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 40 {
				codec := allCodecs[(i+j)%len(allCodecs)]
				b := build(t, codec, records...)
				if _, err := Check(b, Limits{}); err != nil {
					t.Errorf("%s: %v", codec, err)
				}
				wantRecords(t, readAll(t, b), records)
				if _, err := Check(remade(b, b.Payload()[:len(b.Payload())/2]), Limits{}); !errors.Is(err, ErrInvalid) {
					t.Errorf("%s, cut: %v", codec, err)
				}
			}
		})
	}
	group.Wait()
}
