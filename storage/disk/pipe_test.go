package disk

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestPipe proves that a pipe in the place of a file or directory is an error
// and is not waited for.
func TestPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE} {
		if f, err := OS.OpenFile(pipe, flag); err == nil {
			t.Errorf("flags %#x: opened", flag)
			_ = f.Close()
		}
	}
	if _, err := OS.List(pipe); err == nil {
		t.Error("listed")
	}
	for _, sync := range []func(string) error{OS.SyncDir, OS.SyncAll} {
		if err := sync(pipe); err == nil {
			t.Error("synced")
		}
	}
}
