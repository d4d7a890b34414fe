package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var allCodecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

// sample has every kind of null and empty, headers, and timestamps out of
// order.
func sample() []Record {
	return []Record{
		{Timestamp: 1000, Key: []byte("k"), Value: []byte("v")},
		{Offset: 1, Timestamp: 3000, Value: []byte("null")},
		{Offset: 2, Timestamp: 500, Key: []byte{}, Value: nil},
		{Offset: 3, Timestamp: 3000, Key: []byte("key"), Value: []byte{}, Headers: []Header{
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "", Value: []byte{}},
		}},
		{Offset: 4, Timestamp: 2999, Value: bytes.Repeat([]byte("0123456789"), 20_000), Headers: []Header{
			{Key: "a", Value: []byte("2")},
		}},
	}
}

// build makes a batch of its own bytes from records.
func build(t testing.TB, codec Codec, records ...Record) Batch {
	t.Helper()
	var w Builder
	w.Reset(Options{Codec: codec})
	for _, r := range records {
		w.Add(r.Timestamp, r.Key, r.Value, r.Headers)
	}
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(b)
}

// remade returns b with another payload, length and checksum fitting it.
func remade(b Batch, payload []byte) Batch {
	out := slices.Concat(b[:HeaderSize], payload)
	binary.BigEndian.PutUint32(out[offLength:], uint32(len(out)-lengthPrefix))
	out.seal()
	return out
}

// readAll reads b to its end.
func readAll(t testing.TB, b Batch) []Record {
	t.Helper()
	var r Reader
	if err := r.Reset(b, 0); err != nil {
		t.Fatal(err)
	}
	var all []Record
	for {
		var rec Record
		err := r.Next(&rec)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rec)
	}
}

// same compares records; nil and empty are different.
func same(a, b Record) bool {
	eq := func(p, q []byte) bool { return (p == nil) == (q == nil) && bytes.Equal(p, q) }
	return a.Offset == b.Offset && a.Timestamp == b.Timestamp && eq(a.Key, b.Key) && eq(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y Header) bool { return x.Key == y.Key && eq(x.Value, y.Value) })
}

func wantRecords(t testing.TB, got, want []Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		if !same(got[i], want[i]) {
			t.Errorf("record %d = %+.200v, want %+.200v", i, got[i], want[i])
		}
	}
}

// Every accessor reads the field that Kafka's own schema has at that place,
// and every setter changes that field and no other.
func TestHeader(t *testing.T) {
	m := kmsg.RecordBatch{
		FirstOffset: 1 << 40, Length: 49 + 3, PartitionLeaderEpoch: 7, Magic: 2, CRC: -559038737,
		Attributes: 0x1c, LastOffsetDelta: 4, FirstTimestamp: 11, MaxTimestamp: 22, ProducerID: 1 << 33,
		ProducerEpoch: 5, FirstSequence: math.MaxInt32 - 1, NumRecords: 5, Records: []byte("abc"),
	}
	b := Batch(m.AppendTo(nil))
	for _, tc := range []struct {
		field     string
		got, want any
	}{
		{"BaseOffset", b.BaseOffset(), m.FirstOffset},
		{"Size", b.Size(), len(b)},
		{"LeaderEpoch", b.LeaderEpoch(), m.PartitionLeaderEpoch},
		{"Magic", b.Magic(), m.Magic},
		{"CRC", b.CRC(), uint32(0xdeadbeef)},
		{"Attributes", b.Attributes(), m.Attributes},
		{"Codec", b.Codec(), Zstd},
		{"LogAppendTime", b.LogAppendTime(), true},
		{"Transactional", b.Transactional(), true},
		{"Control", b.Control(), false},
		{"LastOffsetDelta", b.LastOffsetDelta(), m.LastOffsetDelta},
		{"LastOffset", b.LastOffset(), int64(1<<40 + 4)},
		{"NextOffset", b.NextOffset(), int64(1<<40 + 5)},
		{"BaseTimestamp", b.BaseTimestamp(), m.FirstTimestamp},
		{"MaxTimestamp", b.MaxTimestamp(), m.MaxTimestamp},
		{"ProducerID", b.ProducerID(), m.ProducerID},
		{"ProducerEpoch", b.ProducerEpoch(), m.ProducerEpoch},
		{"BaseSequence", b.BaseSequence(), m.FirstSequence},
		{"LastSequence", b.LastSequence(), int32(2)},
		{"Count", b.Count(), m.NumRecords},
		{"Payload", string(b.Payload()), "abc"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s = %v, want %v", tc.field, tc.got, tc.want)
		}
	}
	b.SetBaseOffset(99)
	b.SetLeaderEpoch(-1)
	m.FirstOffset, m.PartitionLeaderEpoch = 99, -1
	if !bytes.Equal(b, m.AppendTo(nil)) {
		t.Error("SetBaseOffset or SetLeaderEpoch changed something else")
	}
	b.SetMaxTimestamp(33, false)
	m.MaxTimestamp, m.Attributes = 33, 0x14
	m.CRC = int32(crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	if !bytes.Equal(b, m.AppendTo(nil)) {
		t.Error("SetMaxTimestamp changed something else or did not seal the batch")
	}
	if b.SetMaxTimestamp(44, true); !b.LogAppendTime() || b.MaxTimestamp() != 44 || b.VerifyCRC() != nil {
		t.Error("SetMaxTimestamp did not set log append time")
	}
}

// LastSequence wraps from 2^31-1 to 0 and is -1 for a batch without sequence.
func TestLastSequence(t *testing.T) {
	for _, tc := range []struct{ base, delta, want int32 }{
		{0, 0, 0},
		{5, 4, 9},
		{math.MaxInt32, 0, math.MaxInt32},
		{math.MaxInt32, 1, 0},
		{math.MaxInt32 - 2, 5, 2},
		{-1, 4, -1},
	} {
		b := make(Batch, HeaderSize)
		binary.BigEndian.PutUint32(b[offBaseSequence:], uint32(tc.base))
		binary.BigEndian.PutUint32(b[offLastDelta:], uint32(tc.delta))
		if got := b.LastSequence(); got != tc.want {
			t.Errorf("LastSequence of %d + %d = %d, want %d", tc.base, tc.delta, got, tc.want)
		}
	}
}

// Next splits whole batches and tells a cut batch from an impossible one at
// every length.
func TestNext(t *testing.T) {
	one, two := build(t, None, sample()...), build(t, Gzip, sample()[0])
	b, rest, err := Next(slices.Concat(one, two))
	if err != nil || !bytes.Equal(b, one) || !bytes.Equal(rest, two) || cap(b) != len(b) {
		t.Fatalf("first batch: %d bytes, %d left, %v", len(b), len(rest), err)
	}
	if b, rest, err = Next(rest); err != nil || !bytes.Equal(b, two) || len(rest) != 0 {
		t.Fatalf("second batch: %d bytes, %d left, %v", len(b), len(rest), err)
	}
	if _, _, err = Next(rest); !errors.Is(err, io.EOF) {
		t.Errorf("Next of nothing: %v, want EOF", err)
	}
	for n := 1; n < len(two); n++ {
		if _, _, err := Next(two[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("Next of %d of %d bytes: %v, want unexpected EOF", n, len(two), err)
		}
	}
	for _, tc := range []struct {
		what   string
		change func(b Batch)
	}{
		{"magic 1", func(b Batch) { b[offMagic] = 1 }},
		{"length 48", func(b Batch) { binary.BigEndian.PutUint32(b[offLength:], 48) }},
		{"length -1", func(b Batch) { binary.BigEndian.PutUint32(b[offLength:], math.MaxUint32) }},
		{"length beyond the most", func(b Batch) { binary.BigEndian.PutUint32(b[offLength:], MaxBatchSize-11) }},
		{"zeros", func(b Batch) { clear(b) }},
	} {
		p := slices.Clone(one)
		tc.change(p)
		if _, _, err := Next(p); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", tc.what, err)
		}
	}
}

// VerifyCRC notices each flipped bit that the checksum covers, and none in
// the fields that the log patches; VerifyCRCFrom likewise, from where it is.
func TestVerifyCRC(t *testing.T) {
	b := build(t, None, sample()[:4]...)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			err := b.VerifyCRC()
			covered := i >= offCRC || i >= offLength && i < offEpoch
			if covered != errors.Is(err, ErrCorrupt) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
			file := append([]byte("before"), b...)
			if err := b[:HeaderSize].VerifyCRCFrom(bytes.NewReader(file), 6, make([]byte, 7)); (err != nil) != covered {
				t.Fatalf("bit %d of byte %d flipped, in a file: %v", bit, i, err)
			}
			b[i] ^= 1 << bit
		}
	}
	if err := b[:HeaderSize].VerifyCRC(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("header alone: %v", err)
	}
}

// PartitionForKey is the Java client's partitioner: the hashes are those that
// Kafka's own test of Utils.murmur2 expects.
func TestPartitionForKey(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		for _, n := range []int32{1, 3, 16, math.MaxInt32} {
			if got := PartitionForKey([]byte(key), n); got != int32(uint32(want)&math.MaxInt32)%n {
				t.Errorf("PartitionForKey(%q, %d) = %d", key, n, got)
			}
		}
	}
}

// Codec names go both ways and are those of compression.type.
func TestCodec(t *testing.T) {
	for i, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		c, err := ParseCodec(name)
		if err != nil || int(c) != i || c.String() != name {
			t.Errorf("ParseCodec(%q) = %v, %v", name, c, err)
		}
	}
	if _, err := ParseCodec("LZ4"); !errors.Is(err, ErrUnsupportedCodec) {
		t.Errorf("ParseCodec(LZ4): %v", err)
	}
	if got := Codec(6).String(); got != "codec 6" {
		t.Errorf("Codec(6) = %q", got)
	}
}

// Varints go both ways at every size, and are refused when cut or too long.
func TestVarint(t *testing.T) {
	for shift := range 64 {
		for _, v := range []int64{1 << shift, -1 << shift, 1<<shift - 1, -(1 << shift) + 1} {
			p := appendVarint(nil, v)
			if got, n := varint(p); got != v || n != len(p) || n != varintSize(v) {
				t.Fatalf("varint of %d: %d in %d bytes, size %d of %d", v, got, n, varintSize(v), len(p))
			}
			q := make([]byte, maxVarint)
			if n := putUvarint(q, 0, zigzag(v)); !bytes.Equal(q[:n], p) {
				t.Fatalf("putUvarint of %d = %x, want %x", v, q[:n], p)
			}
			if _, n := varint(p[:len(p)-1]); n != 0 {
				t.Fatalf("cut varint of %d: n = %d", v, n)
			}
		}
	}
	for _, last := range []byte{2, 0x80, 0xff} {
		if _, n := varint(append(bytes.Repeat([]byte{0xff}, 9), last, 0)); n >= 0 {
			t.Errorf("varint of more than 64 bits with tenth byte %#x: n = %d", last, n)
		}
	}
}
