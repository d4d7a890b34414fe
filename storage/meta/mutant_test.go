package meta

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
)

// needless are the sites that no proof needs to notice, each with the reason.
var needless = map[string]string{
	"vfs.go ReuseForWrite Rename": "a new file does as well, it is only slower to sync, and Pebble removes the old WAL by its number",
	"db.go Open SyncDir":          "Pebble syncs the parent as well, as it is now; here the store does not depend on that",
	"vfs.go SyncData Sync":        "passes the call on to Sync, which is left out in its own turn",
}

// syncedFiles are the files whose own syncs Pebble asks for, by their names.
var syncedFiles = map[string]func(name string) bool{
	"sync of a WAL":      func(name string) bool { return strings.HasSuffix(name, ".log") },
	"sync of a table":    func(name string) bool { return strings.HasSuffix(name, ".sst") },
	"sync of a manifest": func(name string) bool { return strings.HasPrefix(name, "MANIFEST-") },
}

// TestEverySyncIsNeeded proves that each sync and rename of the adapter, and
// each sync that Pebble asks it for, is there for a reason: without it a power
// cut takes a commit that was answered, or leaves a store that does not open.
func TestEverySyncIsNeeded(t *testing.T) {
	t.Parallel()
	if failure := missing(t, func(disk.Op) bool { return false }); failure != "" {
		t.Fatalf("in a whole world: %s", failure)
	}
	sites := disktest.Sites(t, "leat/storage/meta", ".")
	if len(sites) < 5 {
		t.Fatalf("only %d sites were found", len(sites))
	}
	mutants := map[string]func(disk.Op) bool{}
	for i, site := range sites {
		mutants[site.String()] = func(op disk.Op) bool { return disktest.Caller(sites) == i }
	}
	for what, is := range syncedFiles {
		mutants[what] = func(op disk.Op) bool {
			return (op.Kind == disk.OpSync || op.Kind == disk.OpSyncData) && is(path.Base(op.Path))
		}
	}
	for name := range needless {
		if mutants[name] == nil {
			t.Errorf("%q is called needless, but there is no such call", name)
		}
	}
	for name, mute := range mutants {
		if needless[name] != "" {
			continue
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			failure := missing(t, mute)
			if failure == "" {
				t.Error("nothing breaks without it")
			}
			t.Log(failure)
		})
	}
}

// missing is what breaks in a world without what mute says.
func missing(t *testing.T, mute func(disk.Op) bool) string {
	return disktest.Attempt(t, func(t testing.TB) { proveCommitted(t, mute) })
}

type powerCut struct {
	fs   *disk.Mem
	done int64 // so many commits had been answered
	op   disk.Op
}

// proveCommitted opens a store, commits, in the second run so much that tables
// are made and WALs recycled, and closes it, three times. The power is cut
// before the operations on the way, and what is left must open with all that was
// answered.
func proveCommitted(t testing.TB, mute func(disk.Op) bool) {
	var (
		mu   sync.Mutex
		cuts []powerCut
		done atomic.Int64
	)
	m := disk.NewMem()
	if err := errors.Join(m.MkdirAll("/data"), m.SyncAll("/")); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	m.SetFault(func(op disk.Op) error {
		if !op.Kind.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		n := done.Load()
		for _, keep := range keeps(op.Kind, rng) {
			cuts = append(cuts, powerCut{fs: m.CrashClone(keep, rng), done: n, op: op})
		}
		if disktest.Asks(op.Kind) && mute(op) {
			return disk.ErrSkip
		}
		return nil
	})
	for run, size := range []int{0, 300_000, 0} {
		db, err := Open(Options{FS: m, Dir: "/data/db"})
		if err != nil {
			t.Fatal(err)
		}
		value := strings.Repeat("v", size)
		for range []int{3, 20, 3}[run] {
			n := done.Load()
			if err := set(db, string(numbered(uint64(n))), fmt.Sprint(n), "Sv", value); err != nil {
				t.Fatal(err)
			}
			done.Store(n + 1)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m.SetFault(nil)
	for i := range cuts {
		cuts[i].check(t)
	}
}

// keeps is what power cuts before an operation keep: where names change several
// ways, where bytes do, which is often, seldom one.
func keeps(kind disk.OpKind, rng *rand.Rand) []float64 {
	switch kind {
	case disk.OpSyncDir:
		return append(slices.Repeat([]float64{0.5}, 16), 0)
	case disk.OpWrite, disk.OpSyncData, disk.OpSync:
		if rng.IntN(20) > 0 {
			return nil
		}
		return []float64{0}
	default:
		return []float64{0}
	}
}

// check opens what the cut left.
func (c *powerCut) check(t testing.TB) {
	names, _ := c.fs.List("/data/db") // may be missing
	db, err := Open(Options{FS: c.fs, Dir: "/data/db"})
	if err != nil {
		t.Fatalf("a cut before %v leaves %v: %v", c.op, names, err)
	}
	defer func() { _ = db.Close() }()
	for n := range c.done {
		if v, err := db.Get(numbered(uint64(n))); err != nil || string(v) != fmt.Sprint(n) {
			t.Fatalf("a cut before %v leaves %v: commit %d of %d: %v", c.op, names, n, c.done, err)
		}
	}
}
