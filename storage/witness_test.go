package storage

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"testing"

	"leat/storage/record"
)

// TestReplacedLog proves that the .log of a sealed segment of which both seals
// agree is not believed when it is another one's of the same offsets, whatever
// its size: not one record of it is read, the segment is a hole until a repair,
// and Check calls it damage. A .log that is its own keeps what holds: cut short,
// the batches in front of the cut; too long, all.
func TestReplacedLog(t *testing.T) {
	t.Parallel()
	left, m, dir := damagedLog(t)
	per := 260 / int64(len(m.batches[0]))
	own := fileBytes(t, left, path.Join(dir, segmentName(per, 0)+logSuffix))
	size := len(m.batches[0])
	foreign := func(format string) []byte {
		var log []byte
		for i := range per {
			b := batchOf(t, record.None, nil, fmt.Sprintf(format, i))
			b.SetBaseOffset(per + i)
			b.SetLeaderEpoch(1)
			log = append(log, b...)
		}
		return log
	}
	short, long := foreign("%d"), foreign("a foreign value %d")
	for _, c := range []struct {
		what string
		log  []byte
		lost []int64 // of the segment's offsets
	}{
		{"shorter", short, []int64{0, 1, 2}},
		{"longer", long, []int64{0, 1, 2}},
		{"longer with zeros", slices.Concat(long, make([]byte, 300)), []int64{0, 1, 2}},
		{"longer, cut within a batch", long[:len(long)-5], []int64{0, 1, 2}},
		{"with fewer batches", long[:2*len(long)/3], []int64{0, 1, 2}},
		{"with its own first batch", slices.Concat(own[:size], long[len(long)/3:]), []int64{0, 1, 2}},
		{"empty", nil, []int64{0, 1, 2}},
		{"its own, cut within a batch", own[:len(own)-1], []int64{2}},
		{"its own, cut between batches", own[:2*size], []int64{2}},
		{"its own, cut in the first batch", own[:size-1], []int64{0, 1, 2}},
		{"its own with zeros", slices.Concat(own, make([]byte, 100)), nil},
		{"its own with other bytes", slices.Concat(own, bytes.Repeat([]byte{7}, 100)), nil},
	} {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, clean %t", c.what, clean), func(t *testing.T) {
				t.Parallel()
				fs := left.CrashClone(1, nil)
				setFile(t, fs, path.Join(dir, segmentName(per, 0)+logSuffix), c.log)
				if !clean {
					if err := fs.Remove(path.Join("/data", cleanName)); err != nil {
						t.Fatal(err)
					}
				}
				if r := check(t, fs); (r.Damages > 0) != (c.lost != nil) {
					t.Errorf("check:\n%s", r.lines())
				}
				var lost map[int64]bool
				for range 2 {
					d := openDir(t, fs)
					l := openLog(t, d, damageConfig)
					lost = readAround(t, l, m)
					for i := range per {
						if lost[per+i] != slices.Contains(c.lost, i) {
							t.Errorf("lost %v, want %v behind %d", lost, c.lost, per)
						}
					}
					if len(lost) != len(c.lost) || l.Fenced() != (c.lost != nil) {
						t.Errorf("lost %v, fenced %t", lost, l.Fenced())
					}
					mustClose(t, d)
				}
				d := openDir(t, fs)
				l := openLog(t, d, damageConfig)
				if _, err := l.Repair(t.Context()); err != nil {
					t.Fatal(err)
				}
				checkRepaired(t, l, m, lost)
				mustClose(t, d)
				if r := check(t, fs); r.Damages > 0 {
					t.Errorf("check after the repair:\n%s", r.lines())
				}
			})
		}
	}
}
