package storage

import (
	"math"
	"runtime"
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
