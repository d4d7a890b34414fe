package storage

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// cutFixture is a log of 14 batches of two records in several segments, some
// sealed, of the epochs 0, 1 and so on, four batches each, with a producer for
// every second batch.
func cutFixture(t testing.TB, m *disk.Mem) (*Dir, *Log, *model) {
	t.Helper()
	d := (&world{}).openDir(t, m)
	l := openLog(t, d, startConfig)
	r := &model{}
	for i := range 14 {
		b := batchOf(t, record.None, []int64{int64(1000 + i)}, strings.Repeat(string(rune('a'+i)), 150), "second")
		if i%2 == 0 {
			b = withProducer(b, 5, 0, int32(i))
		}
		if _, err := l.Append(Append{Batch: b, Epoch: int32(i / 4)}); err != nil {
			t.Fatal(err)
		}
		r.add(b)
	}
	return d, l, r
}

// afterCut proves that the log is the model's, goes on, and is the same after a
// restart.
func afterCut(t *testing.T, what string, m *disk.Mem, d *Dir, l *Log, r *model) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	r.check(t, l, rng)
	for i := range 3 {
		b := batchOf(t, record.None, []int64{3000}, fmt.Sprint("new ", i), "second")
		if at, err := l.Append(Append{Batch: b, Epoch: 9}); err != nil || at.Base != r.end() {
			t.Fatalf("%s: appended at %d, want %d: %v", what, at.Base, r.end(), err)
		}
		r.add(b)
	}
	offset, ts, err := l.FindTime(2000, r.end())
	if offset != r.end()-6 || ts != 3000 || err != nil {
		t.Errorf("%s: the first new record is at %d, %v", what, offset, err)
	}
	waitDurable(t, l)
	power := m.CrashClone(0, rng)
	mustClose(t, d)
	if n := d.slack.Load(); n != 0 {
		t.Errorf("%s: %d bytes of preallocation are left", what, n)
	}
	for _, left := range []*disk.Mem{m, power} {
		d := openDir(t, left)
		l := openLogAt(t, d, startConfig, r.start)
		r.check(t, l, rng)
		mustClose(t, d)
		if c := check(t, left); c.Damages > 0 || left == m && len(c.Findings) > 0 {
			t.Errorf("%s:\n%s", what, c.lines())
		}
	}
}

// TestTruncate proves for every offset, with and without seals and with a start,
// that all batches with records at or past it are gone, that the log goes on
// there, and that nothing comes back by a restart or a power cut.
func TestTruncate(t *testing.T) {
	unraced(t)
	t.Parallel()
	for offset := range int64(30) {
		for _, start := range []int64{0, 9} {
			for _, sealed := range []bool{false, true} {
				if offset < start {
					continue
				}
				what := fmt.Sprintf("offset %d, start %d, sealed %v", offset, start, sealed)
				m := disk.NewMem()
				d, l, r := cutFixture(t, m)
				if sealed {
					waitDurable(t, l)
					eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
				}
				if err := l.SetStart(start); err != nil {
					t.Fatal(err)
				}
				r.start = start
				if err := l.Truncate(t.Context(), offset); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				r.cutAt(offset)
				afterCut(t, what, m, d, l, r)
				if err := l.Truncate(t.Context(), 0); !errors.Is(err, ErrClosed) {
					t.Errorf("%s: after close: %v", what, err)
				}
			}
		}
	}
}

// TestTruncateSections proves that a section that was handed out before gives its
// records if they are still in the log, and *OffsetError if not: never others.
func TestTruncateSections(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l, r := cutFixture(t, m)
	var sections []record.Section
	for from := int64(0); from < r.end(); {
		s, err := l.Read(from, 1, r.end())
		if err != nil {
			t.Fatal(err)
		}
		sections = append(sections, s)
		from = s.NextOffset()
	}
	cut := r.batches[5]
	if err := l.Truncate(t.Context(), cut.BaseOffset()); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("X", 200)))
	}
	for i, s := range sections {
		p := make([]byte, s.Len())
		n, err := s.ReadAt(p, 0)
		switch {
		case err == nil && n == len(p) && string(p) == string(r.batches[i]):
		case i >= 5 && errors.Is(err, ErrOffsetOutOfRange):
		default:
			t.Errorf("batch %d: %d bytes, %v", i, n, err)
		}
		s.Release()
	}
	mustClose(t, d)
	if n := d.files.mu.open; n != 0 {
		t.Errorf("%d files are open", n)
	}
}

// TestTruncateCrash proves that a power cut before any operation on the file
// system of two truncations and the appends behind them leaves a log that opens,
// ends no further than before and no sooner than it was cut to, has every record
// that is left, and nothing of what a truncation that had returned has cut.
func TestTruncateCrash(t *testing.T) {
	unraced(t)
	t.Parallel()
	for _, c := range []cutCase{
		{[2]int64{21, 4}, 0, true},
		{[2]int64{8, 2}, 0, false},
		{[2]int64{27, 13}, 0, true},
		{[2]int64{20, 9}, 9, true},
	} {
		t.Logf("%+v: cut before each of %d operations", c, truncateCrash(t, &world{}, c))
	}
}

// cutCase is two truncations, a start, and whether the segments are sealed.
type cutCase struct {
	to     [2]int64
	start  int64
	sealed bool
}

// truncateProof is a proof with those truncations for TestEverySyncIsNeeded.
func truncateProof(c cutCase) func(testing.TB, *world) {
	return func(t testing.TB, w *world) { truncateCrash(t, w, c) }
}

// proveTruncated: what a truncation leaves is durable when it returns, also if
// nothing of it was before.
func proveTruncated(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	l := openLog(t, d, startConfig)
	d.stop() // nothing is flushed or sealed from here on
	d.loops.Wait()
	var r model
	for i := range 12 {
		b := batchOf(t, record.None, nil, strings.Repeat(string(rune('a'+i)), 200))
		mustAppend(t, l, b)
		r.add(b)
	}
	if err := l.Truncate(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	r.cutAt(9)
	left := fs.CrashClone(0, nil)
	_ = d.Close()
	d = w.openDir(t, w.reopened(left))
	l = openWhole(t, d, startConfig, 0)
	r.check(t, l, rand.New(rand.NewPCG(1, 1)))
	mustClose(t, d)
}

// TestTruncateMakesDurable runs that proof in a whole world.
func TestTruncateMakesDurable(t *testing.T) {
	t.Parallel()
	proveTruncated(t, &world{})
}

// cutLog is what a power cut left, and how the log may be found: a prefix of
// longest that ends at least or behind it.
type cutLog struct {
	fs      *disk.Mem
	keep    float64
	least   int64
	longest model
}

// truncateCrash cuts the power before each operation, and says how many there
// were.
func truncateCrash(t testing.TB, w *world, c cutCase) (operations int) {
	t.Helper()
	m := w.disk()
	d, l, r := cutFixture(t, m)
	waitDurable(t, l)
	if c.sealed {
		eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	}
	r.start = c.start
	if err := l.SetStart(c.start); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var cuts []cutLog
	var now cutLog
	state := func(least int64, batches []record.Batch) {
		mu.Lock()
		defer mu.Unlock()
		now = cutLog{least: least, longest: model{batches: batches, start: c.start}}
	}
	state(r.end(), r.batches)
	w.fault(m, func(op disk.Op) error {
		if !op.Kind.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		operations++
		for i, keep := range []float64{0, 0.5, 1} {
			cut := now
			cut.keep, cut.fs = keep, m.CrashClone(keep, rand.New(rand.NewPCG(uint64(operations), uint64(i))))
			cuts = append(cuts, cut)
		}
		return nil
	})
	for _, offset := range c.to {
		before := r.batches
		r.cutAt(offset)
		state(r.end(), before)
		if err := l.Truncate(t.Context(), offset); err != nil {
			t.Fatal(err)
		}
		least := r.end()
		state(least, r.batches)
		for i := range 3 {
			b := batchOf(t, record.None, nil, strings.Repeat("n", 100), fmt.Sprint(offset, i))
			r.batches = append(slices.Clip(r.batches), b) // it gets its offsets in place
			state(least, r.batches)
			if _, err := l.Append(Append{Batch: b, Epoch: 9}); err != nil {
				t.Fatal(err)
			}
		}
		waitDurable(t, l)
		state(r.end(), r.batches)
	}
	w.fault(m, nil)
	mustClose(t, d)
	for i := range cuts {
		w.fault(cuts[i].fs, nil)
		cuts[i].judge(t, fmt.Sprintf("%+v, keep=%v, operation %d", c, cuts[i].keep, i/3+1))
	}
	return operations
}

func (c *cutLog) judge(t testing.TB, what string) {
	t.Helper()
	if found := check(t, c.fs); found.Damages > 0 {
		t.Fatalf("%s:\n%s", what, found.lines())
	}
	d := (&world{}).openDir(t, c.fs)
	l := openWhole(t, d, startConfig, c.longest.start)
	end := l.Offsets().End
	if end < c.least || end > c.longest.end() {
		t.Fatalf("%s: the log ends at %d, want %d to %d", what, end, c.least, c.longest.end())
	}
	rng := rand.New(rand.NewPCG(1, 1))
	left := c.longest
	left.cutAt(end)
	left.check(t, l, rng)
	b := batchOf(t, record.None, nil, "next")
	mustAppend(t, l, b)
	left.batches = append(slices.Clip(left.batches), b)
	left.check(t, l, rng)
	mustClose(t, d)
}

// TestTruncateFault proves that an error of any operation of a truncation leaves
// the log as it was or fails the directory, and that a start has a whole log.
func TestTruncateFault(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
		for at := 1; ; at++ {
			m := disk.NewMem()
			d, l, r := cutFixture(t, m)
			waitDurable(t, l)
			eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
			var mu sync.Mutex
			n, fired := at, false
			m.SetFault(func(op disk.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if !op.Kind.Changes() || errors.Is(fault, syscall.ENOSPC) && op.Kind != disk.OpWrite && op.Kind != disk.OpRename {
					return nil
				}
				if n--; n == 0 {
					fired = true
					return fault
				}
				return nil
			})
			err := l.Truncate(t.Context(), 9)
			m.SetFault(nil)
			mu.Lock()
			done := !fired
			mu.Unlock()
			cut := model{batches: r.batches}
			cut.cutAt(9)
			rng := rand.New(rand.NewPCG(1, 1))
			switch {
			case err == nil:
				cut.check(t, l, rng)
			case errors.Is(err, ErrFailed):
			default:
				r.check(t, l, rng)
				mustAppend(t, l, batchOf(t, record.None, nil, "goes on"))
			}
			failed := d.Failed() != nil
			if closed := d.Close(); failed == (closed == nil) {
				t.Fatalf("%v at %d: %v, then close: %v", fault, at, err, closed)
			}
			d = openDir(t, m)
			l = openLog(t, d, startConfig)
			if end := l.Offsets().End; end < cut.end() || end > r.end()+1 {
				t.Fatalf("%v at %d: the log ends at %d", fault, at, end)
			}
			mustClose(t, d)
			if done {
				break
			}
		}
	}
}

// TestTruncateStress proves under the race detector that truncations, appends,
// flushes, seals, checkpoints, raised starts, reads and lookups go on side by
// side, that no reader gets anything but whole batches or *OffsetError, that
// nothing durable is past the end, and that no file is left open.
func TestTruncateStress(t *testing.T) {
	t.Parallel()
	for _, messages := range []int64{1, 5} {
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, Config{SegmentBytes: 900, IndexInterval: 100, TimestampAfter: math.MaxInt64, FlushMessages: messages})
		var readers, writers sync.WaitGroup
		done := make(chan struct{})
		for i := range 4 {
			readers.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 0))
				for {
					select {
					case <-done:
						return
					default:
					}
					if err := lookAround(l, rng, i); err != nil && !errors.Is(err, ErrOffsetOutOfRange) {
						t.Errorf("reader %d: %v", i, err)
						return
					}
				}
			})
		}
		b := batchOf(t, record.None, []int64{5, 7, 6}, strings.Repeat("v", 80), "b", "c")
		writers.Go(func() {
			for i := range 300 {
				c := b
				if i%3 == 0 {
					c = withProducer(b, int64(i), 0, 0)
				}
				if _, err := l.Append(Append{Batch: append(record.Batch{}, c...), Epoch: int32(i / 40)}); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(9, 9))
			for range 40 {
				o := l.Offsets()
				to := o.Start + rng.Int64N(o.End-o.Start+1)
				if err := l.Truncate(t.Context(), max(to, o.End-20)); err != nil && !errors.Is(err, ErrOffsetOutOfRange) {
					t.Errorf("truncate: %v", err)
				}
				d.keeper.bytes.Store(checkpointBytes)
				d.keeper.signal()
			}
		})
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(8, 8))
			for range 40 {
				o := l.Offsets()
				if err := l.SetStart(o.Start + rng.Int64N(o.End-o.Start+1)/4); err != nil && !errors.Is(err, ErrOffsetOutOfRange) {
					t.Errorf("start: %v", err)
				}
			}
		})
		writers.Wait()
		close(done)
		readers.Wait()
		o := l.Offsets()
		left := readAll(t, l, o.Start, o.End, math.MaxInt32)
		mustClose(t, d)
		if n := d.files.mu.open; n != 0 {
			t.Errorf("%d files are open", n)
		}
		if n := d.flusher.lazyBytes.Load(); n != 0 {
			t.Errorf("%d bytes wait for a flush", n)
		}
		d = openDir(t, m)
		l = openLogAt(t, d, startConfig, o.Start)
		if err := sameBatches(readAll(t, l, o.Start, l.Offsets().End, math.MaxInt32), left); err != nil {
			t.Error(err)
		}
		mustClose(t, d)
	}
}

// lookAround does one read or lookup.
func lookAround(l *Log, rng *rand.Rand, kind int) error {
	o := l.Offsets()
	if o.Durable > o.End || o.Start > o.End {
		return fmt.Errorf("bounds %+v", o)
	}
	switch kind {
	case 0:
		_, _, err := l.FindTime(6, o.End)
		return err
	case 1:
		_, _, err := l.FindMaxTime(o.End)
		return err
	case 2:
		_, _, err := l.EpochEnd(rng.Int32N(8))
		return err
	}
	from := o.Start + rng.Int64N(o.End-o.Start+1)
	s, err := l.Read(from, 1+rng.IntN(2000), o.End)
	if err != nil || s == nil {
		return err
	}
	defer s.Release()
	p := make([]byte, s.Len())
	if _, err := s.ReadAt(p, 0); err != nil {
		return err
	}
	for next := int64(-1); len(p) > 0; {
		b, rest, err := record.Next(p)
		if err == nil {
			err = b.VerifyCRC()
		}
		if err == nil && next >= 0 && b.BaseOffset() != next {
			err = errors.New("a gap")
		}
		if err != nil {
			return err
		}
		next, p = b.NextOffset(), rest
	}
	return nil
}

// TestTruncateGivesFilesBack proves that the files of segments before the cut,
// which no flush had covered, do not stay open once the segments have gone.
func TestTruncateGivesFilesBack(t *testing.T) {
	t.Parallel()
	d := openDir(t, disk.NewMem())
	l := openLog(t, d, Config{SegmentBytes: 100, FlushMessages: 1 << 40})
	for range 6 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	}
	if err := l.Truncate(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if err := l.SetStart(5); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the segments to leave", func() bool { return l.Segments() == 1 })
	forceCheckpoint(t, d)
	eventually(t, "the files to be closed", func() bool {
		d.files.mu.Lock()
		defer d.files.mu.Unlock()
		return d.files.mu.open <= 1
	})
	mustClose(t, d)
	if n := d.files.mu.open; n != 0 {
		t.Errorf("%d files are open", n)
	}
}
