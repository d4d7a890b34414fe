package meta

import (
	"errors"
	"maps"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"testing"

	"leat/storage/disk"
)

// TestPeekDamage proves that a look at a store finds a changed bit anywhere in its
// WAL, its manifest and its tables, those that an Open takes for a torn end or meets
// only after it has changed something included, names the file, and changes
// nothing; and that it lets pass what holds.
func TestPeekDamage(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 1))
	peek := func(m *disk.Mem) (opened bool, err error) {
		return Peek(t.Context(), Options{FS: m, Dir: "/data/db"}, func(*DB) error { return nil })
	}
	for _, m := range []*disk.Mem{checkStore(t, true), checkStore(t, false), storeWithTables(t)} {
		if opened, err := peek(m); !opened || err != nil {
			t.Fatalf("%t, %v", opened, err)
		}
		for name, content := range storeFiles(t, m) {
			size, rounds := len(content), 40
			if strings.HasSuffix(name, ".log") {
				size = endOfWAL(t, name, content)
			}
			if size > 1<<20 {
				rounds = 5
			}
			if size == 0 || !strings.HasSuffix(name, ".log") && !strings.HasSuffix(name, ".sst") && !strings.Contains(name, "MANIFEST") {
				continue
			}
			for range rounds {
				c := m.CrashClone(1, nil)
				at := rng.IntN(size)
				flip(int64(at))(t, c, name)
				before := storeFiles(t, c)
				_, err := peek(c)
				if ce, ok := errors.AsType[*CorruptError](err); !ok || ce.Path != name {
					t.Errorf("byte %d of %d of %s: %v", at, size, name, err)
				}
				if !maps.Equal(before, storeFiles(t, c)) {
					t.Errorf("byte %d of %s: files have changed", at, name)
				}
			}
		}
	}
}

// endOfWAL is the size of the chunks in a WAL that are not of an earlier life of the
// file.
func endOfWAL(t *testing.T, name, content string) (end int) {
	t.Helper()
	number, err := strconv.ParseUint(strings.TrimSuffix(path.Base(name), ".log"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; len(content)-at > maxChunkHeader; {
		block := []byte(content[at:min(len(content), at-at%chunkBlock+chunkBlock)])
		if len(block) <= maxChunkHeader {
			at += len(block)
			continue
		}
		c := parseChunk(block)
		if !c.ours(uint32(number)) {
			break
		}
		at += c.size
		end = at
	}
	return end
}

// TestPeekTorn proves that no power cut leaves a store that a look refuses.
func TestPeekTorn(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 2))
	m := newMem(t)
	var cuts []*disk.Mem
	m.SetFault(func(op disk.Op) error {
		if op.Kind.Changes() && rng.IntN(4) == 0 {
			cuts = append(cuts, m.CrashClone([]float64{0, 0.3, 0.7, 1}[rng.IntN(4)], rng))
		}
		return nil
	})
	db := mustOpen(t, m, "/data/db")
	for i := range 300 {
		batch := db.NewBatch()
		batch.Set([]byte{'S', byte(i)}, []byte(strings.Repeat("v", rng.IntN(3000))))
		if err := db.Commit(batch); err != nil {
			t.Fatal(err)
		}
	}
	m.SetFault(nil)
	mustClose(t, db)
	for _, c := range cuts {
		if _, err := Peek(t.Context(), Options{FS: c, Dir: "/data/db"}, func(*DB) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	if len(cuts) < 100 {
		t.Errorf("%d cuts", len(cuts))
	}
}
