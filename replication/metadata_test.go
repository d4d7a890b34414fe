package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/meta"
)

func openMeta(t testing.TB, fs disk.FS) *meta.DB {
	t.Helper()
	db, err := meta.Open(meta.Options{FS: fs, Dir: "/db", Logger: slog.New(slog.DiscardHandler), OnFatal: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

var node = MetadataOptions{NodeID: 1, NodeUUID: "u"}

func openMetadata(t testing.TB, db *meta.DB) *Metadata {
	t.Helper()
	m, err := OpenMetadata(t.Context(), db, node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// proposed is the error of a proposal, of whatever kind.
func proposed(ctx context.Context, m *Metadata, ev controller.Event) error {
	reply, err := m.Propose(ctx, ev)
	return errors.Join(append(reply.Errs, err)...)
}

func propose(t testing.TB, m *Metadata, ev controller.Event) {
	t.Helper()
	if err := proposed(t.Context(), m, ev); err != nil {
		t.Fatal(err)
	}
}

// What was proposed is there after a power cut, and what was removed is not.
func TestMetadataSurvivesPowerCut(t *testing.T) {
	fs := disk.NewMem()
	m := openMetadata(t, openMeta(t, fs))
	propose(t, m, register("a"))
	for i := range 10 {
		propose(t, m, creation(fmt.Sprint("t", i)))
	}
	gone := m.State().TopicNamed("t3").ID
	propose(t, m, &controller.DeleteTopics{IDs: []storage.TopicID{gone}})
	m = openMetadata(t, openMeta(t, fs.CrashClone(0, nil)))
	s := m.State()
	if len(s.Topics()) != 9 || s.TopicNamed("t3") != nil || !s.Dying(gone) {
		t.Errorf("%d topics, t3 %v, dying %v", len(s.Topics()), s.TopicNamed("t3"), s.Dying(gone))
	}
	for _, topic := range s.Topics() {
		if topic.Partitions.Len() != 2 || topic.Configs["retention.ms"] != "5" {
			t.Errorf("topic %+v", topic)
		}
	}
	propose(t, m, restart(m.State(), "b"))
	if b, _ := m.State().Broker(1); b.Epoch != 2 || m.Controller() != 1 {
		t.Errorf("broker %+v, controller %d", b, m.Controller())
	}
}

// logLength counts the entries of the log that are stored.
func logLength(t *testing.T, db *meta.DB) (n int) {
	t.Helper()
	if err := db.Scan([]byte{meta.PrefixQuorum, 'L'}, func(_, _ []byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// A thousand proposals more cost the store no more memory than their bytes, and the
// log is as long as it was; what one process does not remove the next one does.
func TestMetadataLogIsBounded(t *testing.T) {
	db := openMeta(t, disk.NewMem())
	m := openMetadata(t, db)
	more := func(n int) {
		t.Helper()
		for range n {
			propose(t, m, &controller.AllocateProducerIDs{Count: 1})
		}
	}
	heap := func() int64 {
		t.Helper()
		if _, err := db.Get(meta.AppliedKey()); err != nil { // the store makes up its mind about ranges
			t.Fatal(err)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	more(1100)
	before := heap()
	more(1000)
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the store has %d KiB more", grown>>10)
	}
	for range 3 {
		if n := logLength(t, db); n != 1024 {
			t.Errorf("%d entries are kept, want 1024", n)
		}
		m.Close()
		m = openMetadata(t, db)
		more(10)
	}
	if m.Hash().Index != 2000 {
		t.Errorf("the hash is of %d", m.Hash().Index)
	}
}

// Metadata of a newer binary, of another node, and what cannot be, is refused.
func TestMetadataRefuses(t *testing.T) {
	for name, change := range map[string]func(b *meta.Batch){
		"a newer record":   func(b *meta.Batch) { b.Set(meta.StateKey([]byte("future")), []byte{250, 0}) },
		"no applied index": func(b *meta.Batch) { b.Delete(meta.AppliedKey()) },
		"a short index":    func(b *meta.Batch) { b.Set(meta.AppliedKey(), []byte{1}) },
		"no term":          func(b *meta.Batch) { b.Delete([]byte{meta.PrefixQuorum, 'H'}) },
		"a hash of what":   func(b *meta.Batch) { b.Set(meta.StateHashKey(), []byte("what")) },
	} {
		db := openMeta(t, disk.NewMem())
		m := openMetadata(t, db)
		propose(t, m, register("a"))
		m.Close()
		b := db.NewBatch()
		change(b)
		if err := db.Commit(b); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenMetadata(t.Context(), db, node); !IsDamaged(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := CheckMetadata(db); !IsDamaged(err) {
			t.Errorf("%s: the check says %v", name, err)
		}
	}
	db := openMeta(t, disk.NewMem())
	m := openMetadata(t, db)
	propose(t, m, register("a"))
	m.Close()
	if err := CheckMetadata(db); err != nil {
		t.Errorf("the check of what is right says %v", err)
	}
	if _, err := OpenMetadata(t.Context(), db, MetadataOptions{NodeID: 1, NodeUUID: "v"}); !IsDamaged(err) {
		t.Errorf("another node's: %v", err)
	}
}

// A commit that failed is not shown, its outcome is unknown, and nothing is
// proposed after it.
func TestMetadataStopsAfterFailure(t *testing.T) {
	fs := disk.NewMem()
	m := openMetadata(t, openMeta(t, fs))
	propose(t, m, register("a"))
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSync || op.Kind == disk.OpSyncData {
			return syscall.EIO
		}
		return nil
	})
	if err := proposed(t.Context(), m, creation("lost")); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, meta.ErrFailed) {
		t.Errorf("a commit without a sync: %v", err)
	}
	fs.SetFault(nil)
	if err := proposed(t.Context(), m, creation("after")); !errors.Is(err, meta.ErrFailed) || len(m.State().Topics()) != 0 {
		t.Errorf("after a failure: %v, %d topics", err, len(m.State().Topics()))
	}
}

// Proposals from many goroutines are all decided, and share the syncs of the disk.
func TestMetadataTogether(t *testing.T) {
	fs := disk.NewMem()
	var syncs atomic.Int64
	m := openMetadata(t, openMeta(t, fs))
	hold := make(chan struct{})
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSyncData {
			syncs.Add(1)
			<-hold
		}
		return nil
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int64]bool{}
	for range 50 {
		wg.Go(func() {
			reply, err := m.Propose(t.Context(), &controller.AllocateProducerIDs{Count: 10})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[reply.First] {
				t.Errorf("%+v, %v", reply, err)
			}
			seen[reply.First] = true
		})
	}
	close(hold)
	wg.Wait()
	fs.SetFault(nil)
	if len(seen) != 50 || syncs.Load() > 50 {
		t.Errorf("%d proposals, %d syncs", len(seen), syncs.Load())
	}
}

// hang has the disk hang at its next sync, of which hanging tells, until goOn.
func hang(fs *disk.Mem) (hanging <-chan struct{}, goOn func()) {
	began, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSyncData {
			once.Do(func() { close(began) })
			<-hold
		}
		return nil
	})
	return began, func() { close(hold) }
}

// A disk that hangs holds up what is proposed, and nothing else: the node leads in
// the same term when it answers, and who waits for a turn ends with its context.
func TestMetadataWaitsForTheDisk(t *testing.T) {
	fs := disk.NewMem()
	m := openMetadata(t, openMeta(t, fs))
	propose(t, m, register("a"))
	term := m.Status().Term
	hanging, goOn := hang(fs)
	done := make(chan error)
	go func() { done <- proposed(t.Context(), m, creation("slow")) }()
	<-hanging
	if m.State().TopicNamed("slow") != nil {
		t.Error("a topic is shown before it is on the disk")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := proposed(ctx, m, creation("never")); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with an ended context: %v", err)
	}
	goOn()
	if err := <-done; err != nil {
		t.Error(err)
	}
	propose(t, m, creation("next"))
	if s := m.Status(); s.Term != term || !s.Active || m.State().TopicNamed("never") != nil || len(m.State().Topics()) != 2 {
		t.Errorf("term %d, active %t, %d topics", s.Term, s.Active, len(m.State().Topics()))
	}
}

// What is refused for lack of room changes nothing and is not the end. A broker
// can register all the same, or a server could not start on a full disk.
func TestMetadataGoesOnAfterRefusal(t *testing.T) {
	var refuse atomic.Bool
	db, err := meta.Open(meta.Options{FS: disk.NewMem(), Dir: "/db", Room: func(int64) error {
		if refuse.Load() {
			return storage.ErrFull
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	m := openMetadata(t, db)
	refuse.Store(true)
	propose(t, m, register("a"))
	if err := proposed(t.Context(), m, creation("a")); !errors.Is(err, storage.ErrFull) || m.State().TopicNamed("a") != nil {
		t.Errorf("propose: %v", err)
	}
	refuse.Store(false)
	propose(t, m, creation("b"))
	m.Close()
	if s := openMetadata(t, db).State(); s.TopicNamed("a") != nil || s.TopicNamed("b") == nil {
		t.Error("the wrong topics")
	}
}

// A start of an only node syncs once: term, vote, the entry of the term and the
// registration are one.
func TestMetadataStartSyncsOnce(t *testing.T) {
	fs := disk.NewMem()
	db := openMeta(t, fs)
	for i := range 3 {
		var syncs atomic.Int64
		fs.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpSyncData || op.Kind == disk.OpSync {
				syncs.Add(1)
			}
			return nil
		})
		m := openMetadata(t, db)
		if n := syncs.Load(); n != 0 {
			t.Errorf("start %d: %d syncs before the registration", i, n)
		}
		propose(t, m, restart(m.State(), fmt.Sprint("life", i)))
		if n := syncs.Load(); n != 1 {
			t.Errorf("start %d: %d syncs", i, n)
		}
		fs.SetFault(nil)
		m.Close()
	}
}

// A power cut at any operation leaves metadata that opens and has all that was
// answered, of stores that are new and of those that earlier versions have left;
// what is read without a quorum is the same.
func TestMetadataPowerCuts(t *testing.T) {
	for _, from := range []string{"", "level1", "level2"} {
		fs := disk.NewMem()
		o := node
		if from != "" {
			o.NodeUUID = preload(t, fs, from)
		}
		power := disktest.CutEverywhere(fs, 0, 0.5)
		reg := func(s *controller.State) *controller.Register {
			r := restart(s, "a")
			r.UUID = o.NodeUUID
			return r
		}
		for range 2 {
			db := openMeta(t, fs)
			m, err := OpenMetadata(t.Context(), db, o)
			if err != nil {
				t.Fatal(err)
			}
			propose(t, m, reg(m.State()))
			for range 3 {
				propose(t, m, creation(fmt.Sprint("t", power.Done())))
				power.Did()
			}
			m.Close()
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		cuts := power.End()
		for i, c := range cuts {
			db := openMeta(t, c.FS)
			read, err := ReadState(db)
			if err != nil {
				t.Fatalf("%s: cut %d before %s: %v", from, i, c.Op, err)
			}
			m, err := OpenMetadata(t.Context(), db, o)
			if err != nil {
				t.Fatalf("%s: cut %d before %s: %v", from, i, c.Op, err)
			}
			for _, s := range []*controller.State{read, m.State()} {
				for n := range c.Done {
					if s.TopicNamed(fmt.Sprint("t", n)) == nil {
						t.Fatalf("%s: cut %d before %s: topic %d is missing", from, i, c.Op, n)
					}
				}
				if from != "" && s.TopicNamed("orders") == nil {
					t.Fatalf("%s: cut %d before %s: an old topic is missing", from, i, c.Op)
				}
			}
			propose(t, m, reg(m.State()))
			m.Close()
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if len(cuts) < 50 {
			t.Errorf("%s: only %d cuts", from, len(cuts))
		}
	}
}

// preload makes the store of an earlier version, and returns its node's uuid.
func preload(t *testing.T, fs disk.FS, name string) (uuid string) {
	t.Helper()
	old := fixture(t, name)
	state, err := ReadState(old)
	if err != nil {
		t.Fatal(err)
	}
	broker, _ := state.Broker(1)
	db := openMeta(t, fs)
	b := db.NewBatch()
	for k, v := range old {
		b.Set([]byte(k), []byte(v))
	}
	if err := errors.Join(db.Commit(b), db.Close()); err != nil {
		t.Fatal(err)
	}
	return broker.UUID
}

// A store of an earlier version goes on with its index as a snapshot of term 1:
// only what changes is written, and the old log goes.
func TestMetadataTakesOver(t *testing.T) {
	for level, applied := range map[string]uint64{"level1": 16, "level2": 41} {
		fs := disk.NewMem()
		o := node
		o.NodeUUID = preload(t, fs, level)
		db := openMeta(t, fs)
		m, err := OpenMetadata(t.Context(), db, o)
		if err != nil {
			t.Fatal(err)
		}
		if s := m.Status(); s.Applied != applied+1 || s.First != applied+1 || s.Term != 2 {
			t.Errorf("%s: applied %d, first %d, term %d", level, s.Applied, s.First, s.Term)
		}
		now := keys{}
		for _, prefix := range "LSB" {
			if err := db.Scan([]byte{byte(prefix)}, func(k, v []byte) error { now.Set(k, v); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		for k, v := range fixture(t, level) {
			if kept := strings.HasPrefix(k, "S") || strings.HasPrefix(k, "B"); kept != (now[k] == v) {
				t.Errorf("%s: key %q: kept %t", level, k, !kept)
			}
		}
		r := restart(m.State(), "a")
		r.UUID = o.NodeUUID
		propose(t, m, r)
		if s := m.State(); s.Level() != controller.Level || s.TopicNamed("orders").Partitions.At(0).Leader != 1 {
			t.Errorf("%s: level %d, %+v", level, s.Level(), s.TopicNamed("orders").Partitions)
		}
		m.Close()
		state := m.State()
		if m = openMetadataOf(t, db, o); m.State().Hash() != state.Hash() {
			t.Errorf("%s: another state after the next start", level)
		}
	}
}

func openMetadataOf(t *testing.T, db *meta.DB, o MetadataOptions) *Metadata {
	t.Helper()
	m, err := OpenMetadata(t.Context(), db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// Whoever has a proposal under way when the metadata is closed hears of it.
func TestMetadataClose(t *testing.T) {
	m := openMetadata(t, openMeta(t, disk.NewMem()))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for n := 0; ; n++ {
				err := proposed(t.Context(), m, &controller.AllocateProducerIDs{Count: 1})
				if errors.Is(err, quorum.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				if i == 0 && n == 3 {
					go m.Close()
				}
			}
		})
	}
	wg.Wait()
	m.Close()
}
