package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"strings"
	"testing"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/meta"
)

// stored is every file of the data directory with its bytes, but for the lock
// and the ballast.
func stored(t *testing.T, m disk.FS) map[string]string {
	t.Helper()
	files := disktest.Tree(t, m, "/data")
	maps.DeleteFunc(files, func(name, _ string) bool {
		return path.Base(name) == "LOCK" || path.Base(name) == "BALLAST"
	})
	return files
}

// transplant replaces what to has at name, a file or a directory, with from's.
func transplant(t *testing.T, from, to disk.FS, name string) {
	t.Helper()
	if err := to.RemoveAll(name); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{name: ""}
	if info, err := from.Stat(name); err != nil {
		t.Fatal(err)
	} else if info.IsDir() {
		if err := to.MkdirAll(name); err != nil {
			t.Fatal(err)
		}
		files = disktest.Tree(t, from, name)
	} else {
		files[name] = disktest.Bytes(t, from, name)
	}
	for name, content := range files {
		f, err := to.OpenFile(name, os.O_RDWR|os.O_CREATE)
		if err == nil {
			_, err = f.WriteAt([]byte(content), 0)
			err = errors.Join(err, f.Sync(), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := to.SyncAll("/"); err != nil {
		t.Fatal(err)
	}
}

// ownedDir is the data directory of a cluster of its own, with a topic that has
// a record, stopped cleanly or, as after kill -9, not.
func ownedDir(t *testing.T, clean bool) *disk.Mem {
	t.Helper()
	m := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: m, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	if r := produce(t, b, AcksAll, "t", 0, "v"); r.Err != nil {
		t.Fatal(r.Err)
	}
	left := m.CrashClone(1, nil)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if clean {
		left = m
	}
	dropBallast(t, left)
	return left
}

// dropBallast removes the ballast, which takes long to read.
func dropBallast(t *testing.T, m *disk.Mem) {
	t.Helper()
	if err := m.Remove("/data/BALLAST"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// disown makes the store one of a version that did not write whose it is.
func disown(t *testing.T, m *disk.Mem) {
	t.Helper()
	db, err := meta.Open(meta.Options{FS: m, Dir: "/data/db"})
	if err != nil {
		t.Fatal(err)
	}
	batch := db.NewBatch()
	batch.Delete(ownerKey)
	if err := errors.Join(db.Commit(batch), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func inspected(t *testing.T, m *disk.Mem) *storage.Report {
	t.Helper()
	r, err := storage.Check(t.Context(), storage.CheckOptions{FS: m, Path: "/data", Meta: func(ctx context.Context, dir string) (*storage.Metadata, error) {
		return Inspect(ctx, m, dir)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestForeignMetadata proves that a start refuses metadata that is not of its
// directory, or no metadata where there are logs, and changes nothing; and that
// a check calls it damage. The store may be of a version that did not write
// whose it is.
func TestForeignMetadata(t *testing.T) {
	t.Parallel()
	remove := func(pattern string) func(*testing.T, *disk.Mem) {
		return func(t *testing.T, m *disk.Mem) {
			names, err := m.List("/data/db")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if ok, _ := path.Match(pattern, name); ok {
					if err := m.Remove("/data/db/" + name); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	for _, c := range []struct {
		what   string
		change func(t *testing.T, m *disk.Mem)
		want   string
	}{
		{"another meta.json", func(t *testing.T, m *disk.Mem) { transplant(t, ownedDir(t, true), m, "/data/meta.json") }, "of another data directory"},
		{"another store", func(t *testing.T, m *disk.Mem) { transplant(t, ownedDir(t, true), m, "/data/db") }, "of another data directory"},
		{"another store after kill -9", func(t *testing.T, m *disk.Mem) { transplant(t, ownedDir(t, false), m, "/data/db") }, "of another data directory"},
		{"another store of an earlier version", func(t *testing.T, m *disk.Mem) {
			other := ownedDir(t, true)
			disown(t, other)
			transplant(t, other, m, "/data/db")
		}, "of another data directory"},
		{"no markers", remove("marker.*"), "is missing"},
		{"no files", remove("*"), "is missing"},
		{"only the lock", remove("[^L]*"), "is missing"},
		{"no directory", func(t *testing.T, m *disk.Mem) {
			if err := m.RemoveAll("/data/db"); err != nil {
				t.Fatal(err)
			}
		}, "is missing"},
	} {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, clean %t", c.what, clean), func(t *testing.T) {
				m := ownedDir(t, clean)
				c.change(t, m)
				before := stored(t, m)
				b, err := Open(t.Context(), Options{FS: m, Path: "/data"})
				if err == nil {
					_ = b.Close()
				}
				named := ""
				if damaged, ok := errors.AsType[*storage.DamagedError](err); ok {
					named = damaged.Path
				} else if lost, ok := errors.AsType[*meta.CorruptError](err); ok {
					named = lost.Path
				}
				if named != "/data/db" || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Open = %v", err)
				}
				after := stored(t, m)
				for name := range before {
					if now, ok := after[name]; !ok || now != before[name] {
						t.Errorf("%s has changed", name)
					}
				}
				if len(after) != len(before) {
					t.Errorf("%d files, there were %d", len(after), len(before))
				}
				r := inspected(t, m)
				if r.Damages != 1 || !strings.Contains(fmt.Sprint(r.Findings), "/data/db") || !strings.Contains(fmt.Sprint(r.Findings), c.want) {
					t.Errorf("the check found %v", r.Findings)
				}
			})
		}
	}
}

// TestClaimsOldStore proves that a store of a version that did not write whose
// it is starts, and says so afterwards.
func TestClaimsOldStore(t *testing.T) {
	t.Parallel()
	m := ownedDir(t, true)
	disown(t, m)
	if r := inspected(t, m); r.Damages > 0 {
		t.Errorf("before: %v", r.Findings)
	}
	b, err := Open(t.Context(), Options{FS: m, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	who := b.dir.Identity()
	if clusterID, nodeUUID, err := readOwner(b.db, ""); err != nil || clusterID != who.ClusterID || nodeUUID != who.NodeUUID {
		t.Errorf("the owner is %q %q, %v", clusterID, nodeUUID, err)
	}
	r := b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{Partitions: []FetchPartition{{Topic: "t", Epoch: -1, MaxBytes: 1 << 20}}})[0]
	if got := values(t, r); fmt.Sprint(got) != "[0:v]" {
		t.Errorf("records %q", got)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if r := inspected(t, m); len(r.Findings) > 0 {
		t.Errorf("after: %v", r.Findings)
	}
}

// TestFirstStartCutAnywhere proves that a first start that is killed, or whose
// power is cut, before any of its operations does not keep the next from
// starting.
func TestFirstStartCutAnywhere(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	power := disktest.CutEverywhere(m, 0, 0.5, 0.5, 1)
	b, err := Open(t.Context(), Options{FS: m, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	cuts := power.End()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range cuts {
		names, _ := c.FS.List("/data/db")
		b, err := Open(t.Context(), Options{FS: c.FS, Path: "/data"})
		if err != nil {
			t.Fatalf("a cut before %s leaves %v: %v", c.Op, names, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(cuts) < 200 {
		t.Errorf("only %d cuts", len(cuts))
	}
}
