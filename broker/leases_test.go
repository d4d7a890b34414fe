package broker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// worker takes leases of one group by hand.
type worker struct {
	*testing.T
	b     *Broker
	group string
}

// take returns what a take gets; the sections are released with the test.
func (w *worker) take(r LeaseRequest) []Lease {
	w.Helper()
	leases, err := w.b.TakeLeases(w.Context(), auth.Anonymous, w.group, &r)
	if err != nil {
		w.Fatal(err)
	}
	for i := range leases {
		w.Cleanup(leases[i].Section.Release)
	}
	return leases
}

func (w *worker) takeOne(r LeaseRequest) Lease {
	w.Helper()
	leases := w.take(r)
	if len(leases) != 1 {
		w.Fatalf("%d leases, want 1: %+v", len(leases), leases)
	}
	return leases[0]
}

func (w *worker) ack(l *Lease, upto int64) LeaseState {
	w.Helper()
	s, err := w.b.AckLease(w.Context(), auth.Anonymous, w.group, l.ID, upto)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// A take leases what is there and nobody else gets it; an ack commits it, in
// parts too; what was acked may be acked again.
func TestLeases(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 2, nil)
	w := &worker{t, b, "g"}
	if got := w.take(LeaseRequest{Topics: []string{"orders"}}); len(got) != 0 {
		t.Fatalf("leases of nothing: %+v", got)
	}
	produce(t, b, AcksAll, "orders", 1, "a", "b", "c", "d")
	l := w.takeOne(LeaseRequest{Topics: []string{"orders"}})
	if l.First != 0 || l.Next != 4 || l.Partition != 1 || l.Deliveries != 1 || l.Topic != "orders" {
		t.Fatalf("%+v", l)
	}
	if got := w.take(LeaseRequest{Topics: []string{"orders"}}); len(got) != 0 {
		t.Fatalf("a second lease: %+v", got)
	}
	if s := w.ack(&l, 2); !s.Live || s.First != 2 || s.Committed != 2 || s.AlreadyCommitted {
		t.Fatalf("ack of a part: %+v", s)
	}
	if s := w.ack(&l, 1); !s.AlreadyCommitted || s.Committed != 2 {
		t.Fatalf("the same again, and less: %+v", s)
	}
	if _, err := b.AckLease(t.Context(), auth.Anonymous, "g", l.ID, 5); !errors.Is(err, ErrInvalidRequest) {
		t.Fatalf("ack beyond: %v", err)
	}
	if s := w.ack(&l, -1); s.Live || s.Committed != 4 {
		t.Fatalf("ack: %+v", s)
	}
	if s := w.ack(&l, -1); !s.AlreadyCommitted || s.Committed != 4 {
		t.Fatalf("ack again: %+v", s)
	}
	if got := fetchOne(t, b, "g", "orders", 1); got != 4 {
		t.Fatalf("committed %d", got)
	}
	for id, want := range map[string]error{
		"": ErrBadLease, "x": ErrBadLease, l.ID + "A": ErrBadLease, l.ID[:len(l.ID)-1] + "!": ErrBadLease,
		"AA" + l.ID[2:]: ErrBadLease, l.ID[:40] + "AAAA" + l.ID[44:]: ErrLeaseLost,
	} {
		if _, err := b.AckLease(t.Context(), auth.Anonymous, "g", id, -1); !errors.Is(err, want) {
			t.Errorf("id %q: %v, want %v", id, err, want)
		}
	}
	if _, err := b.AckLease(t.Context(), auth.Anonymous, "other", l.ID, -1); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("of another group: %v", err)
	}
}

// A lease that lives survives a clean stop and a power cut: it can be acked, and
// nobody else gets the partition; so does what was acked last, and that the group
// is one of leases.
func TestLeasesSurvive(t *testing.T) {
	fs := disk.NewMem()
	b := groupBroker(t, fs)
	create(t, b, "orders", 1, nil)
	w := &worker{t, b, "g"}
	for round, how := range []string{"clean", "cut", "clean", "cut"} {
		produce(t, b, AcksAll, "orders", 0, "a", "b")
		leases, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &LeaseRequest{Topics: []string{"orders"}, MaxRecords: 1, Lease: MaxLease})
		if err != nil || len(leases) != 1 {
			t.Fatal(leases, err)
		}
		l := leases[0]
		l.Section.Release()
		if how == "clean" {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			clone := fs.CrashClone(0, nil)
			_ = b.Close()
			fs = clone
		}
		b = groupBroker(t, fs)
		w.b = b
		awaitGroups(t, b)
		list, err := b.ListGroups(t.Context(), auth.Anonymous, nil)
		if err != nil || fmt.Sprint(list) != "[{g Stable lease}]" {
			t.Fatalf("%s: groups %v, %v", how, list, err)
		}
		if got := w.take(LeaseRequest{Topics: []string{"orders"}}); len(got) != 0 {
			t.Fatalf("%s: leased twice: %+v", how, got)
		}
		states, err := b.GroupLeases(t.Context(), auth.Anonymous, "g")
		if err != nil || len(states) != 1 || !states[0].Live || states[0].Deadline.Sub(l.Deadline).Abs() > time.Millisecond {
			t.Fatalf("%s: %+v, %v; the lease was until %v", how, states, err, l.Deadline)
		}
		if s := w.ack(&l, -1); s.AlreadyCommitted || s.Committed != int64(round+1) {
			t.Fatalf("%s: ack: %+v", how, s)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// A take waits for records and for a partition that somebody gives back, and is
// told at once.
func TestLeasesWait(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	w := &worker{t, b, "g"}
	long := LeaseRequest{Topics: []string{"orders"}, Wait: MaxLeaseWait, MaxRecords: 1}
	began := time.Now()
	got := make(chan Lease)
	take := func() {
		leases, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &long)
		if err != nil || len(leases) != 1 {
			t.Error(leases, err)
			got <- Lease{}
			return
		}
		leases[0].Section.Release()
		got <- leases[0]
	}
	go take()
	awaitParked(t, b, "g", 1)
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	l := <-got
	go take()
	awaitParked(t, b, "g", 1)
	w.ack(&l, -1)
	if l = <-got; l.First != 1 {
		t.Fatalf("after the ack: %+v", l)
	}
	go take()
	awaitParked(t, b, "g", 1)
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1}); err != nil {
		t.Fatal(err)
	}
	if l = <-got; l.First != 1 || l.Deliveries != 2 {
		t.Fatalf("after the release: %+v", l)
	}
	if took := time.Since(began); took > MaxLeaseWait {
		t.Errorf("took %v", took)
	}
}

// awaitParked returns once so many takes wait in the shard of a group.
func awaitParked(t *testing.T, b *Broker, id string, want int) {
	t.Helper()
	for {
		s, err := b.shard(t.Context(), id, true)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		whereItWorks(t, s, func() { n = s.core.Stats().Takes })
		if n == want {
			return
		}
	}
}
