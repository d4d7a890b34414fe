package storage

import (
	"errors"
	"math"
	"math/rand/v2"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestLargeOffsets proves that a log goes across the offsets where numbers of 32
// bits, of floating point and of 63 bits end: everything is found again, and
// where no offsets are left an append is refused and changes nothing.
func TestLargeOffsets(t *testing.T) {
	t.Parallel()
	for _, start := range []int64{1<<31 - 3, 1<<32 - 3, 1<<53 - 3, math.MaxInt64 - 9} {
		fs := disk.NewMem()
		d := openDir(t, fs)
		cfg := Config{SegmentBytes: 300, IndexInterval: 1}
		l := openLogAt(t, d, cfg, start)
		m := model{start: start}
		for range 4 {
			b := batchOf(t, record.None, nil, "first", "second")
			mustAppend(t, l, b)
			m.add(b)
		}
		if start+9 == math.MaxInt64 {
			if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "a", "b", "c")}); !errors.Is(err, ErrFull) {
				t.Errorf("append behind the last offset: %v", err)
			}
		}
		m.check(t, l, rand.New(rand.NewPCG(1, 1)))
		waitDurable(t, l)
		for _, left := range []*disk.Mem{fs.CrashClone(0, nil), fs.CrashClone(1, nil)} {
			d := openDir(t, left)
			m.check(t, openLogAt(t, d, cfg, start), rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
			if r := check(t, left); r.Damages > 0 {
				t.Errorf("from %d:\n%s", start, r.lines())
			}
		}
		mustClose(t, d)
	}
}

// TestEmptyFiles proves that files without a byte, as a crash leaves them, are a
// log without records, whichever of them are empty.
func TestEmptyFiles(t *testing.T) {
	t.Parallel()
	for mask := range 8 {
		fs := disk.NewMem()
		d := openDir(t, fs)
		l := openLog(t, d, Config{})
		mustClose(t, d)
		for i, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
			if mask&(1<<i) != 0 {
				setFile(t, fs, path.Join(l.path, segmentName(0, 0)+suffix), nil)
			}
		}
		d = openDir(t, fs)
		l = openLog(t, d, Config{})
		if at := mustAppend(t, l, batchOf(t, record.None, nil, "v")); at.Base != 0 {
			t.Errorf("files %03b: %+v", mask, at)
		}
		mustClose(t, d)
	}
}

// TestClockJumps proves that the wall clock may go anywhere, also over a
// restart: offsets and records stay, times that the broker gives never go back
// within a run, nothing expires that would not have, and lookups answer.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for _, jump := range []time.Duration{-time.Hour, -10 * year, 10 * year, -56 * year} {
		for _, restart := range []bool{false, true} {
			fs := disk.NewMem()
			var ahead atomic.Int64
			now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			open := func() (*Dir, *Log) {
				d := openDir(t, fs, func(o *Options) { o.Now = now })
				return d, openLog(t, d, Config{LogAppendTime: true, SegmentBytes: 200})
			}
			d, l := open()
			var m model
			var last int64
			for i := range 8 {
				if i == 4 {
					ahead.Store(int64(jump))
					if restart {
						mustClose(t, d)
						d, l = open()
						last = 0
					}
				}
				b := batchOf(t, record.None, nil, "value")
				at := mustAppend(t, l, b)
				if at.Base != int64(i) || at.Timestamp < last {
					t.Fatalf("jump %v, restart %t: record %d: %+v after %d", jump, restart, i, at, last)
				}
				last = at.Timestamp
				m.add(b)
			}
			m.check(t, l, rand.New(rand.NewPCG(1, 1)))
			if offset, _, err := l.FindTime(0, 8); offset != 0 || err != nil {
				t.Errorf("jump %v: the first record is at %d, %v", jump, offset, err)
			}
			mustClose(t, d)
			d, l = open()
			m.check(t, l, rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
		}
	}
}
