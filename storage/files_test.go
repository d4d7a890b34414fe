package storage

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestDescriptorsAreWaitedFor proves that an append and a read for which there
// is no descriptor wait a while for one, and that one that gets none fails by
// itself and leaves the log as it was.
func TestDescriptorsAreWaitedFor(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{})
	mustAppend(t, l, batchOf(t, record.None, nil, "first"))
	waitDurable(t, l)
	// refuse has the log's file closed, and not opened so many times.
	refuse := func(times int64) {
		eventually(t, "the file to be idle", func() bool {
			d.files.mu.Lock()
			defer d.files.mu.Unlock()
			return d.files.mu.open == d.files.mu.idle.len()
		})
		for _, s := range l.mu.segments {
			d.files.drop(s)
		}
		var refused atomic.Int64
		m.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpOpen && strings.HasSuffix(op.Path, ".log") && refused.Add(1) <= times {
				return syscall.EMFILE
			}
			return nil
		})
	}
	refuse(5)
	mustAppend(t, l, batchOf(t, record.None, nil, "second"))
	waitDurable(t, l)
	refuse(5)
	if p := mustRead(t, l, 0, 1<<20, 2); p == nil {
		t.Error("nothing was read")
	}
	refuse(1 << 30)
	if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "never")}); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("an append without a descriptor: %v", err)
	}
	m.SetFault(nil)
	if a := mustAppend(t, l, batchOf(t, record.None, nil, "third")); a.Base != 2 {
		t.Errorf("the next append got offset %d, want 2", a.Base)
	}
	if err := d.Failed(); err != nil {
		t.Error(err)
	}
	mustClose(t, d)
}
