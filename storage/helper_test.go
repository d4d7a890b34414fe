package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"

	"leat/storage/disk"
	"leat/storage/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unraced is for tests that go through so many cases that they would take minutes
// under the race detector, which learns nothing from them that it does not from
// the others. make test runs them without it, by the list in the Makefile.
func unraced(t *testing.T) {
	t.Helper()
	if !raceEnabled {
		return
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^UNRACED := .*\b` + t.Name() + `\b`)
	if !list.Match(makefile) {
		t.Fatal("the Makefile's UNRACED does not have it")
	}
	t.Skip("it has very many cases: make test runs it without the race detector")
}

var testID = ID{Topic: TopicID{1, 2, 3}, Partition: 7}

// openDir opens /data of fs; the clock is real unless now is given.
func openDir(t testing.TB, fs disk.FS, change ...func(*Options)) *Dir {
	t.Helper()
	o := Options{FS: fs, Path: "/data", Logger: quiet()}
	for _, c := range change {
		c(&o)
	}
	d, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return d
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func mustClose(t testing.TB, d *Dir) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func openLog(t testing.TB, d *Dir, cfg Config) *Log {
	t.Helper()
	return openLogAt(t, d, cfg, 0)
}

func openLogAt(t testing.TB, d *Dir, cfg Config, start int64) *Log {
	t.Helper()
	l, err := d.OpenLog(context.WithoutCancel(t.Context()), testID, "orders", cfg, start)
	if err != nil {
		t.Fatalf("open log: %v", err)
	}
	return l
}

// openWhole is openLogAt for a log in which nothing may be missing.
func openWhole(t testing.TB, d *Dir, cfg Config, start int64) *Log {
	t.Helper()
	l := openLogAt(t, d, cfg, start)
	if l.Fenced() {
		t.Fatalf("the log has holes: %+v", l.Holes())
	}
	return l
}

// batchOf builds a batch of records with the given values; timestamps are
// those of times, or 1000 where there are none.
func batchOf(t testing.TB, codec record.Codec, times []int64, values ...string) record.Batch {
	t.Helper()
	var w record.Builder
	w.Reset(record.Options{Codec: codec})
	for i, v := range values {
		ts := int64(1000)
		if i < len(times) {
			ts = times[i]
		}
		w.Add(ts, nil, []byte(v), nil)
	}
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b)
}

// withProducer gives b a producer id, epoch and base sequence.
func withProducer(b record.Batch, pid int64, epoch int16, seq int32) record.Batch {
	b = bytes.Clone(b)
	be64(b[43:], uint64(pid))
	b[51], b[52] = byte(epoch>>8), byte(epoch)
	for i := range 4 {
		b[53+i] = byte(seq >> (24 - 8*i))
	}
	b.SetMaxTimestamp(b.MaxTimestamp(), b.LogAppendTime()) // writes the checksum
	return b
}

func be64(p []byte, v uint64) {
	for i := range 8 {
		p[i] = byte(v >> (56 - 8*i))
	}
}

func mustAppend(t testing.TB, l *Log, b record.Batch) Appended {
	t.Helper()
	a, err := l.Append(Append{Batch: b})
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return a
}

// waitDurable waits until everything in the log is durable.
func waitDurable(t testing.TB, l *Log) {
	t.Helper()
	eventually(t, "the log to be durable", func() bool {
		o := l.Offsets()
		return o.Durable == o.End
	})
}

// forceCheckpoint has the keeper write a checkpoint, as after 256 MiB, and
// waits for it.
func forceCheckpoint(t testing.TB, d *Dir) {
	t.Helper()
	before := generation(d)
	d.keeper.bytes.Store(checkpointBytes)
	d.keeper.signal()
	eventually(t, "a checkpoint", func() bool { return generation(d) > before || d.Failed() != nil })
}

// generation is that of the checkpoint written last.
func generation(d *Dir) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.checkpoint.generation
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("gave up waiting for %s", what)
		case <-tick.C:
		}
	}
}

// readAll reads the bytes of all batches from an offset up to upTo in pieces of at most
// maxBytes, going on where each section ends.
func readAll(t testing.TB, l *Log, from, upTo int64, maxBytes int) []record.Batch {
	t.Helper()
	var batches []record.Batch
	for from < upTo {
		p := mustRead(t, l, from, maxBytes, upTo)
		if p == nil {
			t.Fatalf("nothing at offset %d below %d", from, upTo)
		}
		for len(p) > 0 {
			b, rest, err := record.Next(p)
			if err != nil {
				t.Fatalf("read from %d: %v", from, err)
			}
			if err := b.VerifyCRC(); err != nil {
				t.Fatalf("read from %d: %v", from, err)
			}
			batches = append(batches, b)
			from, p = b.NextOffset(), rest
		}
	}
	return batches
}

// mustRead reads one section as bytes; nil if there is none.
func mustRead(t testing.TB, l *Log, from int64, maxBytes int, upTo int64) []byte {
	t.Helper()
	s, err := l.Read(from, maxBytes, upTo)
	if err != nil {
		t.Fatalf("read from %d: %v", from, err)
	}
	if s == nil {
		return nil
	}
	defer s.Release()
	p := make([]byte, s.Len())
	if n, err := s.ReadAt(p, 0); n != len(p) {
		t.Fatalf("read from %d: %d of %d bytes: %v", from, n, len(p), err)
	}
	return p
}

// model is what a log must hold: its batches in order, patched as stored.
type model struct {
	batches []record.Batch // from offset 0 on
	start   int64
}

func (m *model) end() int64 {
	if len(m.batches) == 0 {
		return m.start
	}
	return max(m.batches[len(m.batches)-1].NextOffset(), m.start)
}

// kept is the batches from the one on that has the start.
func (m *model) kept() []record.Batch {
	for i, b := range m.batches {
		if b.NextOffset() > m.start {
			return m.batches[i:]
		}
	}
	return nil
}

func (m *model) add(b record.Batch) { m.batches = append(m.batches, bytes.Clone(b)) }

// cutAt forgets the batches that reach past an offset.
func (m *model) cutAt(offset int64) {
	for i, b := range m.batches {
		if b.NextOffset() > offset {
			m.batches = m.batches[:i]
			return
		}
	}
}

// check compares the log with the model: everything, read in one go and in
// small pieces, and one read from each of some offsets.
func (m *model) check(t testing.TB, l *Log, rng *rand.Rand) {
	t.Helper()
	o := l.Offsets()
	if o.Start != m.start || o.End != m.end() {
		t.Fatalf("the log is [%d, %d), want [%d, %d)", o.Start, o.End, m.start, m.end())
	}
	for _, maxBytes := range []int{math.MaxInt32, 1, 1 + rng.IntN(3000)} {
		got := readAll(t, l, o.Start, o.End, maxBytes)
		if err := sameBatches(got, m.kept()); err != nil {
			t.Fatalf("read with %d bytes at most: %v", maxBytes, err)
		}
	}
	var below *OffsetError
	if _, err := l.Read(o.Start-1, 1, o.End); !errors.As(err, &below) || below.Start != o.Start {
		t.Fatalf("read below the start: %v", err)
	}
	for range min(20, o.End-o.Start) {
		from, upTo := o.Start+rng.Int64N(o.End-o.Start), rng.Int64N(o.End+1)
		maxBytes := rng.IntN(5000)
		if err := m.checkRead(mustRead(t, l, from, maxBytes, upTo), from, maxBytes, upTo); err != nil {
			t.Fatalf("read from %d, %d bytes at most, below %d: %v", from, maxBytes, upTo, err)
		}
	}
	if p := mustRead(t, l, o.End, 100, o.End); p != nil {
		t.Fatalf("read %d bytes at the end", len(p))
	}
	var bad *OffsetError
	if _, err := l.Read(o.End+1, 1, o.End+1); !errors.As(err, &bad) || bad.End != o.End {
		t.Fatalf("read behind the end: %v", err)
	}
}

// checkRead judges one read.
func (m *model) checkRead(p []byte, from int64, maxBytes int, upTo int64) error {
	var first int
	for m.batches[first].NextOffset() <= from {
		first++
	}
	whole := m.batches[first].NextOffset() <= upTo && from < upTo
	if len(p) == 0 {
		if whole {
			return errors.New("nothing")
		}
		return nil
	}
	if !whole {
		return fmt.Errorf("%d bytes of a batch that is not below the limit", len(p))
	}
	size := len(p)
	for i := first; len(p) > 0; i++ {
		if i == len(m.batches) || m.batches[i].NextOffset() > upTo {
			return errors.New("a byte at or past the limit")
		}
		b := m.batches[i]
		if len(p) < len(b) || !bytes.Equal(p[:len(b)], b) {
			return fmt.Errorf("other bytes at offset %d", b.BaseOffset())
		}
		if size > maxBytes && i > first {
			return fmt.Errorf("%d bytes and more than one batch", size)
		}
		p = p[len(b):]
	}
	return nil
}

func sameBatches(got, want []record.Batch) error {
	for i := range min(len(got), len(want)) {
		if !bytes.Equal(got[i], want[i]) {
			return fmt.Errorf("batch %d: got offset %d (%d bytes), want offset %d (%d bytes)",
				i, got[i].BaseOffset(), len(got[i]), want[i].BaseOffset(), len(want[i]))
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d batches, want %d", len(got), len(want))
	}
	return nil
}

// fileBytes reads a whole file.
func fileBytes(t testing.TB, fs disk.FS, name string) []byte {
	t.Helper()
	p, err := readFile(fs, name, math.MaxInt32)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// setFile replaces a file's content.
func setFile(t testing.TB, fs disk.FS, name string, p []byte) {
	t.Helper()
	err := withFile(fs, name, func(f disk.File) error {
		_, err := f.WriteAt(p, 0)
		return errors.Join(err, f.Truncate(int64(len(p))), f.Sync())
	})
	if err != nil {
		t.Fatal(err)
	}
}
