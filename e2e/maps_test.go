package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Shape of the log that lookups go through: of each record the time is mapStart + 2 × its offset.
const (
	mapBatch    = 4 // records of a batch, 1 KiB each
	mapBatches  = 1000
	mapRecords  = mapBatch * mapBatches
	mapSegment  = 256 << 10
	mapStart    = 1000
	indexSuffix = ".index"
	timeSuffix  = ".timeindex"
)

// manySegments is a server with a topic "t" of many sealed segments, each with several index entries.
func manySegments(t *testing.T) (*server, *wire) {
	t.Helper()
	s := start(t, "--set", "leat.scrub.bytes.per.second=0") // the scrub reads index files, lookups do not
	s.createTopic("t", 1, "segment.bytes="+strconv.Itoa(mapSegment), "flush.messages=1000000", "retention.ms=-1")
	w := s.wire()
	filler := strings.Repeat("x", 1000)
	for i := range mapBatches {
		var recs []rec
		for k := range mapBatch {
			recs = append(recs, rec{ts: mapStart + 2*int64(i*mapBatch+k), value: []byte(filler)})
		}
		w.mustProduce("t", 0, encode(t, kgo.NoCompression(), recs))
	}
	return s, w
}

// lookUp finds one record by its offset and one by its time.
func lookUp(w *wire, record int64) error {
	p := w.fetch("t", 0, record, 1)
	if p.ErrorCode != codeNone {
		return fmt.Errorf("fetch at %d: code %d", record, p.ErrorCode)
	}
	if b, err := split(p.RecordBatches); err != nil || len(b) == 0 || b[0].base() > record || b[0].next() <= record {
		return errors.Join(fmt.Errorf("fetch at %d: %d batches", record, len(b)), err)
	}
	ts := mapStart + 2*record
	if offset, found := w.listOffset("t", 0, ts-1); offset != record || found != ts {
		return fmt.Errorf("time %d: offset %d with time %d, want %d with %d", ts-1, offset, found, record, ts)
	}
	return nil
}

// lookAll looks up something in every segment, twice and more.
func lookAll(t *testing.T, w *wire) {
	t.Helper()
	for record := int64(0); record < mapRecords; record += 101 {
		if err := lookUp(w, record); err != nil {
			t.Fatal(err)
		}
	}
}

// sealedIndexes lists the index files of the sealed segments, oldest first.
func (s *server) sealedIndexes(suffix string) []string {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir, "logs", "*", "*"+suffix))
	if err != nil || len(names) < 2 {
		s.t.Fatalf("index files %q, %v", names, err)
	}
	return names[:len(names)-1]
}

// TestIndexesAreMapped proves that the indexes of sealed segments are mapped, and that random lookups by offset and by
// time read no index file: not one call in two thousand lookups, or ten thousand in the long form.
func TestIndexesAreMapped(t *testing.T) {
	s, w := manySegments(t)
	eventually(t, "every sealed index to be mapped", func() error {
		lookAll(t, w)
		maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid()), "maps"))
		if err != nil {
			return err
		}
		for _, suffix := range []string{indexSuffix, timeSuffix} {
			for _, name := range s.sealedIndexes(suffix) {
				if !strings.Contains(string(maps), name) {
					return fmt.Errorf("%s is not in maps", name)
				}
			}
		}
		return nil
	})
	if !canTrace(t) {
		t.Skip("strace may not attach here, so calls cannot be seen")
	}
	pairs := 1_000 // each one lookup by offset and one by time
	if long() {
		pairs = 5_000
	}
	stop := s.trace("-y", "-e", "trace=read,readv,pread64,preadv,preadv2,mmap")
	rng := rand.New(rand.NewPCG(4, 7))
	for range pairs {
		if err := lookUp(w, rng.Int64N(mapRecords)); err != nil {
			t.Fatal(err)
		}
	}
	text := stop()
	if !strings.Contains(text, ".log>") {
		t.Error("the trace shows no read of a log either, so it shows nothing")
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, indexSuffix+">") || strings.Contains(line, timeSuffix+">") {
			t.Errorf("a lookup did %s", line)
		}
	}
}

// TestIndexesAreHurt proves that index files of sealed segments may be cut, emptied, overwritten, replaced or removed
// under a running server: every lookup is still right, the process lives, and a restart finds no fault in the logs.
func TestIndexesAreHurt(t *testing.T) {
	s, w := manySegments(t)
	garbage := func(size int64) []byte {
		p := make([]byte, size)
		rng := rand.New(rand.NewPCG(1, uint64(size)))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		return p
	}
	harms := []struct {
		name string
		do   func(name string, size int64) error
	}{
		{"emptied", func(name string, _ int64) error { return os.Truncate(name, 0) }},
		{"cut in half", func(name string, size int64) error { return os.Truncate(name, size/2) }},
		{"overwritten", func(name string, size int64) error {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(garbage(size), 0)
			return errors.Join(err, f.Close())
		}},
		{"replaced", func(name string, size int64) error {
			if err := os.WriteFile(name+".new", garbage(size), 0o600); err != nil {
				return err
			}
			return os.Rename(name+".new", name)
		}},
		{"removed", func(name string, _ int64) error { return os.Remove(name) }},
	}
	for _, harm := range harms {
		lookAll(t, w) // they are mapped
		for _, suffix := range []string{indexSuffix, timeSuffix} {
			for _, name := range s.sealedIndexes(suffix) {
				info, err := os.Stat(name)
				if err == nil {
					err = harm.do(name, info.Size())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		lookAll(t, w)
		if harm.name == "emptied" {
			if n := s.metric("leat_storage_indexes_rebuilt_total"); n < 1 {
				t.Error("no index was rebuilt")
			}
		}
		select {
		case <-s.exited:
			t.Fatalf("indexes were %s, and the process ended", harm.name)
		default:
		}
		s.stop()
		s.restart()
		w = s.wire()
		lookAll(t, w)
	}
	s.stop()
	if out, words, code := run(t, "", "check", s.dir); code != 0 {
		t.Errorf("leat check: code %d\n%s%s", code, out, words)
	}
}
