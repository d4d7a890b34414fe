package storage

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// BenchmarkCompact compacts 10 million updates (LEAT_UPDATES) of 100,000 keys
// with a key map of 8 MiB, checks that each key has its newest value and no
// record is left beside those, and compares the time with that of a plain copy
// of the same bytes: read, write and sync. It does so five times, one after the
// other, and gives the medians.
func BenchmarkCompact(b *testing.B) {
	const keys, mapBytes, rounds = 100_000, 8 << 20, 5
	updates := 10_000_000
	if n, err := strconv.Atoi(os.Getenv("LEAT_UPDATES")); err == nil {
		updates = n
	}
	from, newest := updatedLog(b, updates, keys)
	var copies, passes []time.Duration
	var bytes int64
	for range rounds {
		to := filepath.Join(b.TempDir(), "data")
		began := time.Now()
		bytes = copyTree(b, from, to)
		copies = append(copies, time.Since(began))

		d := openDir(b, disk.OS, func(o *Options) { o.Path = to })
		l := openLog(b, d, Config{Compact: true, SegmentBytes: 64 << 20})
		settled(b, l)
		c := NewCleaner(CleanerOptions{MapBytes: mapBytes})
		began = time.Now()
		done, err := l.Compact(b.Context(), c, math.MaxInt64)
		if err != nil {
			b.Fatal(err)
		}
		passes = append(passes, time.Since(began))
		if n := cap(c.keys.slots) * keySlotBytes; n > mapBytes || done.To != int64(updates) {
			b.Fatalf("one pass came to %d with a map of %d bytes", done.To, n)
		}
		b.ReportMetric(float64(cap(c.keys.slots)*keySlotBytes), "map-bytes")
		compareNewest(b, l, newest)
		mustClose(b, d)
		if err := os.RemoveAll(to); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(copies)
	slices.Sort(passes)
	b.ReportMetric(float64(bytes)/1e6/passes[rounds/2].Seconds(), "compact-MB/s")
	b.ReportMetric(float64(bytes)/1e6/copies[rounds/2].Seconds(), "copy-MB/s")
	b.ReportMetric(float64(copies[rounds/2])/float64(passes[rounds/2]), "of-a-copy")
	b.ReportMetric(peakMemory(b)/1e6, "peak-MB")
	b.ReportMetric(0, "ns/op")
}

// updatedLog writes a log of so many updates, and returns its directory and the
// newest update of each key.
func updatedLog(b *testing.B, updates, keys int) (dir string, newest []int) {
	dir = filepath.Join(b.TempDir(), "data")
	d := openDir(b, disk.OS, func(o *Options) { o.Path = dir })
	l := openLog(b, d, Config{SegmentBytes: 64 << 20, FlushMessages: math.MaxInt64, HeaderOnly: true})
	rng := rand.New(rand.NewPCG(1, 2))
	newest = make([]int, keys)
	for k := range newest {
		newest[k] = -1
	}
	var w record.Builder
	value := make([]byte, 100)
	for i := 0; i < updates; {
		w.Reset(record.Options{})
		for range min(1000, updates-i) {
			k := rng.IntN(keys)
			newest[k] = i
			binary.LittleEndian.PutUint64(value, uint64(i))
			w.Add(1000, fmt.Appendf(nil, "key-%08d", k), value, nil)
			i++
		}
		batch, err := w.Finish()
		if err != nil {
			b.Fatal(err)
		}
		mustAppend(b, l, batch)
	}
	rollNow(b, l)
	settled(b, l)
	mustClose(b, d)
	return dir, newest
}

func compareNewest(b *testing.B, l *Log, newest []int) {
	want := 0
	for _, i := range newest {
		if i >= 0 {
			want++
		}
	}
	records := contents(b, l)
	for _, r := range records {
		k, err := strconv.Atoi(strings.TrimPrefix(string(r.Key), "key-"))
		if err != nil || int64(newest[k]) != r.Offset || binary.LittleEndian.Uint64(r.Value) != uint64(r.Offset) {
			b.Fatalf("%s is at %d, want %d", r.Key, r.Offset, newest[k])
		}
	}
	if len(records) != want {
		b.Fatalf("%d records, want %d", len(records), want)
	}
}

// copyTree copies a directory, makes each file durable, and says how many bytes
// of batches there are.
func copyTree(b *testing.B, from, to string) (logBytes int64) {
	err := filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil || e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		n, err := copyFile(name, filepath.Join(to, rel))
		if strings.HasSuffix(name, logSuffix) {
			logBytes += n
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return logBytes
}

func copyFile(from, to string) (n int64, err error) {
	r, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer r.Close() //nolint:errcheck // it was only read
	w, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer w.Close() //nolint:errcheck // it is synced
	// By read and write, as compaction does, not within the kernel.
	n, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 1<<20))
	if err != nil {
		return 0, err
	}
	return n, w.Sync()
}

// peakMemory is VmHWM in bytes.
func peakMemory(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib * 1024
}
