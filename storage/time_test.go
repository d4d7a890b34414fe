package storage

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestFindTimeMemory proves case 6 for lookups by time: they walk a batch that
// expands to much in little memory, and a limit that was lowered after the
// batch was taken hides no record. It is not parallel because it counts the
// allocations of the process.
func TestFindTimeMemory(t *testing.T) {
	unraced(t)
	const enough = 8 << 20
	for _, c := range []struct {
		name  string
		size  int // of the first record
		times []int64
	}{
		{"one record of 60 MiB", 60 << 20, []int64{1000}},
		{"60 MiB and a small record", 60 << 20, []int64{1000, 2000}},
		{"more than the default limit", 65 << 20, []int64{1000}},
	} {
		d := openDir(t, disk.NewMem())
		l := openLog(t, d, Config{MaxExpandedBytes: 128 << 20})
		values := []string{strings.Repeat("x", c.size), "v"}[:len(c.times)]
		mustAppend(t, l, batchOf(t, record.Gzip, []int64{1}, "first"))
		mustAppend(t, l, batchOf(t, record.Gzip, c.times, values...))
		waitDurable(t, l)
		l.SetConfig(Config{MaxExpandedBytes: 1 << 10})
		end := l.Offsets().End
		last := c.times[len(c.times)-1]
		for _, lookup := range []struct {
			name   string
			find   func() (offset, timestamp int64, err error)
			offset int64
			found  int64
		}{
			{"first record", func() (int64, int64, error) { return l.FindTime(2, end) }, 1, 1000},
			{"last record", func() (int64, int64, error) { return l.FindTime(last, end) }, end - 1, last},
			{"greatest", func() (int64, int64, error) { return l.FindMaxTime(end) }, end - 1, last},
			{"greatest below the batch's end", func() (int64, int64, error) { return l.FindMaxTime(2) }, 1, 1000},
			{"none", func() (int64, int64, error) { return l.FindTime(math.MaxInt64, end) }, -1, -1},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			offset, ts, err := lookup.find()
			runtime.ReadMemStats(&after)
			if offset != lookup.offset || ts != lookup.found || err != nil {
				t.Errorf("%s, %s: %d at %d, %v, want %d at %d", c.name, lookup.name, offset, ts, err, lookup.offset, lookup.found)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got >= enough {
				t.Errorf("%s, %s: allocated %d bytes, want less than %d", c.name, lookup.name, got, enough)
			}
		}
		mustClose(t, d)
	}
}

// TestTimesFromStart proves for random timestamps that lookups by time give
// the first record that fits of those from the log's start on, wherever in a
// batch or segment that is.
func TestTimesFromStart(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, startConfig)
		var times []int64
		for range 60 {
			batch := make([]int64, 1+rng.IntN(4))
			values := make([]string, len(batch))
			for i := range batch {
				batch[i] = 100 + rng.Int64N(80)
				values[i] = strings.Repeat("v", rng.IntN(60))
			}
			times = append(times, batch...)
			mustAppend(t, l, batchOf(t, record.Codec(rng.IntN(5)), batch, values...))
		}
		end := int64(len(times))
		waitDurable(t, l)
		for start := int64(0); start < end; start += 1 + rng.Int64N(30) {
			if err := l.SetStart(start); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				upTo, ts := rng.Int64N(end+1), 100+rng.Int64N(85)
				at, found, err := l.FindTime(ts, upTo)
				if want := firstTime(times, start, upTo, ts); at != want || err != nil || at >= 0 && found != times[at] {
					t.Fatalf("seed %d, start %d: first at %d or later below %d: %d (%d), %v; want %d", seed, start, ts, upTo, at, found, err, want)
				}
				latest := int64(-1)
				if start < upTo {
					latest = slices.Max(times[start:upTo])
				}
				at, found, err = l.FindMaxTime(upTo)
				if want := firstTime(times, start, upTo, max(latest, 0)); at != want || found != latest || err != nil {
					t.Fatalf("seed %d, start %d: greatest below %d: %d at %d, %v; want %d at %d", seed, start, upTo, found, at, err, latest, want)
				}
			}
		}
		mustClose(t, d)
	}
}

// firstTime is the first offset in [start, upTo) with a time of ts or later.
func firstTime(times []int64, start, upTo, ts int64) int64 {
	for at := start; at < upTo; at++ {
		if times[at] >= ts {
			return at
		}
	}
	return -1
}
