package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
)

// rec makes one record's bytes from parts, each a byte string or a varint.
func rec(parts ...any) []byte {
	body := []byte{0}
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			body = appendVarint(body, int64(p))
		case string:
			body = append(body, p...)
		}
	}
	return append(appendVarint(nil, int64(len(body))), body...)
}

// CheckHeader refuses each rule's violation with its own kind and reason.
func TestCheckHeader(t *testing.T) {
	put := binary.BigEndian
	for _, tc := range []struct {
		change func(b Batch)
		want   string
		kind   error
	}{
		{func(Batch) {}, "", nil},
		{func(b Batch) { b[offMagic] = 1 }, "invalid record: magic 1, only record batches with magic 2 are served", ErrInvalid},
		{func(b Batch) { b.SetBaseOffset(7) }, "invalid record: base offset 7, a client's must be 0", ErrInvalid},
		{func(b Batch) { b[22] = 0x20 }, "invalid record: control bit set by a client", ErrInvalid},
		{func(b Batch) { b[22] = 0x10 }, "invalid record: transactional bit set, transactions are not served", ErrInvalid},
		{func(b Batch) { b[22] = 0x40 }, "invalid record: delete horizon bit set by a client", ErrInvalid},
		{func(b Batch) { b[22] = 0x08 }, "invalid timestamp: timestamp type log append time set by a client", ErrTimestamp},
		{func(b Batch) { b[22] = 5 }, "unsupported compression type: codec id 5", ErrUnsupportedCodec},
		{func(b Batch) { b[22] = 7 }, "unsupported compression type: codec id 7", ErrUnsupportedCodec},
		{func(b Batch) { put.PutUint32(b[offCount:], 0) }, "invalid record: record count 0", ErrInvalid},
		{func(b Batch) { put.PutUint32(b[offCount:], 1<<31) }, "invalid record: record count -2147483648", ErrInvalid},
		{func(b Batch) { put.PutUint32(b[offCount:], 4) }, "invalid record: record count 4, last offset delta 0", ErrInvalid},
		{func(b Batch) { put.PutUint64(b[offProducerID:], 9) }, "invalid record: producer id 9 with epoch -1", ErrInvalid},
		{
			func(b Batch) { put.PutUint64(b[offProducerID:], 9); put.PutUint16(b[offProducerEp:], 0) },
			"invalid record: producer id 9 with base sequence -1", ErrInvalid,
		},
	} {
		b := build(t, None, Record{Value: []byte("v")})
		tc.change(b)
		b.seal()
		for _, err := range []error{CheckHeader(b[:HeaderSize]), func() error { _, err := Check(b, Limits{}); return err }()} {
			if !errors.Is(err, tc.kind) || err != nil && err.Error() != tc.want {
				t.Errorf("%v, want %q", err, tc.want)
			}
		}
	}
	if err := CheckHeader(make(Batch, 16)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("16 bytes: %v", err)
	}
	old := make(Batch, 34)
	old[offMagic] = 1
	if err := CheckHeader(old); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message of format v1: %v", err)
	}
}

// A damaged batch is corrupt, which clients retry, whatever rule the damage
// breaks beside.
func TestCheckDamage(t *testing.T) {
	for _, codec := range allCodecs {
		b := build(t, codec, sample()[:3]...)
		for i := offCRC; i < len(b); i++ {
			b[i] ^= 0x55
			if _, err := Check(b, Limits{}); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: byte %d damaged: %v", codec, i, err)
			}
			b[i] ^= 0x55
		}
		for _, p := range [][]byte{nil, b[:40], b[:len(b)-1], append(slices.Clone(b), 0)} {
			if _, err := Check(p, Limits{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %d of %d bytes: %v", codec, len(p), len(b), err)
			}
		}
	}
}

// Each way in which records can be malformed is refused with the record's
// index, the field and what is wrong, in place as well as compressed, and
// also in a record too long for the buffer that compressed records pass.
func TestCheckRecords(t *testing.T) {
	good := rec(0, 0, 1, "k", 1, "v", 0)
	long := string(make([]byte, 2*expandBuffer))
	for _, tc := range []struct {
		what    string
		records []byte
		count   int32
		want    string
	}{
		{"good", slices.Concat(good, rec(5, 1, -1, -1, 2, 1, "h", -1, 0, 0)), 2, ""},
		{"missing", good, 2, "record 1: the payload ends before it"},
		{"one more", slices.Concat(good, rec(0, 1, -1, -1, 0)), 1, "bytes after the last record, number 0"},
		{"garbage behind", append(slices.Clone(good), 0), 1, "bytes after the last record, number 0"},
		{"length 0", []byte{0}, 1, "record 0: record length 0"},
		{"length -1", []byte{1}, 1, "record 0: record length -1"},
		{"length cut", []byte{0x80}, 1, "record 0: ends within the record length"},
		{"length of 71 bits", bytes.Repeat([]byte{0xff}, 11), 1, "record 0: record length is a varint of more than 32 bits"},
		{"length too large", []byte{40, 0, 0, 0}, 1, "record 0: record length 20, 3 bytes left in the batch"},
		{"cut before time", rec(), 1, "record 0: ends within the timestamp delta"},
		{"cut before offset", rec(0), 1, "record 0: ends within the offset delta"},
		{"cut before key", rec(0, 0), 1, "record 0: ends within the key length"},
		{"cut before value", rec(0, 0, -1), 1, "record 0: ends within the value length"},
		{"cut before headers", rec(0, 0, -1, -1), 1, "record 0: ends within the header count"},
		{"offset 1 first", rec(0, 1, -1, -1, 0), 1, "record 0: offset delta 1, want 0"},
		{"offset twice", slices.Concat(good, good), 2, "record 1: offset delta 0, want 1"},
		{"key length -2", rec(0, 0, -2, -1, 0), 1, "record 0: key length -2, 2 bytes left in the record"},
		{"key too long", rec(0, 0, 3, "k", 0), 1, "record 0: key length 3, 2 bytes left in the record"},
		{"value too long", rec(0, 0, -1, 3, "v", 0), 1, "record 0: value length 3, 2 bytes left in the record"},
		{"key length in 5 bytes", []byte{20, 0, 0, 0, 0x81, 0x80, 0x80, 0x80, 0, 1, 0}, 1, ""},
		{"key length in 6 bytes", []byte{22, 0, 0, 0, 0x81, 0x80, 0x80, 0x80, 0x80, 0, 1, 0}, 1, "record 0: key length is a varint of more than 32 bits"},
		{"offset delta in 6 bytes", []byte{22, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 1, 1, 0}, 1, "record 0: offset delta is a varint of more than 32 bits"},
		{"header count in 6 bytes", []byte{22, 0, 0, 0, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0}, 1, "record 0: header count is a varint of more than 32 bits"},
		{"headers -1", rec(0, 0, -1, -1, -1), 1, "record 0: header count -1, 0 bytes left"},
		{"headers 2 of 1", rec(0, 0, -1, -1, 2, 0, 0), 1, "record 0: header count 2, 2 bytes left"},
		{"header key null", rec(0, 0, -1, -1, 1, -1, 0), 1, "record 0: header 0: null key"},
		{"header key too long", rec(0, 0, -1, -1, 1, 9, 0), 1, "record 0: header 0: header key length 9, 1 bytes left in the record"},
		{"header value cut", rec(0, 0, -1, -1, 2, 0, 0, 1, "k"), 1, "record 0: header 1: ends within the header value length"},
		{"after no header", rec(0, 0, -1, -1, 0, "xy"), 1, "record 0: 2 bytes after the record's last header"},
		{"after a header", rec(0, 0, -1, -1, 1, 0, 0, "x"), 1, "record 0: 1 bytes after the record's last header"},
		{"long good", slices.Concat(good, rec(9, 1, len(long), long, len(long), long, 1, 0, len(long), long)), 2, ""},
		{"long offset", slices.Concat(good, rec(9, 5, -1, len(long), long, 0)), 2, "record 1: offset delta 5, want 1"},
		{"long key -2", rec(0, 0, -2, long), 1, "record 0: key length -2, 131072 bytes left in the record"},
		{"long value cut", rec(0, 0, -1, len(long)+1, long), 1, "record 0: value length 131073, 131072 bytes left in the record"},
		{"long no header count", rec(0, 0, -1, len(long), long), 1, "record 0: ends within the header count"},
		{"long headers", rec(0, 0, -1, len(long), long, 2, 0, 0), 1, "record 0: header count 2, 2 bytes left"},
		{"long header key", rec(0, 0, -1, len(long), long, 1, -1, 0), 1, "record 0: header 0: null key"},
		{"long header value", rec(0, 0, -1, len(long), long, 1, 0, 9), 1, "record 0: header 0: header value length 9, 0 bytes left in the record"},
		{"long garbage", rec(0, 0, -1, len(long), long, 0, "xyz"), 1, "record 0: 3 bytes after the record's last header"},
		{"long cut", rec(0, 0, -1, len(long), long, 0)[:len(long)], 1, "record 0: record length 131080, 131069 bytes left in the batch"},
	} {
		plain := remade(build(t, None, Record{}), tc.records)
		binary.BigEndian.PutUint32(plain[offCount:], uint32(tc.count))
		binary.BigEndian.PutUint32(plain[offLastDelta:], uint32(tc.count-1))
		plain.seal()
		for _, codec := range allCodecs {
			b := compressed(t, plain, codec)
			want := tc.want
			if tc.what == "long cut" && codec != None {
				// What is still to come is not known before it is missing.
				want = "record 0: 11 bytes of the record are missing"
			}
			_, err := Check(b, Limits{})
			if want == "" && err != nil || want != "" && (err == nil || err.Error() != "invalid record: "+want) {
				t.Errorf("%s, %s: %v, want %q", tc.what, codec, err, want)
			}
			if want != "" && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s, %s: kind of %v", tc.what, codec, err)
			}
		}
	}
}

// compressed is an uncompressed batch with its records compressed.
func compressed(t testing.TB, b Batch, codec Codec) Batch {
	t.Helper()
	if codec == None {
		return b
	}
	p, err := compress(nil, b.Payload(), codec)
	if err != nil {
		t.Fatal(err)
	}
	out := remade(b, p)
	out[offAttributes+1] |= byte(codec)
	out.seal()
	return out
}

// Check finds the true largest timestamp, whatever the header says, and the
// first record that has it; deltas may be negative but must not overflow.
func TestCheckTimestamps(t *testing.T) {
	for _, tc := range []struct {
		base   int64
		deltas []int64
		want   Summary
		bad    bool
	}{
		{10, []int64{0, 20, 10}, Summary{MaxTimestamp: 30, MinTimestamp: 10, MaxTimestampOffset: 1}, false},
		{10, []int64{0, 5, 5, 5}, Summary{MaxTimestamp: 15, MinTimestamp: 10, MaxTimestampOffset: 1}, false},
		{10, []int64{-3, -5, -30}, Summary{MaxTimestamp: 7, MinTimestamp: -20}, false},
		{-1, []int64{0, 0}, Summary{MaxTimestamp: -1, MinTimestamp: -1}, false},
		{0, []int64{math.MaxInt64, math.MinInt64}, Summary{MaxTimestamp: math.MaxInt64, MinTimestamp: math.MinInt64}, false},
		{1, []int64{0, math.MaxInt64}, Summary{}, true},
		{-1, []int64{0, math.MinInt64}, Summary{}, true},
		{math.MinInt64, []int64{-1}, Summary{}, true},
		{math.MaxInt64, []int64{math.MinInt64, 0}, Summary{MaxTimestamp: math.MaxInt64, MinTimestamp: -1, MaxTimestampOffset: 1}, false},
	} {
		var payload []byte
		for i, d := range tc.deltas {
			payload = append(payload, rec(int(d), i, -1, -1, 0)...)
		}
		b := remade(build(t, None, Record{}), payload)
		binary.BigEndian.PutUint32(b[offCount:], uint32(len(tc.deltas)))
		binary.BigEndian.PutUint32(b[offLastDelta:], uint32(len(tc.deltas)-1))
		binary.BigEndian.PutUint64(b[offBaseTime:], uint64(tc.base))
		b.SetMaxTimestamp(-1, false) // As clients do that leave it unset.
		tc.want.Expanded = int64(len(payload))
		for _, codec := range allCodecs {
			got, err := Check(compressed(t, b, codec), Limits{})
			if tc.bad {
				if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(e, ErrInvalid) || e.Record != len(tc.deltas)-1 {
					t.Errorf("%d + %d: %v", tc.base, tc.deltas, err)
				}
				continue
			}
			if err != nil || got != tc.want {
				t.Errorf("%d + %d: %+v, %v, want %+v", tc.base, tc.deltas, got, err, tc.want)
			}
		}
	}
}

// Where keys are required, the first null key is named; an empty key is one.
func TestCheckKeys(t *testing.T) {
	big := make([]byte, 2*expandBuffer)
	for _, codec := range allCodecs {
		for _, value := range [][]byte{nil, big} {
			b := build(t, codec, Record{Key: []byte("k")}, Record{Key: []byte{}, Value: value}, Record{Value: value})
			if _, err := Check(b, Limits{}); err != nil {
				t.Errorf("%s: keys not required: %v", codec, err)
			}
			_, err := Check(b, Limits{RequireKeys: true})
			if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(e, ErrInvalid) || e.Record != 2 {
				t.Errorf("%s: keys required: %v", codec, err)
			}
		}
	}
}

// Check allocates nothing for batches that are not compressed.
func TestCheckAllocations(t *testing.T) {
	b := build(t, None, sample()...)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Check(b, Limits{}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestCheckStored proves that batches as a log stores them are walked whatever
// their offset and timestamp type, and that records which do not fill the batch
// exactly are refused.
func TestCheckStored(t *testing.T) {
	var w Builder
	for _, codec := range []Codec{None, Gzip, Snappy, LZ4, Zstd} {
		w.Reset(Options{Codec: codec})
		w.Add(1000, []byte("k"), []byte("value"), nil)
		w.Add(3000, nil, nil, nil)
		built, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		b := Batch(bytes.Clone(built))
		b.SetBaseOffset(77)
		b.SetMaxTimestamp(5000, true)
		sum, err := CheckStored(b, DefaultMaxExpanded)
		if err != nil || sum.MaxTimestamp != 3000 || sum.MaxTimestampOffset != 1 {
			t.Errorf("%v: %+v, %v", codec, sum, err)
		}
		if _, err := CheckStored(b, 3); codec != None && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: expands too far: %v", codec, err)
		}
		if _, err := CheckStored(b[:len(b)-1], DefaultMaxExpanded); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v: cut: %v", codec, err)
		}
		binary.BigEndian.PutUint32(b[offCount:], 3)
		if _, err := CheckStored(b, DefaultMaxExpanded); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: one record too few: %v", codec, err)
		}
		binary.BigEndian.PutUint32(b[offCount:], 1)
		if _, err := CheckStored(b, DefaultMaxExpanded); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: one record too many: %v", codec, err)
		}
	}
}
