package record

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kmsgRecords takes a batch apart with franz-go's schema and codecs.
func kmsgRecords(t *testing.T, b Batch) (kmsg.RecordBatch, []Record) {
	t.Helper()
	var m kmsg.RecordBatch
	if err := m.ReadFrom(b); err != nil {
		t.Fatal(err)
	}
	p, err := kgo.DefaultDecompressor().Decompress(m.Records, kgo.CompressionCodecType(b.Codec()))
	if err != nil {
		t.Fatal(err)
	}
	var all []Record
	for len(p) > 0 {
		size, n := varint(p)
		var r kmsg.Record
		if err := r.ReadFrom(p[:n+int(size)]); err != nil {
			t.Fatal(err)
		}
		p = p[n+int(size):]
		rec := Record{
			Offset: m.FirstOffset + int64(r.OffsetDelta), Timestamp: m.FirstTimestamp + r.TimestampDelta64,
			Key: r.Key, Value: r.Value,
		}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, Header{Key: h.Key, Value: h.Value})
		}
		all = append(all, rec)
	}
	return m, all
}

// A built batch has the header that Kafka asks for and reads equal through
// franz-go, whatever the codec; Check takes it and knows its true times.
func TestBuilder(t *testing.T) {
	records := sample()
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			b := build(t, codec, records...)
			m, got := kmsgRecords(t, b)
			wantRecords(t, got, records)
			m.Records = nil
			want := kmsg.RecordBatch{
				Length: int32(len(b) - 12), Magic: 2, CRC: int32(b.CRC()), Attributes: int16(codec), LastOffsetDelta: 4,
				FirstTimestamp: 1000, MaxTimestamp: 3000, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 5,
			}
			if !bytes.Equal(m.AppendTo(nil), want.AppendTo(nil)) {
				t.Errorf("header = %+v, want %+v", m, want)
			}
			sum, err := Check(b, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			expanded := len(build(t, None, records...)) - HeaderSize
			if want := (Summary{MaxTimestamp: 3000, MinTimestamp: 500, MaxTimestampOffset: 1, Expanded: int64(expanded)}); sum != want {
				t.Errorf("summary = %+v, want %+v", sum, want)
			}
			wantRecords(t, readAll(t, b), records)
		})
	}
}

// AddValue writes the very bytes of Add without key and headers, RecordSize
// and Size know how many, and a Builder that was used before starts anew.
func TestAddValue(t *testing.T) {
	var fast, slow Builder
	slow.Reset(Options{Codec: Gzip})
	slow.Add(5, []byte("old"), nil, nil)
	slow.Reset(Options{})
	size := HeaderSize
	for i, n := range []int{0, 1, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 8186, 8187, 8188, 8189, 8190, 8191, 8192, 100_000, 3, -1} {
		var value []byte
		if n >= 0 {
			value = bytes.Repeat([]byte{byte(i)}, n)
		}
		ts := int64(1_700_000_000_000) + int64(i*i-50)*int64(i%3-1)*1000
		fast.AddValue(ts, value)
		slow.Add(ts, nil, value, nil)
		size += RecordSize(i, ts-1_700_000_000_000-50_000, nil, value, nil)
		if fast.Size() != size || fast.Count() != i+1 {
			t.Fatalf("after a value of %d bytes: size %d, count %d, want %d, %d", n, fast.Size(), fast.Count(), size, i+1)
		}
	}
	a, err := fast.Finish()
	if err != nil {
		t.Fatal(err)
	}
	b, err := slow.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("AddValue and Add differ")
	}
	if _, err := Check(a, Limits{}); err != nil {
		t.Error(err)
	}
}

// RecordSize is exact with keys, headers, nulls and large deltas.
func TestRecordSize(t *testing.T) {
	var w Builder
	w.Reset(Options{})
	for i, r := range sample() {
		before := w.Size()
		w.Add(r.Timestamp, r.Key, r.Value, r.Headers)
		if got, want := RecordSize(i, r.Timestamp-1000, r.Key, r.Value, r.Headers), w.Size()-before; got != want {
			t.Errorf("RecordSize of record %d = %d, want %d", i, got, want)
		}
	}
}

// Finish refuses what cannot be a batch, and the Builder works again after.
func TestBuilderErrors(t *testing.T) {
	huge := make([]byte, MaxBatchSize/2)
	for _, tc := range []struct {
		what string
		fill func(w *Builder)
		kind error
	}{
		{"empty", func(*Builder) {}, ErrInvalid},
		{"time overflow", func(w *Builder) { w.AddValue(-2, nil); w.AddValue(math.MaxInt64, huge[:1]) }, ErrInvalid},
		{"too large", func(w *Builder) { w.AddValue(0, huge); w.Add(0, nil, huge, nil) }, ErrTooLarge},
		{"one record too large", func(w *Builder) { w.Add(0, huge, huge, nil); w.AddValue(0, nil) }, ErrTooLarge},
		{"unknown codec", func(w *Builder) { w.Reset(Options{Codec: 5}); w.AddValue(0, nil) }, ErrUnsupportedCodec},
	} {
		var w Builder
		w.Reset(Options{})
		tc.fill(&w)
		if _, err := w.Finish(); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v, want %v", tc.what, err, tc.kind)
		}
		w.Reset(Options{})
		w.AddValue(7, []byte("x"))
		if b, err := w.Finish(); err != nil || !bytes.Equal(b, build(t, None, Record{Timestamp: 7, Value: []byte("x")})) {
			t.Errorf("%s: after Reset: %x, %v", tc.what, b, err)
		}
	}
}

// Adding and finishing allocate nothing once the buffers have grown.
func TestBuilderAllocations(t *testing.T) {
	var w Builder
	value := bytes.Repeat([]byte("x"), 100)
	headers := []Header{{Key: "h", Value: value}}
	fill := func() {
		w.Reset(Options{})
		for i := range 1000 {
			w.AddValue(int64(i), value)
			w.Add(int64(i), value, value, headers)
		}
		if _, err := w.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	if n := testing.AllocsPerRun(10, fill); n != 0 {
		t.Errorf("%v allocations a batch, want none", n)
	}
}

// A batch that franz-go's schema and compressors made is accepted and reads
// equal, each codec.
func TestFranzBatches(t *testing.T) {
	records := sample()
	var payload []byte
	for i, r := range records {
		m := kmsg.Record{
			TimestampDelta64: r.Timestamp - 1000, OffsetDelta: int32(i), Key: r.Key, Value: r.Value,
		}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		m.Length = int32(len(m.AppendTo(nil)) - 1)
		payload = m.AppendTo(payload)
	}
	for i, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		c, err := kgo.DefaultCompressor(codec)
		if err != nil {
			t.Fatal(err)
		}
		compressed := payload
		if i > 0 {
			compressed, _ = c.Compress(new(bytes.Buffer), payload)
		}
		m := kmsg.RecordBatch{
			Magic: 2, Attributes: int16(i), LastOffsetDelta: 4, FirstTimestamp: 1000, MaxTimestamp: 3000,
			ProducerID: 12, ProducerEpoch: 0, FirstSequence: 0, NumRecords: 5,
		}
		b := remade(m.AppendTo(nil), slices.Clone(compressed))
		sum, err := Check(b, Limits{})
		if want := (Summary{MaxTimestamp: 3000, MinTimestamp: 500, MaxTimestampOffset: 1, Expanded: int64(len(payload))}); err != nil || sum != want {
			t.Errorf("%s: summary %+v, %v, want %+v", b.Codec(), sum, err, want)
			continue
		}
		wantRecords(t, readAll(t, b), records)
	}
}
