package storage

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// flipLogs are the logs of the fixture with their starts and ends.
var flipLogs = []struct {
	id    ID
	topic string
	start int64
}{{testID, "orders", fixtureStart}, {ID{Topic: TopicID{9}, Partition: 1}, "other", 0}}

// stored is what can be read of the fixture's logs: each batch by the offset
// that it begins at.
type stored map[ID]map[int64]record.Batch

// TestFlipsAreNotRead proves that after any one bit of any file of a directory
// has changed, and a start on that, each batch that can be read is the one that
// was stored, from whichever offset it is asked for, and that whatever else was
// there is refused as damaged: at the start, or by the read. Nothing is passed
// over; after a clean stop, also no end of a log comes back.
//
// One thing may differ: the leader epoch of a batch that is behind the checkpoint
// of a run that did not end cleanly, if it is still in order. No checksum anywhere
// covers it.
func TestFlipsAreNotRead(t *testing.T) {
	unraced(t)
	t.Parallel()
	rounds, rng := flipRounds(7)
	for _, clean := range []bool{true, false} {
		m := flipFixture(t, clean)
		want, err := readFlipped(t, m.CrashClone(1, nil), nil, false)
		if err != nil || len(want[testID]) < 10 {
			t.Fatalf("%d batches: %v", len(want[testID]), err)
		}
		covered := readCheckpoint(m, "/data")
		classes := flipPlaces(t, m)
		for _, class := range slices.Sorted(maps.Keys(classes)) {
			places := classes[class]
			for range rounds {
				x := places[rng.IntN(len(places))]
				bit := 8*x.at + rng.Int64N(8)
				c := m.CrashClone(1, nil)
				flipBit(t, c, x.name, bit)
				got, err := readFlipped(t, c, want, clean)
				if err == nil {
					err = sameStored(got, want, covered)
				}
				if err != nil {
					t.Errorf("clean %t, %s: bit %d of byte %d of %s: %v", clean, class, bit%8, x.at, x.name, err)
				}
			}
		}
	}
}

// readFlipped starts on a directory and reads each log from each offset that
// a batch of want begins at, and from where one read ends to the end. A nil
// result is a start that was refused. The error is of what may not be, and if
// whole is set that is also an end before want's.
func readFlipped(t testing.TB, fs disk.FS, want stored, whole bool) (stored, error) {
	d, err := Open(t.Context(), Options{FS: fs, Path: "/data", Logger: quiet()})
	if errors.As(err, new(*DamagedError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	got := stored{}
	for _, x := range flipLogs {
		l, err := d.OpenLog(t.Context(), x.id, x.topic, checkConfig, x.start)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", x.topic, err)
		}
		offsets := slices.Sorted(maps.Keys(want[x.id]))
		if whole && l.Offsets().End < want[x.id][offsets[len(offsets)-1]].NextOffset() {
			return nil, fmt.Errorf("%s: %+v", x.topic, l.Offsets())
		}
		if got[x.id], err = readEverywhere(l, offsets); err != nil {
			return nil, fmt.Errorf("%s: %w", x.topic, err)
		}
	}
	return got, nil
}

// readEverywhere reads a log from its start, behind each hole that is met, and from
// each of some offsets.
func readEverywhere(l *Log, offsets []int64) (map[int64]record.Batch, error) {
	got := map[int64]record.Batch{}
	o := l.Offsets()
	read := func(from int64) (next int64, err error) {
		s, err := l.Read(from, 400, o.End)
		if bad, ok := errors.AsType[*CorruptError](err); ok {
			return max(bad.To, from+1), nil
		}
		if err != nil || s == nil {
			return from, fmt.Errorf("read from %d below %d: section %t, %w", from, o.End, s != nil, err)
		}
		defer s.Release()
		p := make([]byte, s.Len())
		if n, err := s.ReadAt(p, 0); n != len(p) {
			return from, fmt.Errorf("read from %d: %d bytes of %d: %w", from, n, len(p), err)
		}
		for len(p) > 0 {
			var b record.Batch
			if b, p, err = record.Next(p); err != nil {
				return from, fmt.Errorf("read from %d: %w", from, err)
			}
			if was := got[b.BaseOffset()]; was != nil && !bytes.Equal(was, b) {
				return from, fmt.Errorf("the batch at offset %d has changed between two reads", b.BaseOffset())
			}
			got[b.BaseOffset()], next = b, b.NextOffset()
		}
		return next, nil
	}
	for _, from := range offsets {
		if o.Start <= from && from < o.End {
			if _, err := read(from); err != nil {
				return nil, err
			}
		}
	}
	for from := o.Start; from < o.End; {
		next, err := read(from)
		if err != nil {
			return nil, err
		}
		if next <= from {
			return nil, fmt.Errorf("a read from %d ends at %d", from, next)
		}
		from = next
	}
	// What is missing is in a hole.
	next := o.Start
	for next < o.End {
		if b := got[next]; b != nil {
			next = b.NextOffset()
			continue
		}
		holes := l.Holes()
		i := slices.IndexFunc(holes, func(h Hole) bool { return h.From <= next && next < h.To })
		if i < 0 {
			// A read may begin within a batch.
			if at := slices.IndexFunc(slices.Collect(maps.Values(got)), func(b record.Batch) bool {
				return b.BaseOffset() < next && next < b.NextOffset()
			}); at >= 0 {
				next++
				continue
			}
			return nil, fmt.Errorf("offset %d is in no batch and no hole of %+v", next, holes)
		}
		next = holes[i].To
	}
	return got, nil
}

// sameStored compares what was read with what was stored. Of leader epochs only
// those that the checkpoint covers count.
func sameStored(got, want stored, covered checkpoint) error {
	for id, batches := range got {
		for offset, b := range batches {
			was := want[id][offset]
			if was != nil && offset >= covered.records[id].recoveryOffset {
				b = bytes.Clone(b)
				copy(b[epochAt:epochAt+4], was[epochAt:])
			}
			if was == nil || !bytes.Equal(b, was) {
				return fmt.Errorf("%s: the batch at offset %d is not what was stored", path.Base(id.dirName()), offset)
			}
		}
	}
	return nil
}
