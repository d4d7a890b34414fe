package storage

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

// startFixture is an open log of n batches of two records, with many sealed
// segments.
func startFixture(t *testing.T, m *disk.Mem, n int) (*Dir, *Log, *model) {
	t.Helper()
	d := openDir(t, m)
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, startConfig)
	want := &model{}
	for i := range n {
		b := batchOf(t, record.None, []int64{int64(1000 + i), int64(2000 - i)}, strings.Repeat("v", 100), "second")
		mustAppend(t, l, b)
		want.add(b)
	}
	waitDurable(t, l)
	eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	return d, l, want
}

var startConfig = Config{SegmentBytes: 900, IndexInterval: 150}

// segmentFiles are the names of a log's files, and of those in the trash.
func segmentFiles(t testing.TB, m disk.FS) (logs, trash []string) {
	t.Helper()
	logs, err := m.List(path.Join("/data/logs", testID.dirName()))
	if err != nil {
		t.Fatal(err)
	}
	trash, err = m.List("/data/trash")
	if err != nil {
		t.Fatal(err)
	}
	return logs, trash
}

// TestSetStartRemovesSegments proves that segments below the start leave the
// log at once and the disk in the background, after the checkpoint says where
// the log begins; that a section in flight and a mapped index stay valid; and
// that reads and lookups below the start end in *OffsetError and nothing.
func TestSetStartRemovesSegments(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l, want := startFixture(t, m, 40)
	section, err := l.Read(0, math.MaxInt32, 80)
	if err != nil {
		t.Fatal(err)
	}
	var was model
	was.batches = want.batches
	size, segments := l.Size(), l.Segments()
	if at, _, err := l.FindTime(1000, 80); at != 0 || err != nil {
		t.Fatalf("first record: %d, %v", at, err)
	}

	want.start = 41 // within a batch
	if err := l.SetStart(want.start); err != nil {
		t.Fatal(err)
	}
	if l.Size() >= size || l.Segments() >= segments || l.mu.segments[0].base > 41 || l.mu.segments[0].next <= 41 {
		t.Errorf("%d bytes in %d segments, before %d in %d; the first is [%d, %d)",
			l.Size(), l.Segments(), size, segments, l.mu.segments[0].base, l.mu.segments[0].next)
	}
	want.check(t, l, rand.New(rand.NewPCG(1, 1)))
	var bad *OffsetError
	if _, err := l.Read(40, 1, 80); !errors.As(err, &bad) || *bad != (OffsetError{Offset: 40, Start: 41, End: 80}) {
		t.Errorf("read below the start: %v", err)
	}
	// The first record at or past the start that is late enough.
	if at, ts, err := l.FindTime(1000, 80); at != 41 || ts != 1980 || err != nil {
		t.Errorf("find time: offset %d, timestamp %d, %v", at, ts, err)
	}
	if at, ts, err := l.FindMaxTime(80); at != 41 || ts != 1980 || err != nil {
		t.Errorf("find max time: offset %d, timestamp %d, %v", at, ts, err)
	}

	logs, _ := segmentFiles(t, m)
	if len(logs) != 1+3*segments {
		t.Errorf("files were removed before a checkpoint: %v", logs)
	}
	forceCheckpoint(t, d)
	eventually(t, "the files to go", func() bool {
		logs, trash := segmentFiles(t, m)
		return len(logs) == 1+3*l.Segments() && len(trash) == 0
	})
	if cp := readCheckpoint(m, "/data").records[testID]; cp.logStart != 41 {
		t.Errorf("the checkpoint has start %d", cp.logStart)
	}
	p := make([]byte, section.Len())
	if _, err := section.ReadAt(p, 0); err != nil || !bytes.HasPrefix(p, was.batches[0]) {
		t.Errorf("section of a removed segment: %v", err)
	}
	section.Release()
	mustClose(t, d)

	// Without the caller's start the checkpoint's is as good.
	d = openDir(t, m)
	want.check(t, openLog(t, d, startConfig), rand.New(rand.NewPCG(1, 1)))
	mustClose(t, d)
}

// TestSetStartToEnd proves that a log may be emptied: the segment that is empty
// stays, the next record has the next offset, and an idle log gives the others
// up, too, though no flush is needed for its records.
func TestSetStartToEnd(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l, want := startFixture(t, m, 20)
	l.writing.Lock()
	if _, err := l.roll(l.activeLocked()); err != nil {
		t.Fatal(err)
	}
	l.writing.Unlock()
	want.start = 40
	if err := l.SetStart(40); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all ended segments to leave", func() bool { return l.Segments() == 1 && l.Size() == 0 })
	want.check(t, l, rand.New(rand.NewPCG(1, 1)))
	if found, end, err := l.EpochEnd(5); found != -1 || end != 40 || err != nil {
		t.Errorf("epoch end of an empty log: %d, %d, %v", found, end, err)
	}
	mustClose(t, d)
	for range 2 {
		d = openDir(t, m)
		l = openLogAt(t, d, startConfig, 40)
		want.check(t, l, rand.New(rand.NewPCG(1, 1)))
		b := batchOf(t, record.None, nil, "next")
		mustAppend(t, l, b)
		want.add(b)
		mustClose(t, d)
	}
	d = openDir(t, m)
	l = openLogAt(t, d, startConfig, 40)
	if err := d.Remove(l); err != nil {
		t.Fatal(err)
	}
	if err := l.SetStart(41); !errors.Is(err, ErrClosed) {
		t.Errorf("start of a removed log: %v", err)
	}
	mustClose(t, d)
}

// TestOpenWithStart is the table of what a log's files are when the caller's
// start is higher than theirs: what is below goes unread, gaps and all; what is
// missing past it is damage; a log that ends before it begins anew.
func TestOpenWithStart(t *testing.T) {
	t.Parallel()
	whole := disk.NewMem()
	d, l, want := startFixture(t, whole, 40)
	var bases []int64
	for _, s := range l.mu.segments {
		bases = append(bases, s.base)
	}
	left := whole.CrashClone(1, nil) // before any checkpoint
	mustClose(t, d)
	name := func(base int64, suffix string) string {
		return path.Join("/data/logs", testID.dirName(), segmentName(base, 0)+suffix)
	}
	for _, c := range []struct {
		what    string
		start   int64
		remove  []int64 // bases of segments
		flip    int64   // base of a segment whose first byte is changed, -1 none
		corrupt bool
		anew    bool
	}{
		{what: "nothing is below", start: 0, flip: -1},
		{what: "within the first segment", start: bases[1] - 1, flip: -1},
		{what: "where a segment begins", start: bases[2], flip: -1},
		{what: "at the end", start: 80, flip: -1},
		{what: "gap below the start", start: bases[3] + 1, remove: []int64{bases[1]}, flip: -1},
		{what: "all below the start missing", start: bases[3] + 1, remove: bases[:3], flip: -1},
		{what: "damage below the start", start: bases[3], flip: bases[1]},
		{what: "gap in the middle", start: bases[1] + 1, remove: []int64{bases[3]}, flip: -1, corrupt: true},
		{what: "gap right behind the start", start: bases[1] + 1, remove: []int64{bases[2]}, flip: -1, corrupt: true},
		{what: "the start's own segment missing", start: bases[2] + 1, remove: []int64{bases[2]}, flip: -1, corrupt: true},
		{what: "the first segment missing", start: 0, remove: bases[:1], flip: -1, corrupt: true},
		{what: "past the end", start: 200, flip: -1, anew: true},
		{what: "past the end, files missing", start: 200, remove: bases, flip: -1, anew: true},
		{what: "past the end, files damaged", start: 200, flip: bases[len(bases)-1], anew: true},
	} {
		m := left.CrashClone(1, nil)
		for _, base := range c.remove {
			for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
				if err := m.Remove(name(base, suffix)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if c.flip >= 0 {
			p := fileBytes(t, m, name(c.flip, logSuffix))
			p[0] ^= 1
			setFile(t, m, name(c.flip, logSuffix), p)
		}
		before := disktest.Tree(t, m, "/data/logs")
		d := openDir(t, m)
		l, err := d.OpenLog(t.Context(), testID, "orders", startConfig, c.start)
		if c.corrupt {
			if err != nil || !l.Fenced() || len(l.Holes()) != 1 {
				t.Errorf("%s: %v", c.what, err)
			}
			if after := disktest.Tree(t, m, "/data/logs"); len(after) != len(before) {
				t.Errorf("%s: files were changed", c.what)
			}
			mustClose(t, d)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			mustClose(t, d)
			continue
		}
		kept := model{batches: want.batches, start: c.start}
		if c.anew {
			kept.batches = nil
		}
		kept.check(t, l, rand.New(rand.NewPCG(1, 1)))
		b := batchOf(t, record.None, nil, "next")
		if at := mustAppend(t, l, b); at.Base != kept.end() {
			t.Errorf("%s: the next offset is %d", c.what, at.Base)
		}
		kept.add(b)
		set, err := m.List("/data/quarantine")
		if err != nil || (len(set) > 0) != (c.anew && len(c.remove) == 0) {
			t.Errorf("%s: in quarantine: %v, %v", c.what, set, err)
		}
		mustClose(t, d)
		if r := check(t, m); len(r.Findings) > 0 {
			t.Errorf("%s:\n%s", c.what, r.lines())
		}
		d = openDir(t, m)
		kept.check(t, openLogAt(t, d, startConfig, c.start), rand.New(rand.NewPCG(1, 1)))
		mustClose(t, d)
	}
}

// TestRemovedSegmentsComeBack proves that files of removed segments that a
// crash brings back, all or some, are removed by the next start.
func TestRemovedSegmentsComeBack(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		m := disk.NewMem()
		d, l, want := startFixture(t, m, 30)
		want.start = 45
		if err := l.SetStart(want.start); err != nil {
			t.Fatal(err)
		}
		forceCheckpoint(t, d)
		eventually(t, "the files to go", func() bool {
			logs, _ := segmentFiles(t, m)
			return len(logs) == 1+3*l.Segments()
		})
		left := m.CrashClone(float64(seed%5)/4, rand.New(rand.NewPCG(seed, 0)))
		mustClose(t, d)
		d = openDir(t, left)
		l = openLogAt(t, d, startConfig, want.start)
		want.check(t, l, rand.New(rand.NewPCG(1, 1)))
		segments := l.Segments()
		mustClose(t, d)
		if logs, trash := segmentFiles(t, left); len(logs) != 1+3*segments || len(trash) != 0 {
			t.Errorf("seed %d: files after the next start: %v, trash %v", seed, logs, trash)
		}
	}
}

// TestSetStartOnFullDisk proves that a checkpoint for which there is no room
// does not keep segments from being removed.
func TestSetStartOnFullDisk(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l, want := startFixture(t, m, 30)
	m.SetFree(0)
	want.start = 45
	if err := l.SetStart(want.start); err != nil {
		t.Fatal(err)
	}
	d.keeper.bytes.Store(checkpointBytes)
	d.keeper.signal()
	eventually(t, "the files to go", func() bool {
		logs, trash := segmentFiles(t, m)
		return len(logs) == 1+3*l.Segments() && len(trash) == 0
	})
	b := batchOf(t, record.None, nil, "there is room again")
	mustAppend(t, l, b)
	want.add(b)
	want.check(t, l, rand.New(rand.NewPCG(1, 1)))
	if d.Failed() != nil {
		t.Error(d.Failed())
	}
	m.SetFree(-1)
	mustClose(t, d)
}

// TestSetStartStress proves under the race detector that appends, flushes,
// seals, checkpoints, reads and lookups go on while the start is raised again
// and again, that no reader gets anything but records or *OffsetError, and that
// no file is left open.
func TestSetStartStress(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{SegmentBytes: 700, IndexInterval: 100, TimestampAfter: math.MaxInt64})
	const batches = 500
	b := batchOf(t, record.None, []int64{5, 7, 6}, strings.Repeat("v", 80), "b", "c")
	var readers, writers sync.WaitGroup
	done := make(chan struct{})
	read := func(fn func(o Offsets, rng *rand.Rand) error) {
		seed := rand.Uint64()
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for {
				select {
				case <-done:
					return
				default:
				}
				var below *OffsetError
				if err := fn(l.Offsets(), rng); err != nil && !errors.As(err, &below) {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	for range 2 {
		read(func(o Offsets, rng *rand.Rand) error {
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
			first, _, err := record.Next(p)
			if err == nil && (first.BaseOffset() > from || first.NextOffset() <= from) {
				err = errors.New("not the batch that was asked for")
			}
			return err
		})
	}
	read(func(o Offsets, _ *rand.Rand) error {
		_, _, err := l.FindTime(6, o.End)
		return err
	})
	read(func(o Offsets, _ *rand.Rand) error {
		_, ts, err := l.FindMaxTime(o.End)
		if err == nil && ts != 7 && ts != 6 && ts != -1 {
			err = errors.New("that is no timestamp")
		}
		return err
	})
	read(func(o Offsets, _ *rand.Rand) error {
		found, end, err := l.EpochEnd(3)
		if err == nil && (found != -1 && found != 3 || end < o.Start) {
			err = errors.New("wrong epoch")
		}
		return err
	})
	writers.Go(func() {
		for i := range batches {
			if _, err := l.Append(Append{Batch: bytes.Clone(b), Epoch: 3}); err != nil {
				t.Errorf("append: %v", err)
			}
			if i%10 == 0 {
				d.keeper.bytes.Store(checkpointBytes)
				d.keeper.signal()
			}
		}
	})
	writers.Go(func() {
		rng := rand.New(rand.NewPCG(1, 9))
		for {
			o := l.Offsets()
			if err := l.SetStart(o.Start + rng.Int64N(o.End-o.Start+1)); err != nil {
				t.Errorf("set start: %v", err)
			}
			if now := l.Offsets(); now.Start < o.Start {
				t.Errorf("the start fell from %d to %d", o.Start, now.Start)
			}
			if o.End == 3*batches {
				return
			}
		}
	})
	writers.Wait()
	close(done)
	readers.Wait()
	if err := l.SetStart(3 * batches); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all that has records to leave", func() bool { return l.Segments() == 1 && l.Size() == 0 })
	mustClose(t, d)
	if n := d.files.mu.open; n != 0 {
		t.Errorf("%d files are still open", n)
	}
	if n := len(d.tables.mu.open); n != 0 {
		t.Errorf("%d indexes are still mapped", n)
	}
	if logs, trash := segmentFiles(t, m); len(logs) != 4 || len(trash) != 0 {
		t.Errorf("files at the end: %v, trash %v", logs, trash)
	}
	if _, err := m.Stat(path.Join("/data/logs", testID.dirName(), segmentName(0, 0)+logSuffix)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the first segment: %v", err)
	}
}
