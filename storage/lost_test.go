package storage

import (
	"path"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestLostAndBroughtBack proves that a log whose directory is away after an
// unclean stop keeps its end behind all that may have been appended, also over
// a stop that would be clean without it, and that it is whole, with the next
// offset, when the directory is back.
func TestLostAndBroughtBack(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{})
	mustAppend(t, l, batchOf(t, record.None, nil, "a", "b", "c"))
	waitDurable(t, l)
	where, mark := l.path, d.path(cleanName)
	mustClose(t, d)
	if err := m.Remove(mark); err != nil {
		t.Fatal(err)
	}
	away := path.Join(path.Dir(d.opts.Path), "away")
	if err := m.Rename(where, away); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d = openDir(t, m)
		l = openLog(t, d, Config{})
		if end := l.Offsets().End; !l.Fenced() || end != 3+unknownTail {
			t.Errorf("fenced %v, end %d", l.Fenced(), end)
		}
		mustClose(t, d)
		if _, err := m.Stat(mark); err == nil {
			t.Error("the stop counts as clean")
		}
	}
	if err := m.Rename(away, where); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, m)
	l = openLog(t, d, Config{})
	if holes := l.Holes(); len(holes) > 0 || l.Fenced() {
		t.Errorf("holes %v", holes)
	}
	if a := mustAppend(t, l, batchOf(t, record.None, nil, "d")); a.Base != 3 {
		t.Errorf("the next record got offset %d, want 3", a.Base)
	}
	mustClose(t, d)
	if _, err := m.Stat(mark); err != nil {
		t.Error(err)
	}
}
