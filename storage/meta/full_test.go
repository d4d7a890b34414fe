package meta

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"leat/storage/disk"
)

func TestFullDiskEverywhere(t *testing.T) {
	// Proves that a full disk at any write, create or rename, whatever of it was
	// done, costs nothing when room can be made: every commit succeeds and is
	// there after a power cut. The script makes tables and compactions.
	value := strings.Repeat("v", 300_000)
	for at := int64(1); ; at += 1 + at/16 { // most of the later ones are one long write
		m := newMem(t)
		var n atomic.Int64
		var released atomic.Int64
		m.SetFault(func(op disk.Op) error {
			switch op.Kind {
			case disk.OpWrite, disk.OpOpen, disk.OpRename, disk.OpLink, disk.OpMkdir:
			default:
				return nil
			}
			if !strings.HasPrefix(op.Path, "/data/db/") || n.Add(1) != at {
				return nil
			}
			if op.Kind == disk.OpWrite {
				return &disk.ShortWriteError{N: op.Len / 3, Err: syscall.ENOSPC}
			}
			return syscall.ENOSPC
		})
		db, err := Open(Options{FS: m, Dir: "/data/db", OnFull: func() bool { released.Add(1); return true }})
		if err != nil {
			t.Fatalf("operation %d: open: %v", at, err)
		}
		for i := range 20 {
			if err := set(db, string(numbered(uint64(i))), fmt.Sprint(i, value)); err != nil {
				t.Fatalf("operation %d: commit %d: %v", at, i, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatalf("operation %d: close: %v", at, err)
		}
		m.SetFault(nil)
		again := mustOpen(t, m.CrashClone(0, nil), "/data/db")
		for i := range 20 {
			if v, err := again.Get(numbered(uint64(i))); err != nil || string(v) != fmt.Sprint(i, value) {
				t.Fatalf("operation %d: entry %d: %d bytes, %v", at, i, len(v), err)
			}
		}
		mustClose(t, again)
		if released.Load() == 0 {
			if at < 20 {
				t.Fatalf("only %d operations", at)
			}
			return
		}
	}
}

func TestFullDiskWaits(t *testing.T) {
	// Proves that a write that finds no room, and nobody to make some, waits
	// until there is; and that when its patience is over the store has failed,
	// and has everything that was committed after a restart.
	m := newMem(t)
	db, err := Open(Options{FS: m, Dir: "/data/db", Patience: time.Minute, OnFull: func() bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, db, "Sa", "1")
	met := make(chan struct{}, 100)
	full := func(op disk.Op) error {
		if op.Kind == disk.OpWrite {
			met <- struct{}{}
			return syscall.ENOSPC
		}
		return nil
	}
	m.SetFault(full)
	done := make(chan error, 1)
	go func() { done <- set(db, "Sb", "2") }()
	<-met
	<-met
	select {
	case err := <-done:
		t.Fatalf("a commit without room came back: %v", err)
	default:
	}
	m.SetFault(nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustClose(t, db)

	db, err = Open(Options{FS: m, Dir: "/data/db", Patience: 30 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	m.SetFault(full)
	if err := set(db, "Sc", "3"); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a commit that nothing helped: %v", err)
	}
	m.SetFault(nil)
	again := mustOpen(t, m.CrashClone(0, nil), "/data/db")
	if got := scan(t, again, "S"); got != "Sa=1 Sb=2" {
		t.Errorf("after the restart: %s", got)
	}
	mustClose(t, again)
}

func TestCommitIsRefused(t *testing.T) {
	// Proves that a commit for which there is no room is refused with the reason,
	// changes nothing, is no failure, and can be made later.
	m := newMem(t)
	var refuse error
	db, err := Open(Options{FS: m, Dir: "/data/db", OnFatal: func(err error) { t.Error(err) }, Room: func(bytes int64) error {
		if bytes <= 0 {
			t.Errorf("asked for %d bytes", bytes)
		}
		return refuse
	}})
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, db, "Sa", "1")
	refuse = errors.New("no room")
	b := db.NewBatch()
	b.Set([]byte("Sb"), []byte("2"))
	if err := db.Commit(b); !errors.Is(err, refuse) || errors.Is(err, ErrFailed) {
		t.Errorf("Commit = %v", err)
	}
	if got := scan(t, db, "S"); got != "Sa=1" {
		t.Errorf("after the refusal: %s", got)
	}
	refuse = nil
	if err := db.Commit(b); err != nil {
		t.Error(err)
	}
	if got := scan(t, db, "S"); got != "Sa=1 Sb=2" {
		t.Errorf("in the end: %s", got)
	}
	// What was admitted before is not asked for again.
	if err := db.Room(1); err != nil {
		t.Error(err)
	}
	refuse = errors.New("no room")
	if err := db.Room(1); !errors.Is(err, refuse) {
		t.Errorf("Room = %v", err)
	}
	for i, sync := range []bool{false, true} {
		b := db.NewBatch()
		b.Set([]byte{'S', byte('c' + i)}, []byte("3"))
		if err := db.CommitAdmitted(b, sync); err != nil {
			t.Error(err)
		}
	}
	// Nor does a stop write what it can do without.
	m.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpOpen && strings.HasSuffix(op.Path, ".sst") {
			return syscall.ENOSPC
		}
		return nil
	})
	mustClose(t, db)
	again := mustOpen(t, m.CrashClone(0, nil), "/data/db")
	if got := scan(t, again, "S"); got != "Sa=1 Sb=2 Sc=3 Sd=3" {
		t.Errorf("after the restart: %s", got)
	}
	mustClose(t, again)
}
