package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// flip changes one bit of a file.
func flip(t testing.TB, name string, bit int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var p [1]byte
	_, err = f.ReadAt(p[:], bit/8)
	p[0] ^= 1 << (bit % 8)
	if err == nil {
		_, err = f.WriteAt(p[:], bit/8)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// filled is a server with records in several topics, sealed segments and growing ones.
func filled(t testing.TB, args ...string) *server {
	s := start(t, args...)
	w := s.wire()
	for i := range 3 {
		topic := fmt.Sprintf("t%d", i)
		s.createTopic(topic, 2, "segment.bytes=3000", "index.interval.bytes=1000")
		for j := range 40 {
			w.mustProduce(topic, int32(j%2), encode(t, codecs[j%len(codecs)].codec, values(time.Now().UnixMilli(), strings.Repeat(fmt.Sprint(j), 700), "x")))
		}
	}
	return s
}

// TestFlippedBits proves on a real disk that `leat check` names the file of any one bit that has changed, in whatever file
// of the data directory, after a clean stop and after kill -9, and that before that it had nothing to say of any file. The
// places in a log, and more flips, are for TestFlips in storage. LEAT_SEEDS says how many flips each file gets.
func TestFlippedBits(t *testing.T) {
	rounds, rng := 1, rand.New(rand.NewPCG(6, 6))
	if n, err := strconv.Atoi(os.Getenv("LEAT_SEEDS")); err == nil {
		rounds, rng = n, rand.New(rand.NewPCG(rand.Uint64(), 6))
	}
	for _, clean := range []bool{true, false} {
		s := filled(t)
		if clean {
			s.stop()
		} else {
			s.kill()
		}
		if lines := findings(t, s.dir, 0); strings.Contains(strings.Join(lines, "\n"), "damage") {
			t.Fatalf("clean %t, nothing was changed: %v", clean, lines)
		}
		err := filepath.WalkDir(s.dir, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || entry.Name() == "LOCK" || entry.Name() == "BALLAST" {
				return err
			}
			info, err := entry.Info()
			if err != nil || info.Size() == 0 {
				return err
			}
			for range rounds {
				bit := rng.Int64N(8 * info.Size())
				flip(t, name, bit)
				if lines := findings(t, s.dir, -1); !strings.Contains(strings.Join(lines, "\n"), name) {
					t.Errorf("clean %t, byte %d of the %d of %s: %v", clean, bit/8, info.Size(), name, lines)
				}
				flip(t, name, bit)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// findings is what a check says, a line a finding with the severity and the file. code is what it must exit with; -1 is
// what fits the findings.
func findings(t testing.TB, dir string, code int) (lines []string) {
	t.Helper()
	out, words, got := run(t, "", "check", dir, "--json")
	var report struct {
		Damages  int
		Findings []struct {
			Severity, Path, What string
			Position             int64
		}
	}
	if out == "" && got == 78 {
		return []string{"damage " + words} // of a newer version, by what it says
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("exit code %d, %q, %s: %v", got, clip(out), tail(words, 300), err)
	}
	if code < 0 {
		code = 0
		if report.Damages > 0 {
			code = 78
		}
	}
	if got != code {
		t.Errorf("exit code %d, want %d: %s", got, code, tail(words, 500))
	}
	for _, f := range report.Findings {
		lines = append(lines, fmt.Sprintf("%s %s at %d: %s", f.Severity, f.Path, f.Position, f.What))
	}
	return lines
}

// TestScrubFinds proves that a bit that changes on the disk under a running server, in a segment that nobody reads, is
// found and shown: in the metrics, and in the log with file and position; and that from then on neither door gives out the
// batch that it is in, while all others can be read.
func TestScrubFinds(t *testing.T) {
	s := filled(t, "--set", "leat.scrub.bytes.per.second=100000000")
	logs := s.logFiles()
	name := logs[0]
	if filepath.Dir(logs[1]) != filepath.Dir(name) {
		t.Fatalf("no segment has ended: %v", logs)
	}
	eventually(t, "a pass over what is whole", func() error {
		if s.metric("leat_storage_scrub_last_pass_timestamp_seconds") == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	if n := s.metric("leat_storage_scrub_damages_total"); n != 0 {
		t.Fatalf("%v damages before there was one", n)
	}
	flip(t, name, 8*200+1)
	if _, words, code := run(t, "", "cluster", "config", "--server", s.Kafka, "--set", "leat.scrub.bytes.per.second=200000000"); code != 0 {
		t.Fatalf("exit code %d: %s", code, words)
	}
	eventually(t, "the scrub to find it", func() error {
		if n := s.metric("leat_storage_scrub_damages_total"); n != 1 {
			return fmt.Errorf("%v damages", n)
		}
		return nil
	})
	if words := s.stderr.String(); !strings.Contains(words, name) || !strings.Contains(words, "position=") {
		t.Errorf("the log does not name %s: %s", name, tail(words, 1000))
	}
	eventually(t, "the partition to be called damaged", func() error {
		if n := s.metric("leat_broker_damaged_partitions"); n != 1 {
			return fmt.Errorf("%v partitions", n)
		}
		return nil
	})
	whole, refused := 0, 0
	w := s.wire()
	for i := range 6 {
		topic, partition := fmt.Sprintf("t%d", i/2), i%2
		for offset := range w.end(topic, int32(partition)) {
			a := s.do("GET", fmt.Sprintf("/v1/topics/%s/partitions/%d/records?offset=%d", topic, partition, offset), nil)
			p := w.fetch(topic, int32(partition), offset, 1)
			switch {
			case a.status == 200 && p.ErrorCode == codeNone && len(p.RecordBatches) > 0:
				whole++
			case a.status == 500 && p.ErrorCode == codeCorruptMessage && len(p.RecordBatches) == 0:
				a.refused(500, "corrupt_record")
				refused++
			default:
				t.Errorf("%s-%d at %d: status %d, code %d with %d bytes", topic, partition, offset, a.status, p.ErrorCode, len(p.RecordBatches))
			}
		}
	}
	if refused == 0 || refused > 4 || whole+refused != 240 {
		t.Errorf("%d records can be read, %d are refused", whole, refused)
	}
}
