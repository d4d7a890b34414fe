package storage

import (
	"path"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestOverlap proves that of two segments without seals, of which one ends within the
// other, only the records that both have are lost, and not the log.
func TestOverlap(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLogAt(t, d, checkConfig, 14)
	scrubLog(t, l, 2)
	waitDurable(t, l)
	eventually(t, "the seals", func() bool { return sealedCount(l) == 2 })
	mustClose(t, d)
	for _, name := range []string{cleanName, "checkpoint.0", "checkpoint.1"} {
		_ = m.Remove(path.Join("/data", name))
	}
	segment := func(base int64, records, batches int) {
		var p []byte
		values := strings.Split(strings.Repeat("v ", records-1)+"v", " ")
		for i := range batches {
			b := batchOf(t, record.None, nil, values...)
			b.SetBaseOffset(base + int64(i*records))
			p = append(p, b...)
		}
		setFile(t, m, path.Join(l.path, segmentName(base, 0)+logSuffix), p)
	}
	segment(0, 4, 3)
	segment(6, 2, 4)
	for range 2 {
		d = openDir(t, m)
		l = openLog(t, d, checkConfig)
		holes := l.Holes()
		if len(holes) != 1 || holes[0].From != 4 || holes[0].To != 6 || !l.Fenced() {
			t.Fatalf("fenced %t, holes %+v", l.Fenced(), holes)
		}
		if n := len(readAll(t, l, 0, 4, 1<<20)) + len(readAll(t, l, 6, 14, 1<<20)); n != 5 {
			t.Errorf("%d batches around the hole", n)
		}
		readAll(t, l, 14, l.Offsets().End, 1<<20)
		mustClose(t, d)
	}
	d = openDir(t, m)
	l = openLog(t, d, checkConfig)
	if _, err := l.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	readAll(t, l, 0, l.Offsets().End, 1<<20)
	mustClose(t, d)
	if c := check(t, m); c.Damages > 0 {
		t.Error(c.lines())
	}
}
