package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

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
	proveCheckpointNames(t, &world{})
}

func proveCheckpointNames(t testing.TB, w *world) {
	cfg := Config{SegmentBytes: 100}
	value := strings.Repeat("a", 100)
	for _, end := range []string{"power cut", "clean stop", "kill -9"} {
		fs := w.disk()
		d := w.openDir(t, fs)
		if err := d.Create([]LogName{{ID: testID}}); err != nil {
			t.Fatal(err)
		}
		l := openWhole(t, d, cfg, 0)
		mustAppend(t, l, batchOf(t, record.None, nil, value))
		waitDurable(t, l)
		// The second segment begins, the first is sealed, and the power is cut
		// before the second's name is durable.
		hold := make(chan struct{})
		w.fault(fs, func(op disk.Op) error {
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

		// Recovery begins it anew, a checkpoint is written, and then this is the end.
		fs = next
		w.fault(fs, nil)
		d = w.openDir(t, fs)
		if o := openWhole(t, d, cfg, 0).Offsets(); o.End != 1 {
			t.Fatalf("after the cut: %+v", o)
		}
		switch end {
		case "power cut":
			forceCheckpoint(t, d)
			next = fs.CrashClone(0, nil)
			mustClose(t, d)
		case "clean stop":
			mustClose(t, d)
			next = fs.CrashClone(0, nil)
		default: // the file is there, and its name is not durable but for the checkpoint's sake
			forceCheckpoint(t, d)
			w.kill(fs, d)
			next = fs
		}
		w.fault(next, nil)
		if r := check(t, next); r.Damages > 0 {
			t.Fatalf("%s: check:\n%s", end, r.lines())
		}
		d = w.openDir(t, next)
		l = openWhole(t, d, cfg, 0)
		mustAppend(t, l, batchOf(t, record.None, nil, "kept"))
		waitDurable(t, l)
		last := next.CrashClone(0, nil)
		mustClose(t, d)
		d = w.openDir(t, last)
		if o := openWhole(t, d, cfg, 0).Offsets(); o.End != 2 {
			t.Errorf("%s: a durable record is gone: %+v", end, o)
		}
		mustClose(t, d)
	}
}

// TestRecoveredNamesAreDurable proves that a log that was recovered counts as
// durable only with the names of all its files: a power cut right after the
// opening takes nothing back, even if the newest segment is empty.
func TestRecoveredNamesAreDurable(t *testing.T) {
	t.Parallel()
	proveRecoveredNames(t, &world{})
}

func proveRecoveredNames(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	if err := d.Create([]LogName{{ID: testID}}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{SegmentBytes: 100}
	l := openWhole(t, d, cfg, 0)
	mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("a", 100)))
	waitDurable(t, l)
	// From here on no name becomes durable any more, and the third segment
	// stays empty because there is no room.
	dead := make(chan struct{})
	w.fault(fs, func(op disk.Op) error {
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
	w.fault(fs, func(op disk.Op) error {
		if op.Kind == disk.OpWrite && path.Ext(op.Path) == indexSuffix {
			<-open
		}
		return nil
	})
	d = w.openDir(t, fs)
	seen := openWhole(t, d, cfg, 0).Offsets()
	cut := fs.CrashClone(0, nil)
	close(open)
	w.fault(fs, nil)
	mustClose(t, d)
	if seen.Durable != 2 {
		t.Fatalf("after the restart: %+v", seen)
	}
	d = w.openDir(t, cut)
	if o := openWhole(t, d, cfg, 0).Offsets(); o.End < seen.Durable {
		t.Errorf("after the power cut: %+v, it was %+v", o, seen)
	}
	mustClose(t, d)
}
