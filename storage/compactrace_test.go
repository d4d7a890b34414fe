package storage

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestCompactConcurrently proves that passes go well with appends, reads,
// lookups, configurations that change and a start that is raised, all at once:
// whoever reads finds each offset passed and no record that was not written
// there, and at the end each key has its newest value.
func TestCompactConcurrently(t *testing.T) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{Compact: true, SegmentBytes: 2000})
	const batches, keys = 250, 7
	stop := make(chan struct{})
	var wg sync.WaitGroup
	during := func(f func(rng *rand.Rand) error) {
		seed := rand.Uint64()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(rng); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	during(func(rng *rand.Rand) error {
		_, err := l.Compact(t.Context(), NewCleaner(CleanerOptions{MapBytes: 1 + rng.Int64N(2*keys*keySlotBytes)}), l.Offsets().Durable)
		return err
	})
	during(func(rng *rand.Rand) error { return readSome(l, rng) })
	rng := rand.New(rand.NewPCG(3, 4))
	want := map[string]int64{}
	for i := range int64(batches) {
		key := fmt.Sprint(i % keys * (i % 3))
		want[key] = i
		mustAppend(t, l, keyedBatch(t, record.Codec(i%5), keyed{key: key, value: fmt.Sprint(i), time: 1000 + i}))
		if i%5 == 0 {
			l.SetConfig(Config{Compact: true, SegmentBytes: 500 + rng.Int64N(5000), IndexInterval: 1 + rng.IntN(1000)})
		}
		if o := l.Offsets(); i%10 == 0 && o.Durable-o.Start > 80 {
			if err := l.SetStart(o.Start + rng.Int64N(40)); err != nil {
				t.Fatal(err)
			}
			d.keeper.bytes.Store(checkpointBytes) // the files go at once
			d.keeper.signal()
		}
	}
	close(stop)
	wg.Wait()
	rollNow(t, l)
	mustCompact(t, l, NewCleaner(CleanerOptions{}))
	got := map[string]int64{}
	for _, r := range contents(t, l) {
		if _, twice := got[string(r.Key)]; twice {
			t.Errorf("key %s is there twice", r.Key)
		}
		got[string(r.Key)] = r.Offset
	}
	start := l.Offsets().Start
	for key, at := range want {
		if is, there := got[key]; at >= start && (!there || is != at) {
			t.Errorf("key %s is at %d, %v, want %d", key, is, there, at)
		}
	}
	mustClose(t, d)
	if c := check(t, fs); len(c.Findings) > 0 {
		t.Fatal(c.lines())
	}
}

// readSome reads a section from some offset on, and looks an offset up by time:
// the record of offset n has the time 1000 + n.
func readSome(l *Log, rng *rand.Rand) error {
	o := l.Offsets()
	if o.End == o.Start {
		return nil
	}
	from := o.Start + rng.Int64N(o.End-o.Start)
	s, err := l.Read(from, math.MaxInt32, o.End)
	if _, gone := errors.AsType[*OffsetError](err); gone {
		return nil // it has left the log meanwhile
	}
	if err != nil {
		return err
	}
	defer s.Release()
	p := make([]byte, s.Len())
	if n, err := s.ReadAt(p, 0); n < len(p) {
		return fmt.Errorf("read from %d: %w", from, err)
	}
	var r record.Reader
	defer r.Close()
	for next := from; len(p) > 0; {
		b, rest, err := record.Next(p)
		if err != nil || b.BaseOffset() > next || b.LastOffset() < next {
			return fmt.Errorf("at %d: a batch from %d to %d: %w", next, b.BaseOffset(), b.LastOffset(), err)
		}
		next, p = b.NextOffset(), rest
		if err := r.Reset(b, math.MaxInt32); err != nil {
			return err
		}
		var rec record.Record
		for r.Next(&rec) == nil {
			if string(rec.Value) != fmt.Sprint(rec.Offset) || rec.Timestamp != 1000+rec.Offset {
				return fmt.Errorf("offset %d has value %s and time %d", rec.Offset, rec.Value, rec.Timestamp)
			}
		}
	}
	at, ts, err := l.FindTime(1000+from, o.End)
	if err != nil || at >= 0 && (at < from || ts != 1000+at) {
		return fmt.Errorf("the first of time %d is %d, %d: %w", 1000+from, at, ts, err)
	}
	return nil
}
