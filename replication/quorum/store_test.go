package quorum_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"testing/cryptotest"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
	"leat/storage/disk"
	"leat/storage/meta"
)

// crashing is a store that a power cut can be made to.
type crashing struct {
	quorum.Store
	// cut is what a power cut leaves of it.
	cut func() crashing
}

func memoryStore(s *quorumtest.Store) crashing {
	return crashing{s, func() crashing { return memoryStore(s.Lose(s.Unsynced())) }}
}

func openPebble(t *testing.T, fs disk.FS) *meta.DB {
	t.Helper()
	db, err := meta.Open(meta.Options{FS: fs, Dir: "/db", OnFatal: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func pebbleStore(t *testing.T, fs *disk.Mem) crashing {
	t.Helper()
	return crashing{quorum.NewStore(openPebble(t, fs)), func() crashing { return pebbleStore(t, fs.CrashClone(0, nil)) }}
}

// TestStores proves that both stores keep their contract: changes are made in
// order, all of a write or nothing, what is read is the reader's, and a power cut
// takes no synced write and none before one.
func TestStores(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) crashing{
		"memory": func(*testing.T) crashing { return memoryStore(quorumtest.NewStore()) },
		"pebble": func(t *testing.T) crashing { t.Helper(); return pebbleStore(t, disk.NewMem()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			save := func(sync bool, changes ...quorum.Change) {
				t.Helper()
				if err := s.Save(quorum.Write{Changes: changes, Sync: sync}); err != nil {
					t.Fatal(err)
				}
			}
			set := func(key, value string) quorum.Change { return quorum.Change{Key: []byte(key), Value: []byte(value)} }
			want := func(s quorum.Store, all string) {
				t.Helper()
				got := ""
				err := s.Scan([]byte("Q"), func(key, value []byte) error {
					got += fmt.Sprintf("%s=%s ", key, value)
					return nil
				})
				if err != nil || got != all {
					t.Errorf("%q, want %q: %v", got, all, err)
				}
			}
			save(true)
			save(false, set("Qb", "1"), set("Qa", "2"), set("R", "x"), set("Qc", ""), quorum.Change{Key: []byte("Qb")}, set("Qb", "3"))
			want(s, "Qa=2 Qb=3 Qc= ")
			save(true, set("Qd", "4"))
			save(false, quorum.Change{Key: []byte("Qa"), To: []byte("Qc")}, set("Qb", "5"))
			save(false, quorum.Change{Key: []byte("Qc")})
			want(s, "Qb=5 Qd=4 ")
			want(s.cut(), "Qa=2 Qb=3 Qc= Qd=4 ")
			value, err := s.Get([]byte("Qb"))
			if err != nil || string(value) != "5" {
				t.Fatalf("%q, %v", value, err)
			}
			value[0] = 'x'
			want(s, "Qb=5 Qd=4 ")
			if _, err := s.Get([]byte("Qc")); !errors.Is(err, quorum.ErrNotFound) {
				t.Errorf("a key that is gone: %v", err)
			}
			stop := errors.New("stop")
			n := 0
			if err := s.Scan([]byte("Q"), func(_, _ []byte) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
				t.Errorf("a scan that was stopped: %v after %d", err, n)
			}
			save(true)
			want(s.cut(), "Qb=5 Qd=4 ")
		})
	}
}

// pebbleNode is an only member over Pebble on a disk that can crash.
type pebbleNode struct {
	db      *meta.DB
	store   quorum.Store
	core    *quorum.Core
	machine *quorumtest.Machine
}

func openNode(t *testing.T, fs disk.FS) *pebbleNode {
	t.Helper()
	n := &pebbleNode{db: openPebble(t, fs)}
	n.store = quorum.NewStore(n.db)
	var err error
	if n.machine, err = quorumtest.OpenMachine(n.store); err != nil {
		t.Fatal(err)
	}
	if n.core, err = quorum.Open(quorum.Options{ID: 1, Voters: []uint64{1}, KeepEntries: 5}, n.store, n.machine); err != nil {
		t.Fatal(err)
	}
	return n
}

// work returns what has ended; saves are real.
func (n *pebbleNode) work() (ended []quorum.Ended) {
	for w, ok := n.core.Work(); ok; w, ok = n.core.Work() {
		if err := n.store.Save(w); err != nil {
			return append(ended, n.core.Failed(err).Ended...)
		}
		ended = append(ended, n.core.Done(0).Ended...)
	}
	return ended
}

func (n *pebbleNode) propose(t *testing.T, i int) quorum.Outcome {
	t.Helper()
	if err := n.core.Propose(pid(byte(i+1)), fmt.Append(nil, i)); err != nil {
		t.Fatal(err)
	}
	ended := n.work()
	if len(ended) != 1 {
		t.Fatalf("%+v", ended)
	}
	return ended[0].Outcome
}

// TestPebblePowerCuts proves, over the real store on a disk that loses, reorders and
// tears what was not synced, that whenever the power is cut the log, the state and
// the applied index still fit together, and everything is there that was told to be
// committed.
func TestPebblePowerCuts(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	rng := rand.New(rand.NewPCG(1, 1))
	fs := disk.NewMem()
	type cut struct {
		fs   *disk.Mem
		told int
	}
	var cuts []cut
	told := 0
	fs.SetFault(func(op disk.Op) error {
		if op.Kind.Changes() {
			for _, keep := range []float64{0, 0.5, 1} {
				cuts = append(cuts, cut{fs.CrashClone(keep, rng), told})
			}
		}
		return nil
	})
	n := openNode(t, fs)
	_ = n.core.Campaign()
	n.work()
	for ; told < 40; told++ {
		if n.propose(t, told) != quorum.Committed {
			t.Fatal("it is not committed")
		}
	}
	fs.SetFault(nil)
	for i, c := range cuts {
		db, err := meta.Open(meta.Options{FS: c.fs, Dir: "/db", OnFatal: func(error) {}})
		if err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		store := quorum.NewStore(db)
		if err := quorum.Check(store); err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		m, err := quorumtest.OpenMachine(store)
		if err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		if got := len(m.Entries); got < c.told || got > c.told+1 {
			t.Fatalf("cut %d: %d proposals are there, %d were told to be committed", i, got, c.told)
		}
		if _, err := quorum.Open(quorum.Options{ID: 1, Voters: []uint64{1}}, store, m); err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		_ = db.Close()
	}
	if len(cuts) < 200 {
		t.Errorf("%d cuts", len(cuts))
	}
}

// TestPebbleFails proves that a commit that fails for good, by a write or by a sync,
// has an unknown outcome and ends the node, and that after a start it is there with
// its state or not at all, and the log goes on.
func TestPebbleFails(t *testing.T) {
	for name, kinds := range map[string][]disk.OpKind{"write": {disk.OpWrite}, "sync": {disk.OpSync, disk.OpSyncData}} {
		t.Run(name, func(t *testing.T) {
			fs := disk.NewMem()
			n := openNode(t, fs)
			_ = n.core.Campaign()
			n.work()
			for i := range 5 {
				n.propose(t, i)
			}
			fs.SetFault(func(op disk.Op) error {
				if slices.Contains(kinds, op.Kind) {
					return syscall.EIO
				}
				return nil
			})
			if got := n.propose(t, 5); got != quorum.Unknown {
				t.Errorf("it ended as %d", got)
			}
			fs.SetFault(nil)
			if err := n.core.Propose(pid(99), nil); !errors.Is(err, quorum.ErrFailed) || !errors.Is(err, meta.ErrFailed) {
				t.Errorf("afterwards: %v", err)
			}
			again := openNode(t, fs.CrashClone(0, nil))
			if got := len(again.machine.Entries); got != 5 && got != 6 {
				t.Errorf("%d proposals are there", got)
			}
			_ = again.core.Campaign()
			again.work()
			if again.propose(t, 5) != quorum.Committed || len(again.machine.Entries) != 6 {
				t.Errorf("made again it is applied as one of %d", len(again.machine.Entries))
			}
		})
	}
}
