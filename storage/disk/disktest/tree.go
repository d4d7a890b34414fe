package disktest

import (
	"errors"
	"io"
	"os"
	"path"
	"testing"

	"leat/storage/disk"
)

// Tree returns every path below dir with the bytes of the file; those of
// directories end with a slash and have none.
func Tree(t testing.TB, m disk.FS, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	var walk func(dir string)
	walk = func(dir string) {
		names, err := m.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			p := path.Join(dir, name)
			info, err := m.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				files[p+"/"] = ""
				walk(p)
				continue
			}
			files[p] = Bytes(t, m, p)
		}
	}
	walk(dir)
	return files
}

// Bytes returns what the file holds.
func Bytes(t testing.TB, m disk.FS, name string) string {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}
