package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// keyed is a record for a compacted log; a nil value is a tombstone.
type keyed struct {
	key, value string
	dead       bool
	time       int64
}

func keyedBatch(t testing.TB, codec record.Codec, records ...keyed) record.Batch {
	t.Helper()
	var w record.Builder
	w.Reset(record.Options{Codec: codec})
	for _, r := range records {
		value := []byte(r.value)
		if r.dead {
			value = nil
		}
		w.Add(max(r.time, 1000), []byte(r.key), value, nil)
	}
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b)
}

// contents reads all records of a log, and checks that every offset is passed.
func contents(t testing.TB, l *Log) []record.Record {
	t.Helper()
	o := l.Offsets()
	var out []record.Record
	var r record.Reader
	defer r.Close()
	next := o.Start
	for _, b := range readAll(t, l, o.Start, o.End, math.MaxInt32) {
		if next > b.LastOffset() || b.BaseOffset() > next {
			t.Fatalf("a batch has offsets %d to %d, want one with %d", b.BaseOffset(), b.LastOffset(), next)
		}
		next = b.NextOffset()
		if err := r.Reset(b, math.MaxInt32); err != nil {
			t.Fatal(err)
		}
		var rec record.Record
		for r.Next(&rec) == nil {
			rec.Key, rec.Value = bytes.Clone(rec.Key), bytes.Clone(rec.Value)
			rec.Headers = nil
			out = append(out, rec)
		}
	}
	if next != o.End {
		t.Fatalf("the log ends at %d, its batches at %d", o.End, next)
	}
	return out
}

// text is the contents in one line: offset, key, value.
func text(t testing.TB, l *Log) string {
	t.Helper()
	var out []string
	for _, r := range contents(t, l) {
		value := "=" + string(r.Value)
		if r.Value == nil {
			value = "!"
		}
		out = append(out, fmt.Sprintf("%d:%s%s", r.Offset, r.Key, value))
	}
	return strings.Join(out, " ")
}

// settled waits until all but the active segment may be compacted.
func settled(t testing.TB, l *Log) {
	t.Helper()
	eventually(t, "the seals", func() bool {
		l.mu.RLock()
		defer l.mu.RUnlock()
		for _, s := range l.mu.segments[:len(l.mu.segments)-1] {
			if !s.sealed.Load() {
				return false
			}
		}
		if l.mu.durable.seg != l.activeLocked() {
			l.dir.flusher.enqueue(l)
			return false
		}
		return true
	})
}

func mustCompact(t testing.TB, l *Log, c *Cleaner) Compacted {
	t.Helper()
	settled(t, l)
	done, err := l.Compact(context.WithoutCancel(t.Context()), c, math.MaxInt64)
	if err != nil {
		t.Fatalf("compact: %v", err)
	}
	return done
}

// roll ends the active segment.
func rollNow(t testing.TB, l *Log) {
	t.Helper()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.RLock()
	s := l.activeLocked()
	l.mu.RUnlock()
	if s.size == 0 {
		return
	}
	if _, err := l.roll(s); err != nil {
		t.Fatal(err)
	}
}

// TestCompact proves on a small log what goes and what stays: of each key the
// newest record, none without a key, nothing of the active segment; that
// offsets and timestamps stay, that the segments merge, and that lookups by time
// and a restart agree.
func TestCompact(t *testing.T) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{Compact: true})
	mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "a", value: "1", time: 1001}, keyed{key: "b", value: "1", time: 9000}))
	mustAppend(t, l, batchOf(t, record.None, nil, "no key"))
	rollNow(t, l)
	mustAppend(t, l, keyedBatch(t, record.LZ4, keyed{key: "a", value: "2", time: 2001}, keyed{key: "c", value: "1", time: 2002}))
	mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "b", value: "2", time: 2003}))
	rollNow(t, l)
	mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "c", value: "2", time: 3001}))
	c := NewCleaner(CleanerOptions{})
	settled(t, l)
	if dirt := l.Dirt(time.Now(), math.MaxInt64); dirt.Clean != 0 || dirt.Dirty == 0 || dirt.Ratio() != 1 {
		t.Errorf("before: %+v", dirt)
	}
	done := mustCompact(t, l, c)
	if done.Kept != 3 || done.Removed != 3 || done.From != 0 || done.To != 6 || done.Before != 2 || done.After != 1 {
		t.Errorf("%+v", done)
	}
	want := "3:a=2 4:c=1 5:b=2 6:c=2"
	for range 2 {
		if got := text(t, l); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if at, ts, err := l.FindTime(1, 7); at != 3 || ts != 2001 || err != nil {
			t.Errorf("first time: %d at %d, %v", ts, at, err)
		}
		if at, ts, err := l.FindMaxTime(6); at != 5 || ts != 2003 || err != nil {
			t.Errorf("greatest time: %d at %d, %v", ts, at, err)
		}
		if dirt := l.Dirt(time.Now(), math.MaxInt64); dirt.Dirty != 0 || dirt.Clean == 0 {
			t.Errorf("after: %+v", dirt)
		}
		if done := mustCompact(t, l, c); done != (Compacted{}) {
			t.Errorf("again: %+v", done)
		}
		mustClose(t, d)
		if c := check(t, fs); len(c.Findings) > 0 {
			t.Fatal(c.lines())
		}
		d = openDir(t, fs)
		l = openLog(t, d, Config{Compact: true})
	}
	mustClose(t, d)
}

// TestCompactShortFile proves that a segment's file which is shorter than it must
// be is damage to compaction, as it is to a read, and fences the log.
func TestCompactShortFile(t *testing.T) {
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{Compact: true})
	for range 3 {
		mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "a", value: "v"}))
		rollNow(t, l)
	}
	settled(t, l)
	name := l.mu.segments[1].logPath()
	p := fileBytes(t, m, name)
	setFile(t, m, name, p[:len(p)-1])
	var damage *CorruptError
	if _, err := l.Compact(t.Context(), NewCleaner(CleanerOptions{}), math.MaxInt64); !errors.As(err, &damage) || damage.Path != name {
		t.Errorf("compact: %v", err)
	}
	if !l.Fenced() {
		t.Error("the log is not fenced")
	}
	mustClose(t, d)
}

// TestCompactBounds proves that what is past the bound, too young, or in the
// active segment is neither removed nor taken for newer.
func TestCompactBounds(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	d := openDir(t, disk.NewMem(), func(o *Options) { o.Now = func() time.Time { return now } })
	l := openLog(t, d, Config{Compact: true, MinCompactionLag: time.Minute})
	for i := range 4 {
		mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "a", value: fmt.Sprint(i), time: now.UnixMilli()}))
		if i < 3 {
			rollNow(t, l)
		}
		now = now.Add(10 * time.Second)
	}
	c := NewCleaner(CleanerOptions{})
	mustCompact(t, l, c)
	if got := text(t, l); got != "0:a=0 1:a=1 2:a=2 3:a=3" {
		t.Errorf("too young: %s", got)
	}
	now = time.UnixMilli(1_000_000 + 71_000)
	mustCompact(t, l, c)
	if got := text(t, l); got != "1:a=1 2:a=2 3:a=3" {
		t.Errorf("two are old enough: %s", got)
	}
	l.SetConfig(Config{Compact: true})
	if _, err := l.Compact(t.Context(), c, 2); err != nil {
		t.Fatal(err)
	}
	if got := text(t, l); got != "1:a=1 2:a=2 3:a=3" {
		t.Errorf("bound 2: %s", got)
	}
	mustCompact(t, l, c)
	if got := text(t, l); got != "2:a=2 3:a=3" {
		t.Errorf("at the end: %s", got)
	}
	mustClose(t, d)
}

// TestTombstones proves that a tombstone stays for its time from the first pass
// on that went over it, however often it is compacted and restarted, goes with a
// later pass, and that the key stays absent.
func TestTombstones(t *testing.T) {
	fs := disk.NewMem()
	now := time.UnixMilli(1_000_000)
	clock := func(o *Options) { o.Now = func() time.Time { return now } }
	cfg := Config{Compact: true, DeleteRetention: time.Minute}
	d := openDir(t, fs, clock)
	l := openLog(t, d, cfg)
	c := NewCleaner(CleanerOptions{})
	n := 0
	more := func(records ...keyed) {
		for i := range records {
			records[i].time = now.UnixMilli()
		}
		mustAppend(t, l, keyedBatch(t, record.Codec(n%5), records...))
		n++
		rollNow(t, l)
	}
	more(keyed{key: "a", value: "1"}, keyed{key: "b", value: "1"})
	more(keyed{key: "a", dead: true}, keyed{key: "c", value: "1"})
	now = now.Add(time.Hour) // before the first pass does not count
	mustCompact(t, l, c)
	for i := range 3 {
		if got := text(t, l); !strings.HasPrefix(got, "1:b=1 2:a! 3:c=1") {
			t.Fatalf("round %d: %s", i, got)
		}
		now = now.Add(19 * time.Second)
		more(keyed{key: "x", value: fmt.Sprint(i)})
		mustCompact(t, l, c)
		mustClose(t, d)
		d = openDir(t, fs, clock)
		l = openLog(t, d, cfg)
	}
	now = now.Add(3 * time.Second)
	more(keyed{key: "y", value: "1"})
	mustCompact(t, l, c)
	if got := text(t, l); got != "1:b=1 3:c=1 6:x=2 7:y=1" {
		t.Errorf("after its time: %s", got)
	}
	mustClose(t, d)
}

// TestCompactProducers proves that the last batches of a producer are known by
// their headers when their records are gone, after a restart, too.
func TestCompactProducers(t *testing.T) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{Compact: true})
	var sent []record.Batch
	for i := range 8 {
		b := withProducer(keyedBatch(t, record.Zstd, keyed{key: "a", value: fmt.Sprint(i)}), 9, 0, int32(i))
		sent = append(sent, bytes.Clone(b))
		mustAppend(t, l, b)
	}
	rollNow(t, l)
	mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "a", value: "last"}))
	rollNow(t, l)
	mustCompact(t, l, NewCleaner(CleanerOptions{}))
	for range 2 {
		if got := text(t, l); got != "8:a=last" {
			t.Errorf("got %s", got)
		}
		for i := 3; i < 8; i++ {
			if a := mustAppend(t, l, bytes.Clone(sent[i])); !a.Duplicate || a.Base != int64(i) {
				t.Errorf("batch %d sent again: %+v", i, a)
			}
		}
		if _, err := l.Append(Append{Batch: bytes.Clone(sent[2])}); !errors.Is(err, ErrOutOfOrderSequence) {
			t.Errorf("a batch that is too old: %v", err)
		}
		if n := len(readAll(t, l, 0, 9, math.MaxInt32)); n != 7 {
			t.Errorf("%d batches, want one for the first three, five headers and the last", n)
		}
		mustClose(t, d)
		d = openDir(t, fs)
		l = openLog(t, d, Config{Compact: true})
	}
	mustClose(t, d)
}

// TestCompactUnflushedProducers proves that batches which a crash may take away
// push no header out of the log: after it, the producer is known as of what is
// left, without a snapshot, too.
func TestCompactUnflushedProducers(t *testing.T) {
	for _, bound := range []int64{2, math.MaxInt64} {
		fs := disk.NewMem()
		d := openDir(t, fs)
		cfg := Config{Compact: true, FlushMessages: 1 << 40}
		l := openLog(t, d, cfg)
		sent := withProducer(keyedBatch(t, record.None, keyed{key: "a", value: "1"}), 9, 0, 0)
		mustAppend(t, l, bytes.Clone(sent))
		mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "a", value: "2"}))
		rollNow(t, l)
		settled(t, l)
		for i := range int32(producerWindow) {
			mustAppend(t, l, withProducer(keyedBatch(t, record.None, keyed{key: "b", value: "1"}), 9, 0, 1+i))
		}
		if bound == 2 {
			// What is past the high watermark may be cut off however durable it is.
			l.SetConfig(Config{Compact: true})
			mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "b", value: "1"}))
			waitDurable(t, l)
		}
		if done, err := l.Compact(t.Context(), NewCleaner(CleanerOptions{}), bound); err != nil || done.Removed != 1 {
			t.Fatalf("compact: %+v, %v", done, err)
		}
		if bound == 2 {
			if b := readAll(t, l, 0, 2, math.MaxInt32)[0]; b.ProducerID() != 9 || b.Count() != 0 {
				t.Errorf("the first batch has %d records and is of producer %d", b.Count(), b.ProducerID())
			}
			mustClose(t, d)
			continue
		}
		after := fs.CrashClone(0, rand.New(rand.NewPCG(1, 2)))
		mustClose(t, d)
		removeSnapshots(t, after)
		d = openDir(t, after)
		l = openLog(t, d, cfg)
		if o := l.Offsets(); o.End != 2 {
			t.Fatalf("after the crash: %+v", o)
		}
		if a := mustAppend(t, l, sent); !a.Duplicate || a.Base != 0 {
			t.Errorf("sent again after the crash: %+v", a)
		}
		mustClose(t, d)
	}
}

// TestCompactSmallMap proves that a map of few keys, fewer than a batch has,
// gets through the whole log pass by pass.
func TestCompactSmallMap(t *testing.T) {
	d := openDir(t, disk.NewMem())
	l := openLog(t, d, Config{Compact: true, SegmentBytes: 2000})
	want := map[string]string{}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		var records []keyed
		for range 1 + rng.IntN(12) {
			k := fmt.Sprintf("k%d", rng.IntN(40))
			v := fmt.Sprint(i)
			records = append(records, keyed{key: k, value: v})
			want[k] = v
		}
		mustAppend(t, l, keyedBatch(t, record.None, records...))
	}
	rollNow(t, l)
	c := NewCleaner(CleanerOptions{MapBytes: 5 * keySlotBytes})
	passes := 0
	for last := int64(-1); ; passes++ {
		done := mustCompact(t, l, c)
		if done == (Compacted{}) {
			break
		}
		if done.To <= last {
			t.Fatalf("pass %d ended at %d, the one before at %d", passes, done.To, last)
		}
		last = done.To
		if len(c.keys.slots) > 5 {
			t.Fatalf("the map has %d slots", len(c.keys.slots))
		}
	}
	got := map[string]string{}
	records := contents(t, l)
	for _, r := range records {
		got[string(r.Key)] = string(r.Value)
	}
	if len(records) != len(want) || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d records after %d passes: %v, want %v", len(records), passes, got, want)
	}
	if passes < 10 {
		t.Errorf("%d passes", passes)
	}
	mustClose(t, d)
}

// removeSnapshots removes all that is known of producers beside the log.
func removeSnapshots(t testing.TB, fs *disk.Mem) {
	t.Helper()
	dir := filepath.Join("/data/logs", testID.dirName())
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, snapshotSuffix) {
			if err := fs.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
