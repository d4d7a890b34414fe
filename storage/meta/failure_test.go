package meta

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"leat/storage/disk"
)

func TestFailureIsFinal(t *testing.T) {
	// Proves that after a failed write or sync of the WAL the commit and all
	// later ones fail, that OnFatal is called once, and that nothing that was
	// answered before is lost.
	for _, kind := range []disk.OpKind{disk.OpSyncData, disk.OpWrite, disk.OpSync} {
		t.Run(kind.String(), func(t *testing.T) {
			m := newMem(t)
			var fatal []error
			var logged strings.Builder
			db, err := Open(Options{
				FS: m, Dir: "/data/db", OnFatal: func(err error) { fatal = append(fatal, err) },
				Logger: slog.New(slog.NewTextHandler(&logged, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			mustSet(t, db, "Sa", "1")
			m.SetFault(func(op disk.Op) error {
				if strings.HasSuffix(op.Path, ".log") && (op.Kind == kind || kind == disk.OpSync && op.Kind == disk.OpSyncData) {
					return syscall.EIO
				}
				return nil
			})
			if err := set(db, "Sb", "2"); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
				t.Errorf("Commit = %v", err)
			}
			m.SetFault(nil)
			_, getErr := db.Get([]byte("Sa"))
			for _, err := range []error{set(db, "Sc", "3"), getErr, db.Close()} {
				if !errors.Is(err, ErrFailed) {
					t.Errorf("after the failure: %v", err)
				}
			}
			if len(fatal) != 1 || !errors.Is(fatal[0], syscall.EIO) {
				t.Errorf("OnFatal got %v", fatal)
			}
			if !strings.Contains(logged.String(), "metadata store failed") {
				t.Errorf("log: %s", logged.String())
			}
			again := mustOpen(t, m.CrashClone(0, nil), "/data/db")
			if got := scan(t, again, "S"); got != "Sa=1" {
				t.Errorf("after the crash: %s", got)
			}
			mustClose(t, again)
		})
	}
}

func TestOpenReportsErrors(t *testing.T) {
	// Proves that an error of the disk while opening is told as such and not
	// as damage.
	m := newMem(t)
	mustClose(t, mustOpen(t, m, "/data/db"))
	for _, kind := range []disk.OpKind{disk.OpOpen, disk.OpRead, disk.OpWrite, disk.OpSyncDir, disk.OpList, disk.OpMkdir} {
		c := m.CrashClone(1, nil)
		c.SetFault(func(op disk.Op) error {
			if op.Kind == kind {
				return syscall.EIO
			}
			return nil
		})
		_, err := Open(Options{FS: c, Dir: "/data/db"})
		if _, corrupt := errors.AsType[*CorruptError](err); corrupt || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestDamageNamesFile(t *testing.T) {
	// Proves that damage found while opening is a CorruptError with the file
	// in it, and that it changes none of the files.
	for _, tc := range []struct {
		name   string
		file   string // its name contains this
		damage func(t *testing.T, m *disk.Mem, p string)
	}{
		{"flipped bit in a synced part of the WAL", ".log", flip(40)},
		{"flipped bit in the manifest", "MANIFEST", flip(12)},
		{"missing manifest", "MANIFEST", remove},
		{"missing table", ".sst", remove},
		{"short table", ".sst", shorten},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := storeWithTables(t)
			victim := newest(t, m, tc.file)
			tc.damage(t, m, victim)
			before := contents(t, m)
			_, err := Open(Options{FS: m, Dir: "/data/db"})
			ce, ok := errors.AsType[*CorruptError](err)
			if !ok || ce.Path != victim {
				t.Errorf("Open = %v; want damage of %s", err, victim)
			}
			if after := contents(t, m); after != before {
				t.Errorf("files before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// storeWithTables is a store with a table and a WAL of several commits, cut
// off by kill -9.
func storeWithTables(t *testing.T) *disk.Mem {
	t.Helper()
	m := newMem(t)
	db := mustOpen(t, m, "/data/db")
	value := strings.Repeat("v", 100_000)
	for i := range 60 {
		mustSet(t, db, string(numbered(uint64(i))), value)
	}
	if err := db.pebble.Flush(); err != nil {
		t.Fatal(err)
	}
	mustSet(t, db, "Sa", "first")
	mustSet(t, db, "Sb", value)
	mustSet(t, db, "Sc", "last")
	crashed := m.CrashClone(1, nil)
	mustClose(t, db)
	return crashed
}

// newest is the last file of the store with part in its name.
func newest(t *testing.T, m *disk.Mem, part string) string {
	t.Helper()
	names, err := m.List("/data/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range slices.Backward(names) {
		if strings.Contains(n, part) && !strings.HasPrefix(n, "marker") {
			return path.Join("/data/db", n)
		}
	}
	t.Fatalf("no %s in %v", part, names)
	return ""
}

func TestDamageWhileRunning(t *testing.T) {
	// Proves that a damaged table is never read as if nothing were wrong: the
	// read fails, the owner hears of it, and both name the file.
	m := storeWithTables(t)
	victim := newest(t, m, ".sst")
	fatal := make(chan error, 1)
	db, err := Open(Options{FS: m, Dir: "/data/db", OnFatal: func(err error) { fatal <- err }})
	if err != nil {
		t.Fatal(err)
	}
	flip(1000)(t, m, victim)
	err = db.Scan([]byte{PrefixLog}, func(_, _ []byte) error { return nil })
	for _, err := range []error{err, <-fatal} {
		if ce, ok := errors.AsType[*CorruptError](err); !ok || path.Clean(ce.Path) != victim {
			t.Errorf("got %v; want damage of %s", err, victim)
		}
	}
}

func TestFailedFlushIsFinal(t *testing.T) {
	// Proves that a table that cannot be written ends the store: commits fail
	// instead of waiting for it, and the write is not tried for ever.
	m := newMem(t)
	fatal := make(chan error, 1)
	db, err := Open(Options{FS: m, Dir: "/data/db", OnFatal: func(err error) { fatal <- err }})
	if err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int64
	m.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpWrite && strings.HasSuffix(op.Path, ".sst") {
			tries.Add(1)
			return syscall.ENOSPC
		}
		return nil
	})
	value := strings.Repeat("v", 100_000)
	n := 0
	for err == nil {
		if err = set(db, string(numbered(uint64(n))), value); err == nil {
			n++
		}
	}
	if !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Commit = %v", err)
	}
	if err := <-fatal; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("OnFatal got %v", err)
	}
	if got := tries.Load(); got != 1 {
		t.Errorf("%d writes were tried", got)
	}
	m.SetFault(nil)
	again := mustOpen(t, m.CrashClone(0, nil), "/data/db")
	if got := len(strings.Fields(scan(t, again, "L"))); got < n {
		t.Errorf("%d entries of %d", got, n)
	}
	mustClose(t, again)
}

func contents(t *testing.T, m *disk.Mem) string {
	t.Helper()
	names, err := m.List("/data/db")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, n := range names {
		info, err := m.Stat(path.Join("/data/db", n))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %d\n", n, info.Size())
	}
	return out.String()
}

func flip(at int64) func(*testing.T, *disk.Mem, string) {
	return func(t *testing.T, m *disk.Mem, p string) {
		t.Helper()
		f, err := m.OpenFile(p, os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		b[0] ^= 4
		_, err2 := f.WriteAt(b[:], at)
		if err := errors.Join(err, err2, f.Close()); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

func remove(t *testing.T, m *disk.Mem, p string) {
	t.Helper()
	if err := m.Remove(p); err != nil {
		t.Fatal(err)
	}
}

func shorten(t *testing.T, m *disk.Mem, p string) {
	t.Helper()
	f, err := m.OpenFile(p, os.O_RDWR)
	if err == nil {
		err = errors.Join(f.Truncate(30), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
