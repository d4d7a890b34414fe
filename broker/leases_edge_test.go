package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// An offset that no log will ever reach, which anybody may commit, holds up
// nobody: the take gets nothing, other groups get theirs, and a seek back brings
// the records.
func TestLeasesAtTheLastOffset(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	seek := func(offset int64) {
		t.Helper()
		s := &GroupSeek{Offsets: []CommitOffset{{Topic: "orders", Offset: offset, LeaderEpoch: -1}}}
		if _, err := b.SeekGroup(ctx, auth.Anonymous, "g", s); err != nil {
			t.Fatal(err)
		}
	}
	take := LeaseRequest{Topics: []string{"orders"}}
	for _, offset := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 40} {
		seek(offset)
		if got, err := b.TakeLeases(ctx, auth.Anonymous, "g", &take); err != nil || len(got) > 0 {
			t.Fatalf("at %d: %+v %v", offset, got, err)
		}
		other := &worker{t, b, fmt.Sprint("other of ", offset)}
		other.takeOne(take)
	}
	seek(1)
	if l := (&worker{t, b, "g"}).takeOne(take); l.First != 1 || l.Next != 2 {
		t.Errorf("after the seek back: %+v", l)
	}
}

// What is not there any more is not buried, nor what comes behind it and was
// never handed out: no dead letter is written, and the group goes on no further
// than there is nothing.
func TestNothingToBury(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	create(t, b, "dead", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	for _, c := range []struct{ from, to, next int64 }{{1, 1, 1}, {3, 3, 3}, {3, 7, 3}} {
		d := deadLetter{group: "g", topic: "dead", part: partitionOf(b, "orders"), from: c.from, to: c.to, deliveries: 9, reason: "again"}
		if next, err := b.bury(t.Context(), auth.Anonymous, &d); next != c.next || err != nil {
			t.Errorf("[%d, %d): goes on at %d, want %d: %v", c.from, c.to, next, c.next, err)
		}
	}
	d := deadLetter{group: "g", topic: "dead", part: partitionOf(b, "orders"), from: 9, to: 12}
	if _, err := b.bury(t.Context(), auth.Anonymous, &d); !errors.Is(err, ErrOffsetOutOfRange) {
		t.Errorf("beyond the end: %v", err)
	}
	if n := partitionOf(b, "dead").hw.Load(); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// The time of a record may be far off; a group is behind it for as long as it
// says, or not at all.
func TestLagOfOddTimes(t *testing.T) {
	for ts, want := range map[int64]float64{0: 1.7e9, 1 << 53: 0, math.MaxInt64: 0, 1<<62 + 12345: 0} {
		if got := age(1.7e12, ts); got != want {
			t.Errorf("time %d: %g seconds, want %g", ts, got, want)
		}
	}
}

// A group that works at its first records, and has committed none yet, is behind
// by all of them.
func TestLagBeforeTheFirstAck(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 2, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b")
	produce(t, b, AcksAll, "orders", 1, "c")
	w := &worker{t, b, "g"}
	leases := w.take(LeaseRequest{Topics: []string{"orders"}})
	if len(leases) != 2 {
		t.Fatalf("the first take got %d leases, want one of each partition", len(leases))
	}
	for i := range leases {
		if leases[i].Partition == 1 {
			w.ack(&leases[i], -1)
		}
	}
	lags, err := b.GroupLag(t.Context(), auth.Anonymous, "g", nil)
	if err != nil || len(lags) != 2 {
		t.Fatal(lags, err)
	}
	if l := lags[0]; l.Partition != 0 || l.Committed != -1 || l.Lag != 2 {
		t.Errorf("%+v, want 2 behind nothing", l)
	}
	if l := lags[1]; l.Partition != 1 || l.Committed != 1 || l.Lag != 0 {
		t.Errorf("%+v, want none behind 1", l)
	}
}
