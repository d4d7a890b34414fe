package storage

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// long says that a test shall take minutes to be as large as it can be.
func long() bool { return os.Getenv("LEAT_LONG") == "1" }

// unsynced is the disk of the operating system, of which nothing need be left
// when the machine stops.
type unsynced struct{ disk.FS }

type unsyncedFile struct{ disk.File }

func (u unsynced) OpenFile(name string, flag int) (disk.File, error) {
	f, err := u.FS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

func (unsynced) SyncDir(string) error { return nil }
func (unsynced) SyncAll(string) error { return nil }
func (unsyncedFile) Sync() error      { return nil }
func (unsyncedFile) SyncData() error  { return nil }

// mappingsOf counts the index files below dir that this process has mapped.
func mappingsOf(t *testing.T, dir string) (n int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, dir+"/") {
			n++
		}
	}
	return n
}

// TestMappingsAreBounded proves that a log of very many segments, more than a
// process may have mappings in the long form, keeps no more index files mapped
// than it may, and none at its start: those that were used longest ago are
// unmapped, whoever comes back to them finds the same, and none is left at the
// end.
func TestMappingsAreBounded(t *testing.T) {
	t.Parallel()
	segments, limit, lookups := int64(150), 8, 1000
	if long() {
		segments, limit, lookups = 70_000, maxMappings, 300_000
	}
	const perSegment, readers = 3, 4
	dir := t.TempDir()
	cfg := Config{IndexInterval: 1, FlushMessages: 500, SegmentBytes: 1}
	open := func() (*Dir, *Log) {
		d := openDir(t, unsynced{disk.OS}, func(o *Options) { o.Path = dir })
		d.tables.limit = limit
		return d, openLog(t, d, cfg)
	}
	b := batchOf(t, record.None, nil, "value")
	cfg.SegmentBytes = perSegment * int64(len(b))
	d, l := open()
	for i := range perSegment*segments + 1 {
		b := batchOf(t, record.None, []int64{2 * i}, "value")
		if _, err := l.Append(Append{Batch: b}); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, l)
	mustClose(t, d)

	d, l = open()
	if n := int64(l.Segments()); n < segments {
		t.Fatalf("the log has %d segments, want %d", n, segments)
	}
	if n := mappingsOf(t, dir); n != 0 {
		t.Errorf("%d index files are mapped after the start", n)
	}
	end := l.Offsets().End
	most := 0
	var mu sync.Mutex
	var work sync.WaitGroup
	for worker := range uint64(readers) {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(worker, 2))
			for i := range lookups / readers {
				offset := rng.Int64N(end)
				if err := lookBoth(l, offset); err != nil {
					t.Error(err)
					return
				}
				if i%100 == 0 {
					n := mappingsOf(t, dir)
					mu.Lock()
					most = max(most, n)
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	// Each reader uses one beside those that are kept, or opens it.
	if most < limit || most > limit+readers {
		t.Errorf("%d index files were mapped at a time, %d may be", most, limit)
	}
	if n := mappingsOf(t, dir); n > limit {
		t.Errorf("%d index files stay mapped, %d may", n, limit)
	}
	mustClose(t, d)
	if n := mappingsOf(t, dir); n != 0 {
		t.Errorf("%d index files are mapped after Close", n)
	}
}

// lookBoth finds the record with an offset, whose time is twice that, by both.
func lookBoth(l *Log, offset int64) error {
	end := l.Offsets().End
	s, err := l.Read(offset, 1, end)
	if err != nil {
		return err
	}
	defer s.Release()
	p := make(record.Batch, s.Len())
	if _, err := s.ReadAt(p, 0); err != nil {
		return err
	}
	if p.BaseOffset() != offset || p.VerifyCRC() != nil {
		return fmt.Errorf("offset %d has the batch at %d", offset, p.BaseOffset())
	}
	if at, _, err := l.FindTime(2*offset-1, end); at != offset || err != nil {
		return fmt.Errorf("time %d is at %d: %w", 2*offset-1, at, err)
	}
	return nil
}
