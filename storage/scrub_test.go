package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/storage/disk"
	"leat/storage/record"
)

// scrubLog appends batches to a log until it has n sealed segments, of which
// the batches have several leader epochs.
func scrubLog(t testing.TB, l *Log, n int) {
	t.Helper()
	for i := 0; l.Segments() <= n; i++ {
		b := batchOf(t, record.None, []int64{int64(1000 + 10*i)}, strings.Repeat("v", 60+i%50), "second")
		if _, err := l.Append(Append{Batch: b, Epoch: int32(i / 5)}); err != nil {
			t.Fatal(err)
		}
	}
}

// flipBit changes one bit of a file.
func flipBit(t testing.TB, m disk.FS, name string, bit int64) {
	t.Helper()
	err := withFile(m, name, func(f disk.File) error {
		var p [1]byte
		if _, err := f.ReadAt(p[:], bit/8); err != nil {
			return err
		}
		p[0] ^= 1 << (bit % 8)
		_, err := f.WriteAt(p[:], bit/8)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestScrub proves that the scrub reads all sealed segments of all logs, at no
// more than its rate, and says nothing of what holds; that it finds a bit that
// was changed under the running server in a batch, in a leader epoch and in an
// index, names the place, fences the log off there or makes the index anew, and tells of each once; and
// that a new rate begins a pass and 0 ends it.
func TestScrub(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate = 2000
		m := disk.NewMem()
		var text bytes.Buffer
		registry := prometheus.NewRegistry()
		var holes []Hole
		d := openDir(t, m, func(o *Options) {
			o.Registerer = registry
			o.OnDamage = func(_ *Log, h Hole) { holes = append(holes, h) }
			o.Logger = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		var logs []*Log
		for i := range 3 {
			l, err := d.OpenLog(t.Context(), ID{Topic: TopicID{byte(i)}}, fmt.Sprintf("topic%d", i), checkConfig, 0)
			if err != nil {
				t.Fatal(err)
			}
			scrubLog(t, l, 2)
			logs = append(logs, l)
		}
		settle := func(after time.Duration) { time.Sleep(after); synctest.Wait() }
		settle(3 * time.Second)
		var size int64
		for _, l := range logs {
			for _, s := range l.sealedSegments() {
				size += s.size
				for _, suffix := range []string{indexSuffix, timeSuffix} {
					size += int64(len(fileBytes(t, m, s.stem+suffix)))
				}
			}
		}
		read := func() int64 { return int64(gathered(t, registry, "scrub_bytes_total")) }
		if settle(time.Minute); read() != 0 {
			t.Fatalf("%d bytes were read without a rate", read())
		}

		began := time.Now()
		d.SetScrubRate(rate)
		for settle(10 * time.Millisecond); read() < size; settle(10 * time.Millisecond) {
			if most := int64(time.Since(began).Seconds()*rate) + minScrubPiece; read() > most {
				t.Fatalf("%d bytes after %v", read(), time.Since(began))
			}
		}
		if took := time.Since(began); took > time.Duration(2*size/rate)*time.Second {
			t.Errorf("%d bytes took %v", size, took)
		}
		if settle(5 * time.Second); read() != size || strings.Contains(text.String(), "level=ERROR") || !strings.Contains(text.String(), "damages=0") {
			t.Errorf("read %d bytes of %d:\n%s", read(), size, text.String())
		}

		text.Reset()
		a, b, c := logs[0].sealedSegments()[1], logs[1].sealedSegments()[0], logs[2].sealedSegments()[1]
		flipBit(t, m, a.logPath(), 8*80+3)
		flipBit(t, m, b.logPath(), 8*(epochAt+2)+5)
		was := fileBytes(t, m, c.stem+indexSuffix)
		flipBit(t, m, c.stem+indexSuffix, 8*(sealSize+1)+1)
		settle(10*scrubRest + 3*time.Duration(size/rate)*time.Second)
		for _, want := range []string{
			fmt.Sprintf("topic=topic0 partition=0 from_offset=%d to_offset=%d file=%s position=0", a.base, a.base+2, a.logPath()),
			fmt.Sprintf("topic=topic1 partition=0 from_offset=%d to_offset=%d file=%s position=%d", b.base, b.base+2, b.logPath(), epochAt+2),
			"path=" + c.stem + indexSuffix, "damages=3",
		} {
			if n := strings.Count(text.String(), want); n != 1 {
				t.Errorf("%d times %q in:\n%s", n, want, text.String())
			}
		}
		if n := strings.Count(text.String(), "level=ERROR msg=\"sealed segments"); n != 1 {
			t.Errorf("%d passes are errors", n)
		}
		if !bytes.Equal(fileBytes(t, m, c.stem+indexSuffix), was) {
			t.Error("the index was not made anew")
		}
		if n := gathered(t, registry, "scrub_damages_total"); n != 3 {
			t.Errorf("%v damages were counted", n)
		}
		// Each log with a hole is fenced, and what is around the hole can be read.
		if len(holes) != 2 {
			t.Errorf("holes that were told: %+v", holes)
		}
		for i, from := range []int64{a.base, b.base} {
			l := logs[i]
			if h := l.Holes(); !l.Fenced() || len(h) != 1 || h[0].From != from || h[0].To != from+2 {
				t.Errorf("log %d has the holes %+v", i, h)
			}
			if _, err := l.Read(from, 1<<20, 1<<40); !errors.As(err, new(*CorruptError)) {
				t.Errorf("log %d: read: %v", i, err)
			}
			if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "v"), Epoch: 1000}); !errors.Is(err, ErrDamaged) {
				t.Errorf("log %d: append: %v", i, err)
			}
			end := l.Offsets().End
			if n := len(readAll(t, l, 0, from, 1<<20)) + len(readAll(t, l, from+2, end, 1<<20)); int64(n) != end/2-1 {
				t.Errorf("log %d: %d batches can be read below offset %d", i, n, end)
			}
		}
		if logs[2].Fenced() {
			t.Error("a damaged index fences a log")
		}

		d.SetScrubRate(0)
		settle(2 * time.Second)
		before := read()
		if settle(time.Hour); read() != before {
			t.Error("it reads although it was switched off")
		}
		d.SetScrubRate(1 << 40)
		if settle(time.Second); read()-before < size {
			t.Errorf("a new rate had %d bytes read of %d", read()-before, size)
		}
		mustClose(t, d)
	})
}

// TestScrubGivesWay proves that the scrub, however slow, keeps neither a log
// from being removed, nor its segments from going, nor the directory from
// closing, and that it goes on elsewhere.
func TestScrubGivesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := disk.NewMem()
		d := openDir(t, m)
		var mu sync.Mutex
		var reads []string
		m.SetFault(func(op disk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
				reads = append(reads, op.Path)
			}
			return nil
		})
		reading := func() (name string, n int) {
			mu.Lock()
			defer mu.Unlock()
			return reads[len(reads)-1], len(reads)
		}
		cfg := Config{SegmentBytes: 100_000}
		logs := make(map[string]*Log)
		for i := range 3 {
			l, err := d.OpenLog(context.WithoutCancel(t.Context()), ID{Topic: TopicID{byte(i)}}, "t", cfg, 0)
			if err != nil {
				t.Fatal(err)
			}
			scrubLog(t, l, 2)
			logs[l.path] = l
		}
		settle := func(after time.Duration) { time.Sleep(after); synctest.Wait() }
		settle(3 * time.Second)
		mu.Lock()
		reads = nil
		mu.Unlock()
		d.SetScrubRate(1000)
		settle(10 * time.Second)
		name, _ := reading()
		began := time.Now()
		l := logs[name[:strings.LastIndexByte(name, '/')]]
		if l == nil {
			t.Fatal(name)
		}
		if err := d.Remove(l); err != nil || time.Since(began) > 0 {
			t.Fatalf("removal took %v: %v", time.Since(began), err)
		}
		settle(10 * time.Second)
		next, n := reading()
		if strings.HasPrefix(next, l.path) {
			t.Errorf("it still reads %s", next)
		}
		l = logs[next[:strings.LastIndexByte(next, '/')]]
		if err := l.SetStart(l.sealedSegments()[0].next); err != nil {
			t.Fatal(err)
		}
		settle(10 * time.Second)
		if now, m := reading(); now == next || m == n {
			t.Errorf("it still reads %s", now)
		}
		began = time.Now()
		mustClose(t, d)
		if took := time.Since(began); took > 0 {
			t.Errorf("close took %v", took)
		}
	})
}

// TestScrubReadError proves that a segment that cannot be read is told and does
// not keep the others from being read.
func TestScrubReadError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := disk.NewMem()
		var text bytes.Buffer
		d := openDir(t, m, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&text, nil)) })
		l := openLog(t, d, checkConfig)
		scrubLog(t, l, 3)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		var mu sync.Mutex
		seen := make(map[string]bool)
		bad := l.sealedSegments()[0].logPath()
		m.SetFault(func(op disk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
				seen[op.Path] = true
				if op.Path == bad {
					return syscall.EIO
				}
			}
			return nil
		})
		d.SetScrubRate(1 << 30)
		time.Sleep(time.Second)
		synctest.Wait()
		mu.Lock()
		if len(seen) != 3 || strings.Count(text.String(), "level=ERROR") != 2 || !strings.Contains(text.String(), bad) {
			t.Errorf("%d segments were read:\n%s", len(seen), text.String())
		}
		mu.Unlock()
		m.SetFault(nil)
		mustClose(t, d)
	})
}

// TestFindFlip proves that the place of any one bit of any leader epoch follows
// from the checksum of the whole, and that other changes are not mistaken for
// one.
func TestFindFlip(t *testing.T) {
	unraced(t)
	t.Parallel()
	if xPower(xOrder) != one || xPower(3) != powers[0]>>2 || xPower(1<<20) != powers[20] {
		t.Fatal("powers of x")
	}
	rng := rand.New(rand.NewPCG(4, 4))
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{})
	var starts []int64
	var pos int64
	for i := range 200 {
		b := batchOf(t, record.None, nil, strings.Repeat("v", rng.IntN(20_000)))
		starts = append(starts, pos)
		pos += int64(len(b))
		if _, err := l.Append(Append{Batch: b, Epoch: int32(i / 7)}); err != nil {
			t.Fatal(err)
		}
	}
	seg := l.mu.segments[0]
	want := seg.crc
	content := fileBytes(t, m, seg.logPath())[:seg.size]
	for range 100 {
		i := rng.IntN(len(starts))
		at := starts[i] + epochAt + rng.Int64N(4)
		p := slices.Clone(content)
		p[at] ^= 1 << rng.IntN(8)
		var crc uint32
		for j, start := range starts {
			end := seg.size
			if j+1 < len(starts) {
				end = starts[j+1]
			}
			crc = extendCRC(crc, p[start:end])
		}
		f, ok, err := findFlip(bytes.NewReader(p), seg, point{offset: seg.base}, seg.size, crc^want)
		if err != nil || !ok || f.pos != at || f.offset != int64(i) || f.next != int64(i)+1 {
			t.Fatalf("byte %d of batch %d: found %+v, %t, %v", at, i, f, ok, err)
		}
		if _, ok, err := findFlip(bytes.NewReader(p), seg, point{offset: seg.base}, seg.size, rng.Uint32()); ok || err != nil {
			t.Fatalf("something found where nothing is: %v", err)
		}
	}
	mustClose(t, d)
}
