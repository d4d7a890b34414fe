package storage

import (
	"errors"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// changedConfig has several index entries in a segment of TestChangesStay.
var changedConfig = Config{SegmentBytes: 2600, IndexInterval: 300}

// changeEpoch makes the leader epoch of the batch that is the n-th of a .log, whose
// successor has a greater one, that of the successor: the order is kept. It returns
// the batch's offset.
func changeEpoch(t testing.TB, m *disk.Mem, name string, n int) int64 {
	t.Helper()
	p := fileBytes(t, m, name)
	var at int64
	b, rest, err := record.Next(p)
	for range n {
		at += int64(len(b))
		b, rest, err = record.Next(rest)
	}
	next := record.Batch(rest)
	if err != nil || len(rest) < record.HeaderSize || next.LeaderEpoch() <= b.LeaderEpoch() {
		t.Fatalf("batch %d of %s: epoch %d: %v", n, name, b.LeaderEpoch(), err)
	}
	copy(p[at+epochAt:], next[epochAt:epochAt+4])
	setFile(t, m, name, p)
	return b.BaseOffset()
}

// changedLog appends batches of two records, five of each leader epoch from 2 on in
// steps of 5, so that two bits are between neighbours.
func changedLog(t testing.TB, l *Log, batches int) {
	t.Helper()
	for i := range batches {
		b := batchOf(t, record.None, []int64{int64(1000 + 10*i)}, strings.Repeat("v", 60+i%50), "second")
		if _, err := l.Append(Append{Batch: b, Epoch: int32(2 + i/5*5)}); err != nil {
			t.Fatal(err)
		}
	}
	waitDurable(t, l)
}

// TestChangesStay proves that a leader epoch that has changed to its neighbour's is
// refused by everything that would hand it out or make a new checksum of it: a
// read, a lookup of an epoch, a truncation, a compaction, and a start that has lost
// the index of the growing segment; and that the hole is no larger than what is
// between two index entries.
func TestChangesStay(t *testing.T) {
	t.Parallel()
	damaged := func(t *testing.T, l *Log, from int64, err error) {
		t.Helper()
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v", err)
		}
		holes := l.Holes()
		if !l.Fenced() || len(holes) != 1 || from < holes[0].From || from >= holes[0].To || holes[0].To-holes[0].From > 10 {
			t.Errorf("fenced %t, holes %+v, the change is at %d", l.Fenced(), holes, from)
		}
	}
	for name, use := range map[string]func(t *testing.T, l *Log, from int64) error{
		"read": func(_ *testing.T, l *Log, from int64) error { return readOnce(l, from) },
		"epoch": func(_ *testing.T, l *Log, from int64) error {
			_, _, err := l.EpochEnd(2)
			return errors.Join(err, readOnce(l, from))
		},
		"truncate": func(t *testing.T, l *Log, from int64) error { return l.Truncate(t.Context(), from+4) },
		"compact": func(t *testing.T, l *Log, _ int64) error {
			_, err := l.Compact(t.Context(), NewCleaner(CleanerOptions{}), l.Offsets().Durable)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := disk.NewMem()
			d := openDir(t, m)
			l := openLog(t, d, changedConfig)
			changedLog(t, l, 40)
			eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
			s := l.sealedSegments()[0]
			mustClose(t, d)
			from := changeEpoch(t, m, s.logPath(), 9)
			d = openDir(t, m)
			l = openLog(t, d, changedConfig)
			damaged(t, l, from, use(t, l, from))
			if name == "epoch" {
				if _, _, err := l.EpochEnd(2); !errors.Is(err, ErrCorrupt) {
					t.Errorf("the end of an epoch that has changed: %v", err)
				}
			}
			mustClose(t, d)
		})
	}
	for _, lost := range []bool{false, true} {
		t.Run("start", func(t *testing.T) {
			t.Parallel()
			m := disk.NewMem()
			d := openDir(t, m)
			l := openLog(t, d, Config{IndexInterval: 300})
			changedLog(t, l, 20)
			forceCheckpoint(t, d)
			left := m.CrashClone(1, rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
			from := changeEpoch(t, left, path.Join(l.path, segmentName(0, 0)+logSuffix), 9)
			if lost {
				setFile(t, left, path.Join(l.path, segmentName(0, 0)+indexSuffix), nil)
			}
			d = openDir(t, left)
			l = openLog(t, d, Config{IndexInterval: 300})
			err := readOnce(l, from)
			if lost { // the checkpoint knows the whole only
				if !errors.Is(err, ErrCorrupt) || !l.Fenced() {
					t.Errorf("fenced %t: %v", l.Fenced(), err)
				}
			} else {
				damaged(t, l, from, err)
			}
			mustClose(t, d)
		})
	}
}

func readOnce(l *Log, from int64) error {
	s, err := l.Read(from, 1, l.Offsets().End)
	if s != nil {
		s.Release()
	}
	return err
}

// TestForeignLog proves that a sealed .log that another one with the same offsets
// and the same size has taken the place of is not read, although each of its batches
// is sound, whatever is asked for first; and that the segments around it are.
func TestForeignLog(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	var logs []*Log
	for i, value := range []string{"ours", "else"} {
		l, err := d.OpenLog(t.Context(), flipLogs[i].id, flipLogs[i].topic, changedConfig, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat(value, 20), "second"))
		}
		waitDurable(t, l)
		eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
		logs = append(logs, l)
	}
	s := logs[0].sealedSegments()[1]
	left := m.CrashClone(1, rand.New(rand.NewPCG(1, 1)))
	mustClose(t, d)
	setFile(t, left, s.logPath(), fileBytes(t, left, path.Join(logs[1].path, path.Base(s.logPath()))))
	for first := s.base; first < s.next; first += 2 {
		c := left.CrashClone(1, nil)
		d := openDir(t, c)
		l := openLog(t, d, changedConfig)
		if err := readOnce(l, first); !errors.Is(err, ErrCorrupt) {
			t.Errorf("read at offset %d: %v", first, err)
		}
		if _, _, err := l.FindTime(1000, l.Offsets().End); err != nil {
			t.Errorf("lookup in front of it: %v", err)
		}
		end := l.Offsets().End
		if n := len(readAll(t, l, 0, s.base, 1<<20)) + len(readAll(t, l, s.next, end, 1<<20)); int64(n) != (end-(s.next-s.base))/2 {
			t.Errorf("%d batches around it", n)
		}
		if holes := l.Holes(); len(holes) != 1 || holes[0].From != s.base || holes[0].To != s.next {
			t.Errorf("holes: %+v", holes)
		}
		mustClose(t, d)
	}
}

// TestTruncateSlots proves that a checkpoint of before a truncation is never used
// after it, should the newer one be damaged: neither are records missing that were
// cut, nor is what was appended in their place taken for changed.
func TestTruncateSlots(t *testing.T) {
	t.Parallel()
	for slot := range uint64(2) {
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, Config{IndexInterval: 300})
		changedLog(t, l, 20)
		for range 2 {
			forceCheckpoint(t, d)
			mustAppend(t, l, batchOf(t, record.None, nil, "behind"))
			waitDurable(t, l)
		}
		if err := l.Truncate(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
		short := m.CrashClone(0, rand.New(rand.NewPCG(1, 1)))
		for i := range 20 {
			if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, strings.Repeat("new", 20+i)), Epoch: 20}); err != nil {
				t.Fatal(err)
			}
		}
		waitDurable(t, l)
		long := m.CrashClone(0, rand.New(rand.NewPCG(1, 1)))
		mustClose(t, d)
		for left, end := range map[*disk.Mem]int64{short: 20, long: 40} {
			flipBit(t, left, checkpointSlot("/data", slot), 8*9)
			d := openDir(t, left)
			l := openLog(t, d, Config{IndexInterval: 300})
			if o := l.Offsets(); l.Fenced() || o.End != end || len(l.Holes()) > 0 {
				t.Errorf("slot %d: fenced %t, %+v, holes %+v", slot, l.Fenced(), o, l.Holes())
			}
			if n := len(readAll(t, l, 0, end, 1<<20)); n == 0 {
				t.Error("nothing can be read")
			}
			mustClose(t, d)
		}
	}
}
