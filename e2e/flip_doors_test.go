package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// flipRecords is how many records each partition of the topic of TestFlippedBitsAtDoors has.
const flipRecords = 120

func flipValue(partition int32, offset int64) string {
	return fmt.Sprintf("%d/%d %s", partition, offset, strings.Repeat(string(rune('a'+offset%26)), int(offset*31%90)))
}

// TestFlippedBitsAtDoors proves that one bit that turns over in any file of a stopped server's logs never has a client read
// other bytes than were written, at any door: a record is there as it was, or its read is refused. The other partition
// is served, nothing is written over what is damaged, and the check names a log that is damaged.
func TestFlippedBitsAtDoors(t *testing.T) {
	rounds := 10
	if long() {
		rounds = 200
	}
	s := start(t)
	s.createTopic("t", 2, "segment.bytes=3000", "index.interval.bytes=500")
	w := s.wire()
	for p := range int32(2) {
		for offset := int64(0); offset < flipRecords; {
			var recs []rec
			for range 1 + offset%5 {
				recs = append(recs, rec{ts: 1000 + offset, value: []byte(flipValue(p, offset))})
				offset++
			}
			recs = recs[:min(len(recs), len(recs)-int(max(offset-flipRecords, 0)))]
			w.mustProduce("t", p, encode(t, codecs[int(offset)%len(codecs)].codec, recs))
		}
	}
	s.stop()
	sound := t.TempDir()
	if err := os.CopyFS(filepath.Join(sound, "data"), os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	lost := 0
	for round := range rounds {
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(s.dir, os.DirFS(filepath.Join(sound, "data"))); err != nil {
			t.Fatal(err)
		}
		name, bit := flipOne(t, rng, s.dir)
		what := fmt.Sprintf("seed %d, round %d: bit %d of %s", seed, round, bit, name)
		if out, words, code := run(t, "", "check", s.dir); strings.HasSuffix(name, ".log") && (code != 78 || !strings.Contains(out, filepath.Base(name))) {
			t.Errorf("%s: leat check: code %d\n%s%s", what, code, tail(out, 1000), tail(words, 500))
		}
		s.restart()
		for p := range int32(2) {
			byKafka, byHTTP := s.readFlipped(what, p)
			if n := min(byKafka, byHTTP); n < flipRecords-10 && !strings.HasSuffix(name, ".log") {
				t.Errorf("%s: partition %d: only %d records are left", what, p, n)
			}
			lost += flipRecords - min(byKafka, byHTTP)
		}
		s.produceFlipped(what)
		s.kill()
		if t.Failed() {
			break
		}
	}
	t.Logf("%d bits were turned over, and %d records could not be read", rounds, lost)
}

// flipOne turns one bit of a file of the logs over.
func flipOne(t *testing.T, rng *rand.Rand, dir string) (name string, bit int) {
	t.Helper()
	var names []string
	err := filepath.WalkDir(filepath.Join(dir, "logs"), func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && entry.Name() != "partition" {
			if info, err := entry.Info(); err == nil && info.Size() > 0 {
				names = append(names, name)
			}
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	logs := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return filepath.Ext(name) != ".log" })
	if rng.IntN(3) > 0 {
		names = logs
	}
	name = names[rng.IntN(len(names))]
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	bit = rng.IntN(8 * len(content))
	content[bit/8] ^= 1 << (bit % 8)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name, bit
}

// readFlipped reads each record of a partition by two doors, and counts those that it gets.
func (s *server) readFlipped(what string, partition int32) (byKafka, byHTTP int) {
	s.t.Helper()
	w := s.wire()
	for next := int64(0); next < flipRecords; {
		p := w.fetch("t", partition, next, 1<<20)
		if p.ErrorCode != codeNone {
			if !slices.Contains([]int16{codeCorruptMessage, codeStorageError}, p.ErrorCode) {
				s.t.Errorf("%s: fetch of %d: code %d", what, next, p.ErrorCode)
			}
			next++
			continue
		}
		batches := mustSplit(s.t, p.RecordBatches)
		if len(batches) == 0 {
			s.t.Errorf("%s: fetch of %d: neither records nor an error", what, next)
			next++
		}
		for _, b := range batches {
			for i, v := range b.values(s.t) {
				switch offset := b.base() + int64(i); {
				case v != flipValue(partition, offset):
					s.t.Errorf("%s: Kafka: offset %d is %q", what, offset, clip(v))
				case offset >= next:
					byKafka++
				}
			}
			next = max(next, b.next())
		}
	}
	for next := int64(0); next < flipRecords; {
		a := s.do("GET", fmt.Sprintf("/v1/topics/t/partitions/%d/records?offset=%d&wait=0", partition, next), nil)
		if a.status != 200 {
			if a.status != 500 && a.status != 503 || strings.Contains(string(a.body), s.dir) {
				s.t.Errorf("%s: GET of %d: status %d %s", what, next, a.status, a.body)
			}
			next++
			continue
		}
		var f fetched
		a.decode(&f)
		if f.Next <= next {
			s.t.Errorf("%s: GET of %d: next is %d", what, next, f.Next)
			f.Next = next + 1
		}
		for _, r := range f.Records {
			var v string
			if err := json.Unmarshal(r.Value, &v); r.ValueStr != nil {
				v = *r.ValueStr
			} else if err != nil {
				s.t.Errorf("%s: %v", what, err)
			}
			if v != flipValue(partition, r.Offset) {
				s.t.Errorf("%s: HTTP: offset %d is %q", what, r.Offset, clip(v))
			}
			byHTTP++
		}
		next = f.Next
	}
	return byKafka, byHTTP
}

// produceFlipped writes to both partitions: a record gets the next offset, or is refused by every door.
func (s *server) produceFlipped(what string) {
	s.t.Helper()
	served := 0
	for partition := range int32(2) {
		p := s.wire().produce("t", partition, -1, encode(s.t, kgo.NoCompression(), values(time.Now().UnixMilli(), "next")))
		a := s.do("POST", fmt.Sprintf("/v1/topics/t/partitions/%d/records?value=line", partition), []byte("next\n"), "Content-Type: "+typeNDJSON)
		switch {
		case p.ErrorCode == codeNone && p.BaseOffset == flipRecords && a.status == 200:
			served++
		case p.ErrorCode == codeStorageError && a.status == 503:
		default:
			s.t.Errorf("%s: a produce to partition %d: code %d, base offset %d; HTTP: %d %s", what, partition, p.ErrorCode, p.BaseOffset, a.status, clip(string(a.body)))
		}
	}
	if served == 0 {
		s.t.Errorf("%s: no partition takes records", what)
	}
}
