package storage

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// benchDir opens a directory of the real file system.
func benchDir(b *testing.B, change ...func(*Options)) *Dir {
	path := b.TempDir()
	d := openDir(b, disk.OS, append(change, func(o *Options) { o.Path = path })...)
	b.Cleanup(func() { mustClose(b, d) })
	return d
}

// BenchmarkAppend measures appends of 64 KiB batches in page-cache mode on the
// real file system: trusted, header only, and with every record checked. crc
// is the bare loop: checksum and write.
func BenchmarkAppend(b *testing.B) {
	batch := batchOf(b, record.None, nil, strings.Split(strings.Repeat(strings.Repeat("v", 1016)+" ", 63), " ")...)
	cfg := Config{FlushMessages: math.MaxInt64, SegmentBytes: 256 << 20}
	for _, c := range []struct {
		name               string
		trusted, onlyHeads bool
	}{{"trusted", true, false}, {"header", false, true}, {"checked", false, false}} {
		b.Run(c.name, func(b *testing.B) {
			cfg := cfg
			cfg.HeaderOnly = c.onlyHeads
			d := benchDir(b)
			l := openLog(b, d, cfg)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			for b.Loop() {
				batch.SetBaseOffset(0)
				if _, err := l.Append(Append{Batch: batch, Trusted: c.trusted}); err != nil {
					b.Fatal(err)
				}
				if l.Size() > 1<<30 {
					b.StopTimer()
					if err := d.Remove(l); err != nil {
						b.Fatal(err)
					}
					l = openLog(b, d, cfg)
					b.StartTimer()
				}
			}
		})
	}
	b.Run("bare", func(b *testing.B) {
		f, err := disk.OS.OpenFile(b.TempDir()+"/log", os.O_RDWR|os.O_CREATE)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(batch)))
		pos := int64(0)
		for b.Loop() {
			if err := batch.VerifyCRC(); err != nil {
				b.Fatal(err)
			}
			if _, err := f.WriteAt(batch, pos); err != nil {
				b.Fatal(err)
			}
			if pos += int64(len(batch)); pos > 1<<30 {
				pos = 0
			}
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkRead measures finding 1 MiB sections one after the other, without
// reading their bytes.
func BenchmarkRead(b *testing.B) {
	d := benchDir(b)
	l := openLog(b, d, Config{FlushMessages: math.MaxInt64, SegmentBytes: 64 << 20})
	batch := batchOf(b, record.None, nil, strings.Repeat("v", 16<<10))
	for range 16 << 10 {
		batch.SetBaseOffset(0)
		mustAppend(b, l, batch)
	}
	end := l.Offsets().End
	b.ReportAllocs()
	from := int64(0)
	for b.Loop() {
		s, err := l.Read(from, 1<<20, end)
		if err != nil {
			b.Fatal(err)
		}
		from += s.Len() / int64(len(batch))
		if from == end {
			from = 0
		}
		s.Release()
	}
}

// BenchmarkDurable measures how long an append takes to be durable in fsync
// mode on the real file system, for some logs with one producer each and
// batches of 1 KiB.
func BenchmarkDurable(b *testing.B) {
	for _, logs := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("logs=%d", logs), func(b *testing.B) {
			wake := make(map[*Log]chan struct{})
			var mu sync.Mutex
			d := benchDir(b, func(o *Options) {
				o.OnFlush = func(l *Log) {
					mu.Lock()
					defer mu.Unlock()
					select {
					case wake[l] <- struct{}{}:
					default:
					}
				}
			})
			batch := batchOf(b, record.None, nil, strings.Repeat("v", 950))
			var names []LogName
			for i := range logs {
				names = append(names, LogName{ID: ID{Topic: TopicID{5}, Partition: int32(i)}})
			}
			if err := d.Create(names); err != nil {
				b.Fatal(err)
			}
			var open []*Log
			for _, n := range names {
				l, err := d.OpenLog(b.Context(), n.ID, "bench", Config{}, 0)
				if err != nil {
					b.Fatal(err)
				}
				mu.Lock()
				wake[l] = make(chan struct{}, 1)
				mu.Unlock()
				open = append(open, l)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var producers sync.WaitGroup
			for _, l := range open {
				producers.Go(func() {
					own := bytes.Clone(batch)
					for left.Add(-1) >= 0 {
						record.Batch(own).SetBaseOffset(0)
						at, err := l.Append(Append{Batch: own, Trusted: true})
						if err != nil {
							b.Error(err)
							return
						}
						for l.Offsets().Durable <= at.Last {
							<-wake[l]
						}
					}
				})
			}
			producers.Wait()
		})
	}
}

// BenchmarkCreate measures the creation of partitions, each in a request of
// many.
func BenchmarkCreate(b *testing.B) {
	d := benchDir(b)
	var names []LogName
	for i := range b.N {
		names = append(names, LogName{ID: ID{Topic: TopicID{6}, Partition: int32(i)}})
	}
	b.ResetTimer()
	if err := d.Create(names); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpenFresh measures the opening of a directory that is not there
// yet.
func BenchmarkOpenFresh(b *testing.B) {
	root := b.TempDir()
	n := 0
	var took time.Duration
	for b.Loop() {
		n++
		began := time.Now()
		d := openDir(b, disk.OS, func(o *Options) { o.Path = fmt.Sprintf("%s/%d", root, n) })
		took += time.Since(began)
		mustClose(b, d)
	}
	b.ReportMetric(float64(took.Microseconds())/float64(n), "µs/open")
}
