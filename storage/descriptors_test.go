package storage

import (
	"errors"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestOutOfDescriptors proves that idle files are given up when the process
// may open no more, and that this is no failure of the disk.
func TestOutOfDescriptors(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	var logs []*Log
	for i := range 4 {
		l, err := d.OpenLog(t.Context(), ID{Topic: TopicID{1}, Partition: int32(i)}, "t", Config{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
		waitDurable(t, l)
		logs = append(logs, l)
	}
	eventually(t, "files to be idle", func() bool {
		d.files.mu.Lock()
		defer d.files.mu.Unlock()
		return d.files.mu.idle.len() == 4
	})
	d.files.drop(logs[0].mu.segments[0])
	m.SetFault(func(op disk.Op) error {
		d.files.mu.Lock()
		defer d.files.mu.Unlock()
		if op.Kind == disk.OpOpen && d.files.mu.open > 1 {
			return syscall.EMFILE
		}
		return nil
	})
	if p := mustRead(t, logs[0], 0, 100, 1); p == nil {
		t.Error("nothing was read")
	}
	m.SetFault(nil)
	if err := d.Failed(); err != nil {
		t.Error(err)
	}
	mustClose(t, d)
}

// TestDescriptorsComeBack proves that a process that is out of descriptors
// neither loses its data directory over a checkpoint or a new segment's name
// nor forgets the work: both are done when there are descriptors again.
func TestDescriptorsComeBack(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{SegmentBytes: 200})
	mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	waitDurable(t, l)

	var refused, names atomic.Int32
	m.SetFault(func(op disk.Op) error {
		switch {
		case op.Kind == disk.OpOpen && strings.HasPrefix(path.Base(op.Path), "checkpoint."):
			refused.Add(1)
			return syscall.EMFILE
		case op.Kind == disk.OpSyncDir && op.Path == l.path && names.Add(1) <= 4:
			return syscall.EMFILE
		}
		return nil
	})
	mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	waitDurable(t, l)
	d.keeper.bytes.Store(checkpointBytes)
	d.keeper.signal()
	eventually(t, "a checkpoint to be refused", func() bool { return refused.Load() > 0 })
	m.SetFault(nil)
	forceCheckpoint(t, d)
	if err := d.Failed(); err != nil || l.Segments() != 2 {
		t.Errorf("%d segments, %v", l.Segments(), err)
	}
	mustClose(t, d)
}

// TestCreateAndRemoveWithoutDescriptors proves that logs are made with the
// descriptors of idle files, that a create or removal for which there are none
// at all fails by itself and not the directory, and that the next one works.
func TestCreateAndRemoveWithoutDescriptors(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{})
	mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	waitDurable(t, l)
	eventually(t, "the file to be idle", func() bool {
		d.files.mu.Lock()
		defer d.files.mu.Unlock()
		return d.files.mu.idle.len() == 1
	})
	scarce := func(op disk.Op) error {
		d.files.mu.Lock()
		defer d.files.mu.Unlock()
		if op.Kind == disk.OpOpen && d.files.mu.open > 0 {
			return syscall.EMFILE
		}
		return nil
	}
	none := func(kinds ...disk.OpKind) func(disk.Op) error {
		return func(op disk.Op) error {
			if slices.Contains(kinds, op.Kind) {
				return syscall.EMFILE
			}
			return nil
		}
	}
	name := func(topic byte) LogName { return LogName{ID: ID{Topic: TopicID{topic}}, Topic: "t"} }
	m.SetFault(scarce)
	if err := d.Create([]LogName{name(7), name(8)}); err != nil {
		t.Errorf("with an idle file: %v", err)
	}
	for _, kind := range []disk.OpKind{disk.OpOpen, disk.OpSyncAll} {
		m.SetFault(none(kind))
		if err := d.Create([]LogName{name(9)}); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("without descriptors at %s: %v", kind, err)
		}
	}
	m.SetFault(none(disk.OpSyncDir))
	if err := d.Remove(l); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("remove without descriptors: %v", err)
	}
	m.SetFault(nil)
	if err := d.Failed(); err != nil {
		t.Error(err)
	}
	if err := d.Create([]LogName{name(9)}); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
	mustClose(t, d)
}
