package meta

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
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

// numbered is a key that sorts as its number does.
func numbered(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{PrefixLog}, n) }

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
				mustSet(t, db, string(numbered(uint64(committed))), fmt.Sprint(committed, value))
				committed++
			}
			crashed := m.CrashClone(keep, rng)
			mustClose(t, db)
			m = crashed
		}
		db := mustOpen(t, m, "/data/db")
		next := uint64(0)
		err := db.Scan([]byte{PrefixLog}, func(k, v []byte) error {
			if i := next; !bytes.Equal(k, numbered(i)) || !strings.HasPrefix(string(v), fmt.Sprint(i, "v")) {
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
	m := newMem(t)
	power := disktest.CutEverywhere(m, 0, 0.5)
	for range 2 {
		db := mustOpen(t, m, "/data/db")
		for range 3 {
			mustSet(t, db, string(numbered(uint64(power.Done()))), "x")
			power.Did()
		}
		mustClose(t, db)
	}
	cuts := power.End()
	for i, c := range cuts {
		db, err := Open(Options{FS: c.FS, Dir: "/data/db"})
		if err != nil {
			t.Fatalf("cut %d before %s: %v", i, c.Op, err)
		}
		for k := range c.Done {
			if _, err := db.Get(numbered(uint64(k))); err != nil {
				t.Fatalf("cut %d before %s: entry %d: %v", i, c.Op, k, err)
			}
		}
		mustClose(t, db)
	}
	if len(cuts) < 100 {
		t.Errorf("only %d cuts", len(cuts))
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
	// Proves where the keys with a prefix end.
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
