package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamagedMetadata proves that a start on metadata in which a bit has changed, or from which a file is cut short or
// missing, ends with exit code 78 and the name of the file, changes nothing, and above all does not
// say that the run before, which was killed, ended cleanly.
func TestDamagedMetadata(t *testing.T) {
	s := start(t)
	for i := range 5 {
		s.createTopic(fmt.Sprintf("before%d", i), 1)
	}
	s.stop()
	s.restart() // what was in the WAL is in a table now
	s.createTopic("behind", 1)
	s.kill()
	state := func() string { // to read the ballast takes long
		if err := os.RemoveAll(filepath.Join(s.dir, "BALLAST")); err != nil {
			t.Fatal(err)
		}
		return fingerprint(t, s.dir)
	}
	for _, c := range []struct {
		name, pattern string
		do            func(name string)
	}{
		{"a bit in the manifest", "MANIFEST-*", func(name string) { flip(t, name, 8*12) }},
		{"a short table", "*.sst", func(name string) { shorten(t, name, 9) }},
		{"no table", "*.sst", func(name string) { remove(t, name) }},
		{"no manifest", "MANIFEST-*", func(name string) { remove(t, name) }},
		{"a bit in a table", "*.sst", func(name string) { flip(t, name, 8*10) }},
		{"a bit in the last block of the WAL", "*.log", func(name string) { flip(t, name, 8*40) }},
	} {
		names, err := filepath.Glob(filepath.Join(s.dir, "*", c.pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %q, %v", c.name, names, err)
		}
		name := names[len(names)-1]
		sound, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		c.do(name)
		before := state()
		_, words, code := run(t, "", serveArgs(s.dir)...)
		if code != 78 || !strings.Contains(words, filepath.Base(name)) {
			t.Errorf("%s: exit code %d, want 78 and %s: %s", c.name, code, name, words)
		}
		if now := state(); now != before || strings.Contains(now, "CLEAN") {
			t.Errorf("%s: the directory was\n%s\nand is\n%s", c.name, before, now)
		}
		if err := os.WriteFile(name, sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.restart()
	s.do("GET", "/v1/topics/behind", nil).want(200)
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}
