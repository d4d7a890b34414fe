package meta

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"strings"
	"testing"

	"leat/storage/disk"
)

func TestLostMarkers(t *testing.T) {
	// Proves that what is left of a store without its markers is refused and
	// stays as it is, whichever of its files are left, and that a directory
	// where no store was ever whole gets a new one.
	is := func(prefix, suffix string) func(string) bool {
		return func(name string) bool { return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) }
	}
	for _, c := range []struct {
		what string
		keep func(name string) bool // of what is no marker.manifest.*
		lost bool
	}{
		{"all but the manifest's marker", is("", ""), true},
		{"no marker", func(name string) bool { return !isMarker(name) }, true},
		{"the format's marker", isMarker, true},
		{"manifests", is("MANIFEST-", ""), true},
		{"tables", is("", ".sst"), true},
		{"WALs", is("", ".log"), true},
		{"options", is("OPTIONS-", ""), true},
		{"the lock", is("LOCK", ""), false},
		{"nothing", is("nothing", ""), false},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := storeWithTables(t)
			mustClose(t, mustOpen(t, m, "/data/db")) // the second manifest
			for name := range storeFiles(t, m) {
				if base := path.Base(name); strings.HasPrefix(base, manifestMarker) || !c.keep(base) {
					remove(t, m, name)
				}
			}
			before := storeFiles(t, m)
			exists, existsErr := Exists(m, "/data/db")
			damages, checkErr := Check(t.Context(), Options{FS: m, Dir: "/data/db"}, nil)
			db, err := Open(Options{FS: m, Dir: "/data/db"})
			if !c.lost {
				if err != nil || existsErr != nil || checkErr != nil || exists || len(damages) > 0 {
					t.Fatalf("Open = %v, Exists = %t, %v, Check = %v, %v", err, exists, existsErr, damages, checkErr)
				}
				mustClose(t, db)
				return
			}
			for _, err := range []error{err, existsErr} {
				if ce, ok := errors.AsType[*CorruptError](err); !ok || ce.Path != "/data/db" {
					t.Errorf("%v", err)
				}
			}
			if checkErr != nil || len(damages) != 1 || damages[0].Harmless || damages[0].Path != "/data/db" {
				t.Errorf("Check = %v, %v", damages, checkErr)
			}
			if !maps.Equal(before, storeFiles(t, m)) {
				t.Error("files have changed")
			}
		})
	}
	m := newMem(t)
	if exists, err := Exists(m, "/data/db"); exists || err != nil {
		t.Errorf("Exists of no directory = %t, %v", exists, err)
	}
	m.SetFault(func(disk.Op) error { return fs.ErrPermission })
	if _, err := Exists(m, "/data/db"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Exists of what cannot be read = %v", err)
	}
	m.SetFault(nil)
	mustClose(t, mustOpen(t, m, "/data/db"))
	if exists, err := Exists(m, "/data/db"); !exists || err != nil {
		t.Errorf("Exists = %t, %v", exists, err)
	}
}
