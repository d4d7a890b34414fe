package storage

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// gate is a fault that stops the first write to a .log until it is opened, and
// counts writes.
type gate struct {
	mu      sync.Mutex
	writes  int
	fail    error
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) fault(op disk.Op) error {
	if op.Kind != disk.OpWrite || len(op.Path) < 4 || op.Path[len(op.Path)-4:] != logSuffix {
		return nil
	}
	g.mu.Lock()
	g.writes++
	first, fail := g.writes == 1, g.fail
	g.mu.Unlock()
	if first {
		close(g.entered)
		<-g.open
		return nil
	}
	return fail
}

// together appends batches so that all but the first come while the first is
// being written, and returns their results.
func together(t *testing.T, l *Log, g *gate, batches []record.Batch) ([]Appended, []error) {
	t.Helper()
	done, errs := make([]Appended, len(batches)), make([]error, len(batches))
	var wg sync.WaitGroup
	start := func(i int) {
		wg.Go(func() { done[i], errs[i] = l.Append(Append{Batch: batches[i]}) })
	}
	start(0)
	<-g.entered
	for i := 1; i < len(batches); i++ {
		start(i)
		eventually(t, "the append to stand in line", func() bool {
			l.queue.mu.Lock()
			defer l.queue.mu.Unlock()
			return len(l.queue.mu.waiting) == i
		})
	}
	close(g.open)
	wg.Wait()
	return done, errs
}

func gatedLog(t *testing.T, cfg Config) (*disk.Mem, *Log, *gate) {
	t.Helper()
	fs := disk.NewMem()
	d := openDir(t, fs)
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, cfg)
	g := newGate()
	fs.SetFault(g.fault)
	t.Cleanup(func() {
		fs.SetFault(nil)
		mustClose(t, d)
	})
	return fs, l, g
}

// Appends that come while another is written share one write, in the order in
// which they came.
func TestAppendsShareWrites(t *testing.T) {
	_, l, g := gatedLog(t, Config{})
	var batches []record.Batch
	for i := range 40 {
		batches = append(batches, batchOf(t, record.None, nil, fmt.Sprint("v", i)))
	}
	done, errs := together(t, l, g, batches)
	for i := range batches {
		if errs[i] != nil || done[i].Base != int64(i) {
			t.Errorf("append %d: %+v, %v", i, done[i], errs[i])
		}
	}
	if g.writes != 2 {
		t.Errorf("%d writes for 40 appends, want 2", g.writes)
	}
	for i, b := range readAll(t, l, 0, 40, 1<<20) {
		if b.BaseOffset() != int64(i) {
			t.Errorf("batch %d has offset %d", i, b.BaseOffset())
		}
	}
}

// A group that meets the end of a segment is written in two parts, and every
// segment keeps its limit.
func TestGroupRolls(t *testing.T) {
	one := len(batchOf(t, record.None, nil, "value"))
	_, l, g := gatedLog(t, Config{SegmentBytes: int64(3 * one)})
	var batches []record.Batch
	for range 10 {
		batches = append(batches, batchOf(t, record.None, nil, "value"))
	}
	_, errs := together(t, l, g, batches)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if o := l.Offsets(); o.End != 10 || l.Segments() != 4 || g.writes != 5 {
		t.Errorf("end %d, %d segments, %d writes; want 10, 4, 5", o.End, l.Segments(), g.writes)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range l.mu.segments {
		if s.size > int64(3*one) {
			t.Errorf("segment %d has %d bytes", s.base, s.size)
		}
	}
}

// One producer's batches in a group are checked each after the one before: the
// same batch twice is stored once, a gap is refused.
func TestGroupProducer(t *testing.T) {
	_, l, g := gatedLog(t, Config{})
	b := func(seq int32) record.Batch { return withProducer(batchOf(t, record.None, nil, "v"), 9, 0, seq) }
	done, errs := together(t, l, g, []record.Batch{b(0), b(1), b(1), b(3), b(2)})
	want := []struct {
		base int64
		dup  bool
		err  error
	}{{0, false, nil}, {1, false, nil}, {1, true, nil}, {0, false, ErrOutOfOrderSequence}, {2, false, nil}}
	for i, w := range want {
		if !errors.Is(errs[i], w.err) || done[i].Base != w.base || done[i].Duplicate != w.dup {
			t.Errorf("append %d: %+v, %v; want %+v", i, done[i], errs[i], w)
		}
	}
	if o := l.Offsets(); o.End != 3 {
		t.Errorf("end %d, want 3", o.End)
	}
}

// A group that finds no room fails as one and leaves no trace; the next append
// gets the offset that it would have had.
func TestGroupFull(t *testing.T) {
	_, l, g := gatedLog(t, Config{})
	g.fail = syscall.ENOSPC
	var batches []record.Batch
	for i := range 5 {
		batches = append(batches, withProducer(batchOf(t, record.None, nil, "v"), int64(i), 0, 0))
	}
	done, errs := together(t, l, g, batches)
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	for i := 1; i < 5; i++ {
		if !errors.Is(errs[i], ErrFull) || done[i] != (Appended{}) {
			t.Errorf("append %d: %+v, %v", i, done[i], errs[i])
		}
	}
	g.mu.Lock()
	g.fail = nil
	g.mu.Unlock()
	// The producer's state did not move either: its batch is no duplicate.
	a := mustAppend(t, l, withProducer(batchOf(t, record.None, nil, "again"), 3, 0, 0))
	if a.Base != 1 || a.Duplicate {
		t.Errorf("after the failure: %+v", a)
	}
	waitDurable(t, l)
}

// Once a write of a group could not be undone, nothing more of that group is
// written, not even the batch whose check made it write.
func TestGroupFailedUndo(t *testing.T) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{})
	g := newGate()
	var broken atomic.Bool
	fs.SetFault(func(op disk.Op) error {
		if err := g.fault(op); err != nil || op.Kind != disk.OpTruncate {
			return err
		}
		g.mu.Lock()
		g.fail = nil // the next write would succeed
		g.mu.Unlock()
		broken.Store(true)
		return syscall.EIO
	})
	g.fail = syscall.EIO
	b := func(seq int32) record.Batch { return withProducer(batchOf(t, record.None, nil, "v"), 9, 0, seq) }
	_, errs := together(t, l, g, []record.Batch{batchOf(t, record.None, nil, "first"), b(0), b(1), b(2)})
	if errs[0] != nil || !broken.Load() {
		t.Fatalf("first append: %v; undo failed: %t", errs[0], broken.Load())
	}
	for i, err := range errs[1:] {
		if !errors.Is(err, ErrFailed) {
			t.Errorf("append %d after the failure: %v", i+1, err)
		}
	}
	if o := l.Offsets(); o.End != 1 || d.Failed() == nil {
		t.Errorf("%+v, directory %v", o, d.Failed())
	}
	fs.SetFault(nil)
	if err := d.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close gave %v", err)
	}
}
