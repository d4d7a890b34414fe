package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
	"leat/storage/record"
)

func newSet(t *testing.T, b *Broker, topic string) *RecordSet {
	t.Helper()
	s, err := b.NewRecordSet(t.Context(), auth.Anonymous, topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Keys go where the Java client sends them; records without a key of one set
// stay together, those of the next go elsewhere; receipts name the offsets.
func TestRecordSetPlaces(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 4, nil)
	used := map[int32]bool{}
	for range 4 {
		s := newSet(t, b, "t")
		for i := range 3 {
			if err := s.Add(-1, -1, nil, fmt.Append(nil, i), nil); err != nil {
				t.Fatal(err)
			}
		}
		res, err := s.Produce(t.Context(), AcksAll, time.Minute)
		if err != nil || len(res) != 1 || res[0].Err != nil || res[0].Count != 3 || used[res[0].Partition] {
			t.Fatalf("%+v, %v", res, err)
		}
		used[res[0].Partition] = true
	}
	s := newSet(t, b, "t")
	keys := []string{"21", "foobar", "abc", "foobar"}
	for _, k := range keys {
		if err := s.Add(-1, -1, []byte(k), []byte("v"), []record.Header{{Key: "h"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Add(3, 5, nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	res, err := s.Produce(t.Context(), AcksAll, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for i, place := range s.Placement()[:len(keys)] {
		if want := record.PartitionForKey([]byte(keys[i]), 4); res[place].Partition != want {
			t.Errorf("key %q in partition %d, want %d", keys[i], res[place].Partition, want)
		}
	}
	if p := res[s.Placement()[4]].Partition; p != 3 || s.Len() != 5 {
		t.Errorf("explicit partition became %d of %d records", p, s.Len())
	}
}

// Sets that are appended one after the other stand in that order, and are waited
// for aside, also when the set is closed.
func TestRecordSetAppends(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	var pending []*Pending
	for i := range 20 {
		s, err := b.NewRecordSet(t.Context(), auth.Anonymous, "t")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Add(-1, -1, nil, fmt.Append(nil, i), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(t.Context(), 2); !errors.Is(err, ErrInvalidAcks) {
			t.Errorf("acks 2: %v", err)
		}
		p, err := s.Append(t.Context(), AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		pending = append(pending, p)
		s.Close()
	}
	for i, p := range pending {
		res := p.Wait(t.Context(), time.Minute)
		if len(res) != 1 || res[0].Err != nil || res[0].Base != int64(i) || res[0].Count != 1 || !p.Committed() {
			t.Errorf("set %d: %+v", i, res)
		}
	}
	if got := fetchAll(t, b, "t", 0, 19); len(got) != 1 || got[0] != "19:19" {
		t.Errorf("the last is %v", got)
	}
}

// Lines become values exactly: CR stays, empty lines count, a last line without
// LF too; batches stay within max.message.bytes.
func TestAddLines(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, map[string]string{"max.message.bytes": "300"})
	s := newSet(t, b, "t")
	long := strings.Repeat("y", 150)
	if err := s.AddLines([]byte("a\r\n\n" + long + "\n" + long + "\nlast")); err != nil {
		t.Fatal(err)
	}
	res, err := s.Produce(t.Context(), AcksAll, time.Minute)
	if err != nil || len(res) != 2 || res[0].Err != nil || res[1].Err != nil || s.Len() != 5 {
		t.Fatalf("%+v, %v", res, err)
	}
	got := append(fetchAll(t, b, "t", 0, 0), fetchAll(t, b, "t", 0, 0)...)
	want := []string{"0:a\r", "1:", "2:" + long, "3:" + long, "4:last"}
	if fmt.Sprintf("%q", got[:5]) != fmt.Sprintf("%q", want) {
		t.Errorf("got %q", got)
	}
	s = newSet(t, b, "t")
	err = s.AddLines([]byte("ok\n" + strings.Repeat("z", 400)))
	var le *LineError
	if !errors.As(err, &le) || le.Line != 1 || !errors.Is(err, ErrBatchTooLarge) {
		t.Errorf("oversize line: %v", err)
	}
}

// A record that fills a batch to the last byte is taken, one more byte is not,
// with and without a codec.
func TestRecordSetLimit(t *testing.T) {
	for _, codec := range []string{"producer", "gzip", "snappy", "lz4", "zstd"} {
		b := open(t, disk.NewMem(), nil)
		create(t, b, "t", 1, map[string]string{"max.message.bytes": "10000", "compression.type": codec})
		taken := 0
		for size := 9000; size < 10100; size++ {
			s := newSet(t, b, "t")
			noise := make([]byte, size)
			for i := range noise {
				noise[i] = byte(i * i >> 3)
			}
			if err := s.Add(-1, -1, nil, noise, nil); errors.Is(err, ErrBatchTooLarge) {
				if s.Len() != 0 {
					t.Fatal("a refused record changed the set")
				}
				continue
			}
			taken = size
			if res, err := s.Produce(t.Context(), AcksLeader, 0); err != nil || res[0].Err != nil {
				t.Fatalf("%s: %d bytes were taken and then refused: %v %v", codec, size, err, res)
			}
		}
		if taken < 9600 || taken > 9960 {
			t.Errorf("%s: the largest value taken has %d bytes", codec, taken)
		}
	}
}

// Records that the topic does not take are refused one by one.
func TestRecordSetRefuses(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 2, nil)
	create(t, b, "compacted", 2, map[string]string{"cleanup.policy": "compact"})
	now := time.Now().UnixMilli()
	s := newSet(t, b, "t")
	for _, tc := range []struct {
		partition int32
		ts        int64
		want      error
	}{
		{0, now, nil},
		{-1, -1, nil},
		{2, -1, ErrUnknownPartition},
		{-2, -1, ErrUnknownPartition},
		{0, now + 2*3600_000, ErrTimestamp},
		{0, now * 1000, ErrTimestamp},
		{0, 1 << 62, ErrTimestamp},
		{0, 0, nil},
	} {
		if err := s.Add(tc.partition, tc.ts, nil, nil, nil); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("partition %d time %d: %v, want %v", tc.partition, tc.ts, err, tc.want)
		}
	}
	if s.Len() != 3 {
		t.Errorf("%d records taken, want 3", s.Len())
	}
	c := newSet(t, b, "compacted")
	if err := c.Add(-1, -1, nil, []byte("v"), nil); !errors.Is(err, ErrInvalidRecord) {
		t.Errorf("no key on a compacted topic: %v", err)
	}
	if err := c.AddLines([]byte("v")); !errors.Is(err, ErrInvalidRecord) {
		t.Errorf("lines on a compacted topic: %v", err)
	}
}

// Every codec of compression.type comes back as what went in.
func TestRecordSetCodecs(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	for _, codec := range []string{"uncompressed", "gzip", "snappy", "lz4", "zstd"} {
		create(t, b, codec, 1, map[string]string{"compression.type": codec})
		s := newSet(t, b, codec)
		if err := s.AddLines([]byte("one\ntwo\n")); err != nil {
			t.Fatal(err)
		}
		if res, err := s.Produce(t.Context(), AcksAll, time.Minute); err != nil || res[0].Err != nil {
			t.Fatalf("%s: %+v, %v", codec, res, err)
		}
		if got := fmt.Sprint(fetchAll(t, b, codec, 0, 0)); got != "[0:one 1:two]" {
			t.Errorf("%s: %s", codec, got)
		}
	}
}
