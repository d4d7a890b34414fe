package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"leat/replication/controller"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/meta"
)

func openMeta(t *testing.T, fs disk.FS) *meta.DB {
	t.Helper()
	db, err := meta.Open(meta.Options{FS: fs, Dir: "/db", Logger: slog.New(slog.DiscardHandler), OnFatal: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openLocal(t *testing.T, db *meta.DB) *Local {
	t.Helper()
	l, err := OpenLocal(db)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func topic(name string) *controller.CreateTopics {
	return &controller.CreateTopics{Topics: []controller.NewTopic{{
		ID: storage.NewTopicID(), Name: name, Partitions: 2, Replication: 1, Configs: map[string]string{"retention.ms": "5"},
	}}}
}

func propose(t *testing.T, l *Local, ev controller.Event) {
	t.Helper()
	reply, err := l.Propose(t.Context(), ev)
	if err = errors.Join(append(reply.Errs, err)...); err != nil {
		t.Fatal(err)
	}
}

// What was proposed is there after a power cut, and what was removed is not.
func TestLocalSurvivesPowerCut(t *testing.T) {
	fs := disk.NewMem()
	l := openLocal(t, openMeta(t, fs))
	propose(t, l, &controller.Register{ID: 1, UUID: "u", MaxLevel: controller.Level, ReadyNow: true})
	for i := range 10 {
		propose(t, l, topic(fmt.Sprint("t", i)))
	}
	gone := l.State().TopicNamed("t3").ID
	propose(t, l, &controller.DeleteTopics{IDs: []storage.TopicID{gone}})
	l = openLocal(t, openMeta(t, fs.CrashClone(0, nil)))
	s := l.State()
	if len(s.Topics()) != 9 || s.TopicNamed("t3") != nil || !s.Dying(gone) {
		t.Errorf("%d topics, t3 %v, dying %v", len(s.Topics()), s.TopicNamed("t3"), s.Dying(gone))
	}
	for _, topic := range s.Topics() {
		if len(topic.Partitions) != 2 || topic.Configs["retention.ms"] != "5" {
			t.Errorf("topic %+v", topic)
		}
	}
	propose(t, l, topic("t3"))
	if l.State().TopicNamed("t3").ID == gone {
		t.Error("the id came back")
	}
}

// The log of metadata has an entry for each record, is bounded, and its index
// goes on after a restart.
func TestLocalLog(t *testing.T) {
	fs := disk.NewMem()
	db := openMeta(t, fs)
	l := openLocal(t, db)
	propose(t, l, &controller.Register{ID: 1, UUID: "u", MaxLevel: controller.Level, ReadyNow: true})
	for range logKept {
		propose(t, l, &controller.AllocateProducerIDs{Count: 1})
	}
	first, last, n := uint64(0), uint64(0), 0
	err := db.Scan([]byte{meta.PrefixLog}, func(key, value []byte) error {
		index, ok := meta.LogIndex(key)
		if !ok {
			t.Errorf("key %q", key)
		}
		if n == 0 {
			first = index
		} else if index != last+1 {
			t.Errorf("entry %d follows %d", index, last)
		}
		last = index
		n++
		_, err := controller.Decode(value)
		return err
	})
	if err != nil || n != logKept || last != logKept+2 || first != 3 {
		t.Errorf("%d entries from %d to %d: %v", n, first, last, err)
	}
	l = openLocal(t, db)
	if l.index != last {
		t.Errorf("index %d after opening, want %d", l.index, last)
	}
}

// A thousand proposals more cost the store no more memory than their bytes, and
// what a process does not remove the next one does.
func TestLocalLogTrims(t *testing.T) {
	db := openMeta(t, disk.NewMem())
	l := openLocal(t, db)
	propose(t, l, &controller.Register{ID: 1, UUID: "u", MaxLevel: controller.Level, ReadyNow: true})
	more := func(n int) {
		t.Helper()
		for range n {
			propose(t, l, &controller.AllocateProducerIDs{Count: 1})
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
	more(logKept)
	before := heap()
	more(1000)
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the store has %d KiB more", grown>>10)
	}
	for range 2 {
		l = openLocal(t, db)
		more(10)
		n := 0
		if err := db.Scan([]byte{meta.PrefixLog}, func(_, _ []byte) error { n++; return nil }); err != nil || n != logKept {
			t.Errorf("%d entries are kept, want %d: %v", n, logKept, err)
		}
	}
}

// Metadata of a newer binary is refused.
func TestLocalRefusesNewer(t *testing.T) {
	db := openMeta(t, disk.NewMem())
	b := db.NewBatch()
	b.Set(meta.StateKey([]byte("future")), []byte{250, 0})
	if err := db.Commit(b); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLocal(db); !errors.Is(err, controller.ErrUnknownRecord) {
		t.Errorf("OpenLocal = %v", err)
	}
}

// A commit that failed is not shown, and nothing is proposed after it.
func TestLocalStopsAfterFailure(t *testing.T) {
	fs := disk.NewMem()
	l := openLocal(t, openMeta(t, fs))
	propose(t, l, &controller.Register{ID: 1, UUID: "u", MaxLevel: controller.Level, ReadyNow: true})
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSync || op.Kind == disk.OpSyncData {
			return syscall.EIO
		}
		return nil
	})
	if _, err := l.Propose(t.Context(), topic("lost")); err == nil {
		t.Fatal("a commit without a sync was reported as done")
	}
	fs.SetFault(nil)
	if _, err := l.Propose(t.Context(), topic("after")); err == nil || len(l.State().Topics()) != 0 {
		t.Errorf("after a failure: %v, %d topics", err, len(l.State().Topics()))
	}
}

// Proposals from many goroutines are made one after the other, and one that
// waits for its turn ends with its context.
func TestLocalTurns(t *testing.T) {
	l := openLocal(t, openMeta(t, disk.NewMem()))
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int64]bool{}
	for range 50 {
		wg.Go(func() {
			reply, err := l.Propose(t.Context(), &controller.AllocateProducerIDs{Count: 10})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[reply.First] {
				t.Errorf("%+v, %v", reply, err)
			}
			seen[reply.First] = true
		})
	}
	wg.Wait()
	<-l.turn
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Propose(ctx, topic("t")); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with an ended context: %v", err)
	}
	l.turn <- struct{}{}
}

// A commit that was refused for lack of room changes nothing and is not the end:
// the next one is made.
func TestLocalGoesOnAfterRefusal(t *testing.T) {
	var refuse error
	db, err := meta.Open(meta.Options{FS: disk.NewMem(), Dir: "/db", Room: func(int64) error { return refuse }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	l := openLocal(t, db)
	propose(t, l, &controller.Register{ID: 1, UUID: "u", MaxLevel: controller.Level, ReadyNow: true})
	propose(t, l, topic("a"))
	refuse = storage.ErrFull
	if _, err := l.Propose(t.Context(), topic("b")); !errors.Is(err, storage.ErrFull) || l.State().TopicNamed("b") != nil {
		t.Errorf("propose: %v", err)
	}
	refuse = nil
	propose(t, l, topic("b"))
	if s := openLocal(t, db).State(); s.TopicNamed("a") == nil || s.TopicNamed("b") == nil {
		t.Error("a topic is missing")
	}
}
