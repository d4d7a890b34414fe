package broker

import (
	"testing"
	"time"

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
