package disk

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// TestSkip proves that a skipped operation changes nothing and says that it
// did, and that one which gives something back fails instead.
func TestSkip(t *testing.T) {
	m := NewMem()
	f, err := m.OpenFile("/a", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	m.SetFault(func(Op) error { return ErrSkip })
	n, err := f.WriteAt([]byte("other"), 0)
	if n != 5 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
	err = errors.Join(f.Truncate(0), f.Allocate(0, 99), f.Sync(), f.SyncData(), m.SyncDir("/"), m.SyncAll("/"),
		m.MkdirAll("/d"), m.Rename("/a", "/b"), m.Link("/a", "/c"), m.Remove("/a"), m.RemoveAll("/a"))
	if err != nil {
		t.Error(err)
	}
	_, open := m.OpenFile("/a", os.O_RDONLY)
	_, lock := m.Lock("/l")
	_, read := f.ReadAt(make([]byte, 4), 0)
	_, list := m.List("/")
	for _, err := range []error{open, lock, read, list} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("what gives something back: %v", err)
		}
	}
	m.SetFault(nil)
	names, err := m.List("/")
	p := make([]byte, 4)
	if _, failed := f.ReadAt(p, 0); failed != nil || err != nil || len(names) != 1 || string(p) != "kept" {
		t.Errorf("left: %q, %v; %q, %v", names, err, p, failed)
	}
	if names, err := m.CrashClone(0, nil).List("/"); err != nil || len(names) != 0 {
		t.Errorf("durable: %q, %v", names, err)
	}
}
