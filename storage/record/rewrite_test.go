package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// all reads the records of a batch; they are copies.
func all(t testing.TB, b Batch) []Record {
	t.Helper()
	var r Reader
	defer r.Close()
	if err := r.Reset(b, 1<<31-1); err != nil {
		t.Fatal(err)
	}
	var out []Record
	for {
		var rec Record
		err := r.Next(&rec)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		rec.Key, rec.Value = bytes.Clone(rec.Key), bytes.Clone(rec.Value)
		rec.Headers = slices.Clone(rec.Headers)
		for i := range rec.Headers {
			rec.Headers[i].Value = bytes.Clone(rec.Headers[i].Value)
		}
		out = append(out, rec)
	}
}

func sameRecords(a, b []Record) bool {
	sameBytes := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	return slices.EqualFunc(a, b, func(a, b Record) bool {
		return a.Offset == b.Offset && a.Timestamp == b.Timestamp && sameBytes(a.Key, b.Key) && sameBytes(a.Value, b.Value) &&
			slices.EqualFunc(a.Headers, b.Headers, func(a, b Header) bool { return a.Key == b.Key && sameBytes(a.Value, b.Value) })
	})
}

// randomRecords builds a batch of up to n records, some with a value or a key
// that is larger than every buffer.
func randomRecords(t testing.TB, rng *rand.Rand, codec Codec, n int) Batch {
	t.Helper()
	var w Builder
	w.Reset(Options{Codec: codec})
	for i := range 1 + rng.IntN(n) {
		key := []byte(fmt.Sprintf("key-%d", rng.IntN(20)))
		value := []byte(strings.Repeat("v", rng.IntN(300)))
		var headers []Header
		switch rng.IntN(12) {
		case 0:
			key = nil
		case 1:
			value = nil
		case 2:
			headers = []Header{{Key: "h", Value: []byte("x")}, {Key: "", Value: nil}}
		case 3:
			if i%7 == 0 {
				value = bytes.Repeat([]byte{byte(i)}, 400_000+rng.IntN(sourceBuffer))
			}
		case 4:
			if i%7 == 0 {
				key = bytes.Repeat([]byte{byte(i)}, 400_000+rng.IntN(sourceBuffer))
			}
		}
		w.Add(1_700_000_000_000+rng.Int64N(100_000), key, value, headers)
	}
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Clone(b)
	b.SetBaseOffset(1000)
	b.SetLeaderEpoch(3)
	return b
}

// TestRewrite proves for every codec, and for batches that do and do not fit
// into the buffers, that the records that stay are as they were, at their
// offsets, and that the header keeps its range, with and without a horizon, and
// when the result is rewritten again.
func TestRewrite(t *testing.T) {
	var w Rewriter
	for codec := range codecs {
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(seed, uint64(codec)))
			b := randomRecords(t, rng, codec, 30)
			for range 3 {
				want := all(t, b)
				horizon := int64(NoHorizon)
				if rng.IntN(2) == 0 {
					horizon = 1_800_000_000_000 + rng.Int64N(1000)
				}
				drop := rng.IntN(4)
				keep := func(e *Entry) bool { return drop == 0 || e.Offset%4 != int64(drop) }
				var kept []Record
				for _, r := range want {
					if keep(&Entry{Offset: r.Offset}) {
						kept = append(kept, r)
					}
				}
				got, err := w.Rewrite(b, 0, horizon, keep)
				if err != nil {
					t.Fatalf("%s, seed %d: %v", codec, seed, err)
				}
				if got.Kept != len(kept) || got.Removed != len(want)-len(kept) {
					t.Fatalf("%s, seed %d: %+v, want %d of %d", codec, seed, got, len(kept), len(want))
				}
				if len(kept) == 0 {
					break
				}
				out := bytes.Clone(got.Batch)
				checkRewritten(t, b, out, kept, horizon)
				b = out
			}
		}
	}
}

func checkRewritten(t *testing.T, b, out Batch, kept []Record, horizon int64) {
	t.Helper()
	if err := out.VerifyCRC(); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckStored(out, 0); err != nil {
		t.Fatal(err)
	}
	if !sameRecords(all(t, out), kept) {
		t.Fatalf("other records stay: %d, want %d", len(all(t, out)), len(kept))
	}
	newest, dead := int64(-1), false
	for _, r := range kept {
		newest, dead = max(newest, r.Timestamp), dead || r.Value == nil
	}
	if out.MaxTimestamp() != newest && len(kept) < int(b.Count()) {
		t.Errorf("max timestamp %d, want %d", out.MaxTimestamp(), newest)
	}
	if out.BaseOffset() != b.BaseOffset() || out.LastOffset() != b.LastOffset() || out.LeaderEpoch() != b.LeaderEpoch() ||
		out.Codec() != b.Codec() || out.ProducerID() != b.ProducerID() || out.BaseSequence() != b.BaseSequence() {
		t.Errorf("the header changed")
	}
	was, had := b.DeleteHorizon()
	is, has := out.DeleteHorizon()
	switch {
	case had && (!has || is != was):
		t.Errorf("horizon %d, %v, it was %d", is, has, was)
	case !had && dead && horizon != NoHorizon && (!has || is != horizon):
		t.Errorf("horizon %d, %v, want %d", is, has, horizon)
	case !had && (!dead || horizon == NoHorizon) && has:
		t.Errorf("a horizon without need")
	}
}

// TestRewriteHeader proves that log append time, producer and sequence stay, and
// what an emptied batch and a filler say.
func TestRewriteHeader(t *testing.T) {
	var build Builder
	build.Reset(Options{Codec: LZ4})
	build.Add(5, []byte("a"), []byte("1"), nil)
	build.Add(7, []byte("b"), nil, nil)
	build.Add(6, []byte("c"), []byte("3"), nil)
	b, err := build.Finish()
	if err != nil {
		t.Fatal(err)
	}
	copy(b[offProducerID:], []byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 2, 0, 0, 0, 77})
	b.SetBaseOffset(100)
	b.SetLeaderEpoch(4)
	b.SetMaxTimestamp(5000, true)
	var w Rewriter
	got, err := w.Rewrite(b, 0, 9999, func(e *Entry) bool { return e.Offset != 100 })
	if err != nil {
		t.Fatal(err)
	}
	out := got.Batch
	for _, r := range all(t, out) {
		if r.Timestamp != 5000 {
			t.Errorf("offset %d has time %d", r.Offset, r.Timestamp)
		}
	}
	if out.ProducerID() != 9 || out.ProducerEpoch() != 2 || out.BaseSequence() != 77 || out.LastSequence() != 79 ||
		!out.LogAppendTime() || out.MaxTimestamp() != 5000 || out.BaseTimestamp() != 9999 {
		t.Errorf("header %x", out[:HeaderSize])
	}
	e := AppendEmptied(nil, out)
	if e.VerifyCRC() != nil || e.Count() != 0 || e.Codec() != None || e.LastSequence() != 79 || e.NextOffset() != 103 || e.LeaderEpoch() != 4 ||
		!e.LogAppendTime() || e.MaxTimestamp() != 5000 || len(all(t, e)) != 0 {
		t.Errorf("emptied %x", []byte(e))
	}
	if _, has := e.DeleteHorizon(); has {
		t.Error("an emptied batch has a horizon")
	}
	f := AppendFiller(nil, 100, 1<<31+99, 4)
	if f.VerifyCRC() != nil || f.Count() != 0 || f.NextOffset() != 1<<31+100 || f.ProducerID() != -1 || f.ProducerEpoch() != -1 ||
		f.BaseSequence() != -1 || f.MaxTimestamp() != -1 || f.LeaderEpoch() != 4 || len(all(t, f)) != 0 {
		t.Errorf("filler %x", []byte(f))
	}
	if same, err := w.Rewrite(f, 0, 1, func(*Entry) bool { return false }); err != nil || &same.Batch[0] != &f[0] {
		t.Errorf("a filler was rewritten: %v", err)
	}
}

// TestKeyHash proves that keys have the same hash if they are equal, whatever
// the batch, and another one if they differ, be it by zeros at the end or in
// what is null.
func TestKeyHash(t *testing.T) {
	seen := map[KeyHash]string{}
	add := func(codec Codec, key []byte) KeyHash {
		var build Builder
		build.Reset(Options{Codec: codec})
		build.Add(1, key, nil, nil)
		b, err := build.Finish()
		if err != nil {
			t.Fatal(err)
		}
		var w Rewriter
		var h KeyHash
		if err := w.Each(b, 0, func(e *Entry) bool { h = e.Key; return e.HasKey }); err != nil {
			t.Fatal(err)
		}
		return h
	}
	for n := range 70 {
		for _, fill := range []byte{0, 1} {
			key := bytes.Repeat([]byte{fill}, n)
			if n == 0 && fill == 1 {
				continue
			}
			h := add(None, key)
			if other, known := seen[h]; known {
				t.Errorf("%x has the hash of %x", key, other)
			}
			seen[h] = string(key)
			if add(Zstd, key) != h {
				t.Errorf("%x has two hashes", key)
			}
		}
	}
	if h := add(None, nil); h != (KeyHash{}) {
		t.Errorf("no key has hash %x", h)
	}
	long := bytes.Repeat([]byte("k"), 3*sourceBuffer)
	if add(Gzip, long) != add(None, long) || add(Gzip, long) == add(None, long[1:]) {
		t.Error("long keys are not told apart")
	}
}

// TestRewriteAllocates proves that once its buffers have grown a Rewriter
// allocates no more than three times for a batch, whatever its records.
func TestRewriteAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, codec := range []Codec{None, LZ4, Snappy, Zstd} {
		b := randomRecords(t, rand.New(rand.NewPCG(1, 1)), codec, 100)
		var w Rewriter
		n := testing.AllocsPerRun(50, func() {
			if _, err := w.Rewrite(b, 0, 99, func(e *Entry) bool { return e.Offset%2 == 0 }); err != nil {
				t.Fatal(err)
			}
		})
		if n > 3 {
			t.Errorf("%s: %v allocations", codec, n)
		}
	}
}

// FuzzRewrite proves that no payload makes the Rewriter panic, and that what it
// makes is sound where the batch was.
func FuzzRewrite(f *testing.F) {
	for codec := range codecs {
		f.Add([]byte(randomRecords(f, rand.New(rand.NewPCG(3, uint64(codec))), codec, 6)), uint8(1))
	}
	f.Add([]byte(AppendFiller(nil, 1, 5, 0)), uint8(0))
	f.Fuzz(func(t *testing.T, p []byte, drop uint8) {
		b := Batch(p)
		if len(p) < HeaderSize || b.Size() != len(p) {
			return
		}
		var w Rewriter
		got, err := w.Rewrite(b, 1<<20, 5, func(e *Entry) bool { return e.Offset%3 != int64(drop%4) })
		if err != nil || got.Batch == nil || b.Control() {
			return
		}
		if _, err := CheckStored(b, 1<<20); err != nil {
			return // of the headers it does not look at
		}
		if _, err := CheckStored(got.Batch, 1<<22); err != nil {
			t.Errorf("of a sound batch: %v", err)
		}
	})
}
