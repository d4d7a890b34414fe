package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/klauspost/compress/s2"
)

// addSeeds adds batches of every codec and some that are wrong.
func addSeeds(f *testing.F) {
	f.Helper()
	records := append(sample()[:4], Record{Timestamp: 9, Value: bytes.Repeat([]byte("ab"), 300)})
	for _, codec := range allCodecs {
		b := build(f, codec, records...)
		f.Add([]byte(b))
		f.Add([]byte(b[:len(b)-3]))
		f.Add([]byte(slices.Concat(b, b)))
		b[offAttributes+1] ^= 1
		f.Add([]byte(b))
	}
	plain := build(f, None, records...)
	f.Add([]byte(withPayload(plain, Snappy, s2.EncodeSnappy(nil, plain.Payload()))))
	f.Add([]byte(withPayload(plain, Gzip, slices.Concat(
		gzipMember(f, plain.Payload()[:50]), gzipMember(f, plain.Payload()[50:])))))
	f.Add([]byte(compressed(f, build(f, None, Record{Value: make([]byte, 3*expandBuffer)}), Zstd)))
	f.Add([]byte(remade(plain, rec(0, 0, -1, -1, 1, 0, 0, "x"))))
	f.Add([]byte{})
}

// FuzzNext: whatever the bytes, Next gives exactly the bytes of one batch and
// the rest, or an error of one of its kinds.
func FuzzNext(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		for {
			b, rest, err := Next(p)
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrCorrupt) {
					t.Fatalf("error of unknown kind: %v", err)
				}
				return
			}
			if len(b) != b.Size() || len(b) < HeaderSize || !bytes.Equal(p, slices.Concat(b, rest)) {
				t.Fatalf("%d bytes split into %d and %d", len(p), len(b), len(rest))
			}
			p = rest
		}
	})
}

// windows is what each codec's decoder may take beside the input and Check's
// 64 KiB: gzip 32 KiB and tables, snappy what it can expand to, lz4 two blocks
// of 4 MiB, zstd 8 MiB and a block, and the decoders themselves.
var windows = [codecs]uint64{
	Gzip: 256 << 10, Snappy: 2*snappyWindow + 64<<10, LZ4: 9 << 20, Zstd: 10 << 20,
}

// FuzzCheck: whatever the bytes, Check does not panic, takes little memory,
// and what it accepts Reader reads whole with the same sums. The checksum and
// length are made right, so that the fuzzer gets behind them.
func FuzzCheck(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		p = slices.Clone(p)
		if len(p) >= HeaderSize {
			binary.BigEndian.PutUint32(p[offLength:], uint32(len(p)-lengthPrefix))
			Batch(p).seal()
		}
		limits := Limits{MaxExpanded: 1 << 20}
		var sum Summary
		var err error
		got := allocated(func() { sum, err = Check(p, limits) })
		most := 2*uint64(len(p)) + 2*expandBuffer
		if len(p) >= HeaderSize && Batch(p).Codec() < codecs {
			most += windows[Batch(p).Codec()]
		}
		if got > most {
			t.Errorf("%d bytes of input: %d allocated, at most %d expected", len(p), got, most)
		}
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("error of unknown type: %v", err)
			}
			return
		}
		agree(t, p, sum, limits)
	})
}

// agree compares what Reader reads with what Check said.
func agree(t *testing.T, b Batch, want Summary, l Limits) {
	t.Helper()
	var r Reader
	if err := r.Reset(b, l.MaxExpanded); err != nil {
		t.Fatalf("Check accepts, Reader does not: %v", err)
	}
	defer r.Close()
	got := Summary{Expanded: want.Expanded}
	for i := int64(0); ; i++ {
		var rec Record
		err := r.Next(&rec)
		if errors.Is(err, io.EOF) {
			if i != int64(b.Count()) || got != want {
				t.Fatalf("%d records with %+v, want %d with %+v", i, got, b.Count(), want)
			}
			return
		}
		if err != nil || rec.Offset != i {
			t.Fatalf("Check accepts, Reader gives offset %d for record %d: %v", rec.Offset, i, err)
		}
		if i == 0 || rec.Timestamp > got.MaxTimestamp {
			got.MaxTimestamp, got.MaxTimestampOffset = rec.Timestamp, i
		}
		if i == 0 || rec.Timestamp < got.MinTimestamp {
			got.MinTimestamp = rec.Timestamp
		}
	}
}

// FuzzReader: whatever the bytes, Reader ends, and with an error of this
// package's or the end; what it gives can be built again and reads equal.
func FuzzReader(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		p = slices.Clone(p)
		if len(p) >= HeaderSize {
			binary.BigEndian.PutUint32(p[offLength:], uint32(len(p)-lengthPrefix))
		}
		var r Reader
		defer r.Close()
		err := r.Reset(p, 1<<20)
		var got []Record
		for err == nil {
			var rec Record
			if err = r.Next(&rec); err == nil {
				got = append(got, rec)
			}
		}
		if _, ok := errors.AsType[*Error](err); !ok && !errors.Is(err, io.EOF) {
			t.Fatalf("error of unknown type: %v", err)
		}
		if !errors.Is(err, io.EOF) || len(got) == 0 {
			return
		}
		var w Builder
		for i := range got {
			got[i].Offset = int64(i)
			w.Add(got[i].Timestamp, got[i].Key, got[i].Value, got[i].Headers)
		}
		b, err := w.Finish()
		if errors.Is(err, ErrInvalid) {
			return // Timestamps around a base that is no record's may be too far apart.
		}
		if err != nil {
			t.Fatal(err)
		}
		wantRecords(t, readAll(t, b), got)
	})
}
