package storage

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// swapLog is a log of sealed segments with two batches each, and an active one.
func swapLog(t testing.TB, fs disk.FS) (*Dir, *Log, []record.Batch) {
	t.Helper()
	d := openDir(t, fs)
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, Config{SegmentBytes: 200})
	for i := range 9 {
		mustAppend(t, l, batchOf(t, record.None, []int64{int64(1000 + i)}, "a", "b"))
	}
	waitDurable(t, l)
	eventually(t, "the seals", func() bool {
		l.mu.RLock()
		defer l.mu.RUnlock()
		for _, s := range l.mu.segments[:len(l.mu.segments)-1] {
			if !s.sealed.Load() {
				return false
			}
		}
		return l.mu.durable.seg == l.activeLocked()
	})
	return d, l, readAll(t, l, 0, l.Offsets().End, 1<<20)
}

// rewriteFirst puts one segment with the same batches in the place of the log's
// first n.
func rewriteFirst(t testing.TB, l *Log, n int) error {
	t.Helper()
	if err := l.takeRewriting(t.Context()); err != nil {
		return err
	}
	defer l.giveRewriting()
	l.mu.RLock()
	old := l.mu.segments[:n]
	l.mu.RUnlock()
	batches := readAll(t, l, old[0].base, old[n-1].next, 1<<20)
	rw, err := l.beginRewrite()
	if err != nil {
		return err
	}
	defer rw.abandon()
	w, err := rw.create(old[0].base, make([]byte, 0, rewriteBuffer))
	if err != nil {
		return err
	}
	for _, b := range batches {
		if err := w.add(b); err != nil {
			return err
		}
	}
	if err := w.seal(77); err != nil {
		return err
	}
	return rw.swap(old)
}

// TestSwap proves that segments take the place of others: the log reads the
// same, sections that began before go on, only the new files are left, and a
// restart finds nothing to do.
func TestSwap(t *testing.T) {
	fs := disk.NewMem()
	d, l, want := swapLog(t, fs)
	s, err := l.Read(0, 1<<20, 18)
	if err != nil {
		t.Fatal(err)
	}
	before := make([]byte, s.Len())
	if _, err := s.ReadAt(before, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the second and third take what the one before made
		if err := rewriteFirst(t, l, 2); err != nil {
			t.Fatal(err)
		}
	}
	after := make([]byte, s.Len())
	if _, err := s.ReadAt(after, 0); err != nil || !bytes.Equal(before, after) {
		t.Fatalf("a section over a replaced segment: %v", err)
	}
	s.Release()
	rng := rand.New(rand.NewPCG(1, 1))
	m := model{batches: want}
	m.check(t, l, rng)
	if n := l.Segments(); n != 2 {
		t.Errorf("%d segments", n)
	}
	if got, _, err := l.FindTime(1003, 18); err != nil || got != 6 {
		t.Errorf("time lookup gives %d, %v", got, err)
	}
	mustClose(t, d)
	if c := check(t, fs); len(c.Findings) > 0 {
		t.Fatal(c.lines())
	}
	d = openDir(t, fs)
	l = openLog(t, d, Config{})
	m.check(t, l, rng)
	mustClose(t, d)
}

// TestSwapGivesUp proves that nothing takes the place of segments of which one
// has left the log, and that no trace of it stays.
func TestSwapGivesUp(t *testing.T) {
	fs := disk.NewMem()
	d, l, _ := swapLog(t, fs)
	l.mu.RLock()
	old := l.mu.segments[:2]
	l.mu.RUnlock()
	rw, err := l.beginRewrite()
	if err != nil {
		t.Fatal(err)
	}
	w, err := rw.create(0, make([]byte, 0, rewriteBuffer))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.seal(1); err != nil {
		t.Fatal(err)
	}
	if err := l.SetStart(old[0].next); err != nil {
		t.Fatal(err)
	}
	if err := rw.swap(old); !errors.Is(err, errGivenUp) {
		t.Fatalf("swap: %v", err)
	}
	rw.abandon()
	mustClose(t, d)
	if c := check(t, fs); len(c.Findings) > 0 {
		t.Fatal(c.lines())
	}
}

// TestSwapCrash proves that whatever the power fails at, and again while it
// recovers, the log is whole afterwards and COMPACT is gone: a swap has happened
// or not.
func TestSwapCrash(t *testing.T) {
	unraced(t)
	swapped := 0
	for _, keep := range []float64{0, 0.5, 1} {
		for at := 1; ; at++ {
			fs := disk.NewMem()
			d, l, want := swapLog(t, fs)
			forceCheckpoint(t, d)
			clone, hit := crashAt(fs, at, keep, func() {
				if err := rewriteFirst(t, l, 3); err != nil {
					t.Fatal(err)
				}
			})
			_ = d.Close()
			if !hit {
				break
			}
			if c := check(t, clone); c.Damages > 0 {
				t.Fatalf("keep %v, operation %d:\n%s", keep, at, c.lines())
			}
			d = openDir(t, clone)
			again, _ := crashAt(clone, 1+at%7, keep, func() { openLog(t, d, Config{}) })
			_ = d.Close()
			d = openDir(t, again)
			l = openLog(t, d, Config{})
			m := model{batches: want}
			m.check(t, l, rand.New(rand.NewPCG(1, uint64(at))))
			if l.mu.segments[0].gen > 0 {
				swapped++
			}
			mustClose(t, d)
			if c := check(t, again); len(c.Findings) > 0 {
				t.Fatalf("keep %v, operation %d:\n%s", keep, at, c.lines())
			}
		}
	}
	if swapped < 10 {
		t.Errorf("%d crashes came after the swap", swapped)
	}
}

// crashAt runs fn and cuts the power before the n-th operation on the file
// system; hit is false if there are fewer, and the power is cut at the end.
func crashAt(fs *disk.Mem, n int, keep float64, fn func()) (clone *disk.Mem, hit bool) {
	rng := rand.New(rand.NewPCG(uint64(n), math.Float64bits(keep)))
	var c struct {
		sync.Mutex
		n     int
		clone *disk.Mem
	}
	fs.SetFault(func(disk.Op) error {
		c.Lock()
		defer c.Unlock()
		if c.n++; c.n == n {
			c.clone = fs.CrashClone(keep, rng)
		}
		return nil
	})
	fn()
	fs.SetFault(nil)
	c.Lock()
	defer c.Unlock()
	if c.clone != nil {
		return c.clone, true
	}
	c.n = math.MinInt
	return fs.CrashClone(keep, rng), false
}

// TestSwapRecord proves that the record is read as it was written, that no
// change of a byte of it goes unseen, and what is dead by it.
func TestSwapRecord(t *testing.T) {
	fresh, old := newSegment("", 5, 3), newSegment("", 9, 0)
	fresh.next, fresh.size, fresh.crc = 20, 100, 0xabcdef
	r := swapRecord{gen: 3, done: true, fresh: []*segment{fresh}, old: []*segment{newSegment("", 5, 2), old}}
	p := r.encode()
	got, err := decodeSwap(p)
	if err != nil || !bytes.Equal(got.encode(), p) || got.fresh[0].crc != fresh.crc {
		t.Fatalf("%v\n%s", err, got.encode())
	}
	for i := range p {
		for bit := range 8 {
			q := bytes.Clone(p)
			q[i] ^= 1 << bit
			if _, err := decodeSwap(q); err == nil {
				t.Fatalf("bit %d of byte %d was flipped unseen", bit, i)
			}
		}
		if _, err := decodeSwap(p[:i]); err == nil {
			t.Fatalf("%d of %d bytes were taken", i, len(p))
		}
	}

	fs := disk.NewMem()
	if err := fs.MkdirAll("/p"); err != nil {
		t.Fatal(err)
	}
	name := func(base int64, gen uint32) string { return segmentName(base, gen) + logSuffix }
	dead := func(start int64, names ...string) (string, error) {
		fn, err := r.dead(fs, "/p", names, start)
		if err != nil {
			return "", err
		}
		out := ""
		for _, s := range []*segment{newSegment("", 5, 2), newSegment("", 5, 3), newSegment("", 9, 0), newSegment("", 30, 0)} {
			if fn(s.base, s.gen) {
				out += filepath.Base(s.stem)[15:20] + "-" + filepath.Base(s.stem)[26:] + " "
			}
		}
		return out, nil
	}
	if got, err := dead(0, name(5, 2), name(9, 0)); err != nil || got != "00005-3 " {
		t.Errorf("without the new segment: %s, %v", got, err)
	}
	if _, err := dead(0, name(9, 0)); err == nil {
		t.Error("records that are missing were not missed")
	}
	if got, err := dead(20, name(9, 0)); err != nil || got != "00005-2 00009-0 " {
		t.Errorf("below the start: %s, %v", got, err)
	}
	setFile(t, fs, "/p/"+name(5, 3), make([]byte, 100))
	if got, err := dead(0, name(5, 3), name(9, 0)); err != nil || got != "00005-2 00009-0 " {
		t.Errorf("after the swap: %s, %v", got, err)
	}
	r.done = false
	if got, err := dead(0, name(5, 3), name(9, 0)); err != nil || got != "00005-3 " {
		t.Errorf("before the swap: %s, %v", got, err)
	}
}

// FuzzSwapRecord proves that no content of COMPACT does more than to be
// refused, and that what is taken is written the same.
func FuzzSwapRecord(f *testing.F) {
	r := swapRecord{gen: 3, done: true, fresh: []*segment{newSegment("", 5, 3)}, old: []*segment{newSegment("", 5, 2)}}
	f.Add(r.encode())
	f.Add([]byte("leat rewrite 1\ngeneration 000001\ndone false\ncrc 00000000\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		if r, err := decodeSwap(p); err == nil && !bytes.Equal(r.encode(), p) {
			t.Errorf("%q was taken for %q", p, r.encode())
		}
	})
}
