package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestCrashTearsSectors(t *testing.T) {
	// Proves that un-synced writes survive sector by sector, that the size
	// survives by itself, and that one seed gives one outcome.
	b := newBench(t)
	f := b.durable("/a", strings.Repeat("o", 10*sectorSize))
	b.put("/a", strings.Repeat("n", 20*sectorSize))
	seen, sizes := map[string]bool{}, map[int]bool{}
	for seed := range uint64(200) {
		got := tree(t, b.CrashClone(0.5, rand.New(rand.NewPCG(seed, 1))))["/a"]
		if again := tree(t, b.CrashClone(0.5, rand.New(rand.NewPCG(seed, 1))))["/a"]; again != got {
			t.Fatalf("seed %d gave two outcomes", seed)
		}
		for i := 0; i < len(got); i += sectorSize {
			sector := got[i:min(i+sectorSize, len(got))]
			if strings.Trim(sector, sector[:1]) != "" {
				t.Fatalf("seed %d: sector %d is mixed", seed, i/sectorSize)
			}
			seen[fmt.Sprint(i < 10*sectorSize, " ", sector[:1])] = true
		}
		sizes[len(got)] = true
	}
	want := []string{"false \x00", "false n", "true n", "true o"}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("sectors seen: %q, want %q", got, want)
	}
	if !sizes[10*sectorSize] || !sizes[20*sectorSize] || len(sizes) < 4 {
		t.Errorf("sizes seen: %v", slices.Sorted(maps.Keys(sizes)))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashReleasesLocks(t *testing.T) {
	// Proves that a lock does not outlive its process.
	m := NewMem()
	if _, err := m.Lock("/LOCK"); err != nil {
		t.Fatal(err)
	}
	l, err := m.CrashClone(1, nil).Lock("/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// modelFile is a file of the plainest file system that can crash: whole
// contents, kept twice.
type modelFile struct {
	now, synced []byte
}

func TestModel(t *testing.T) {
	// Proves against a plain model that random operations read back right,
	// that a strict crash leaves exactly what was synced, and a kill all, which
	// is as durable as before; and that what goes on changes nothing of what it
	// goes on from.
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := newBench(t)
		names := map[string]*modelFile{}
		synced := map[string]*modelFile{}
		for step := range 120 {
			modelStep(b, rng, names, synced)
			if step%10 != 9 {
				continue
			}
			check := func(keep float64, want map[string]*modelFile, data func(*modelFile) []byte) {
				t.Helper()
				got := tree(t, b.CrashClone(keep, nil))
				if len(got) != len(want) {
					t.Fatalf("seed %d step %d keep %v: names %v, want %v", seed, step, keep,
						slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
				}
				for name, f := range want {
					if got[name] != string(data(f)) {
						t.Fatalf("seed %d step %d keep %v: %s differs", seed, step, keep, name)
					}
				}
			}
			check(0, synced, func(f *modelFile) []byte { return f.synced })
			check(1, names, func(f *modelFile) []byte { return f.now })
			left, was := b.Mem, tree(t, b.CrashClone(1, nil))
			switch rng.IntN(4) {
			case 0: // Go on from a kill.
				b.Mem = b.KillClone()
				check(0, synced, func(f *modelFile) []byte { return f.synced })
				check(1, names, func(f *modelFile) []byte { return f.now })
				half := func(m *Mem) map[string]string {
					return tree(t, m.CrashClone(0.5, rand.New(rand.NewPCG(seed, uint64(step)))))
				}
				if !maps.Equal(half(b.Mem), half(left)) {
					t.Fatalf("seed %d step %d: what is half kept differs", seed, step)
				}
				if b.space != left.space {
					t.Fatalf("seed %d step %d: space %+v, was %+v", seed, step, b.space, left.space)
				}
				defer func() {
					if now := tree(t, left.CrashClone(1, nil)); !maps.Equal(now, was) {
						t.Errorf("seed %d step %d: the original has changed", seed, step)
					}
				}()
			case 1: // Go on from the crash.
				b.Mem = b.CrashClone(0, nil)
				names = maps.Clone(synced)
				for _, f := range names {
					f.now = bytes.Clone(f.synced)
				}
			}
		}
	}
}

// modelStep does one random operation on both.
func modelStep(b bench, rng *rand.Rand, names, synced map[string]*modelFile) {
	name := fmt.Sprintf("/%c", 'a'+rng.IntN(4))
	other := fmt.Sprintf("/%c", 'a'+rng.IntN(4))
	f := names[name]
	switch op := rng.IntN(10); {
	case op == 0 && f != nil:
		b.must(b.Remove(name))
		delete(names, name)
	case op == 1 && f != nil:
		b.must(b.Rename(name, other))
		if names[other] != f {
			names[other] = f
			delete(names, name)
		}
	case op == 2:
		b.must(b.SyncDir("/"))
		clear(synced)
		maps.Copy(synced, names)
	case op == 3 && f != nil && names[other] == nil:
		b.must(b.Link(name, other))
		names[other] = f
	default:
		h := b.file(name)
		if f == nil {
			f = &modelFile{}
			names[name] = f
		}
		modelWrite(b, rng, h, f)
		b.must(h.Close())
	}
}

func modelWrite(b bench, rng *rand.Rand, h File, f *modelFile) {
	grow := func(n int) {
		if n > len(f.now) {
			f.now = append(f.now, make([]byte, n-len(f.now))...)
		}
	}
	off, n := rng.IntN(3*pageSize), 1+rng.IntN(pageSize)
	switch rng.IntN(6) {
	case 0:
		b.must(h.Truncate(int64(off)))
		grow(off)
		f.now = f.now[:off:off]
	case 1:
		b.must(h.Allocate(int64(off), int64(n)))
		grow(off + n)
	case 2, 3:
		b.must(h.SyncData())
		f.synced = bytes.Clone(f.now)
	default:
		data := bytes.Repeat([]byte{byte(1 + rng.IntN(255))}, n)
		_, err := h.WriteVec([][]byte{data[:n/2], data[n/2:]}, int64(off))
		b.must(err)
		grow(off + n)
		copy(f.now[off:], data)
	}
}

func TestMemConcurrent(t *testing.T) {
	// Proves, with the race detector, that files, names and crash clones may
	// be used at once.
	b := newBench(t)
	b.must(b.MkdirAll("/d"))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			name := fmt.Sprintf("/d/%d", g)
			for i := range 100 {
				f, err := b.OpenFile(name, create)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.WriteAt([]byte(name), int64(i*100))
				err = errors.Join(err, f.SyncData(), b.SyncDir("/d"), f.Close())
				if _, statErr := b.CrashClone(0.5, rand.New(rand.NewPCG(uint64(i), 3))).Stat(name); !errors.Is(statErr, fs.ErrNotExist) {
					err = errors.Join(err, statErr)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCrashClone(b *testing.B) {
	m := NewMem()
	for i := range 10 {
		dir := fmt.Sprintf("/logs/%d", i)
		if err := m.MkdirAll(dir); err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"log", "index", "timeindex"} {
			f, err := m.OpenFile(path.Join(dir, name), create)
			if err == nil {
				_, err = f.WriteAt(make([]byte, 1000), 0)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := m.SyncAll("/"); err != nil {
		b.Fatal(err)
	}
	f, err := m.OpenFile("/logs/0/log", create)
	if err == nil {
		_, err = f.WriteAt(make([]byte, 3000), 1000)
	}
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		m.CrashClone(0.5, rng)
	}
}
