package storage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"leat/storage/record"
)

type oddFile struct {
	what string
	make func(path string) error
}

// oddFiles are what may have the name of a file or directory and is neither.
var oddFiles = []oddFile{
	{"directory", func(path string) error { return os.Mkdir(path, 0o750) }},
	{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o640) }},
	{"link to nothing", func(path string) error { return os.Symlink("nothing", path) }},
	{"link to itself", func(path string) error { return os.Symlink(path, path) }},
}

// TestOddLog proves that something that is no file in the place of any .log
// costs that partition only, which is fenced with its end known, before and
// after another start, and that a repair begins it anew.
func TestOddLog(t *testing.T) {
	t.Parallel()
	for _, odd := range oddFiles {
		for _, last := range []bool{false, true} {
			t.Run(odd.what, func(t *testing.T) {
				t.Parallel()
				root := t.TempDir()
				open := func(o *Options) { o.FS, o.Path = nil, root }
				d := openDir(t, nil, open)
				l := openLog(t, d, damageConfig)
				for range 12 {
					mustAppend(t, l, batchOf(t, record.None, nil, "value"))
				}
				waitDurable(t, l)
				mustClose(t, d)
				names, err := filepath.Glob(filepath.Join(l.path, "*.log"))
				if err != nil || len(names) < 3 {
					t.Fatal(names, err)
				}
				name := names[1]
				if last {
					name = names[len(names)-1]
				}
				if err := errors.Join(os.Remove(name), odd.make(name)); err != nil {
					t.Fatal(err)
				}
				if r, err := Check(t.Context(), CheckOptions{Path: root}); err != nil || r.Damages == 0 {
					t.Errorf("check: %v, %s", err, r.lines())
				}
				for range 2 {
					d = openDir(t, nil, open)
					l = openLog(t, d, damageConfig)
					if o := l.Offsets(); !l.Fenced() || o.End != 12 || len(l.Holes()) != 1 {
						t.Errorf("fenced %t, %+v, holes %+v", l.Fenced(), o, l.Holes())
					}
					mustClose(t, d)
				}
				d = openDir(t, nil, open)
				l = openLog(t, d, damageConfig)
				if _, err := l.Repair(t.Context()); err != nil {
					t.Fatal(err)
				}
				if a := mustAppend(t, l, batchOf(t, record.None, nil, "after")); a.Base != 12 {
					t.Errorf("the next record got offset %d", a.Base)
				}
				mustClose(t, d)
			})
		}
	}
}

// TestOddDirectory proves that a data directory is refused, by its path and as
// one for a person to look at, in which something else has the name of a
// directory, that nothing is changed by that, and that Check tells it.
func TestOddDirectory(t *testing.T) {
	t.Parallel()
	makers := append(slices.Clone(oddFiles[1:]), oddFile{"file", func(path string) error { return os.WriteFile(path, nil, 0o600) }})
	for _, name := range []string{logsDir, metaDir, trashDir, quarantineDir} {
		for _, odd := range makers {
			root := t.TempDir()
			open := func(o *Options) { o.FS, o.Path = nil, root }
			mustClose(t, openDir(t, nil, open))
			path := filepath.Join(root, name)
			if err := errors.Join(os.RemoveAll(path), odd.make(path)); err != nil {
				t.Fatal(err)
			}
			d, err := Open(t.Context(), Options{Path: root, Logger: quiet()})
			if damaged, ok := errors.AsType[*DamagedError](err); !ok || damaged.Path != path {
				t.Errorf("%s is a %s: %v, %v", name, odd.what, d, err)
			}
			if _, err := os.Stat(filepath.Join(root, cleanName)); err != nil {
				t.Errorf("%s is a %s: %v", name, odd.what, err)
			}
			if name != trashDir && name != quarantineDir {
				continue
			}
			if r, err := Check(t.Context(), CheckOptions{Path: root}); err != nil || r.Damages != 1 {
				t.Errorf("%s is a %s: %v, %+v", name, odd.what, err, r)
			}
		}
	}
}
