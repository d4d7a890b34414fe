package meta

import (
	"errors"
	"fmt"
	"io"
	"leat/storage/disk"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

func mustOpen(t *testing.T, fsys disk.FS, dir string) *DB {
	t.Helper()
	db, err := Open(Options{FS: fsys, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func mustClose(t *testing.T, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func set(db *DB, kv ...string) error {
	b := db.NewBatch()
	for i := 0; i < len(kv); i += 2 {
		b.Set([]byte(kv[i]), []byte(kv[i+1]))
	}
	return db.Commit(b)
}

func mustSet(t *testing.T, db *DB, kv ...string) {
	t.Helper()
	if err := set(db, kv...); err != nil {
		t.Fatal(err)
	}
}

func scan(t *testing.T, db *DB, prefix string) string {
	t.Helper()
	var out []string
	err := db.Scan([]byte(prefix), func(k, v []byte) error {
		out = append(out, fmt.Sprintf("%s=%s", k, v))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func newMem(t *testing.T) *disk.Mem {
	t.Helper()
	m := disk.NewMem()
	if err := errors.Join(m.MkdirAll("/data"), m.SyncAll("/")); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStore(t *testing.T) {
	// Proves reads, scans, batches and deletions, and that they survive a
	// clean restart on a real disk.
	dir := filepath.Join(t.TempDir(), "db")
	db := mustOpen(t, disk.OS, dir)
	if _, err := db.Get([]byte("Sa")); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of a missing key: %v", err)
	}
	mustSet(t, db, "Sa", "1", "Sb", "", "Sc", "3", "Sd", "4", "T", "x", "R\xff", "y")
	b := db.NewBatch()
	b.Delete([]byte("Sa"))
	b.DeleteRange([]byte("Sc"), []byte("Sd"))
	b.Set([]byte("Se"), []byte("5"))
	if got := scan(t, db, "S"); got != "Sa=1 Sb= Sc=3 Sd=4" {
		t.Errorf("a batch is seen before its commit: %s", got)
	}
	if err := db.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := db.Commit(db.NewBatch()); err != nil {
		t.Errorf("empty batch: %v", err)
	}
	for range 2 {
		if got := scan(t, db, "S"); got != "Sb= Sd=4 Se=5" {
			t.Errorf("scan: %s", got)
		}
		if got := scan(t, db, "R\xff"); got != "R\xff=y" {
			t.Errorf("scan of a prefix that ends in 0xff: %s", got)
		}
		if v, err := db.Get([]byte("Sb")); err != nil || v == nil || len(v) != 0 {
			t.Errorf("empty value: %v, %v", v, err)
		}
		mustClose(t, db)
		db = mustOpen(t, disk.OS, dir)
	}
	if _, err := Open(Options{FS: disk.OS, Dir: dir}); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	stop := errors.New("stop")
	if err := db.Scan(nil, func(_, _ []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Scan = %v", err)
	}
	mustClose(t, db)
	_, getErr := db.Get([]byte("Sb"))
	for _, err := range []error{db.Close(), getErr, db.Scan(nil, nil), db.Commit(nil)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestCommittedSurvivesPowerCut(t *testing.T) {
	// Proves that every commit that was answered is there after a power cut at
	// any moment, with un-synced bytes torn in any way, and that the store goes
	// on from there; the memtable is small against what is written, so that
	// flushes and WAL recycling are cut too.
	value := strings.Repeat("v", 60_000)
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 7))
		keep := []float64{0, 0, 0.5, 0.9, 0.1, 1}[seed]
		m := newMem(t)
		committed := 0
		for range 4 {
			db := mustOpen(t, m, "/data/db")
			for range 40 {
				mustSet(t, db, string(LogKey(uint64(committed))), fmt.Sprint(committed, value))
				committed++
			}
			crashed := m.CrashClone(keep, rng)
			mustClose(t, db)
			m = crashed
		}
		db := mustOpen(t, m, "/data/db")
		next := uint64(0)
		err := db.Scan([]byte{PrefixLog}, func(k, v []byte) error {
			if i, ok := LogIndex(k); !ok || i != next || !strings.HasPrefix(string(v), fmt.Sprint(i, "v")) {
				return fmt.Errorf("entry %d: key %q", next, k)
			}
			next++
			return nil
		})
		if err != nil || next != uint64(committed) {
			t.Fatalf("seed %d, keep %v: %d of %d entries, %v", seed, keep, next, committed, err)
		}
		mustClose(t, db)
	}
}

func TestPowerCutAtEveryOperation(t *testing.T) {
	// Proves that a power cut at every single operation of the first open,
	// some commits and the close leaves a store that opens and has what was
	// committed by then.
	type cut struct {
		fs   *disk.Mem
		done int64
		op   string
	}
	var (
		mu   sync.Mutex
		cuts []cut
		done atomic.Int64
	)
	m := newMem(t)
	rng := rand.New(rand.NewPCG(1, 2))
	m.SetFault(func(op disk.Op) error {
		if !op.Kind.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		n := done.Load()
		for _, keep := range []float64{0, 0.5} {
			cuts = append(cuts, cut{m.CrashClone(keep, rng), n, fmt.Sprint(op)})
		}
		return nil
	})
	for range 2 {
		db := mustOpen(t, m, "/data/db")
		for range 3 {
			n := done.Load()
			mustSet(t, db, string(LogKey(uint64(n))), "x")
			done.Store(n + 1)
		}
		mustClose(t, db)
	}
	m.SetFault(nil)
	for i, c := range cuts {
		db, err := Open(Options{FS: c.fs, Dir: "/data/db"})
		if err != nil {
			t.Fatalf("cut %d before %s: %v", i, c.op, err)
		}
		for k := range c.done {
			if _, err := db.Get(LogKey(uint64(k))); err != nil {
				t.Fatalf("cut %d before %s: entry %d: %v", i, c.op, k, err)
			}
		}
		mustClose(t, db)
	}
	if len(cuts) < 100 {
		t.Errorf("only %d cuts", len(cuts))
	}
}

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
		mustSet(t, db, string(LogKey(uint64(i))), value)
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
		if err = set(db, string(LogKey(uint64(n))), value); err == nil {
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

func TestConcurrentCommits(t *testing.T) {
	// Proves that commits from many goroutines are all applied and all durable.
	m := newMem(t)
	db := mustOpen(t, m, "/data/db")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 25 {
				if err := set(db, string(StateKey(fmt.Appendf(nil, "%d-%d", g, i))), "x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	again := mustOpen(t, m.CrashClone(0, nil), "/data/db")
	if got := len(strings.Fields(scan(t, again, "S"))); got != 200 {
		t.Errorf("%d keys of 200", got)
	}
	mustClose(t, again)
	mustClose(t, db)
}

func TestKeys(t *testing.T) {
	// Proves that log keys sort as their indexes and are told from all others.
	if string(LogKey(255)) >= string(LogKey(256)) {
		t.Error("LogKey(255) sorts after LogKey(256)")
	}
	if i, ok := LogIndex(LogKey(1 << 40)); !ok || i != 1<<40 {
		t.Errorf("LogIndex = %d, %t", i, ok)
	}
	for _, k := range [][]byte{nil, AppliedKey(), StateKey([]byte("12345678")), LogKey(1)[:8]} {
		if _, ok := LogIndex(k); ok {
			t.Errorf("LogIndex(%q) is ok", k)
		}
	}
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "\xff": "", "": ""} {
		if got := string(prefixEnd([]byte(prefix))); got != want {
			t.Errorf("prefixEnd(%q) = %q, want %q", prefix, got, want)
		}
	}
}

func BenchmarkOpenEmpty(b *testing.B) {
	for i := 0; b.Loop(); i++ {
		db, err := Open(Options{FS: disk.OS, Dir: filepath.Join(b.TempDir(), fmt.Sprint(i))})
		if err == nil {
			b.StopTimer()
			err = db.Close()
			b.StartTimer()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCommit(b *testing.B) {
	db, err := Open(Options{FS: disk.OS, Dir: filepath.Join(b.TempDir(), "db")})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := set(db, "Sa", "1"); err != nil {
			b.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
}
