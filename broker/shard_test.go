package broker

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/storage/disk"
)

// Every request that waits for a busy shard is served, also when its queue is
// full and callers wait to get in.
func TestShardServesAllThatWait(t *testing.T) {
	b := groupBroker(t, disk.NewMem())
	defer func() { _ = b.Close() }()
	s, err := b.shard(t.Context(), "g", true)
	if err != nil {
		t.Fatal(err)
	}
	const requests = 3*shardQueue + 7
	busy, served := make(chan struct{}), make(chan struct{}, requests)
	if err := s.submit(t.Context(), func(time.Time) { <-busy }); err != nil {
		t.Fatal(err)
	}
	submitted := make(chan error)
	go func() {
		for range requests {
			if err := s.submit(t.Context(), func(time.Time) { served <- struct{}{} }); err != nil {
				submitted <- err
			}
		}
		close(submitted)
	}()
	for len(s.requests) < shardQueue {
		<-time.After(time.Millisecond)
	}
	close(busy)
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	late := time.After(20 * time.Second)
	for n := range requests {
		select {
		case <-served:
		case <-late:
			t.Fatalf("%d of %d requests were served", n, requests)
		}
	}
}

// TestMembersOutliveTheDisk proves that a member whose heartbeat waits behind a
// disk that hangs for longer than its session stays in its generation, and that
// one who has sent none is let go afterwards.
func TestMembersOutliveTheDisk(t *testing.T) {
	fs, clock := disk.NewMem(), &shiftedClock{}
	var looks atomic.Int64
	b, err := Open(t.Context(), Options{Path: "/data", FS: fs, Configs: quickGroups, Now: func() time.Time {
		looks.Add(1)
		return clock.now()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	create(t, b, "orders", 1, nil)
	s, err := b.shard(t.Context(), "g", true)
	if err != nil {
		t.Fatal(err)
	}
	c, silent := &groupClient{b: b, group: "g"}, &groupClient{b: b, group: sibling(t, b, "g")}
	for _, c := range []*groupClient{c, silent} {
		c.join(t)
		c.sync(t)
	}
	release := fs.Stall(func(op disk.Op) bool {
		return op.Kind == disk.OpSyncAll || op.Kind == disk.OpSyncData && strings.HasPrefix(op.Path, "/data/logs/")
	})
	defer release()
	answers := make(chan error)
	end := s.part.log.Offsets().End
	for i := range int64(maxRounds) {
		go func() { answers <- commitOne(t.Context(), b, "g", c.ref(), CommitOffset{Topic: "orders", Offset: i}) }()
		eventuallyNil(t, "a round", func() error {
			if got := s.part.log.Offsets().End; got != end+i+1 {
				return fmt.Errorf("the log ends at %d", got)
			}
			return nil
		})
	}
	go func() { answers <- b.Heartbeat(t.Context(), auth.Anonymous, "g", c.ref()) }()
	eventuallyNil(t, "the heartbeat", func() error {
		if len(s.requests) != 1 {
			return errors.New("is not there")
		}
		return nil
	})
	clock.advance(11 * time.Second)
	for seen := looks.Load(); looks.Load() < seen+10; {
		s.wake.stir(true)
		runtime.Gosched()
	}
	release()
	for range maxRounds + 1 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := b.Heartbeat(t.Context(), auth.Anonymous, "g", c.ref()); err != nil {
		t.Error(err)
	}
	eventuallyNil(t, "the silent one", func() error {
		if got := b.DescribeGroups(t.Context(), auth.Anonymous, []string{silent.group}); got[0].State != group.Empty.String() {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// sibling is another group of the same shard.
func sibling(t *testing.T, b *Broker, id string) string {
	t.Helper()
	n := int32(len(b.groups.all()))
	for i := 0; ; i++ {
		if other := fmt.Sprint(id, i); offsetsPartition(other, n) == offsetsPartition(id, n) {
			return other
		}
	}
}
