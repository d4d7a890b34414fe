package broker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// authorized lets everybody do what it lists, like "read orders".
type authorized map[string]bool

func (a authorized) Allowed(_ auth.Principal, op auth.Operation, r auth.Resource) bool {
	names := map[auth.Operation]string{auth.Read: "read", auth.Write: "write", auth.Create: "create", auth.Describe: "describe"}
	return a[names[op]+" "+r.Name]
}

// Every call about leases is authorised: Read on the group and the topics, Write
// on the dead letter topic, Describe for who looks; a topic that is hidden is
// like one that does not exist.
func TestLeasesAreAuthorized(t *testing.T) {
	may := authorized{}
	b, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data", Configs: quickGroups, Authorizer: may})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	allow := func(what ...string) {
		clear(may)
		for _, w := range what {
			may[w] = true
		}
	}
	allow("create orders", "create dead", "write orders", "describe orders", "create kafka-cluster", "describe dead")
	create(t, b, "orders", 1, nil)
	create(t, b, "dead", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "a")
	orders := LeaseRequest{Topics: []string{"orders"}, DeadLetter: "dead", MaxDeliveries: 2}
	for _, c := range []struct {
		may  []string
		want error
	}{
		{nil, ErrGroupAuthorization},
		{[]string{"describe g", "read orders", "write dead"}, ErrGroupAuthorization},
		{[]string{"read g", "describe orders", "write dead"}, ErrTopicAuthorization},
		{[]string{"read g", "read orders", "describe dead"}, ErrTopicAuthorization},
	} {
		allow(c.may...)
		if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &orders); !errors.Is(err, c.want) {
			t.Errorf("with %v: %v, want %v", c.may, err, c.want)
		}
	}
	allow("read g", "read orders", "describe orders", "write dead", "describe dead")
	w := &worker{t, b, "g"}
	l := w.takeOne(orders)
	for _, c := range []struct {
		may  []string
		want error
	}{
		{[]string{"read orders", "describe orders"}, ErrGroupAuthorization},
		{[]string{"read g", "describe orders"}, ErrTopicAuthorization},
		{[]string{"read g"}, ErrLeaseLost}, // the topic is hidden
	} {
		allow(c.may...)
		_, ack := b.AckLease(t.Context(), auth.Anonymous, "g", l.ID, -1)
		_, extend := b.ExtendLease(t.Context(), auth.Anonymous, "g", l.ID, 0)
		_, release := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1})
		for name, err := range map[string]error{"ack": ack, "extend": extend, "release": release} {
			if !errors.Is(err, c.want) {
				t.Errorf("%s with %v: %v, want %v", name, c.may, err, c.want)
			}
		}
	}
	allow("read g", "read orders", "describe orders", "describe dead")
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1, DeadLetter: true}); !errors.Is(err, ErrTopicAuthorization) {
		t.Errorf("a dead letter without write: %v", err)
	}
	if _, err := b.GroupLeases(t.Context(), auth.Anonymous, "g"); !errors.Is(err, ErrGroupAuthorization) {
		t.Errorf("leases: %v", err)
	}
	if _, err := b.GroupLag(t.Context(), auth.Anonymous, "g", nil); !errors.Is(err, ErrGroupAuthorization) {
		t.Errorf("lag: %v", err)
	}
	allow("describe g")
	if got, err := b.GroupLeases(t.Context(), auth.Anonymous, "g"); err != nil || len(got) > 0 {
		t.Errorf("leases of a hidden topic: %+v, %v", got, err)
	}
	if _, err := b.GroupLag(t.Context(), auth.Anonymous, "g", []string{"orders"}); !errors.Is(err, ErrTopicAuthorization) {
		t.Errorf("lag of a hidden topic: %v", err)
	}
	allow("describe g", "describe orders")
	if got, err := b.GroupLeases(t.Context(), auth.Anonymous, "g"); err != nil || len(got) != 1 {
		t.Errorf("leases: %+v, %v", got, err)
	}
}

// What a take asks for is checked before anything happens.
func TestLeaseBounds(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	many := make([]string, MaxLeases+1)
	for i := range many {
		many[i] = fmt.Sprint("t", i)
	}
	for name, r := range map[string]LeaseRequest{
		"no topic": {}, "many topics": {Topics: many}, "twice": {Topics: []string{"orders", "orders"}},
		"partitions": {MaxPartitions: MaxLeases + 1}, "no partitions": {MaxPartitions: -1}, "records": {MaxRecords: MaxLeaseRecords + 1},
		"no records": {MaxRecords: -1}, "bytes": {MaxBytes: MaxLeaseBytes + 1}, "no bytes": {MaxBytes: -1}, "short": {Lease: MinLease - 1},
		"long": {Lease: MaxLease + 1}, "wait": {Wait: MaxLeaseWait + 1}, "negative wait": {Wait: -1}, "deliveries": {MaxDeliveries: -1},
	} {
		if r.Topics == nil && name != "no topic" {
			r.Topics = []string{"orders"}
		}
		if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &r); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &LeaseRequest{Topics: []string{"nowhere"}}); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("unknown topic: %v", err)
	}
	if list, err := b.ListGroups(t.Context(), auth.Anonymous, nil); err != nil || len(list) > 0 {
		t.Errorf("groups %v, %v", list, err)
	}
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	w := &worker{t, b, "g"}
	l := w.takeOne(LeaseRequest{Topics: []string{"orders"}, MaxBytes: 1})
	if l.Next != 3 { // a batch whole, whatever its size
		t.Errorf("%+v", l)
	}
	for _, d := range []time.Duration{-1, MinLease - 1, MaxLease + 1} {
		if _, err := b.ExtendLease(t.Context(), auth.Anonymous, "g", l.ID, d); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("extend by %v: %v", d, err)
		}
		if d != MinLease-1 {
			if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1, Delay: d}); !errors.Is(err, ErrInvalidRequest) {
				t.Errorf("release with a delay of %v: %v", d, err)
			}
		}
	}
	for _, upto := range []int64{-2, 4, 1 << 62} {
		if _, err := b.AckLease(t.Context(), auth.Anonymous, "g", l.ID, upto); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("ack up to %d: %v", upto, err)
		}
		if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: upto}); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("release up to %d: %v", upto, err)
		}
	}
}

// A take whose caller goes leaves no lease behind, however far it has come.
func TestCanceledTakes(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	w := &worker{t, b, "g"}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.TakeLeases(ctx, auth.Anonymous, "g", &LeaseRequest{Topics: []string{"orders"}, Wait: MaxLeaseWait})
		done <- err
	}()
	awaitParked(t, b, "g", 1)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	awaitParked(t, b, "g", 0)
	produce(t, b, AcksAll, "orders", 0, "a")
	for _, at := range []int{1, 2, 3, 4} {
		ctx := &fussy{Context: t.Context(), left: at, done: make(chan struct{})}
		leases, err := b.TakeLeases(ctx, auth.Anonymous, "g", &LeaseRequest{Topics: []string{"orders"}})
		for i := range leases {
			leases[i].Section.Release()
			if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", leases[i].ID, ReleaseRequest{Upto: -1}); err != nil {
				t.Fatal(err)
			}
		}
		if len(leases) == 0 && !errors.Is(err, context.Canceled) {
			t.Errorf("canceled at %d: %v", at, err)
		}
		if got := w.take(LeaseRequest{Topics: []string{"orders"}, Wait: MaxLeaseWait}); len(got) != 1 {
			t.Errorf("canceled at %d: nothing is left", at)
		} else if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", got[0].ID, ReleaseRequest{Upto: -1}); err != nil {
			t.Fatal(err)
		}
	}
}

// fussy is a context that ends when it is asked for Done for the last time.
type fussy struct {
	context.Context
	left int
	done chan struct{}
}

func (f *fussy) Done() <-chan struct{} {
	if f.left--; f.left == 0 {
		close(f.done)
	}
	return f.done
}

func (f *fussy) Err() error {
	if f.left <= 0 {
		return context.Canceled
	}
	return nil
}
