package e2e

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"
)

// sizes is every file below logs/ with its size.
func (s *server) sizes() map[string]int64 {
	s.t.Helper()
	sizes := map[string]int64{}
	err := filepath.WalkDir(filepath.Join(s.dir, "logs"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			sizes[name] = info.Size()
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return sizes
}

// TestCase43RestartsCreateNothing proves that restarts without a write make no file in any of a thousand partitions,
// change none, and leave the process with as many open descriptors as before; and that the partitions take about as
// long to make as one sync does, not as a thousand.
func TestCase43RestartsCreateNothing(t *testing.T) {
	partitions, restarts := 1_000, 4
	if long() {
		partitions, restarts = 10_000, 20
	}
	s := start(t)
	s.createTopic("empty", partitions-100)
	s.createTopic("used", 100, "retention.ms=-1")
	w := s.wire()
	for p := range 100 {
		w.mustProduce("used", int32(p), encode(t, kgo.NoCompression(), values(1, "v")))
	}
	s.stop()
	s.restart()
	before, files := s.sizes(), s.openFiles()
	if len(before) < 4*partitions {
		t.Fatalf("%d files for %d partitions", len(before), partitions)
	}
	for i := range restarts {
		end := s.stop
		if i%2 == 1 {
			end = s.kill
		}
		end()
		begun := time.Now()
		s.restart()
		t.Logf("restart %d: ready after %v", i, time.Since(begun))
		if now := s.sizes(); !maps.Equal(now, before) {
			t.Fatalf("restart %d: the logs have %d files, had %d, or other sizes", i, len(now), len(before))
		}
		eventually(t, "the descriptors to be as few as before", func() error {
			if now := s.openFiles(); now > files+10 { // the metadata store has some more after a kill
				return fmt.Errorf("restart %d: %d descriptors, there were %d", i, now, files)
			}
			return nil
		})
	}
	if got := s.wire().mustProduce("used", 7, encode(t, kgo.NoCompression(), values(1, "next"))); got != 1 {
		t.Errorf("the next record got offset %d, want 1", got)
	}
}

// TestCase44OutOfDescriptors proves that a server with few descriptors takes a thousand topics and more connections
// than it may have; that idle files make room when there is not one descriptor left; that with fewer than none it lives,
// says of a topic that it may be made later, and waits for connections at no cost; that none of it is taken for a failed
// disk; and that all is well once there are descriptors again.
func TestCase44OutOfDescriptors(t *testing.T) {
	s := startWithFiles(t, 300)
	defer func() {
		if t.Failed() {
			t.Logf("stderr of leat:\n%s", tail(s.stderr.String(), 4<<10))
		}
	}()
	w := s.wire()
	topics := 200
	if long() {
		topics = 1_000
	}
	for i := range topics {
		if code, words := w.create(fmt.Sprintf("t%d", i), 1, 1); code != codeNone {
			t.Fatalf("topic %d: code %d (%s)", i, code, words)
		}
	}
	record := encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), "v"))
	w.mustProduce("t0", 0, record)

	var conns []net.Conn
	for i := range 500 {
		addr := []string{s.Kafka, s.HTTP, s.Ops}[i%3]
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
		conns = append(conns, nc)
	}
	for i := range topics / 10 {
		w.mustProduce(fmt.Sprintf("t%d", i), 0, record)
	}
	for _, nc := range conns {
		_ = nc.Close()
	}
	eventually(t, "the doors to be open again", func() error {
		_, err := s.try("GET", "/v1/topics/t0", nil)
		return err
	})

	setLimit := func(n uint64) {
		if err := unix.Prlimit(s.pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: 300}, nil); err != nil {
			t.Fatal(err)
		}
	}
	setLimit(uint64(s.openFiles())) // not one more: what is idle makes room
	for i := range 20 {
		w.mustProduce(fmt.Sprintf("t%d", i), 0, record)
	}
	if code, words := w.create("made", 1, 1); code != codeNone {
		t.Errorf("a topic in the place of idle files: code %d (%s)", code, words)
	}
	setLimit(16) // less than what is open
	if code, words := w.create("late", 1, 1); code != codeStorageError {
		t.Errorf("a topic without a descriptor: code %d (%s), want %d, which clients try again", code, words, codeStorageError)
	}
	if p := w.produce("t0", 0, -1, record); p.ErrorCode != codeNone && p.ErrorCode != codeStorageError {
		t.Errorf("a produce without a descriptor: code %d", p.ErrorCode)
	}
	waiting, err := net.Dial("tcp", s.Kafka) // the kernel takes it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	used := s.cpu()
	after(2 * time.Second)
	if used = s.cpu() - used; used > 300*time.Millisecond {
		t.Errorf("%v of processor time in 2 s while connections wait", used)
	}
	setLimit(300)

	newWire(t, waiting).ping()
	if code, words := w.create("late", 1, 1); code != codeNone {
		t.Errorf("the topic with descriptors: code %d (%s)", code, words)
	}
	w.mustProduce("late", 0, record)
	w.mustProduce("t0", 0, record)
	if got := stored(t, w.fetchAll("t0", 0, 0)); len(got) < 4 {
		t.Errorf("%d batches came back", len(got))
	}
	if open, limit := s.metric("process_open_fds"), s.metric("process_max_fds"); open < 10 || limit != 300 {
		t.Errorf("the metrics say %v of %v descriptors", open, limit)
	}
	if open, limit := s.metric("leat_storage_segment_open_files"), s.metric("leat_storage_segment_max_files"); open > limit+1 || limit > 300/4 {
		t.Errorf("the metrics say %v of %v segment files", open, limit)
	}
	if words := s.stderr.String(); strings.Contains(words, "has failed") || strings.Contains(words, "level=ERROR") {
		t.Errorf("the want of descriptors was taken for a fault:\n%s", tail(words, 4<<10))
	}
}

// TestCase46EmptyActiveSegment proves that a partition whose newest segment is empty, because the one before ended by
// its age, keeps its files over restarts, and that the next record gets the next offset.
func TestCase46EmptyActiveSegment(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "segment.ms=1000", "retention.ms=-1")
	bases := func() (all []string) {
		names, err := filepath.Glob(filepath.Join(s.dir, "logs", "*", "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			all = append(all, strings.TrimLeft(strings.TrimSuffix(filepath.Base(name), "-000000.log"), "0")+";")
		}
		return all
	}
	record := encode(t, kgo.NoCompression(), values(1, "v"))
	for n := range 2 {
		want := []string{";", "1;"}[:n+1] // the segment with base 0, and the one with base 1
		eventually(t, "the segment to end", func() error {
			if got := bases(); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("segments %q, want %q", got, want)
			}
			return nil
		})
		for i := range 3 {
			end := s.stop
			if i == 1 {
				end = s.kill
			}
			after(1100 * time.Millisecond) // an empty segment is never too old
			end()
			s.restart()
			if got := bases(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("restart %d: segments %q, want %q", i, got, want)
			}
		}
		if got := s.wire().mustProduce("t", 0, record); got != int64(n) {
			t.Fatalf("the record got offset %d, want %d", got, n)
		}
	}
	s.stop()
	if out, words, code := run(t, "", "check", s.dir); code != 0 {
		t.Errorf("leat check: code %d\n%s%s", code, out, words)
	}
}
