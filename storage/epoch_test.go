package storage

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// epochLog is a log with a batch of two records for each of the epochs, with
// five or so batches a segment and an index entry for every second batch.
func epochLog(t *testing.T, m *disk.Mem, epochs ...int32) (*Dir, *Log) {
	t.Helper()
	d := openDir(t, m)
	l := openLog(t, d, startConfig)
	for _, e := range epochs {
		b := batchOf(t, record.None, nil, strings.Repeat("v", 100), "second")
		if _, err := l.Append(Append{Batch: b, Epoch: e}); err != nil {
			t.Fatal(err)
		}
	}
	waitDurable(t, l)
	eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	return d, l
}

// TestEpochEnd is the table of where epochs end, over several segments, with
// epochs missing and a start within a segment.
func TestEpochEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		epochs []int32
		start  int64
		epoch  int32
		found  int32
		end    int64
	}{
		{"empty log", nil, 0, 5, -1, 0},
		{"one batch, its epoch", []int32{3}, 0, 3, 3, 2},
		{"one batch, a later epoch", []int32{3}, 0, 9, 3, 2},
		{"one batch, an earlier epoch", []int32{3}, 0, 2, -1, 0},
		{"one batch, no epoch", []int32{3}, 0, -1, -1, 0},
		{"missing epoch", []int32{1, 1, 4, 4}, 0, 3, 1, 4},
		{"first of two", []int32{1, 1, 4, 4}, 0, 1, 1, 4},
		{"last of two", []int32{1, 1, 4, 4}, 0, 4, 4, 8},
		{"ends in a later segment", []int32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2}, 0, 1, 1, 24},
		{"begins a segment", []int32{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3}, 0, 1, 1, 10},
		{"a segment of its own", []int32{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3}, 0, 2, 2, 20},
		{"start in the epoch", []int32{1, 1, 1, 4, 4, 6}, 3, 1, 1, 6},
		{"start past the epoch", []int32{1, 1, 1, 4, 4, 6}, 7, 1, -1, 7},
		{"start past a missing epoch", []int32{1, 1, 1, 4, 4, 6}, 7, 5, 4, 10},
		{"start at the end", []int32{1, 1, 1, 4, 4, 6}, 12, 6, -1, 12},
		{"start in a later segment", []int32{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3}, 13, 2, 2, 20},
	} {
		m := disk.NewMem()
		d, l := epochLog(t, m, c.epochs...)
		if err := l.SetStart(c.start); err != nil {
			t.Fatal(err)
		}
		found, end, err := l.EpochEnd(c.epoch)
		if found != c.found || end != c.end || err != nil {
			t.Errorf("%s: epoch %d, end %d, %v; want epoch %d, end %d", c.what, found, end, err, c.found, c.end)
		}
		mustClose(t, d)
		if _, _, err := l.EpochEnd(c.epoch); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: after close: %v", c.what, err)
		}
	}
}

// TestEpochEndModel proves for random epochs, starts and restarts that the
// answer is that of a walk over all batches, and that it costs few reads for each
// epoch, and none when it was asked before.
func TestEpochEndModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 4))
		epochs := make([]int32, 1+rng.IntN(150))
		for i := range epochs {
			if i > 0 {
				epochs[i] = epochs[i-1]
			}
			if rng.IntN(1+rng.IntN(30)) == 0 {
				epochs[i] += rng.Int32N(4)
			}
		}
		m := disk.NewMem()
		d, l := epochLog(t, m, epochs...)
		start := int64(0)
		for range 3 {
			var reads atomic.Int64
			m.SetFault(func(op disk.Op) error {
				if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
					reads.Add(1)
				}
				return nil
			})
			distinct := int64(len(slices.Compact(slices.Clone(epochs))))
			for epoch := int32(-1); epoch < epochs[len(epochs)-1]+3; epoch++ {
				found, end, err := l.EpochEnd(epoch)
				wantFound, wantEnd := epochEndOf(epochs, start, epoch)
				if found != wantFound || end != wantEnd || err != nil {
					t.Fatalf("seed %d, start %d, epoch %d: found %d, end %d, %v; want %d, %d",
						seed, start, epoch, found, end, err, wantFound, wantEnd)
				}
			}
			if n := reads.Load(); n > 20*(distinct+1) {
				t.Errorf("seed %d: %d reads for %d epochs in %d segments", seed, n, distinct, l.Segments())
			}
			reads.Store(0)
			for epoch := int32(-1); epoch < epochs[len(epochs)-1]+3; epoch++ {
				found, end, err := l.EpochEnd(epoch)
				if wantFound, wantEnd := epochEndOf(epochs, start, epoch); found != wantFound || end != wantEnd || err != nil {
					t.Fatalf("seed %d, start %d, epoch %d again: found %d, end %d, %v; want %d, %d",
						seed, start, epoch, found, end, err, wantFound, wantEnd)
				}
			}
			if n := reads.Load(); n > 0 {
				t.Errorf("seed %d: %d reads for what is known", seed, n)
			}
			m.SetFault(nil)
			start += rng.Int64N(2*int64(len(epochs)) - start + 1)
			if err := l.SetStart(start); err != nil {
				t.Fatal(err)
			}
			mustClose(t, d)
			d = openDir(t, m)
			l = openLogAt(t, d, startConfig, start)
		}
		mustClose(t, d)
	}
}

// epochEndOf walks over all batches.
func epochEndOf(epochs []int32, start int64, epoch int32) (found int32, end int64) {
	found, end = -1, 2*int64(len(epochs))
	for i, e := range epochs {
		switch base := 2 * int64(i); {
		case base+2 <= start:
		case e > epoch:
			return found, max(base, start)
		default:
			found = e
		}
	}
	if found < 0 {
		end = start
	}
	return found, end
}

// TestEpochEndReadError proves that an error of the disk, or damage where the
// search looks, is told and not taken for an answer.
func TestEpochEndReadError(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l := epochLog(t, m, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3)
	for at := 1; ; at++ {
		l.mu.epochs = epochs{} // nobody has asked yet
		fired := failAt(m, at, errors.New("bad sector"), disk.OpRead)
		found, end, err := l.EpochEnd(2)
		m.SetFault(nil)
		if !fired() {
			break
		}
		if err == nil && (found != 2 || end != 24) {
			t.Errorf("read %d fails: found %d, end %d", at, found, end)
		}
	}
	name := l.mu.segments[1].logPath()
	p := fileBytes(t, m, name)
	p[16] = 9
	setFile(t, m, name, p)
	l.mu.epochs = epochs{}
	if _, _, err := l.EpochEnd(1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("damage: %v", err)
	}
	mustClose(t, d)
}

// TestEpochEndOfALostLog proves that a log of which every segment is lost answers
// that it has no epoch.
func TestEpochEndOfALostLog(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l := epochLog(t, m, 1, 1)
	name := l.mu.segments[0].logPath()
	mustClose(t, d)
	if err := m.Remove(name); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, m)
	l = openLog(t, d, startConfig)
	if !l.Fenced() {
		t.Fatal("the log is not fenced")
	}
	if found, end, err := l.EpochEnd(1); found != -1 || end != l.Offsets().Start || err != nil {
		t.Errorf("found %d, end %d, %v", found, end, err)
	}
	mustClose(t, d)
}

// TestEpochsKept proves what is kept of the leader epochs as a log grows, asked
// for in any order, with more epochs than are kept: the answers are those of a
// walk, old ones included, and no more is kept than the bound says.
func TestEpochsKept(t *testing.T) {
	t.Parallel()
	d := openDir(t, disk.NewMem())
	l := openLog(t, d, Config{SegmentBytes: 20_000, IndexInterval: 500, FlushMessages: 1 << 40})
	rng := rand.New(rand.NewPCG(5, 5))
	var list []int32
	last, start := int32(0), int64(0)
	for range 2500 {
		b := batchOf(t, record.None, nil, "first", "second")
		if _, err := l.Append(Append{Batch: b, Epoch: last}); err != nil {
			t.Fatal(err)
		}
		list = append(list, last)
		last += rng.Int32N(3)
		if rng.IntN(40) == 0 {
			start += rng.Int64N(20)
			if err := l.SetStart(start); err != nil {
				t.Fatal(err)
			}
		}
		if rng.IntN(10) == 0 {
			epoch := rng.Int32N(last + 2)
			found, end, err := l.EpochEnd(epoch)
			if wantFound, wantEnd := epochEndOf(list, start, epoch); found != wantFound || end != wantEnd || err != nil {
				t.Fatalf("start %d of %d, epoch %d: found %d, end %d, %v; want %d, %d", start, 2*len(list), epoch, found, end, err, wantFound, wantEnd)
			}
		}
		if n := len(l.mu.epochs.list); n > maxEpochs {
			t.Fatalf("%d epochs are kept", n)
		}
	}
	if n := len(l.mu.epochs.list); n < maxEpochs {
		t.Errorf("%d epochs are kept in the end", n)
	}
	mustClose(t, d)
}
