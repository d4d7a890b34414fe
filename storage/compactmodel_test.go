package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var compactProof = disktest.Proof{Name: "TestCompactModel", Short: 40, Body: func(t testing.TB, seed uint64, c *disktest.Counts) {
	r := &compactRun{t: t, counts: c, rng: rand.New(rand.NewPCG(seed, 5)), fs: disk.NewMem(), now: time.UnixMilli(1_700_000_000_000)}
	r.keys = []int{3, 12}[r.rng.IntN(2)]
	r.pids, r.sent, r.tried = map[int64]int32{}, map[int64]record.Batch{}, map[int64]time.Time{}
	defer func() {
		if r.dir != nil {
			_ = r.dir.Close()
		}
	}()
	r.run()
}}

// TestCompactModel proves that however a log is written, of whatever codec and
// by idempotent producers or not, compacted with a map of any size, shortened at
// its start, restarted, killed, and cut off from power before any operation of
// that, its records are what a map has: each key's newest one is there, no key
// comes back that was deleted, no record is another than was appended, and every
// offset is passed. Who the producers are the batches of the log say, without any
// snapshot.
func TestCompactModel(t *testing.T) { disktest.Run(t, compactProof) }

// modelKeyRetention is short, so that keys expire between compactions.
const modelKeyRetention = time.Minute

// compactRun drives one log.
type compactRun struct {
	t        testing.TB
	counts   *disktest.Counts
	rng      *rand.Rand
	fs       *disk.Mem
	dir      *Dir
	log      *Log
	now      time.Time
	start    int64
	appended []keyed // by offset
	pids     map[int64]int32
	sent     map[int64]record.Batch // of producers and keyed requests, by offset
	ids      int64                  // batches of keyed requests so far, three of each
	tried    map[int64]time.Time    // the first time, by producer id
	keys     int                    // how many there are
}

func (r *compactRun) open() {
	r.dir = openDir(r.t, r.fs, func(o *Options) { now := r.now; o.Now = func() time.Time { return now } })
	if r.log == nil {
		if err := r.dir.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
			r.t.Fatal(err)
		}
	}
	r.log = openLogAt(r.t, r.dir, Config{
		Compact: true, SegmentBytes: []int64{600, 4000, 1 << 20}[r.rng.IntN(3)], IndexInterval: 1 + r.rng.IntN(500),
		DeleteRetention: time.Minute, KeyRetention: modelKeyRetention, TimestampAfter: math.MaxInt64, FlushMessages: []int64{1, 1 << 40}[r.rng.IntN(2)],
	}, r.start)
}

func (r *compactRun) run() {
	r.open()
	for range 40 {
		r.counts.Operations.Add(1)
		switch n := r.rng.IntN(12); {
		case n < 5:
			for range r.rng.IntN(12) {
				r.append()
			}
			if n == 0 {
				rollNow(r.t, r.log)
			}
		case n < 7:
			mustCompact(r.t, r.log, r.cleaner())
		case n < 8:
			mustClose(r.t, r.dir)
			if c := check(r.t, r.fs); len(c.Findings) > 0 {
				r.t.Fatal(c.lines())
			}
			r.now = r.now.Add(time.Duration(r.rng.IntN(50)) * time.Second)
			r.open()
			r.forgetProducers()
		case n < 9:
			r.raise()
		case n < 10:
			r.kill()
		default:
			r.crash()
		}
		r.check()
	}
	mustClose(r.t, r.dir)
}

func (r *compactRun) cleaner() *Cleaner {
	return NewCleaner(CleanerOptions{MapBytes: []int64{1, 4 * keySlotBytes, 12 * keySlotBytes, 1 << 20}[r.rng.IntN(4)]})
}

func (r *compactRun) append() {
	pid, at := r.rng.Int64N(4), r.now
	if pid == 2 { // the next of three batches of a keyed request
		if tried, begun := r.tried[FirstKeyID+r.ids/3]; begun && r.now.Before(tried.Add(modelKeyRetention)) {
			at = tried
		} else {
			r.ids += (3 - r.ids%3) % 3
			r.tried[FirstKeyID+r.ids/3] = r.now
		}
	}
	records := make([]keyed, 1+r.rng.IntN(6)*r.rng.IntN(2))
	for i := range records {
		records[i] = keyed{key: fmt.Sprint("k", r.rng.IntN(r.keys)), value: fmt.Sprint(len(r.appended) + i), dead: r.rng.IntN(5) == 0, time: at.UnixMilli()}
	}
	b := keyedBatch(r.t, record.Codec(r.rng.IntN(5)), records...)
	switch pid {
	case 0, 1:
		b = withProducer(b, pid, 0, r.pids[pid])
		r.pids[pid] = b.LastSequence() + 1
	case 2:
		b = withProducer(b, FirstKeyID+r.ids/3, 7, 100*int32(r.ids%3))
		r.ids++
	}
	again := record.Batch(bytes.Clone(b))
	done := mustAppend(r.t, r.log, b)
	if done.Base != int64(len(r.appended)) {
		r.t.Fatalf("appended at %d, want %d", done.Base, len(r.appended))
	}
	if again.ProducerID() >= 0 {
		r.sent[done.Base] = bytes.Clone(again)
		if dup := mustAppend(r.t, r.log, again); !dup.Duplicate || dup.Base != done.Base {
			r.t.Fatalf("sent again: %+v", dup)
		}
	}
	r.appended = append(r.appended, records...)
}

// raise raises the start to an offset that is durable.
func (r *compactRun) raise() {
	if durable := r.log.Offsets().Durable; r.start < durable {
		r.start += r.rng.Int64N(durable - r.start + 1)
	}
	if err := r.log.SetStart(r.start); err != nil {
		r.t.Fatal(err)
	}
	if r.rng.IntN(2) == 0 {
		r.dir.keeper.bytes.Store(checkpointBytes) // the files go at once
		r.dir.keeper.signal()
	}
}

// kill ends the process, as kill -9 does, before an operation of a compaction:
// what it has written stays, and not one byte more comes.
func (r *compactRun) kill() {
	r.counts.Crashes.Add(1)
	settled(r.t, r.log)
	end := r.log.Offsets().End
	var left atomic.Int64
	left.Store(r.rng.Int64N(60))
	r.fs.SetFault(func(op disk.Op) error {
		if op.Kind.Changes() && left.Add(-1) < 0 {
			return disk.ErrSkip
		}
		return nil
	})
	_, _ = r.log.Compact(context.WithoutCancel(r.t.Context()), r.cleaner(), math.MaxInt64) // it may fail as it likes
	_ = r.dir.Close()
	r.fs.SetFault(nil)
	r.noDamage()
	r.open()
	if o := r.log.Offsets(); o.End != end || o.Start != r.start {
		r.t.Fatalf("killed at %d to %d, started with %+v", r.start, end, o)
	}
	r.forgetProducers()
}

func mustNil(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noDamage has Check look at what a crash left, with what the owner knows.
func (r *compactRun) noDamage() {
	mustNil(r.t, r.fs.MkdirAll("/data/db"))
	f, err := r.fs.OpenFile("/data/db/any", os.O_CREATE|os.O_RDWR)
	mustNil(r.t, err)
	mustNil(r.t, f.Close())
	c := check(r.t, r.fs, func(o *CheckOptions) {
		o.Meta = func(context.Context, string) (*Metadata, error) {
			return &Metadata{Known: true, Logs: map[ID]LogMetadata{testID: {Topic: "orders", Start: r.start}}}, nil
		}
	})
	if c.Damages > 0 {
		r.t.Fatal(c.lines())
	}
	// Without the metadata the checkpoint must say where the log begins.
	if c := check(r.t, r.fs); c.Damages > 0 {
		r.t.Fatal(c.lines())
	}
}

// crash cuts the power before an operation of a compaction.
func (r *compactRun) crash() {
	rollNow(r.t, r.log)
	r.counts.Crashes.Add(1)
	settled(r.t, r.log)
	for range r.rng.IntN(20) {
		r.append() // and it may not be durable
	}
	durable := r.log.Offsets().Durable
	keep := []float64{0, 0.5, 1}[r.rng.IntN(3)]
	clone, _ := crashAt(r.fs, 1+r.rng.IntN(60), keep, func() {
		_, err := r.log.Compact(context.WithoutCancel(r.t.Context()), r.cleaner(), math.MaxInt64)
		if err != nil && !errors.Is(err, ErrClosed) {
			r.t.Fatal(err)
		}
	})
	_ = r.dir.Close()
	r.fs = clone
	r.noDamage()
	r.open()
	end := r.log.Offsets().End
	if end < durable || end > int64(len(r.appended)) {
		r.t.Fatalf("after a crash the log ends at %d, durable was %d, appended %d", end, durable, len(r.appended))
	}
	r.appended = r.appended[:end]
	r.forgetProducers()
}

// forgetProducers goes back to what the log knows of the producers after a start:
// the same whether it has snapshots or not.
func (r *compactRun) forgetProducers() {
	r.log.writing.Lock()
	clear(r.pids)
	maps.DeleteFunc(r.sent, func(base int64, _ record.Batch) bool { return base >= int64(len(r.appended)) })
	var known []int64 // offsets of batches
	for pid, e := range r.log.writing.producers.byID {
		k := e.Value.(*producer)
		r.pids[pid] = k.next()
		for _, b := range k.window[:k.count] {
			if b.base >= r.start { // what was deleted only a snapshot knows
				known = append(known, b.base)
			}
		}
	}
	r.log.writing.Unlock()
	keyed := r.keysKnown(r.log)
	fs := r.fs.CrashClone(1, r.rng)
	removeSnapshots(r.t, fs)
	d := openDir(r.t, fs, func(o *Options) { now := r.now; o.Now = func() time.Time { return now } })
	defer mustClose(r.t, d)
	l := openLogAt(r.t, d, Config{Compact: true, KeyRetention: modelKeyRetention}, r.start)
	for _, base := range known {
		if a, err := l.Append(Append{Batch: bytes.Clone(r.sent[base])}); err != nil || !a.Duplicate || a.Base != base {
			r.t.Fatalf("producer %d sends its batch at %d again to the log without snapshots: %+v, %v", r.sent[base].ProducerID(), base, a, err)
		}
	}
	if bare := r.keysKnown(l); bare != keyed {
		r.t.Fatalf("with its snapshots the log knows keys of %d batches, without of %d", keyed, bare)
	}
}

// keysKnown proves that a log knows every batch of a keyed request that it has or
// had and compacted, until the request's time is over, and since when. It returns
// how many that are.
func (r *compactRun) keysKnown(l *Log) (known int) {
	for base, b := range r.sent {
		if b.ProducerID() < FirstKeyID || base < r.start {
			continue
		}
		k, is := l.KeyedRequest(b.ProducerID())
		if !r.now.Before(r.tried[b.ProducerID()].Add(modelKeyRetention)) {
			if is {
				r.t.Fatalf("key %d is known after its time", b.ProducerID()-FirstKeyID)
			}
			continue
		}
		known++
		if !is || k.Stamp != r.tried[b.ProducerID()].UnixMilli() || !slices.ContainsFunc(k.Written, func(w Written) bool { return w.Base == base }) {
			r.t.Fatalf("key %d, first tried at %v, has a batch at %d; known is %v %+v", b.ProducerID()-FirstKeyID, r.tried[b.ProducerID()].UnixMilli(), base, is, k)
		}
	}
	return known
}

func (r *compactRun) check() {
	r.t.Helper()
	want, got := map[string]int64{}, map[string]int64{}
	for i, k := range r.appended {
		if int64(i) >= r.start {
			want[k.key] = int64(i)
		}
	}
	for _, rec := range contents(r.t, r.log) {
		is := r.appended[rec.Offset]
		if is.key != string(rec.Key) || is.dead != (rec.Value == nil) || !is.dead && is.value != string(rec.Value) || rec.Timestamp != is.time {
			r.t.Fatalf("offset %d is %+v, was %+v", rec.Offset, rec, is)
		}
		if rec.Offset >= r.start {
			got[is.key] = rec.Offset
		}
	}
	for key, offset := range want {
		at, there := got[key]
		if there && at != offset || !there && !r.appended[offset].dead {
			r.t.Fatalf("key %s is at %d, %v, want %d", key, at, there, offset)
		}
	}
}

// TestCompactCancelled proves that a pass ends with its context and with the
// log, and that nothing of it stays.
func TestCompactCancelled(t *testing.T) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{Compact: true, SegmentBytes: 2000})
	for i := range 100 {
		mustAppend(t, l, keyedBatch(t, record.None, keyed{key: fmt.Sprint(i % 10), value: fmt.Sprint(i)}))
	}
	settled(t, l)
	for n := 1; n < 12; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		left := n
		c := NewCleaner(CleanerOptions{Pace: func(ctx context.Context, _ int) error {
			if left--; left == 0 {
				cancel()
			}
			return ctx.Err()
		}})
		if _, err := l.Compact(ctx, c, math.MaxInt64); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cancel()
	}
	c := NewCleaner(CleanerOptions{})
	mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "0", value: "x"}))
	rollNow(t, l)
	settled(t, l)
	gone := make(chan struct{})
	c.opts.Pace = func(context.Context, int) error {
		go func() {
			defer close(gone)
			if err := d.Remove(l); err != nil {
				t.Error(err)
			}
		}()
		eventually(t, "the log to be closed", func() bool { return !l.enter() || func() bool { l.leave(); return false }() })
		c.opts.Pace = func(context.Context, int) error { return nil }
		return nil
	}
	if _, err := l.Compact(t.Context(), c, math.MaxInt64); !errors.Is(err, ErrClosed) {
		t.Errorf("compaction of a log that was removed: %v", err)
	}
	<-gone
	mustClose(t, d)
	if c := check(t, fs); len(c.Findings) > 0 {
		t.Fatal(c.lines())
	}
}
