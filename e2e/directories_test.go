package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDirectoriesOfBefore proves that data directories of earlier versions open: one that was stopped cleanly, of
// feature level 1, and one that was killed, of feature level 2. Nothing in them is lost, they take new topics and
// records, also after a stop and a kill, and the check finds nothing before and after.
func TestDirectoriesOfBefore(t *testing.T) {
	for _, c := range []struct {
		name   string
		groups bool // the version had them
	}{{"level1", false}, {"level2", true}} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			unpack(t, filepath.Join("testdata", "directories", c.name+".tar.gz"), dir)
			checked := func() {
				t.Helper()
				if out, words, code := run(t, "", "check", dir); code != 0 {
					t.Errorf("check: exit code %d: %s%s", code, out, words)
				}
			}
			checked()
			s := startIn(t, dir, "--set", "offsets.retention.minutes=2147483647")
			orders := "order 1\norder 2\norder 3\norder 4\norder 5\n"
			whole := func(orders string, topics ...string) {
				t.Helper()
				for line := range strings.Lines(s.did(t, "", "topic", "list")) {
					name, _, _ := strings.Cut(line, " ")
					if name != "TOPIC" && !slices.Contains(topics, name) {
						t.Errorf("there is topic %q", name)
					}
					topics = slices.DeleteFunc(topics, func(s string) bool { return s == name })
				}
				if len(topics) > 0 {
					t.Errorf("topics %q are missing", topics)
				}
				if got := s.did(t, "", "consume", "orders", "--from", "earliest", "--exit-at-end"); !sameLines(got, orders) {
					t.Errorf("orders has %q, want %q", got, orders)
				}
			}
			whole(orders, "orders", "plain")
			if got := s.did(t, "", "consume", "plain", "--from", "earliest", "--exit-at-end"); got != "v\n" {
				t.Errorf("plain has %q", got)
			}
			if c.groups {
				if got := s.did(t, "", "consume", "orders", "--group", "g", "--exit-at-end"); got != "" {
					t.Errorf("the group reads %q again", got)
				}
			}
			s.did(t, "", "topic", "create", "gone") // the name is free
			s.did(t, "order 6\n", "produce", "orders")
			s.stop()
			checked()
			s.restart()
			whole(orders+"order 6\n", "gone", "orders", "plain")
			s.did(t, "", "topic", "create", "late")
			s.did(t, "order 7\n", "produce", "orders")
			s.kill()
			checked()
			s.restart()
			whole(orders+"order 6\norder 7\n", "gone", "late", "orders", "plain")
		})
	}
}

// did runs a client command that must succeed, and returns its stdout.
func (s *server) did(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, words, code := run(t, stdin, append(args, "--server", s.Kafka)...)
	if code != 0 {
		t.Fatalf("leat %s: exit code %d: %s", strings.Join(args, " "), code, words)
	}
	return out
}

// sameLines says whether two texts have the same lines, in any order.
func sameLines(a, b string) bool {
	count := map[string]int{}
	for line := range strings.Lines(a) {
		count[line]++
	}
	for line := range strings.Lines(b) {
		count[line]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// unpack writes the files of a .tar.gz under dir.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zr); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, 0o755)
		} else {
			var body []byte
			if body, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(name, body, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
