package disk

import (
	"errors"
	"io"
	"os"
	"path"
	"testing"
)

// TestNextData proves that NextData steps over nothing but zeros, finds the
// end, and on both file systems skips what was only allocated or never written.
func TestNextData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mem := NewMem()
	if err := mem.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	const size, at = 1 << 20, 512<<10 + 100
	for name, fsys := range map[string]FS{"os": OS, "mem": mem} {
		t.Run(name, func(t *testing.T) {
			f, err := fsys.OpenFile(path.Join(dir, "a"), create)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if pos, err := f.NextData(0); !errors.Is(err, io.EOF) {
				t.Errorf("an empty file has data at %d, %v", pos, err)
			}
			if err := f.Allocate(0, size/4); err != nil && !errors.Is(err, ErrUnsupported) {
				t.Fatal(err)
			}
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("data"), at); err != nil {
				t.Fatal(err)
			}
			for _, from := range []int64{0, size / 4, at - 1, at, at + 3} {
				pos, err := f.NextData(from)
				if err != nil || pos < from || pos > max(from, at) {
					t.Errorf("from %d: %d, %v; data is at %d", from, pos, err, at)
				}
				if from == 0 && pos < at/2 {
					t.Errorf("from 0: %d, so nothing was skipped", pos)
				}
			}
			for _, from := range []int64{size, size + 1} {
				if pos, err := f.NextData(from); !errors.Is(err, io.EOF) {
					t.Errorf("from %d: %d, %v", from, pos, err)
				}
			}
			if _, err := f.NextData(-1); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("from -1: %v", err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := f.NextData(0); !errors.Is(err, os.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}
