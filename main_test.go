package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"leat/api/cli"
	"leat/storage"
	"leat/storage/disk"
)

// `leat serve` reads less than the whole command line, to the same effect.
func TestServeGrammar(t *testing.T) {
	t.Setenv("LEAT_SERVE_LOG_LEVEL", "warn")
	config := filepath.Join(t.TempDir(), "leat.yaml")
	if err := os.WriteFile(config, []byte("data-dir: /there\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	parse := func(grammar any, args []string) string {
		var words bytes.Buffer
		k, err := newParser(t.Context(), grammar, cli.IO{Out: &words, Err: &words}, func(code int) { fmt.Fprintln(&words, "exit", code) })
		if err != nil {
			t.Fatal(err)
		}
		c, err := k.Parse(args)
		if err != nil {
			return words.String() + err.Error()
		}
		return fmt.Sprintf("%s%s: %+v", words.String(), c.Command(), c.Selected().Target.Interface())
	}
	for _, args := range []string{
		"serve", "serve --help", "serve --version", "serve --help --nonsense", "serve --nonsense", "serve nonsense", "serve consume", "serve --data-dir", "serve --http-addr :1 --set a=1 --set b=2",
		"serve --config " + config, "serve --config missing", "serve serve", "serve -h", "serve -- --help",
	} {
		args := strings.Fields(args)
		if _, ok := grammar(args).(*serving); !ok {
			t.Errorf("%s: not the short one", args)
		}
		if short, whole := parse(&serving{}, args), parse(&commands{}, args); short != whole {
			t.Errorf("%s\nshort: %s\nwhole: %s", args, short, whole)
		}
	}
	for _, args := range []string{"", "--help", "--version", "check", "server", "--version serve", "help serve", "completion bash"} {
		if _, ok := grammar(strings.Fields(args)).(*commands); !ok {
			t.Errorf("%q: not the whole one", args)
		}
	}
}

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
