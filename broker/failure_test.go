package broker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
	"leat/storage/record"
)

// When a sync fails, whoever waits is told at once and not left to its timeout:
// the process is about to end.
func TestDiskFailureEndsWaits(t *testing.T) {
	fs, failed := disk.NewMem(), make(chan error, 1)
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", OnFailure: func(err error) { failed <- err }})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	broken := make(chan struct{})
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSyncData && strings.HasPrefix(op.Path, "/data/logs/") {
			<-broken
			return syscall.EIO
		}
		return nil
	})
	pr := b.Produce(t.Context(), auth.Anonymous, &ProduceRequest{
		Acks: AcksAll, Timeout: time.Hour, Batches: []ProduceBatch{{Topic: "t", Batch: batch(t, "v")}},
	})
	fetched := make(chan FetchResult)
	go func() {
		fetched <- b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{
			MaxWait: time.Hour, MinBytes: 1, MaxBytes: 1, Partitions: []FetchPartition{{Topic: "t", Epoch: -1, MaxBytes: 1}},
		})[0]
	}()
	close(broken)
	if r := pr.Wait(t.Context())[0]; !errors.Is(r.Err, ErrStorageFailed) {
		t.Errorf("produce ended with %v", r.Err)
	}
	if r := <-fetched; !errors.Is(r.Err, ErrStorageFailed) {
		t.Errorf("fetch ended with %v", r.Err)
	}
	if err := <-failed; !errors.Is(err, syscall.EIO) {
		t.Errorf("OnFailure was told %v", err)
	}
	fs.SetFault(nil)
	if err := b.Close(); !errors.Is(err, ErrStorageFailed) {
		t.Errorf("close gave %v", err)
	}
}

// A client that goes away once the files are made leaves a topic that works.
func TestClientLeavesDuringCreate(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	ctx, cancel := context.WithCancel(t.Context())
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpList && strings.HasPrefix(op.Path, "/data/logs/") { // a log is opened
			cancel()
		}
		return nil
	})
	r := b.CreateTopics(ctx, auth.Anonymous, []TopicSpec{{Name: "t", Partitions: 3, ReplicationFactor: -1}}, false)[0]
	fs.SetFault(nil)
	if r.Err != nil || ctx.Err() == nil {
		t.Fatalf("create: %v, client: %v", r.Err, ctx.Err())
	}
	for p := range int32(3) {
		if r := produce(t, b, AcksAll, "t", p, "v"); r.Err != nil {
			t.Errorf("partition %d: %v", p, r.Err)
		}
	}
}

// Whoever meets a topic in the metadata can use it: it is not damaged while it
// is made, and gone, not damaged, for those who looked it up before it went.
func TestTopicsAreWholeOrUnknown(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	var early error
	fs.SetFault(func(disk.Op) error {
		if topic := b.proposer.State().TopicNamed("t"); topic != nil && early == nil {
			_, early = b.partition(topic, 2)
		}
		return nil
	})
	create(t, b, "t", 3, nil)
	fs.SetFault(nil)
	if early != nil {
		t.Errorf("while the topic was made: %v", early)
	}
	topic := b.proposer.State().TopicNamed("t")
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "t"}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	if _, err := b.partition(topic, 0); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("after the topic was deleted: %v", err)
	}
}

// A topic whose logs cannot be opened is not made, and can be made later.
func TestCreateFailsWhole(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	lists := 0
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpList && strings.HasPrefix(op.Path, "/data/logs/") {
			if lists++; lists == 2 {
				return syscall.EMFILE
			}
		}
		return nil
	})
	r := b.CreateTopics(t.Context(), auth.Anonymous, []TopicSpec{{Name: "t", Partitions: 3, ReplicationFactor: -1}}, false)[0]
	fs.SetFault(nil)
	if !errors.Is(r.Err, syscall.EMFILE) {
		t.Fatalf("create: %v", r.Err)
	}
	if topics, err := b.Topics(t.Context(), auth.Anonymous); err != nil || len(topics) > 0 {
		t.Errorf("topics after a create that failed: %v, %v", topics, err)
	}
	create(t, b, "t", 3, nil)
	if r := produce(t, b, AcksAll, "t", 2, "v"); r.Err != nil {
		t.Error(r.Err)
	}
}

// Partitions whose logs cannot be opened are not made, the topic stays as it was
// for those who tail it, and they can be made later.
func TestGrowthFailsWhole(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	create(t, b, "t", 1, nil)
	tail, woken := newTail(t, b, "t", true)
	drain(t, tail)
	grow := func() error {
		return b.CreatePartitions(t.Context(), auth.Anonymous, []PartitionsSpec{{Topic: "t", Count: 4}}, false)[0].Err
	}
	lists := 0
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpList && strings.HasPrefix(op.Path, "/data/logs/") {
			if lists++; lists == 2 {
				return syscall.EMFILE
			}
		}
		return nil
	})
	err := grow()
	fs.SetFault(nil)
	if !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("grow: %v", err)
	}
	if left, err := fs.List("/data/logs"); err != nil || len(left) > 3 || len(b.partitions()) != 1 || tail.Err() != nil || len(woken) != 0 {
		t.Errorf("left %v, %d partitions, tail: %v", left, len(b.partitions()), tail.Err())
	}
	if r := produce(t, b, AcksAll, "t", 0, "v"); r.Err != nil {
		t.Error(r.Err)
	}
	<-woken
	if got := drain(t, tail); len(got) != 1 {
		t.Errorf("tailed %v", got)
	}
	after := open(t, fs.CrashClone(0, nil), nil)
	for _, b = range []*Broker{b, after} {
		if err := grow(); err != nil {
			t.Errorf("grow again: %v", err)
		}
		if r := produce(t, b, AcksAll, "t", 3, "v"); r.Err != nil || r.Base != 0 {
			t.Errorf("produce: %+v", r)
		}
	}
}

// Close lets a topic change that is under way come to its end before the
// metadata store closes, and lets no other begin.
func TestCloseWaitsForChanges(t *testing.T) {
	fs := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "before", 1, nil)
	entered, slow := make(chan struct{}), make(chan struct{})
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSyncAll {
			close(entered)
			<-slow
		}
		return nil
	})
	created, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		created <- b.CreateTopics(t.Context(), auth.Anonymous, []TopicSpec{{Name: "t", Partitions: 1, ReplicationFactor: -1}}, false)[0].Err
	}()
	<-entered
	go func() { closed <- b.Close() }()
	<-b.done.Done()
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "before"}})[0]; !errors.Is(r.Err, ErrShuttingDown) {
		t.Errorf("a change after Close began: %v", r.Err)
	}
	select {
	case err := <-closed:
		t.Errorf("closed in the middle of a change: %v", err)
	default:
	}
	close(slow)
	if err := <-created; err != nil {
		t.Errorf("create: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	fs.SetFault(nil)
	if r := produce(t, open(t, fs, nil), AcksAll, "t", 0, "v"); r.Err != nil {
		t.Errorf("after a restart: %v", r.Err)
	}
}

// A partition whose files cannot be moved away does not keep the others of its
// topic; the next start removes it.
func TestDeleteGoesOn(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	create(t, b, "t", 3, nil)
	var renames atomic.Int32
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpRename && renames.Add(1) == 1 {
			return syscall.EIO
		}
		return nil
	})
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "t"}})[0]; r.Err != nil {
		t.Errorf("delete: %v", r.Err)
	}
	fs.SetFault(nil)
	if left, err := fs.List("/data/logs"); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	after := fs.CrashClone(1, nil)
	open(t, after, nil)
	if left, err := after.List("/data/logs"); err != nil || len(left) != 0 {
		t.Errorf("after a restart: left %v, %v", left, err)
	}
}

// Damage of what is stored is told from a client's bad batch, and the operator
// hears of it once.
func TestReadOfDamage(t *testing.T) {
	fs := disk.NewMem()
	var log strings.Builder
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	produce(t, b, AcksAll, "t", 0, "value")
	overwrite(t, fs, partitionOf(b, "t"), record.HeaderSize+1, 0xff)
	for range 2 {
		r := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{{Topic: "t", Timestamp: 1, Epoch: -1}})[0]
		if !errors.Is(r.Err, ErrCorruptRecord) || errors.Is(r.Err, ErrCorruptBatch) {
			t.Errorf("offset by time: %v", r.Err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "partition is damaged"); n != 1 {
		t.Errorf("the operator was told %d times: %s", n, log.String())
	}
}

// An interval of 0 is the shortest one and not the default.
func TestZeroIntervals(t *testing.T) {
	s := serverConfigs{}.settings(map[string]string{"flush.messages": "10", "flush.ms": "0", "index.interval.bytes": "0"})
	if s.log.FlushInterval != time.Millisecond || s.log.IndexInterval != 1 {
		t.Errorf("flush after %v, an index entry in %d bytes", s.log.FlushInterval, s.log.IndexInterval)
	}
}
