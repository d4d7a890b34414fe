package meta

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"syscall"
	"testing"

	"leat/storage/disk"
)

// checkStore is a store after a clean stop, or after kill -9 with its newest
// changes in the WAL.
func checkStore(t *testing.T, clean bool) *disk.Mem {
	t.Helper()
	m := newMem(t)
	db := mustOpen(t, m, "/data/db")
	for i := range 300 {
		mustSet(t, db, fmt.Sprintf("S%05d", i), strings.Repeat("v", i%50))
	}
	if clean {
		mustClose(t, db)
		return m
	}
	left := m.CrashClone(1, nil)
	mustClose(t, db)
	return left
}

// storeFiles is every file of the store with its bytes.
func storeFiles(t *testing.T, m *disk.Mem) map[string]string {
	t.Helper()
	names, err := m.List("/data/db")
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, name := range names {
		name = path.Join("/data/db", name)
		f, err := m.OpenFile(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, info.Size())
		if n, err := f.ReadAt(p, 0); n < len(p) {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		files[name] = string(p)
	}
	return files
}

// TestCheck proves that a store that holds is said to hold, stopped cleanly or
// not, that nothing of it changes, that a process that has it keeps Check out,
// and that no store is no damage.
func TestCheck(t *testing.T) {
	for _, clean := range []bool{false, true} {
		m := checkStore(t, clean)
		before := storeFiles(t, m)
		m.SetFault(func(op disk.Op) error {
			switch op.Kind {
			case disk.OpOpen, disk.OpLock:
				return nil
			default:
				if op.Kind.Changes() {
					return syscall.EROFS
				}
				return nil
			}
		})
		if err := Check(t.Context(), Options{FS: m, Dir: "/data/db"}); err != nil {
			t.Errorf("clean %t: %v", clean, err)
		}
		m.SetFault(nil)
		after := storeFiles(t, m)
		for name, was := range before {
			if after[name] != was {
				t.Errorf("clean %t: %s was changed", clean, name)
			}
		}
		if len(after) != len(before) {
			t.Errorf("clean %t: %d files before, %d after", clean, len(before), len(after))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Check(ctx, Options{FS: m, Dir: "/data/db"}); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		db := mustOpen(t, m, "/data/db")
		if err := Check(t.Context(), Options{FS: m, Dir: "/data/db"}); !errors.Is(err, disk.ErrLocked) {
			t.Errorf("while it is open: %v", err)
		}
		mustClose(t, db)
	}
	m := newMem(t)
	for range 2 {
		if err := Check(t.Context(), Options{FS: m, Dir: "/data/db"}); err != nil {
			t.Errorf("no store: %v", err)
		}
		if err := m.MkdirAll("/data/db"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckDamage proves that a changed byte in any part of a table that a
// clean stop left is found, with the file's name, and that changed bytes
// anywhere else never make Check fail in another way.
func TestCheckDamage(t *testing.T) {
	m := checkStore(t, true)
	rng := rand.New(rand.NewPCG(1, 1))
	for name, content := range storeFiles(t, m) {
		for range 25 {
			if content == "" {
				break
			}
			p := []byte(content)
			at := rng.IntN(len(p))
			p[at] ^= 1 << rng.IntN(8)
			c := m.CrashClone(1, nil)
			f, err := c.OpenFile(name, 2)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(p, 0); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			err = Check(t.Context(), Options{FS: c, Dir: "/data/db"})
			var damage *CorruptError
			if err != nil && !errors.As(err, &damage) {
				t.Errorf("byte %d of %s: %v", at, name, err)
			}
			if err == nil && strings.HasSuffix(name, ".sst") {
				t.Errorf("byte %d of %d of %s is not missed", at, len(p), name)
			}
			if err != nil && strings.HasSuffix(name, ".sst") && damage.Path != name {
				t.Errorf("byte %d of %s: named %s", at, name, damage.Path)
			}
		}
	}
}
