package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"leat/api/cli"
	"leat/storage"
	"leat/storage/disk"
)

// What `leat check` refuses it tells in words of its own, and with --json as one
// object of the same shape, too.
func TestCheckRefuses(t *testing.T) {
	dir := t.TempDir()
	foreign, empty, missing, inUse := filepath.Join(dir, "foreign"), filepath.Join(dir, "empty"), filepath.Join(dir, "missing"), filepath.Join(dir, "used")
	file := filepath.Join(foreign, "notes.txt")
	for _, name := range []string{foreign, empty} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := storage.Open(t.Context(), storage.Options{FS: disk.OS, Path: inUse, Logger: (&serveConfig{}).logger(t.Output())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		what, path, want string
		code             int
	}{
		{"empty", empty, "not a data directory of Leat", exitDamaged},
		{"foreign", foreign, "not a data directory of Leat", exitDamaged},
		{"a file", file, "not a directory", exitDamaged},
		{"missing", missing, "no such file", exitFailure},
		{"in use", inUse, "in use by process", exitBusy},
	} {
		t.Run(c.what, func(t *testing.T) {
			for _, flag := range []string{"--json", "--records"} {
				var out, words bytes.Buffer
				code := run([]string{"check", flag, c.path}, cli.IO{In: strings.NewReader(""), Out: &out, Err: &words})
				if code != c.code || !strings.Contains(words.String(), c.want) || strings.Contains(words.String(), "name an empty one") {
					t.Errorf("%s: exit code %d: %s", flag, code, words.String())
				}
				if flag != "--json" {
					if out.Len() > 0 {
						t.Errorf("stdout has %q", out.String())
					}
					continue
				}
				var got struct {
					Error    string
					Findings []any
					Damages  *int
				}
				if err := json.Unmarshal(out.Bytes(), &got); err != nil || !strings.Contains(got.Error, c.want) || got.Findings == nil || got.Damages == nil {
					t.Errorf("stdout has %q, %v", out.String(), err)
				}
			}
		})
	}
}
