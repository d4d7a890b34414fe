package storage

import (
	"bytes"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestStoredCount proves that a batch has as many records as offsets in a
// segment as it was written, and may have fewer, but never more, in one that
// was rewritten; the offsets are a chain in both.
func TestStoredCount(t *testing.T) {
	for _, c := range []struct {
		what            string
		count           int32
		original, fresh bool
	}{
		{"all", 3, true, true},
		{"some", 1, false, true},
		{"none", 0, false, true},
		{"more", 4, false, false},
		{"negative", -1, false, false},
	} {
		b := batchOf(t, record.None, nil, "a", "b", "c")
		b.SetBaseOffset(5)
		be32(b[57:], uint32(c.count))
		for gen, want := range []bool{c.original, c.fresh} {
			s := newSegment("/", 5, uint32(gen))
			if err := checkStoredHeader(b, s, int64(len(b)), 5); (err == nil) != want {
				t.Errorf("%s, generation %d: %v", c.what, gen, err)
			}
			if err := checkStoredHeader(b, s, int64(len(b)), 4); err == nil {
				t.Errorf("%s, generation %d: a gap before the batch was taken", c.what, gen)
			}
		}
	}
}

// TestRewrittenSegments proves that a log with rewritten segments opens, also
// by a scan, that an emptied batch is read, and that of two generations the one
// that is no part of the log goes.
func TestRewrittenSegments(t *testing.T) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{SegmentBytes: 1})
	for range 3 {
		mustAppend(t, l, batchOf(t, record.None, nil, "a", "b"))
	}
	want := readAll(t, l, 0, 6, 1<<20)
	mustClose(t, d)

	empty := record.Batch(bytes.Clone(want[1][:record.HeaderSize]))
	be32(empty[8:], record.HeaderSize-12)
	be32(empty[57:], 0)
	empty.SetMaxTimestamp(-1, false) // writes the checksum
	want[1] = empty
	dir := "/data/logs/" + testID.dirName() + "/"
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
		if err := fs.Remove(dir + segmentName(2, 0) + suffix); err != nil {
			t.Fatal(err)
		}
	}
	setFile(t, fs, dir+segmentName(2, 1)+logSuffix, empty)
	setFile(t, fs, dir+segmentName(0, 7)+logSuffix, []byte("of a rewrite that was not finished"))

	for range 2 {
		d = openDir(t, fs)
		l = openLog(t, d, Config{})
		if err := sameBatches(readAll(t, l, 0, 6, 1), want); err != nil {
			t.Fatal(err)
		}
		mustClose(t, d)
		if c := check(t, fs); len(c.Findings) > 0 {
			t.Fatal(c.lines())
		}
	}
}

func be32(p []byte, v uint32) {
	for i := range 4 {
		p[i] = byte(v >> (24 - 8*i))
	}
}
