package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// script is a fixed run over every kind of write that a log does: create,
// append with and without producers, roll, seal, checkpoint, clean stop,
// remove. note gets the log's offsets whenever they may be compared with what
// a crash leaves.
type script struct {
	model   model
	offsets func() Offsets // of the log; zero while it is not open
	raised  int64          // the start that is durable with the caller
	mu      sync.Mutex
}

// start is the log's start as its owner would have it durable.
func (s *script) start() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raised
}

// raise makes the start durable and raises the log's.
func (s *script) raise(l *Log, start int64) error {
	s.mu.Lock()
	s.raised = start
	s.mu.Unlock()
	s.model.start = start
	return l.SetStart(start)
}

func (s *script) look() Offsets {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offsets == nil {
		return Offsets{}
	}
	return s.offsets()
}

func (s *script) watch(fn func() Offsets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offsets = fn
}

var scriptConfig = Config{SegmentBytes: 900, IndexInterval: 1}

// run plays the script; the errors of a file system that fails are passed on.
func (s *script) run(t *testing.T, fs *disk.Mem) error {
	s.model = model{}
	d, err := Open(t.Context(), Options{FS: fs, Path: "/data", Logger: quiet()})
	if err != nil {
		return err
	}
	if err := s.fill(t, d, true); err != nil {
		s.watch(nil)
		return errors.Join(err, d.Close())
	}
	ended := s.look()
	s.watch(func() Offsets { return ended }) // durable from here on, whatever happens
	if err := d.Close(); err != nil {
		return err
	}
	d, err = Open(t.Context(), Options{FS: fs, Path: "/data", Logger: quiet()})
	if err != nil {
		return err
	}
	err = s.fill(t, d, false)
	return errors.Join(err, d.Close())
}

func (s *script) fill(t *testing.T, d *Dir, create bool) error {
	other := ID{Topic: TopicID{9}}
	if create {
		if err := d.Create([]LogName{{ID: testID, Topic: "orders"}, {ID: other, Topic: "gone"}}); err != nil {
			return err
		}
	}
	l, err := d.OpenLog(t.Context(), testID, "orders", scriptConfig, s.start())
	if err != nil {
		return err
	}
	s.watch(l.Offsets)
	for i := range 8 {
		b := batchOf(t, record.None, nil, strings.Repeat(string(rune('a'+i)), 100+50*i), "second")
		if i%2 == 0 {
			b = withProducer(b, 100+s.model.end(), 0, 0)
		}
		if _, err := l.Append(Append{Batch: b, Epoch: 3}); err != nil {
			return err
		}
		s.model.add(b)
		switch i {
		case 4:
			forceCheckpoint(t, d)
		case 5, 7:
			// Within a segment, in the middle of a batch; and all there is.
			if err := s.raise(l, s.model.end()-int64(7-i)*3/2); err != nil {
				return err
			}
			forceCheckpoint(t, d)
		}
	}
	if create {
		gone, err := d.OpenLog(t.Context(), other, "gone", scriptConfig, 0)
		if err != nil {
			return err
		}
		return d.Remove(gone)
	}
	return nil
}

// TestCrashEverywhere proves that a power cut before any operation on the
// file system loses nothing that was durable and leaves a log that opens,
// appends and reads; and so does a second cut during the recovery.
func TestCrashEverywhere(t *testing.T) {
	t.Parallel()
	for _, keep := range []float64{0, 0.5, 1} {
		for at := 1; ; at++ {
			s, fs := &script{}, disk.NewMem()
			rng := rand.New(rand.NewPCG(uint64(at), 1))
			var clone *disk.Mem
			var was Offsets
			var start int64
			cutBefore(fs, at, func() {
				was, start = s.look(), s.start()
				clone = fs.CrashClone(keep, rng)
			})
			if err := s.run(t, fs); err != nil {
				t.Fatal(err)
			}
			fs.SetFault(nil)
			if clone == nil {
				t.Logf("keep=%v: cut before each of %d operations", keep, at-1)
				break
			}
			again := crashInRecovery(t, clone, at, keep, rng, start)
			for i, left := range []*disk.Mem{clone, again} {
				if err := s.judge(t, left, was, start, keep); err != nil {
					t.Fatalf("keep=%v, cut before operation %d, %d cuts: %v", keep, at, i+1, err)
				}
			}
		}
	}
}

// cutBefore calls cut before the n-th operation that changes something.
func cutBefore(fs *disk.Mem, n int, cut func()) {
	var mu sync.Mutex
	fs.SetFault(func(op disk.Op) error {
		if !op.Kind.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			cut()
		}
		return nil
	})
}

// crashInRecovery opens what a crash left and cuts the power once more on the
// way; fs itself stays as it is.
func crashInRecovery(t *testing.T, fs *disk.Mem, at int, keep float64, rng *rand.Rand, start int64) *disk.Mem {
	opening := fs.CrashClone(1, nil)
	var clone *disk.Mem
	cutBefore(opening, 1+at%17, func() { clone = opening.CrashClone(keep, rng) })
	d, err := Open(t.Context(), Options{FS: opening, Path: "/data", Logger: quiet()})
	if err == nil {
		_, err = d.OpenLog(t.Context(), testID, "orders", scriptConfig, start)
		err = errors.Join(err, d.Close())
	}
	if err != nil {
		t.Fatalf("open after a crash: %v", err)
	}
	opening.SetFault(nil)
	if clone == nil {
		return opening
	}
	return clone
}

// judge opens what is left and compares it with the script.
func (s *script) judge(t *testing.T, fs *disk.Mem, was Offsets, start int64, keep float64) error {
	d, err := Open(t.Context(), Options{FS: fs, Path: "/data", Logger: quiet()})
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	err = d.SetAside(func(id ID) Fate {
		if id == testID {
			return Keep
		}
		return Trash
	})
	if err != nil {
		return err
	}
	l, err := d.OpenLog(t.Context(), testID, "orders", scriptConfig, start)
	if err != nil {
		return err
	}
	o := l.Offsets()
	if o.Start != start || o.End < was.Durable || keep == 1 && o.End < was.End || o.Durable != o.End {
		return fmt.Errorf("the log is %+v, it was %+v", o, was)
	}
	left := model{batches: s.model.batches, start: start}
	left.cutAt(o.End)
	left.check(t, l, rand.New(rand.NewPCG(1, 1)))
	b := batchOf(t, record.None, nil, "next")
	if at := mustAppend(t, l, b); at.Base != o.End {
		return fmt.Errorf("the next append got offset %d, want %d", at.Base, o.End)
	}
	left.batches = append(slices.Clip(left.batches), b)
	left.check(t, l, rand.New(rand.NewPCG(1, 1)))
	return nil
}

// TestNoSpaceEverywhere proves that a full disk at any write, allocation or
// create gives an error that changes nothing: the log goes on afterwards.
func TestNoSpaceEverywhere(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		fs := disk.NewMem()
		d := openDir(t, fs)
		if err := d.Create([]LogName{{ID: testID}}); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, d, scriptConfig)
		fired := failAt(fs, at, syscall.ENOSPC, disk.OpWrite, disk.OpAllocate, disk.OpOpen)
		var m model
		for i := range 12 {
			b := batchOf(t, record.None, nil, strings.Repeat("x", 150), fmt.Sprint(i))
			if _, err := l.Append(Append{Batch: b}); err != nil {
				if !errors.Is(err, ErrFull) {
					t.Fatalf("operation %d: %v", at, err)
				}
				continue
			}
			m.add(b)
		}
		fs.SetFault(nil)
		m.check(t, l, rand.New(rand.NewPCG(1, 1)))
		if err := d.Failed(); err != nil {
			t.Fatalf("operation %d: a full disk failed the directory: %v", at, err)
		}
		mustClose(t, d)
		d = openDir(t, fs)
		m.check(t, openLog(t, d, scriptConfig), rand.New(rand.NewPCG(1, 1)))
		mustClose(t, d)
		if !fired() {
			t.Logf("full at each of %d operations", at-1)
			return
		}
	}
}

// failAt fails the n-th operation of the given kinds below logs/; fired says
// whether it came to that.
func failAt(fs *disk.Mem, n int, err error, kinds ...disk.OpKind) (fired func() bool) {
	var mu sync.Mutex
	fs.SetFault(func(op disk.Op) error {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range kinds {
			if op.Kind == k && strings.HasPrefix(op.Path, "/data/logs/") {
				if n--; n == 0 {
					if op.Kind == disk.OpWrite {
						return &disk.ShortWriteError{N: op.Len / 2, Err: err}
					}
					return err
				}
			}
		}
		return nil
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return n <= 0
	}
}

// TestSyncErrorIsFinal proves that after any failed sync nothing becomes
// durable any more, appends are refused, the failure is told once, and no
// mark of a clean stop is left; the next start has all that was durable.
func TestSyncErrorIsFinal(t *testing.T) {
	t.Parallel()
	for at := 1; at <= 12; at++ {
		fs := disk.NewMem()
		failures := make(chan error, 10)
		d := openDir(t, fs, func(o *Options) { o.OnFailure = func(err error) { failures <- err } })
		if err := d.Create([]LogName{{ID: testID}}); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, d, scriptConfig)
		fired := failAt(fs, at, syscall.EIO, disk.OpSync, disk.OpSyncData, disk.OpSyncDir)
		var m model
		var err error
		for range 100 {
			b := batchOf(t, record.None, nil, strings.Repeat("x", 300))
			if _, err = l.Append(Append{Batch: b}); err != nil {
				break
			}
			m.add(b)
			eventually(t, "the flush or the failure", func() bool {
				o := l.Offsets()
				return o.Durable == o.End || d.Failed() != nil
			})
		}
		if !fired() || !errors.Is(err, ErrFailed) {
			t.Fatalf("sync %d: fired=%v, append gave %v", at, fired(), err)
		}
		fs.SetFault(nil)
		durable := l.Offsets().Durable
		d.flusher.touch(l, l.config.Load())
		if err := d.Close(); !errors.Is(err, ErrFailed) {
			t.Fatalf("close gave %v", err)
		}
		if l.Offsets().Durable != durable {
			t.Fatal("something became durable after the failure")
		}
		if len(failures) != 1 {
			t.Fatalf("OnFailure was called %d times", len(failures))
		}
		left := fs.CrashClone(0, nil)
		if _, err := left.Stat("/data/CLEAN"); err == nil {
			t.Fatal("a failed directory left the mark of a clean stop")
		}
		d = openDir(t, left)
		l = openLog(t, d, scriptConfig)
		if o := l.Offsets(); o.End < durable {
			t.Fatalf("durable was %d, after the restart %+v", durable, o)
		}
		m.cutAt(l.Offsets().End)
		m.check(t, l, rand.New(rand.NewPCG(1, 1)))
		mustClose(t, d)
	}
}

// TestWriteErrorIsUndone proves that a write that failed half way leaves no
// bytes, and that the directory fails when they cannot be cut off.
func TestWriteErrorIsUndone(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{})
	first := batchOf(t, record.None, nil, "first")
	mustAppend(t, l, first)
	waitDurable(t, l)

	failAt(fs, 1, syscall.EIO, disk.OpWrite)
	_, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "second")})
	if !errors.Is(err, ErrWrite) || !errors.Is(err, syscall.EIO) || d.Failed() != nil {
		t.Fatalf("append gave %v, directory %v", err, d.Failed())
	}
	fs.SetFault(nil)
	third := batchOf(t, record.None, nil, "third")
	if at := mustAppend(t, l, third); at.Base != 1 {
		t.Fatalf("offset %d after a failed append, want 1", at.Base)
	}
	want := append(bytes.Clone(first), third...)
	if got := fileBytes(t, fs, path.Join(l.path, segmentName(0, 0)+logSuffix)); !bytes.HasPrefix(got, want) || !isZero(got[len(want):]) {
		t.Fatal("the .log has other bytes than the two batches")
	}
	waitDurable(t, l)

	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpWrite || op.Kind == disk.OpTruncate {
			return syscall.EIO
		}
		return nil
	})
	_, err = l.Append(Append{Batch: batchOf(t, record.None, nil, "fourth")})
	if !errors.Is(err, ErrFailed) || d.Failed() == nil {
		t.Fatalf("append that cannot be undone gave %v, directory %v", err, d.Failed())
	}
	fs.SetFault(nil)
	if err := d.Close(); !errors.Is(err, ErrFailed) {
		t.Fatalf("close gave %v", err)
	}
}

// TestCheckpointNamesSegments proves that a checkpoint speaks of a segment only
// once its name is durable. Recovery begins a segment behind a sealed one; if
// its name is lost after a checkpoint named it, the next start must not take the
// segment that it begins anew for named, or what is appended to it is lost.
func TestCheckpointNamesSegments(t *testing.T) {
	t.Parallel()
	cfg := Config{SegmentBytes: 100}
	value := strings.Repeat("a", 100)
	for _, clean := range []bool{false, true} {
		fs := disk.NewMem()
		d := openDir(t, fs)
		if err := d.Create([]LogName{{ID: testID}}); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, d, cfg)
		mustAppend(t, l, batchOf(t, record.None, nil, value))
		waitDurable(t, l)
		// The second segment begins, the first is sealed, and the power is cut
		// before the second's name is durable.
		hold := make(chan struct{})
		fs.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpSyncDir && op.Path == l.path {
				<-hold
			}
			return nil
		})
		mustAppend(t, l, batchOf(t, record.None, nil, value))
		eventually(t, "the seal", l.mu.segments[0].sealed.Load)
		next := fs.CrashClone(0, nil)
		close(hold)
		mustClose(t, d)

		// Recovery begins it anew, a checkpoint is written, and the power is cut.
		fs = next
		d = openDir(t, fs)
		if o := openLog(t, d, cfg).Offsets(); o.End != 1 {
			t.Fatalf("after the cut: %+v", o)
		}
		if !clean {
			forceCheckpoint(t, d)
			next = fs.CrashClone(0, nil)
		}
		mustClose(t, d)
		if clean {
			next = fs.CrashClone(0, nil)
		}
		d = openDir(t, next)
		l = openLog(t, d, cfg)
		mustAppend(t, l, batchOf(t, record.None, nil, "kept"))
		waitDurable(t, l)
		last := next.CrashClone(0, nil)
		mustClose(t, d)
		d = openDir(t, last)
		if o := openLog(t, d, cfg).Offsets(); o.End != 2 {
			t.Errorf("clean %t: a durable record is gone: %+v", clean, o)
		}
		mustClose(t, d)
	}
}

// TestRecoveredNamesAreDurable proves that a log that was recovered counts as
// durable only with the names of all its files: a power cut right after the
// opening takes nothing back, even if the newest segment is empty.
func TestRecoveredNamesAreDurable(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	if err := d.Create([]LogName{{ID: testID}}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{SegmentBytes: 100}
	l := openLog(t, d, cfg)
	mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("a", 100)))
	waitDurable(t, l)
	// From here on no name becomes durable any more, and the third segment
	// stays empty because there is no room.
	dead := make(chan struct{})
	fs.SetFault(func(op disk.Op) error {
		switch op.Kind {
		case disk.OpSyncDir:
			<-dead
			return syscall.EIO
		case disk.OpWrite, disk.OpAllocate:
			if strings.HasSuffix(op.Path, segmentName(2, 0)+logSuffix) {
				return syscall.ENOSPC
			}
		default:
		}
		return nil
	})
	mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("b", 100)))
	_, err := l.Append(Append{Batch: batchOf(t, record.None, nil, strings.Repeat("c", 100))})
	full := errors.Is(err, ErrFull) && l.Segments() == 3
	close(dead)
	eventually(t, "the failure", func() bool { return d.Failed() != nil })
	if err := d.Close(); !full || !errors.Is(err, ErrFailed) {
		t.Fatalf("full: %t, close gave %v", full, err)
	}

	// The process starts again; the keeper must not help.
	open := make(chan struct{})
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpWrite && path.Ext(op.Path) == indexSuffix {
			<-open
		}
		return nil
	})
	d = openDir(t, fs)
	seen := openLog(t, d, cfg).Offsets()
	cut := fs.CrashClone(0, nil)
	close(open)
	fs.SetFault(nil)
	mustClose(t, d)
	if seen.Durable != 2 {
		t.Fatalf("after the restart: %+v", seen)
	}
	d = openDir(t, cut)
	if o := openLog(t, d, cfg).Offsets(); o.End < seen.Durable {
		t.Errorf("after the power cut: %+v, it was %+v", o, seen)
	}
	mustClose(t, d)
}
