package storage

import (
	"errors"
	"math"
	"math/rand/v2"
	"path"
	"strings"
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

// TestLargestBatches proves that a batch of exactly max.message.bytes is taken
// and one of a byte more is not, in segments of any size, and that a record of 10
// MiB comes back whole, by its offset and its time, also after a crash.
func TestLargestBatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		segment int64
		limit   int
	}{{1, defaultMaxBatchBytes}, {maxSegmentBytes, defaultMaxBatchBytes}, {1 << 30, 11 << 20}} {
		fs := disk.NewMem()
		cfg := Config{SegmentBytes: c.segment, MaxBatchBytes: c.limit, IndexInterval: 1, TimestampAfter: math.MaxInt64}
		d := openDir(t, fs)
		l := openLog(t, d, cfg)
		var m model
		for i, more := range []int{0, 1, -1 << 10} {
			b := batchOfSize(t, c.limit+more, int64(1000+i))
			_, err := l.Append(Append{Batch: b})
			var large *TooLargeError
			switch {
			case more <= 0 && err == nil:
				m.add(b)
			case more > 0 && errors.As(err, &large) && large.Size == len(b) && large.Max == c.limit:
			default:
				t.Fatalf("%d bytes of %d: %v", len(b), c.limit, err)
			}
		}
		waitDurable(t, l)
		if n := l.Segments(); (n == 2) != (c.segment == 1) {
			t.Errorf("segments of %d bytes: there are %d", c.segment, n)
		}
		left := fs.CrashClone(0, nil)
		mustClose(t, d)
		for _, fs := range []*disk.Mem{fs, left} {
			d = openDir(t, fs)
			l = openWhole(t, d, cfg, 0)
			if err := sameBatches(readAll(t, l, 0, 2, 1), m.batches); err != nil {
				t.Errorf("segments of %d bytes: %v", c.segment, err)
			}
			if at, ts, err := l.FindTime(1001, 2); at != 1 || ts != 1002 || err != nil {
				t.Errorf("the second is at %d with time %d, %v", at, ts, err)
			}
			mustClose(t, d)
		}
	}
}

// batchOfSize is a batch of one record and exactly so many bytes.
func batchOfSize(t *testing.T, size int, ts int64) record.Batch {
	t.Helper()
	for value := size - 100; ; {
		b := batchOf(t, record.None, []int64{ts}, strings.Repeat("v", value))
		if len(b) == size {
			return b
		}
		value += size - len(b)
	}
}

// TestLargestSegment proves on a real disk that a segment grows up to the
// largest position that its index can name, and no further, and that what lies at
// its end is found, also after a restart. It writes 2 GiB.
func TestLargestSegment(t *testing.T) {
	if !long() {
		t.Skip("only in the long form: it writes 2 GiB")
	}
	dir := t.TempDir()
	open := func() (*Dir, *Log) {
		d := openDir(t, unsynced{disk.OS}, func(o *Options) { o.Path = dir })
		return d, openLog(t, d, Config{SegmentBytes: math.MaxInt64, MaxBatchBytes: 9 << 20, TimestampAfter: math.MaxInt64})
	}
	d, l := open()
	value := strings.Repeat("v", 8<<20)
	var size, end int64
	for l.Segments() == 1 {
		b := batchOf(t, record.None, []int64{1000 + end}, value)
		size = int64(len(b))
		mustAppend(t, l, b)
		end = l.Offsets().End
	}
	if first := l.mu.segments[0].size; first > maxSegmentBytes || first <= maxSegmentBytes-size {
		t.Errorf("the first segment has %d bytes, the largest batches %d", first, size)
	}
	settled(t, l)
	mustClose(t, d)
	for range 2 {
		d, l = open()
		for offset := end - 3; offset < end; offset++ {
			b := readAll(t, l, offset, offset+1, 1)
			at, ts, err := l.FindTime(1000+offset, end)
			if b[0].BaseOffset() != offset || at != offset || ts != 1000+offset || err != nil {
				t.Errorf("offset %d: %d; its time is at %d, %v", offset, b[0].BaseOffset(), at, err)
			}
		}
		mustClose(t, d)
	}
}
