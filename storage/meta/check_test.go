package meta

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
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
		if damages, err := Check(t.Context(), Options{FS: m, Dir: "/data/db"}, nil); err != nil || len(damages) > 0 {
			t.Errorf("clean %t: %v, %v", clean, damages, err)
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
		if _, err := Check(ctx, Options{FS: m, Dir: "/data/db"}, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		db := mustOpen(t, m, "/data/db")
		if _, err := Check(t.Context(), Options{FS: m, Dir: "/data/db"}, nil); !errors.Is(err, disk.ErrLocked) {
			t.Errorf("while it is open: %v", err)
		}
		mustClose(t, db)
	}
	m := newMem(t)
	for range 2 {
		if damages, err := Check(t.Context(), Options{FS: m, Dir: "/data/db"}, nil); err != nil || len(damages) > 0 {
			t.Errorf("no store: %v", err)
		}
		if err := m.MkdirAll("/data/db"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckDamage proves that a changed bit anywhere in any file of a store, of
// one that was stopped cleanly and of one that was not, is found with the file's
// name, and except in tables with the byte, and that Check fails in no other
// way. What has a checksum of its own is damage, but for a log's end.
func TestCheckDamage(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	for _, clean := range []bool{true, false} {
		m := checkStore(t, clean)
		for name, content := range storeFiles(t, m) {
			if content == "" {
				continue
			}
			if strings.HasSuffix(name, ".log") {
				content += strings.Repeat("\x00", 50_000) // preallocated
			}
			for range 60 {
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
				damages, err := Check(t.Context(), Options{FS: c, Dir: "/data/db"}, nil)
				if err != nil {
					t.Fatalf("byte %d of %s: %v", at, name, err)
				}
				table := strings.HasSuffix(name, ".sst")
				harmless := strings.Contains(name, "OPTIONS") || len(content) < 20 || strings.HasSuffix(name, ".log") && content[at:] == strings.Repeat("\x00", len(content)-at)
				if !slices.ContainsFunc(damages, func(d Damage) bool {
					return d.Path == name && d.Harmless == harmless && (table || d.Pos == int64(at))
				}) {
					t.Errorf("clean %t, byte %d of %d of %s: %v", clean, at, len(p), name, damages)
				}
			}
		}
	}
}
