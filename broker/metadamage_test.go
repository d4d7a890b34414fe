package broker

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"strings"
	"testing"

	"leat/storage"
	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/meta"
)

// TestDamagedMetadataStays proves that a start on metadata in which a bit has
// changed, in the last block of the WAL or in a table, too, names the file and
// changes nothing, not even the mark of a clean stop.
func TestDamagedMetadataStays(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{true, false} {
		m := ownedDir(t, clean)
		flipped := 0
		for name, content := range disktest.Tree(t, m, "/data/db") {
			ext := path.Ext(name)
			size := len(strings.TrimRight(content, "\x00"))
			if ext != ".sst" && ext != ".log" && !strings.HasPrefix(path.Base(name), "MANIFEST") || size < 30 {
				continue
			}
			for _, at := range []int{8, size / 2, size - 20} {
				flipped++
				c := m.CrashClone(1, nil)
				p := []byte(content)
				p[at] ^= 16
				f, err := c.OpenFile(name, os.O_RDWR)
				if err == nil {
					_, err = f.WriteAt(p, 0)
					err = errors.Join(err, f.Close())
				}
				if err != nil {
					t.Fatal(err)
				}
				before := stored(t, c)
				b, err := Open(t.Context(), Options{FS: c, Path: "/data"})
				if err == nil {
					_ = b.Close()
				}
				if damaged, ok := errors.AsType[*meta.CorruptError](err); !ok || damaged.Path != name {
					t.Errorf("clean %t, byte %d of %d of %s: %v", clean, at, size, name, err)
				}
				if !maps.Equal(before, stored(t, c)) {
					t.Errorf("clean %t, byte %d of %s: files have changed", clean, at, name)
				}
			}
		}
		if flipped < 6 {
			t.Errorf("only %d flips", flipped)
		}
	}
}

// TestLostMetadataWithoutLogs proves that a directory without logs that a run has
// ended in does not get new metadata where the old is missing, even if a manifest is
// left that looks like the beginning of a store; and that the check says so.
func TestLostMetadataWithoutLogs(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: m, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	dropBallast(t, m)
	for name := range disktest.Tree(t, m, "/data/db") {
		if err := m.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	f, err := m.OpenFile("/data/db/MANIFEST-000001", os.O_RDWR|os.O_CREATE)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	before := stored(t, m)
	for range 2 {
		b, err := Open(t.Context(), Options{FS: m, Path: "/data"})
		if err == nil {
			_ = b.Close()
		}
		if damaged, ok := errors.AsType[*storage.DamagedError](err); !ok || damaged.Path != "/data/db" {
			t.Errorf("Open = %v", err)
		}
	}
	if !maps.Equal(before, stored(t, m)) {
		t.Error("files have changed")
	}
	if r := inspected(t, m); r.Damages == 0 || !strings.Contains(fmt.Sprint(r.Findings), "is missing") {
		t.Errorf("the check found %v", r.Findings)
	}
}
