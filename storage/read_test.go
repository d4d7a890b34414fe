package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestSequentialReadCostsNoRead proves that a reader that goes on where the
// last section ended never has the log read the .log, from the first offset
// through sealed segments to the tail.
func TestSequentialReadCostsNoRead(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{SegmentBytes: 64 << 10})
	for i := range 400 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("x", 100+i*3)))
	}
	waitDurable(t, l)
	eventually(t, "all segments to be sealed", func() bool { return sealedCount(l) == l.Segments()-1 })
	for _, restart := range []bool{false, true} {
		if restart {
			mustClose(t, d)
			d = openDir(t, fs)
			l = openLog(t, d, Config{SegmentBytes: 64 << 10})
			// What another process wrote is verified once.
			readAll(t, l, 0, l.Offsets().Durable, 1<<20)
		}
		var reads atomic.Int64
		fs.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
				reads.Add(1)
			}
			return nil
		})
		for _, maxBytes := range []int{10_000, 1 << 20} {
			var sections []int64
			for from := int64(0); from < 400; {
				s, err := l.Read(from, maxBytes, l.Offsets().Durable)
				if err != nil {
					t.Fatal(err)
				}
				sections = append(sections, s.Len())
				before := reads.Load()
				p := make([]byte, s.Len())
				if _, err := s.ReadAt(p, 0); err != nil {
					t.Fatal(err)
				}
				reads.Store(before) // this read was the test's own
				s.Release()
				for len(p) > 0 {
					b, rest, err := record.Next(p)
					if err != nil {
						t.Fatal(err)
					}
					from, p = b.NextOffset(), rest
				}
			}
			if n := reads.Load(); n != 0 {
				t.Errorf("restart=%v: reading %d sections of at most %d bytes cost %d reads", restart, len(sections), maxBytes, n)
			}
		}
		fs.SetFault(nil)
	}
	// At the tail, batch by batch.
	for range 100 {
		from := l.Offsets().End
		mustAppend(t, l, batchOf(t, record.None, nil, "tail"))
		fs.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
				return errors.New("a read of the log")
			}
			return nil
		})
		s, err := l.Read(from, 1<<20, from+1)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
		fs.SetFault(nil)
	}
	mustClose(t, d)
}

func sealedCount(l *Log) (n int) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range l.mu.segments {
		if s.sealed.Load() {
			n++
		}
	}
	return n
}

// TestDamagedIndex proves that lookups stay right whatever happens to the
// index files of a sealed segment: they are rebuilt from the .log.
func TestDamagedIndex(t *testing.T) {
	unraced(t)
	t.Parallel()
	fs := disk.NewMem()
	cfg := Config{SegmentBytes: 4000, IndexInterval: 1}
	d := openDir(t, fs)
	l := openLog(t, d, cfg)
	var m model
	for i := range 60 {
		b := batchOf(t, record.None, []int64{int64(i * 10)}, strings.Repeat("x", 200))
		mustAppend(t, l, b)
		m.add(b)
	}
	stem := l.mu.segments[0].stem
	mustClose(t, d)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		whole := fileBytes(t, fs, stem+suffix)
		damages := [][]byte{nil, whole[:10], whole[:sealSize], whole[:len(whole)-3], make([]byte, len(whole)), append(bytes.Clone(whole), 0)}
		for i := range whole {
			flipped := bytes.Clone(whole)
			flipped[i] ^= 1 << (i % 8)
			damages = append(damages, flipped)
		}
		for i, p := range damages {
			left := fs.CrashClone(1, nil)
			if i%2 == 0 { // damage found at start, or at first use
				setFile(t, left, stem+suffix, p)
			}
			d := openDir(t, left)
			l := openLog(t, d, cfg)
			if i%2 == 1 {
				setFile(t, left, stem+suffix, p)
			}
			m.check(t, l, rng)
			for _, ts := range []int64{0, 1, 55, 300, 590} {
				if got, _, err := l.FindTime(ts, 60); err != nil || got != (ts+9)/10 {
					t.Fatalf("%s damaged (%d): time %d is at %d, %v", suffix, i, ts, got, err)
				}
			}
			if got := fileBytes(t, left, stem+suffix); !bytes.Equal(got[sealSize:], whole[sealSize:]) {
				t.Fatalf("%s damaged (%d): it was not rebuilt", suffix, i)
			}
			mustClose(t, d)
		}
	}
}

// TestReadDamagedLog proves that a header that no batch can have makes a hole
// for whom it is in the way of, and never a hang or wrong bytes.
func TestReadDamagedLog(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{0, 8, 16, 26} { // base offset, length, magic, last offset delta
		fs := disk.NewMem()
		d := openDir(t, fs)
		l := openLog(t, d, Config{IndexInterval: 1 << 20})
		var m model
		for range 200 { // more than the ring of recent positions has
			b := batchOf(t, record.None, nil, "value")
			mustAppend(t, l, b)
			m.add(b)
		}
		waitDurable(t, l)
		name := l.activeLocked().logPath()
		size := int64(len(m.batches[0]))
		bad := fileBytes(t, fs, name)
		bad[3*size+at] ^= 0x40
		setFile(t, fs, name, bad)
		if err := m.checkRead(mustRead(t, l, 10, 100, 200), 10, 100, 200); err != nil {
			t.Errorf("byte %d of a header changed: %v", at, err)
		}
		_, err := l.Read(3, 100, 200)
		var damage *CorruptError
		if !errors.As(err, &damage) || damage.Pos != 3*size || damage.Path != name || damage.From != 3 || damage.To != 4 {
			t.Errorf("byte %d of a header changed: %v", at, err)
		}
		mustClose(t, d)
	}
}

// TestFindTime proves cases 13, 15 and 18: the first record at or after a
// time and the first with the greatest, inside batches, compressed or not,
// across segments, and after a restart.
func TestFindTime(t *testing.T) {
	t.Parallel()
	type answer struct{ ts, offset, found int64 }
	for _, c := range []struct {
		name    string
		batches [][]int64
		want    []answer
		max     answer
	}{
		{
			"ordered",
			[][]int64{{2, 4, 6, 8}},
			[]answer{{1, 0, 2}, {2, 0, 2}, {3, 1, 4}, {4, 1, 4}, {5, 2, 6}, {8, 3, 8}, {9, -1, -1}},
			answer{0, 3, 8},
		},
		{
			"not in order, one batch",
			[][]int64{{100, 300, 200, 400}},
			[]answer{{150, 1, 300}, {250, 1, 300}, {350, 3, 400}, {401, -1, -1}},
			answer{0, 3, 400},
		},
		{
			"not in order, four batches",
			[][]int64{{100}, {300}, {200}, {400}},
			[]answer{{150, 1, 300}, {250, 1, 300}, {350, 3, 400}, {401, -1, -1}},
			answer{0, 3, 400},
		},
		{"greatest inside", [][]int64{{10, 30, 20}}, []answer{{11, 1, 30}, {31, -1, -1}}, answer{0, 1, 30}},
		{"greatest twice", [][]int64{{10, 30}, {30, 20}}, nil, answer{0, 1, 30}},
		{"none", [][]int64{{-1}, {-1, -1}}, []answer{{0, -1, -1}}, answer{0, -1, -1}},
	} {
		for _, codec := range []record.Codec{record.None, record.Zstd} {
			for _, cfg := range []Config{{}, {IndexInterval: 1}, {SegmentBytes: 1, IndexInterval: 1}} {
				fs := disk.NewMem()
				d := openDir(t, fs)
				l := openLog(t, d, cfg)
				for _, times := range c.batches {
					mustAppend(t, l, batchOf(t, codec, times, strings.Split(strings.Repeat("v ", len(times)-1)+"v", " ")...))
				}
				for _, restart := range []bool{false, true} {
					if restart {
						mustClose(t, d)
						d = openDir(t, fs)
						l = openLog(t, d, cfg)
					}
					end := l.Offsets().End
					for _, w := range c.want {
						if offset, ts, err := l.FindTime(w.ts, end); offset != w.offset || ts != w.found || err != nil {
							t.Errorf("%s, %v, %+v: time %d: got %d at %d, %v", c.name, codec, cfg, w.ts, offset, ts, err)
						}
					}
					if offset, ts, err := l.FindMaxTime(end); offset != c.max.offset || ts != c.max.found || err != nil {
						t.Errorf("%s, %v, %+v: max: got %d at %d, %v", c.name, codec, cfg, offset, ts, err)
					}
				}
				mustClose(t, d)
			}
		}
	}
}

// TestFindTimeBelow proves that lookups by time see nothing at or past upTo,
// compared with a walk over all records.
func TestFindTimeBelow(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	d := openDir(t, disk.NewMem())
	l := openLog(t, d, Config{SegmentBytes: 2000, IndexInterval: 100})
	var times []int64
	for range 100 {
		batch := make([]int64, 1+rng.IntN(4))
		for i := range batch {
			batch[i] = rng.Int64N(1000)
		}
		times = append(times, batch...)
		mustAppend(t, l, batchOf(t, record.None, batch, strings.Split(strings.Repeat("v ", len(batch)-1)+"v", " ")...))
	}
	for range 2000 {
		ts, upTo := rng.Int64N(1001), rng.Int64N(int64(len(times))+1)
		first, latest := int64(-1), int64(-1)
		for i, at := range times[:upTo] {
			if first < 0 && at >= ts {
				first = int64(i)
			}
			if latest < 0 || at > times[latest] {
				latest = int64(i)
			}
		}
		if got, _, err := l.FindTime(ts, upTo); got != first || err != nil {
			t.Fatalf("time %d below %d: got %d, %v, want %d", ts, upTo, got, err, first)
		}
		if got, _, err := l.FindMaxTime(upTo); got != latest || err != nil {
			t.Fatalf("max below %d: got %d, %v, want %d", upTo, got, err, latest)
		}
	}
	mustClose(t, d)
}

// TestConcurrentUse proves that appends to one log are serialised while
// readers, lookups, rolls and configuration changes go on beside them, and
// that a section outlives the log that it came from.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 100
	d := openDir(t, disk.NewMem())
	l := openLog(t, d, Config{SegmentBytes: 3000, IndexInterval: 1})
	var write, read sync.WaitGroup
	for w := range writers {
		write.Go(func() {
			for i := range each {
				b := batchOf(t, record.None, []int64{int64(i)}, strings.Repeat(string(rune('a'+w)), 50))
				if _, err := l.Append(Append{Batch: b}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	read.Go(func() {
		for next := int64(0); next < writers*each; {
			s, err := l.Read(next, 500, l.Offsets().Durable)
			if err != nil {
				t.Error(err)
				return
			}
			if s == nil {
				continue
			}
			p := make([]byte, s.Len())
			if _, err := s.ReadAt(p, 0); err != nil {
				t.Error(err)
			}
			s.Release()
			for len(p) > 0 {
				b, rest, err := record.Next(p)
				if err != nil || b.BaseOffset() != next || b.VerifyCRC() != nil {
					t.Errorf("at %d: offset %d, %v, %v", next, b.BaseOffset(), err, b.VerifyCRC())
					return
				}
				next, p = b.NextOffset(), rest
			}
		}
	})
	read.Go(func() {
		for i := range int64(200) {
			l.SetConfig(Config{SegmentBytes: 3000, IndexInterval: 1, FlushMessages: 1 + i%2*(1<<40)})
			if _, _, err := l.FindTime(i, l.Offsets().End); err != nil {
				t.Error(err)
			}
		}
		l.SetConfig(Config{SegmentBytes: 3000, IndexInterval: 1})
	})
	write.Wait()
	read.Wait()
	waitDurable(t, l)
	s, err := l.Read(0, 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(l); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(0, 1, 1); !errors.Is(err, ErrClosed) {
		t.Fatalf("read of a removed log: %v", err)
	}
	if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "x")}); !errors.Is(err, ErrClosed) {
		t.Fatalf("append to a removed log: %v", err)
	}
	mustClose(t, d)
	p := make([]byte, s.Len())
	if _, err := s.ReadAt(p, 0); err != nil || record.Batch(p).VerifyCRC() != nil {
		t.Fatalf("a section of a removed log: %v", err)
	}
	s.Release()
	s.Release()
}

// TestFileAndMappingLimits proves that idle files and mappings are given up
// beyond their limits, and those in use are not.
func TestFileAndMappingLimits(t *testing.T) {
	t.Parallel()
	d := openDir(t, disk.NewMem())
	d.files.budget, d.tables.limit = 3, 2
	l := openLog(t, d, Config{SegmentBytes: 300, IndexInterval: 1})
	var m model
	for range 40 {
		b := batchOf(t, record.None, nil, strings.Repeat("x", 70))
		mustAppend(t, l, b)
		m.add(b)
	}
	waitDurable(t, l)
	var held []record.Section
	for i := range int64(10) {
		s, err := l.Read(2*i, 1, 40)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, s)
	}
	m.check(t, l, rand.New(rand.NewPCG(1, 1)))
	open := func() int {
		d.files.mu.Lock()
		defer d.files.mu.Unlock()
		return d.files.mu.open
	}
	if open() < len(held) {
		t.Fatalf("%d files are open, %d are in use", open(), len(held))
	}
	for _, s := range held {
		s.Release()
	}
	eventually(t, "idle files to be closed", func() bool { return open() <= 3 })
	if n := len(d.tables.mu.open); n > 2 {
		t.Fatalf("%d mappings", n)
	}
	mustClose(t, d)
	if open() != 0 {
		t.Fatalf("%d files are open after Close", open())
	}
}

// FuzzIndex proves that no index file makes the loader panic, take more
// memory than the file, or answer with an entry that is not in the log.
func FuzzIndex(f *testing.F) {
	head := seal{flags: sealedFlag, base: 5, next: 105, logBytes: 9000, count: 2}
	body := appendEntries(nil, []entry{{10, 1000, 1}, {20, 2000, 2}})
	head.entriesCRC = crcOf(body)
	f.Add(append(head.encode(indexMagic), body...))
	f.Add(head.encode(timeMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		fs := disk.NewMem()
		s := newSegment("/", 5, 0)
		s.next, s.size = 105, 9000
		setFile(t, fs, s.stem+indexSuffix, p)
		if entries, err := parseEntries(p, 100, 9000); err == nil && len(entries)*entrySize != len(p) {
			t.Fatal("entries are missing")
		}
		if times, err := parseTimes(p, 100); err == nil && len(times)*entrySize != len(p) {
			t.Fatal("entries are missing")
		}
		table, err := openTable(fs, s.stem+indexSuffix, indexMagic, s)
		if err != nil {
			if !errors.Is(err, errBadIndex) {
				t.Fatal(err)
			}
			return
		}
		defer table.close()
		below := func(p []byte) bool { return decodeEntry(p).rel <= 15 }
		_ = table.last(below, func([]byte) {})
		_ = table.next(below, func([]byte) {})
	})
}
