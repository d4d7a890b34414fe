package storage

import (
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
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
			dir := filepath.Join(root, name)
			if err := errors.Join(os.RemoveAll(dir), odd.make(dir)); err != nil {
				t.Fatal(err)
			}
			d, err := Open(t.Context(), Options{Path: root, Logger: quiet()})
			if damaged, ok := errors.AsType[*DamagedError](err); !ok || damaged.Path != dir {
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

// TestSwappedDirectories proves that a start does not take the directory of another
// partition for a log's: both that were swapped are lost, with nothing of their
// files touched, and whole when they are in their places again. Without the text
// that says so, or with a damaged one, a log is read as ever.
func TestSwappedDirectories(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	ids := []ID{testID, {Topic: TopicID{9}, Partition: 1}}
	open := func(d *Dir) (logs []*Log) {
		t.Helper()
		for _, id := range ids {
			l, err := d.OpenLog(t.Context(), id, "orders", damageConfig, 0)
			if err != nil {
				t.Fatal(err)
			}
			logs = append(logs, l)
		}
		return logs
	}
	d := openDir(t, fs)
	for i, l := range open(d) {
		for range 7 + i {
			mustAppend(t, l, batchOf(t, record.None, nil, "value"))
		}
		waitDurable(t, l)
	}
	paths := []string{d.logPath(ids[0]), d.logPath(ids[1])}
	mustClose(t, d)
	swap := func() {
		t.Helper()
		if err := errors.Join(fs.Rename(paths[0], "/t"), fs.Rename(paths[1], paths[0]), fs.Rename("/t", paths[1])); err != nil {
			t.Fatal(err)
		}
	}
	swap()
	before := disktest.Tree(t, fs, "/data/logs")
	for range 2 {
		d = openDir(t, fs)
		for i, l := range open(d) {
			if o := l.Offsets(); !l.Fenced() || o.End != int64(7+i) || len(l.Holes()) != 1 || l.Holes()[0].To != o.End {
				t.Errorf("fenced %t, %+v, holes %+v", l.Fenced(), o, l.Holes())
			}
		}
		mustClose(t, d)
	}
	if after := disktest.Tree(t, fs, "/data/logs"); !maps.Equal(before, after) {
		t.Error("files were changed")
	}
	swap()
	for _, damage := range []func(string) error{
		func(string) error { return nil },
		func(name string) error { setFile(t, fs, name, fileBytes(t, fs, name)[1:]); return nil },
		func(name string) error { setFile(t, fs, name, nil); return nil },
		fs.Remove,
		fs.MkdirAll,
	} {
		for _, p := range paths {
			if err := damage(path.Join(p, partitionFile)); err != nil {
				t.Fatal(err)
			}
		}
		d = openDir(t, fs)
		for i, l := range open(d) {
			if o := l.Offsets(); l.Fenced() || o.End != int64(7+i) {
				t.Errorf("fenced %t, %+v", l.Fenced(), o)
			}
			readAll(t, l, 0, int64(7+i), 1<<20)
		}
		mustClose(t, d)
	}
}
