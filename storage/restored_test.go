package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestForeignTail proves that behind the last whole batch nothing counts that is
// not the next one, however sound it is: what the file had before, what belongs
// further on, what another partition has. It is cut, kept for a look, and the next
// record takes its place.
func TestForeignTail(t *testing.T) {
	t.Parallel()
	left, m := recoveryFixture(t)
	dir := path.Join("/data/logs", testID.dirName())
	name := path.Join(dir, segmentName(0, 0)+logSuffix)
	at := func(base int64) record.Batch {
		b := batchOf(t, record.None, nil, "somebody's", "and more")
		b.SetBaseOffset(base)
		return b
	}
	for kept := range m.batches {
		next := m.batches[kept].BaseOffset()
		whole, half := m.batches[kept], len(m.batches[kept])/2
		for what, tail := range map[string][]byte{
			"the first batch":                      m.batches[0],
			"the last batch once more":             m.batches[max(kept-1, 0)],
			"a batch from further on":              at(next + 2),
			"one of another partition":             at(1 << 40),
			"one that overlaps":                    at(next - 1),
			"half a batch, then a whole one":       slices.Concat(whole[:half], at(next)),
			"half a batch, and an older one's end": slices.Concat(whole[:half], m.batches[0][half:]),
			"text":                                 bytes.Repeat([]byte("old data "), 50),
		} {
			if kept == 0 && bytes.Equal(tail, m.batches[0]) {
				continue // it is the right one
			}
			fs := left.CrashClone(1, nil)
			setFile(t, fs, name, slices.Concat(slices.Concat(m.batches[:kept]...), tail))
			d := openDir(t, fs)
			l := openWhole(t, d, Config{}, 0)
			want := model{batches: slices.Clip(m.batches[:kept])}
			want.check(t, l, rand.New(rand.NewPCG(1, 1)))
			if names, err := fs.List("/data/" + quarantineDir); err != nil || len(names) != 1 {
				t.Fatalf("%d batches, then %s: quarantine has %v, %v", kept, what, names, err)
			}
			b := batchOf(t, record.None, nil, "next")
			if a := mustAppend(t, l, b); a.Base != next {
				t.Fatalf("%d batches, then %s: the next record got offset %d", kept, what, a.Base)
			}
			want.add(b)
			waitDurable(t, l)
			power := fs.CrashClone(0, nil)
			mustClose(t, d)
			d = openDir(t, power)
			want.check(t, openWhole(t, d, Config{}, 0), rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
		}
	}
}

// copyLog replaces the files of a log by those that another disk has.
func copyLog(t *testing.T, to, from *disk.Mem) {
	t.Helper()
	dir := path.Join("/data/logs", testID.dirName())
	if err := errors.Join(to.RemoveAll(dir), to.MkdirAll(dir)); err != nil {
		t.Fatal(err)
	}
	names, err := from.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		setFile(t, to, path.Join(dir, name), fileBytes(t, from, path.Join(dir, name)))
	}
}

// TestOlderBackup proves of a partition's directory that was restored from an
// older backup, over what the rest of the data directory remembers: what is there
// is read, what is missing is a hole and not silence, no offset is given twice, and
// a repair goes on behind what there was. A start that is past all of it makes
// it begin anew there, with the files kept for a look. Of a newer backup all is
// there.
func TestOlderBackup(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{true, false} {
		for _, c := range []struct {
			what          string
			older         bool // the backup is
			start         int64
			noCheckpoints bool
			fenced, anew  bool
			readable, end int64
		}{
			{what: "older", older: true, fenced: true, readable: 6, end: 12},
			{what: "older, and the start past it", older: true, start: 9, fenced: true, end: 12},
			{what: "older, the start past it, and no checkpoint", older: true, start: 9, noCheckpoints: true, anew: true, end: 9},
			{what: "older, and no checkpoint", older: true, noCheckpoints: true, readable: 6, end: 6},
			{what: "newer", readable: 12, end: 12},
		} {
			what := fmt.Sprintf("%s, clean %t", c.what, clean)
			end := c.end
			if c.fenced && c.readable == 0 && !clean {
				end += unknownTail // all of it is lost, and so is how far it reached
			}
			fs, early, m := backups(t)
			if !c.older {
				fs, early = early, fs
			}
			copyLog(t, fs, early)
			if c.noCheckpoints {
				remove(t, fs, path.Join("/data", cleanName), checkpointSlot("/data", 0), checkpointSlot("/data", 1))
			}
			if !clean {
				remove(t, fs, path.Join("/data", cleanName))
			}
			for range 2 {
				d := openDir(t, fs)
				l := openLogAt(t, d, damageConfig, c.start)
				if o := l.Offsets(); l.Fenced() != c.fenced || o.End != end || o.Start != c.start {
					t.Fatalf("%s: fenced %t, %+v, holes %+v", what, l.Fenced(), o, l.Holes())
				}
				if err := sameBatches(readAll(t, l, c.start, max(c.readable, c.start), 1), m.batches[c.start:max(c.readable, c.start)]); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				for offset := max(c.readable, c.start); offset < c.end; offset++ {
					if _, err := l.Read(offset, 1, end); !errors.Is(err, ErrCorrupt) {
						t.Errorf("%s: offset %d, which is missing, reads as %v", what, offset, err)
					}
				}
				mustClose(t, d)
			}
			if kept, err := fs.List("/data/" + quarantineDir); err != nil || (len(kept) > 0) != c.anew {
				t.Errorf("%s: quarantine has %v, %v", what, kept, err)
			}
			d := openDir(t, fs)
			l := openLogAt(t, d, damageConfig, c.start)
			if _, err := l.Repair(t.Context()); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if a, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "after"), Epoch: 1}); err != nil || a.Base != end {
				t.Errorf("%s: the next record got offset %d, want %d: %v", what, a.Base, end, err)
			}
			mustClose(t, d)
		}
	}
}

// backups is a data directory with a log of 12 batches, after a clean stop, and a
// backup of it from when there were 6.
func backups(t *testing.T) (late, early *disk.Mem, m *model) {
	t.Helper()
	late, m = disk.NewMem(), &model{}
	for range 2 {
		d := openDir(t, late)
		l := openLog(t, d, damageConfig)
		for range 6 {
			b := batchOf(t, record.None, nil, fmt.Sprintf("value %02d", m.end()))
			if _, err := l.Append(Append{Batch: b, Epoch: 1}); err != nil {
				t.Fatal(err)
			}
			m.add(b)
		}
		waitDurable(t, l)
		mustClose(t, d)
		if early == nil {
			early = late.CrashClone(1, nil)
		}
	}
	return late, early, m
}

// TestHugeHole proves that offsets further apart than a segment can have them
// are never in one: a hole of more than 2^32 offsets is repaired by batches and
// segments that hold the limit, readers pass over it, and a compaction does not
// put together what is too far apart.
func TestHugeHole(t *testing.T) {
	t.Parallel()
	const far = 1<<32 + 5
	cfg := Config{SegmentBytes: 150, IndexInterval: 1, Compact: true}
	fill := func(fs *disk.Mem, start int64) {
		d := openDir(t, fs)
		l := openLogAt(t, d, cfg, start)
		for i := range 4 {
			mustAppend(t, l, keyedBatch(t, record.None, keyed{key: fmt.Sprint("k", start, i), value: "v"}))
		}
		settled(t, l)
		mustClose(t, d)
	}
	fs, other := disk.NewMem(), disk.NewMem()
	fill(fs, 0)
	fill(other, far)
	dir := path.Join("/data/logs", testID.dirName())
	names, err := other.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if base, _, _, ok := parseSegmentName(name); ok && base >= far {
			setFile(t, fs, path.Join(dir, name), fileBytes(t, other, path.Join(dir, name)))
		}
	}
	remove(t, fs, path.Join("/data", cleanName), checkpointSlot("/data", 0), checkpointSlot("/data", 1))

	d := openDir(t, fs)
	l := openLog(t, d, cfg)
	if holes := l.Holes(); !l.Fenced() || len(holes) != 1 || holes[0].From != 4 || holes[0].To != far || l.Offsets().End != far+4 {
		t.Fatalf("fenced %t, holes %+v, %+v", l.Fenced(), holes, l.Offsets())
	}
	if _, err := l.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	looks := func() {
		t.Helper()
		l.mu.RLock()
		for _, s := range l.mu.segments {
			if s.next-s.base > math.MaxInt32+1 {
				t.Errorf("a segment has offsets from %d to %d", s.base, s.next)
			}
		}
		l.mu.RUnlock()
		if got := contents(t, l); len(got) < 8 || got[3].Offset != 3 || got[4].Offset != far {
			t.Errorf("the records are %+v", got)
		}
		if at, _, err := l.FindTime(1, l.Offsets().End); at != 0 || err != nil {
			t.Errorf("the first record is at %d, %v", at, err)
		}
	}
	looks()
	if a := mustAppend(t, l, keyedBatch(t, record.None, keyed{key: "new", value: "v"})); a.Base != far+4 {
		t.Errorf("the next record got offset %d", a.Base)
	}
	rollNow(t, l)
	mustCompact(t, l, NewCleaner(CleanerOptions{MapBytes: 1 << 20}))
	looks()
	mustClose(t, d)
	if r := check(t, fs); r.Damages > 0 {
		t.Errorf("check:\n%s", r.lines())
	}
	d = openDir(t, fs)
	l = openWhole(t, d, cfg, 0)
	looks()
	mustClose(t, d)
}
