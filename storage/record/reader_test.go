package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
)

// One Reader reads batch after batch of all codecs, and what it returned
// stays valid until the next Reset.
func TestReader(t *testing.T) {
	var r Reader
	if err := r.Next(new(Record)); !errors.Is(err, io.EOF) {
		t.Errorf("zero Reader: %v, want EOF", err)
	}
	for range 3 {
		for _, codec := range allCodecs {
			want := sample()
			for i := range want {
				want[i].Offset += 1 << 40
			}
			b := build(t, codec, sample()...)
			b.SetBaseOffset(1 << 40)
			if err := r.Reset(b, 0); err != nil {
				t.Fatal(err)
			}
			var got []Record
			for {
				var rec Record
				if err := r.Next(&rec); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				got = append(got, rec)
			}
			wantRecords(t, got, want)
			if err := r.Next(new(Record)); !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v, want EOF", err)
			}
		}
		r.Close()
		if err := r.Next(new(Record)); !errors.Is(err, io.EOF) {
			t.Errorf("after Close: %v, want EOF", err)
		}
	}
}

// With log append time every record has the batch's largest timestamp.
func TestReaderLogAppendTime(t *testing.T) {
	b := build(t, LZ4, sample()...)
	b.SetMaxTimestamp(77, true)
	for _, rec := range readAll(t, b) {
		if rec.Timestamp != 77 {
			t.Errorf("record %d has timestamp %d, want 77", rec.Offset, rec.Timestamp)
		}
	}
}

// A batch that compaction thinned out keeps the offsets of what is left.
func TestReaderGaps(t *testing.T) {
	b := build(t, None, make([]Record, 10)...)
	b = remade(b, append(rec(0, 2, -1, -1, 0), rec(0, 9, 1, "k", -1, 0)...))
	binary.BigEndian.PutUint32(b[offCount:], 2)
	b.SetBaseOffset(100)
	wantRecords(t, readAll(t, b), []Record{{Offset: 102}, {Offset: 109, Key: []byte("k")}})
	empty := remade(b, nil)
	binary.BigEndian.PutUint32(empty[offCount:], 0)
	wantRecords(t, readAll(t, empty), nil)
}

// Header keys are right when they change from record to record.
func TestReaderHeaderKeys(t *testing.T) {
	var want []Record
	for i := range 50 {
		r := Record{Offset: int64(i)}
		for h := range i % 4 {
			r.Headers = append(r.Headers, Header{Key: fmt.Sprint(h, i/8), Value: []byte{byte(i)}})
		}
		want = append(want, r)
	}
	wantRecords(t, readAll(t, build(t, Zstd, want...)), want)
}

// What is wrong with a batch is an error of its kind that stays until Reset.
func TestReaderErrors(t *testing.T) {
	good := build(t, None, sample()[:2]...)
	first := rec(0, 0, -1, -1, 0)
	for _, tc := range []struct {
		what  string
		batch Batch
		want  string
	}{
		{"no header", good[:60], "corrupt batch: 60 bytes, a header alone has 61"},
		{"cut", good[:70], fmt.Sprintf("corrupt batch: 70 bytes, the header says %d", len(good))},
		{"old", flip(remade(good, nil), offMagic), "invalid record: magic 3, want 2"},
		{"codec 7", withPayload(good, 7, first), "unsupported compression type: codec id 7"},
		{"no records", remade(good, nil), "invalid record: record 0: ends within the record length"},
		{"one record", remade(good, first), "invalid record: record 1: ends within the record length"},
		{"three records", remade(good, append(append(append([]byte{}, first...), rec(0, 1, -1, -1, 0)...), 4, 0, 0)), "invalid record: 3 bytes after the last record"},
		{"same offset", remade(good, append(append([]byte{}, first...), first...)), "invalid record: record 1: offset delta 0 after 0, the batch's last is 1"},
		{"offset beyond", remade(good, rec(0, 2, -1, -1, 0)), "invalid record: record 0: offset delta 2 after -1, the batch's last is 1"},
		{"length", remade(good, []byte{1}), "invalid record: record 0: record length -1, 0 bytes left in the batch"},
		{"time", remade(good, rec(1<<63-1, 0, -1, -1, 0)), "invalid record: record 0: timestamp delta 9223372036854775807 overflows the base timestamp 1000"},
		{"header", remade(good, rec(0, 0, -1, -1, 1, -1, 0)), "invalid record: record 0: header 0: null key"},
		{"after headers", remade(good, rec(0, 0, -1, -1, 1, 0, 0, "x")), "invalid record: record 0: 1 bytes after the record's last header"},
	} {
		var r Reader
		err := r.Reset(tc.batch, 0)
		for i := 0; err == nil && i < 3; i++ {
			err = r.Next(new(Record))
		}
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.want)
		}
		if again := r.Next(new(Record)); !errors.Is(again, err) {
			t.Errorf("%s: then %v", tc.what, again)
		}
		if err := r.Reset(good, 0); err != nil {
			t.Errorf("%s: Reset after it: %v", tc.what, err)
		}
		if err := r.Next(new(Record)); err != nil {
			t.Errorf("%s: Next after it: %v", tc.what, err)
		}
	}
}
