package storage

import (
	"errors"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

// TestFlippedEpochStays proves that no index is made anew for a sealed segment
// of which the checksum of the whole does not match, although each batch and the
// order of the epochs hold: that would call the change right. The batch is
// fenced off instead, at a start, under a lookup, and when the segment is
// examined; what is around it can be read, and the file and the seal that is
// left stay as they are.
func TestFlippedEpochStays(t *testing.T) {
	t.Parallel()
	prepare := func(t *testing.T) (*disk.Mem, *Dir, *Log) {
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, Config{SegmentBytes: 1300, IndexInterval: 100})
		scrubLog(t, l, 2)
		waitDurable(t, l)
		eventually(t, "the seals", func() bool { return sealedCount(l) == 2 })
		return m, d, l
	}
	// hurt changes the epoch of the segment's fifth batch to that of the sixth.
	hurt := func(t *testing.T, m *disk.Mem, s *segment) (from int64) {
		var at int64
		b, rest, err := record.Next(fileBytes(t, m, s.logPath()))
		for range 4 {
			at += int64(len(b))
			b, rest, err = record.Next(rest)
		}
		if err != nil || b.LeaderEpoch() != 0 || record.Batch(rest).LeaderEpoch() != 1 {
			t.Fatalf("epoch %d: %v", b.LeaderEpoch(), err)
		}
		flipBit(t, m, s.logPath(), 8*(at+epochAt+3))
		return b.BaseOffset()
	}
	fenced := func(t *testing.T, l *Log, from int64) {
		t.Helper()
		_, err := l.Read(from, 1<<20, 1<<40)
		if c, ok := errors.AsType[*CorruptError](err); !ok || c.From != from || c.To != from+2 {
			t.Fatalf("read: %v", err)
		}
		if holes := l.Holes(); !l.Fenced() || len(holes) != 1 || holes[0].From != from || holes[0].To != from+2 {
			t.Fatalf("holes: %+v", holes)
		}
		end := l.Offsets().End
		if n := len(readAll(t, l, 0, from, 1<<20)) + len(readAll(t, l, from+2, end, 1<<20)); int64(n) != end/2-1 {
			t.Errorf("%d batches can be read below offset %d", n, end)
		}
	}
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		t.Run("start"+suffix, func(t *testing.T) {
			t.Parallel()
			m, d, l := prepare(t)
			s := l.sealedSegments()[0]
			mustClose(t, d)
			from := hurt(t, m, s)
			flipBit(t, m, s.stem+suffix, 8*4)
			before := disktest.Tree(t, m, l.path)
			for range 2 {
				d = openDir(t, m)
				fenced(t, openLog(t, d, checkConfig), from)
				mustClose(t, d)
			}
			after := disktest.Tree(t, m, l.path)
			for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
				if name := s.stem + suffix; before[name] != after[name] {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
	t.Run("lookup", func(t *testing.T) {
		t.Parallel()
		m, d, l := prepare(t)
		s := l.sealedSegments()[0]
		mustClose(t, d)
		from := hurt(t, m, s)
		flipBit(t, m, s.stem+indexSuffix, 8*(sealSize+1))
		d = openDir(t, m)
		l = openLog(t, d, checkConfig)
		if _, err := l.Read(from-2, 1, 1<<40); err != nil {
			t.Fatal(err)
		}
		fenced(t, l, from)
		mustClose(t, d)
	})
	t.Run("examined", func(t *testing.T) {
		t.Parallel()
		m, d, l := prepare(t)
		s := l.sealedSegments()[0]
		from := hurt(t, m, s)
		if err := l.examine(s, 0); err != nil {
			t.Fatal(err)
		}
		fenced(t, l, from)
		mustClose(t, d)
	})
}
