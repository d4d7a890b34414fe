package disk

import (
	"errors"
	"maps"
	"os"
	"syscall"
	"testing"
)

var durability = []struct {
	name string
	run  func(b bench)
	want map[string]string // after a strict crash
	kept map[string]string // after kill -9
}{
	{
		"nothing is durable by itself",
		func(b bench) { b.must(b.MkdirAll("/d")); b.put("/d/a", "x") },
		map[string]string{},
		map[string]string{"/d": "dir", "/d/a": "x"},
	},
	{
		"a synced file without a name is lost",
		func(b bench) { b.must(b.put("/a", "x").Sync()) },
		map[string]string{},
		map[string]string{"/a": "x"},
	},
	{
		"a synced name without data is an empty file",
		func(b bench) { b.put("/a", "x"); b.must(b.SyncDir("/")) },
		map[string]string{"/a": ""},
		map[string]string{"/a": "x"},
	},
	{
		"file and name",
		func(b bench) { b.must(b.put("/a", "x").Sync()); b.must(b.SyncDir("/")) },
		map[string]string{"/a": "x"},
		map[string]string{"/a": "x"},
	},
	{
		"fdatasync makes the size durable",
		func(b bench) {
			f := b.durable("/a", "x")
			_, err := f.WriteAt([]byte("yz"), 1)
			b.must(err)
			b.must(f.SyncData())
		},
		map[string]string{"/a": "xyz"},
		map[string]string{"/a": "xyz"},
	},
	{
		"a directory needs its parent synced",
		func(b bench) {
			b.must(b.MkdirAll("/d/e"))
			b.must(b.put("/d/e/a", "x").Sync())
			b.must(b.SyncDir("/d/e"))
			b.must(b.SyncDir("/"))
		},
		map[string]string{"/d": "dir"},
		map[string]string{"/d": "dir", "/d/e": "dir", "/d/e/a": "x"},
	},
	{
		"overwritten bytes",
		func(b bench) { b.durable("/a", "old"); b.put("/a", "new") },
		map[string]string{"/a": "old"},
		map[string]string{"/a": "new"},
	},
	{
		"truncated bytes come back",
		func(b bench) {
			b.must(b.durable("/a", "old and long").Truncate(3))
			b.put("/a", "new")
		},
		map[string]string{"/a": "old and long"},
		map[string]string{"/a": "new"},
	},
	{
		"O_TRUNC is a truncation",
		func(b bench) {
			b.durable("/a", "old")
			_, err := b.OpenFile("/a", create|os.O_TRUNC)
			b.must(err)
		},
		map[string]string{"/a": "old"},
		map[string]string{"/a": ""},
	},
	{
		"truncated, synced, then written: no old bytes",
		func(b bench) {
			f := b.durable("/a", "old and long")
			b.must(f.Truncate(3))
			b.must(f.Sync())
			_, err := f.WriteAt([]byte("!"), 6)
			b.must(err)
		},
		map[string]string{"/a": "old"},
		map[string]string{"/a": "old\x00\x00\x00!"},
	},
	{
		"allocated space is a change of size",
		func(b bench) { b.must(b.durable("/a", "x").Allocate(0, 4)) },
		map[string]string{"/a": "x"},
		map[string]string{"/a": "x\x00\x00\x00"},
	},
	{
		"rename over a file",
		func(b bench) {
			b.durable("/a", "old")
			b.must(b.put("/tmp", "new").Sync())
			b.must(b.Rename("/tmp", "/a"))
		},
		map[string]string{"/a": "old"},
		map[string]string{"/a": "new"},
	},
	{
		"rename over a file, directory synced",
		func(b bench) {
			b.durable("/a", "old")
			b.must(b.put("/tmp", "new").Sync())
			b.must(b.Rename("/tmp", "/a"))
			b.must(b.SyncDir("/"))
		},
		map[string]string{"/a": "new"},
		map[string]string{"/a": "new"},
	},
	{
		"rename without sync of the source is an empty file (KAFKA-16541)",
		func(b bench) {
			b.durable("/a", "old")
			b.put("/tmp", "new")
			b.must(b.Rename("/tmp", "/a"))
			b.must(b.SyncDir("/"))
		},
		map[string]string{"/a": ""},
		map[string]string{"/a": "new"},
	},
	{
		"removal",
		func(b bench) { b.durable("/a", "x"); b.must(b.Remove("/a")) },
		map[string]string{"/a": "x"},
		map[string]string{},
	},
	{
		"removal, directory synced",
		func(b bench) { b.durable("/a", "x"); b.must(b.Remove("/a")); b.must(b.SyncDir("/")) },
		map[string]string{},
		map[string]string{},
	},
	{
		"removal of a tree",
		func(b bench) { b.durable("/d/a", "x"); b.must(b.RemoveAll("/d")) },
		map[string]string{"/d": "dir", "/d/a": "x"},
		map[string]string{},
	},
	{
		"removed and made again",
		func(b bench) {
			b.durable("/a", "x")
			b.must(b.Remove("/a"))
			b.must(b.put("/a", "y").Sync())
		},
		map[string]string{"/a": "x"},
		map[string]string{"/a": "y"},
	},
	{
		"link",
		func(b bench) {
			f := b.durable("/a", "x")
			b.must(b.Link("/a", "/b"))
			_, err := f.WriteAt([]byte("y"), 0)
			b.must(err)
			b.must(f.Sync())
		},
		map[string]string{"/a": "y"},
		map[string]string{"/a": "y", "/b": "y"},
	},
	{
		"file to another directory, source synced: never lost",
		func(b bench) {
			b.durable("/d/a", "x")
			b.durable("/e/z", "z")
			b.must(b.Rename("/d/a", "/e/a"))
			b.must(b.SyncDir("/d"))
		},
		map[string]string{"/d": "dir", "/e": "dir", "/e/a": "x", "/e/z": "z"},
		map[string]string{"/d": "dir", "/e": "dir", "/e/a": "x", "/e/z": "z"},
	},
	{
		"file to another directory, target synced: may be in both",
		func(b bench) {
			b.durable("/d/a", "x")
			b.durable("/e/z", "z")
			b.must(b.Rename("/d/a", "/e/a"))
			b.must(b.SyncDir("/e"))
		},
		map[string]string{"/d": "dir", "/d/a": "x", "/e": "dir", "/e/a": "x", "/e/z": "z"},
		map[string]string{"/d": "dir", "/e": "dir", "/e/a": "x", "/e/z": "z"},
	},
	{
		"directory to another directory: never in both",
		func(b bench) {
			b.durable("/d/a/f", "x")
			b.durable("/e/z", "z")
			b.must(b.Rename("/d/a", "/e/a"))
			b.must(b.SyncDir("/e"))
		},
		map[string]string{"/d": "dir", "/e": "dir", "/e/a": "dir", "/e/a/f": "x", "/e/z": "z"},
		map[string]string{"/d": "dir", "/e": "dir", "/e/a": "dir", "/e/a/f": "x", "/e/z": "z"},
	},
	{
		"what came before the other half of a rename goes with it",
		func(b bench) {
			b.durable("/d/a", "a")
			b.durable("/e/b", "b")
			b.must(b.MkdirAll("/f"))
			b.must(b.SyncAll("/"))
			b.must(b.Rename("/e/b", "/f/b"))
			b.must(b.Rename("/d/a", "/e/b"))
			b.must(b.SyncDir("/d"))
		},
		map[string]string{"/d": "dir", "/e": "dir", "/e/b": "a", "/f": "dir", "/f/b": "b"},
		map[string]string{"/d": "dir", "/e": "dir", "/e/b": "a", "/f": "dir", "/f/b": "b"},
	},
	{
		"SyncAll",
		func(b bench) {
			b.must(b.MkdirAll("/d/e"))
			b.put("/d/e/a", "x")
			b.must(b.SyncAll("/d"))
			b.put("/d/b", "y")
		},
		map[string]string{"/d": "dir", "/d/e": "dir", "/d/e/a": "x"},
		map[string]string{"/d": "dir", "/d/b": "y", "/d/e": "dir", "/d/e/a": "x"},
	},
	{
		"a failed sync loses data although the next one succeeds",
		func(b bench) {
			f := b.durable("/a", "old")
			b.put("/a", "new")
			b.SetFault(func(op Op) error {
				if op.Kind == OpSync {
					return syscall.EIO
				}
				return nil
			})
			if err := f.Sync(); !errors.Is(err, syscall.EIO) {
				b.t.Fatalf("Sync = %v", err)
			}
			b.SetFault(nil)
			b.must(f.Sync())
			if got := tree(b.t, b.Mem)["/a"]; got != "new" {
				b.t.Errorf("the cache has %q", got)
			}
		},
		map[string]string{"/a": "old"},
		map[string]string{"/a": "old"},
	},
	{
		"what a failed sync lost is written when it is changed again",
		func(b bench) {
			f := b.durable("/a", "old")
			b.put("/a", "new")
			b.SetFault(func(op Op) error {
				if op.Kind == OpSyncAll {
					return syscall.EIO
				}
				return nil
			})
			if err := b.SyncAll("/"); !errors.Is(err, syscall.EIO) {
				b.t.Fatalf("SyncAll = %v", err)
			}
			b.SetFault(nil)
			_, err := f.WriteAt([]byte("!"), 3)
			b.must(err)
			b.must(f.SyncData())
		},
		map[string]string{"/a": "new!"},
		map[string]string{"/a": "new!"},
	},
}

func TestDurability(t *testing.T) {
	// Proves each rule of what a power cut and a kill -9 leave, and that what
	// is left is durable from then on.
	for _, tc := range durability {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			tc.run(b)
			before := tree(t, b.Mem)
			for keep, want := range map[float64]map[string]string{0: tc.want, 1: tc.kept} {
				c := b.CrashClone(keep, nil)
				if got := tree(t, c); !maps.Equal(got, want) {
					t.Errorf("keep %v: got %q, want %q", keep, got, want)
				}
				if got := tree(t, c.CrashClone(0, nil)); !maps.Equal(got, want) {
					t.Errorf("keep %v, crashed again: got %q, want %q", keep, got, want)
				}
			}
			if after := tree(t, b.Mem); !maps.Equal(before, after) {
				t.Errorf("the original changed: %q, was %q", after, before)
			}
		})
	}
}
