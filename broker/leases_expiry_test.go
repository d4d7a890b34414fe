package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/auth"
	"leat/storage/disk"
)

// A group of leases that nobody uses is forgotten after offsets.retention.minutes
// with all that it had; one that is used, if only by takes that get nothing, stays.
func TestIdleLeaseGroupsExpire(t *testing.T) {
	clock, fs := &shiftedClock{}, disk.NewMem()
	configs := func(o *Options) {
		o.Configs = map[string]string{"offsets.retention.minutes": "10", "offsets.topic.num.partitions": "2"}
	}
	b := openWith(t, fs, clock.in, configs)
	create(t, b, "orders", 1, nil)
	create(t, b, "empty", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	w, asks := &worker{t, b, "g"}, &worker{t, b, "asks"}
	l := w.takeOne(LeaseRequest{Topics: []string{"orders"}})
	w.ack(&l, 1)
	groups := func(want string) {
		t.Helper()
		sweepAll(t, b)
		list, err := b.ListGroups(t.Context(), auth.Anonymous, nil)
		if err != nil || fmt.Sprint(list) != want {
			t.Fatalf("groups %v, %v, want %s", list, err, want)
		}
	}
	for range 12 {
		if got := asks.take(LeaseRequest{Topics: []string{"empty"}}); len(got) > 0 {
			t.Fatalf("%+v", got)
		}
		clock.advance(time.Minute)
	}
	// Nobody has used g for longer than it is kept: by a restart it is in no memory.
	if n := leaseRecords(t, b); n != 1 {
		t.Fatalf("%d records of leases, want 1", n)
	}
	b = openWith(t, fs.CrashClone(0, nil), clock.in, configs)
	awaitGroups(t, b)
	groups("[{asks Empty lease}]")
	if n := leaseRecords(t, b); n != 0 {
		t.Errorf("%d records of leases are left", n)
	}
	clock.advance(11 * time.Minute)
	groups("[]")
}

// What becomes of leases is counted.
func TestLeaseMetrics(t *testing.T) {
	b, reg := openMetered(t)
	create(t, b, "orders", 2, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	produce(t, b, AcksAll, "orders", 1, "a")
	w := &worker{t, b, "g"}
	got := w.take(LeaseRequest{Topics: []string{"orders"}})
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	w.ack(&got[0], -1)
	w.ack(&got[0], -1)
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", got[1].ID, ReleaseRequest{Upto: -1}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AckLease(t.Context(), auth.Anonymous, "g", got[1].ID, -1); err == nil {
		t.Fatal("a lease that was given back was acked")
	}
	w.takeOne(LeaseRequest{Topics: []string{"orders"}})
	for name, want := range map[string]float64{
		"leat_leases": 1, "leat_lease_takes_waiting": 0, "leat_leases_taken_total": 3, "leat_leases_acked_total": 1,
		"leat_leases_lost_total": 1, "leat_leases_expired_total": 0, "leat_lease_dead_letters_total": 0,
	} {
		if got := valueOf(t, reg, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// valueOf is the value of a metric without labels.
func valueOf(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.EqualFold(f.GetName(), name) {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}
