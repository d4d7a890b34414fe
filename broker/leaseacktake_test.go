package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"leat/auth"
	"leat/storage/disk"
)

// ackAndTake is a take with acks.
func (w *worker) ackAndTake(r LeaseRequest, ids ...string) ([]Lease, []LeaseAck) {
	w.Helper()
	leases, acks, err := w.b.AckAndTakeLeases(w.Context(), auth.Anonymous, w.group, &r, ids)
	if err != nil {
		w.Fatal(err)
	}
	for i := range leases {
		w.Cleanup(leases[i].Section.Release)
	}
	return leases, acks
}

// Acks that come with a take are committed when it is answered, and told one by
// one: done, done before, lost, no lease at all. None of them keeps the take from
// its work, which may be the partition that was acked.
func TestAckAndTake(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	w := &worker{t, b, "g"}
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	r := LeaseRequest{Topics: []string{"orders"}, MaxRecords: 1}
	first := w.takeOne(r)
	for offset := int64(1); offset < 3; offset++ {
		before := rounds(t, b)
		leases, acks := w.ackAndTake(r, first.ID, "x", first.ID, first.ID[:40]+"AAAA"+first.ID[44:])
		if len(leases) != 1 || leases[0].First != offset || leases[0].Deliveries != 1 {
			t.Fatalf("%+v", leases)
		}
		if len(acks) != 4 || acks[0].Err != nil || acks[0].State.Committed != offset || acks[0].State.AlreadyCommitted || acks[0].ID != first.ID ||
			!errors.Is(acks[1].Err, ErrBadLease) || acks[2].Err != nil || !acks[2].State.AlreadyCommitted || !errors.Is(acks[3].Err, ErrLeaseLost) {
			t.Fatalf("%+v", acks)
		}
		if got := rounds(t, b) - before; got != 1 {
			t.Errorf("%d batches were written, want 1", got)
		}
		if got := fetchOne(t, b, "g", "orders", 0); got != offset {
			t.Fatalf("committed %d", got)
		}
		first = leases[0]
	}
	// Nothing is left: the acks are done all the same.
	if leases, acks := w.ackAndTake(r, first.ID); len(leases) != 0 || len(acks) != 1 || acks[0].Err != nil || acks[0].State.Committed != 3 {
		t.Fatalf("%+v, %+v", leases, acks)
	}
	if got := fetchOne(t, b, "g", "orders", 0); got != 3 {
		t.Fatalf("committed %d", got)
	}
	// A group that nobody has heard of has no leases, and is one from then on.
	other := &worker{t, b, "other"}
	if leases, acks := other.ackAndTake(r, first.ID); len(leases) != 1 || len(acks) != 1 || !errors.Is(acks[0].Err, ErrLeaseLost) {
		t.Fatalf("%+v, %+v", leases, acks)
	}
	if _, _, err := b.AckAndTakeLeases(t.Context(), auth.Anonymous, "g", &r, make([]string, MaxLeases+1)); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("too many: %v", err)
	}
}

// rounds is how many batches of changes of groups were committed.
func rounds(t *testing.T, b *Broker) uint64 {
	t.Helper()
	var m dto.Metric
	if err := b.metrics.groups.roundSeconds.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

// A take that waits does not hold its acks back, and tells of them when it ends,
// also by the end of its context, which is how a server drains.
func TestAckAndTakeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, disk.NewMem(), quickGroups)
		create(t, b, "orders", 1, nil)
		w := &worker{t, b, "g"}
		for _, drain := range []bool{false, true} {
			produce(t, b, AcksAll, "orders", 0, "a")
			r := LeaseRequest{Topics: []string{"orders"}}
			l := w.takeOne(r)
			r.Wait = MaxLeaseWait
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				leases, acks, err := b.AckAndTakeLeases(ctx, auth.Anonymous, "g", &r, []string{l.ID})
				if drain != errors.Is(err, context.Canceled) || len(leases) > 0 || len(acks) != 1 || acks[0].Err != nil || acks[0].State.Committed != l.Next {
					t.Errorf("drain %v: %+v, %+v, %v", drain, leases, acks, err)
				}
			}()
			time.Sleep(time.Second)
			if got := fetchOne(t, b, "g", "orders", 0); got != l.Next {
				t.Errorf("committed %d while it waits, want %d", got, l.Next)
			}
			if drain {
				cancel()
			}
			<-done
			cancel()
		}
	})
}

// A take whose context is over before it begins has its acks done.
func TestAckAndTakeTooLate(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	w := &worker{t, b, "g"}
	produce(t, b, AcksAll, "orders", 0, "a", "b")
	r := LeaseRequest{Topics: []string{"orders"}, MaxRecords: 1}
	l := w.takeOne(r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	leases, acks, err := b.AckAndTakeLeases(ctx, auth.Anonymous, "g", &r, []string{l.ID})
	if !errors.Is(err, context.Canceled) || len(leases) > 0 || len(acks) != 1 || acks[0].Err != nil || acks[0].State.Committed != 1 {
		t.Fatalf("%+v, %+v, %v", leases, acks, err)
	}
	if got := w.takeOne(r); got.First != 1 {
		t.Fatalf("%+v", got)
	}
}
