package broker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// clocked is a broker whose quotas go by a clock that the test moves.
func clocked(t *testing.T, configs map[string]string) (*Broker, *time.Time) {
	t.Helper()
	b, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data", Configs: configs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	now := b.quotas.began
	b.quotas.now = func() time.Time { return now }
	return b, &now
}

// A principal may do in a second what its quota says, at once or spread; then it
// waits as long as it owes, and others do not wait for it. A quota that is off
// counts nothing.
func TestQuota(t *testing.T) {
	b, now := clocked(t, map[string]string{"leat.quota.requests.default": "5", "quota.producer.default": "1000"})
	ann, bob := auth.Principal{Name: "ann"}, auth.Principal{Name: "bob"}
	if !b.Metered() {
		t.Fatal("not metered")
	}
	for i := range 5 {
		if err := b.Admit(ann, QuotaRequests, 1); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	var qe *QuotaError
	err := b.Admit(ann, QuotaRequests, 1)
	if !errors.Is(err, ErrQuota) || !errors.As(err, &qe) || qe.Wait != 200*time.Millisecond || qe.Rate != 5 || qe.Quota != QuotaRequests {
		t.Fatalf("%+v", err)
	}
	if err := b.Admit(bob, QuotaRequests, 1); err != nil {
		t.Errorf("bob waits for ann: %v", err)
	}
	if s, ok := b.QuotaState(bob, QuotaRequests); !ok || s != (QuotaState{Rate: 5, Left: 4, Reset: 200 * time.Millisecond}) {
		t.Errorf("%+v %v", s, ok)
	}
	*now = now.Add(200 * time.Millisecond)
	if err := b.Admit(ann, QuotaRequests, 1); err != nil {
		t.Error(err)
	}

	// Bytes may go into debt, which is paid before there are more.
	if wait := b.Spend(ann, QuotaProduce, 3000); wait != 2*time.Second {
		t.Errorf("wait %v", wait)
	}
	if s, _ := b.QuotaState(ann, QuotaProduce); s.Left != 0 || s.Reset != 3*time.Second {
		t.Errorf("%+v", s)
	}
	*now = now.Add(1999 * time.Millisecond)
	if err := b.Admit(ann, QuotaProduce, 0); !errors.Is(err, ErrQuota) {
		t.Error(err)
	}
	*now = now.Add(time.Millisecond)
	if err := b.Admit(ann, QuotaProduce, 0); err != nil {
		t.Error(err)
	}
	// What was saved up is a second's, however long one was quiet.
	*now = now.Add(time.Hour)
	if s, _ := b.QuotaState(ann, QuotaProduce); s.Left != 1000 || s.Reset != 0 {
		t.Errorf("%+v", s)
	}
	// No debt is for ever.
	if wait := b.Spend(ann, QuotaProduce, 1<<60); wait != maxQuotaDebt-quotaBurst {
		t.Errorf("wait %v", wait)
	}
	if wait := b.Spend(ann, QuotaFetch, 1<<60); wait != 0 {
		t.Errorf("a quota that is off: %v", wait)
	}
	if _, ok := b.QuotaState(ann, QuotaFetch); ok {
		t.Error("a quota that is off has a state")
	}
}

// Rates change while the server runs, and are off unless somebody set them.
func TestQuotaConfigs(t *testing.T) {
	b, _ := clocked(t, nil)
	if b.Metered() {
		t.Fatal("metered")
	}
	set := func(op ConfigOp, value string) {
		t.Helper()
		err := b.AlterBrokerConfigs(t.Context(), auth.Anonymous, b.NodeID(), []ConfigChange{{Name: "quota.consumer.default", Value: &value, Op: op}}, false)
		if err != nil {
			t.Fatal(err)
		}
	}
	set(ConfigSet, "10")
	if s, ok := b.QuotaState(auth.Anonymous, QuotaFetch); !ok || s.Rate != 10 || s.Left != 10 || !b.Metered() {
		t.Errorf("%+v %v", s, ok)
	}
	if wait := b.Spend(auth.Anonymous, QuotaFetch, 20); wait != time.Second {
		t.Errorf("wait %v", wait)
	}
	set(ConfigDelete, "")
	if b.Metered() || b.Admit(auth.Anonymous, QuotaFetch, 0) != nil {
		t.Error("still metered")
	}
}

// The table of principals has a bound: the one that was quiet the longest is
// forgotten.
func TestQuotaAccounts(t *testing.T) {
	b, _ := clocked(t, map[string]string{"leat.quota.requests.default": "1"})
	who := func(i int) auth.Principal { return auth.Principal{Name: fmt.Sprint(i)} }
	for i := range maxQuotaAccounts {
		b.Spend(who(i), QuotaRequests, 2)
	}
	b.Spend(who(0), QuotaRequests, 0)
	b.Spend(who(-1), QuotaRequests, 2)
	if n := len(b.quotas.accounts); n != maxQuotaAccounts || b.quotas.recent.Len() != n {
		t.Errorf("%d accounts", n)
	}
	if err := b.Admit(who(0), QuotaRequests, 1); err == nil {
		t.Error("an account in use was forgotten")
	}
	if err := b.Admit(who(1), QuotaRequests, 1); err != nil {
		t.Error("the oldest account was kept")
	}
}

// A quota that is off costs no lock and no memory.
func BenchmarkQuotaOff(b *testing.B) {
	q := newQuotas(time.Now, nil)
	b.ReportAllocs()
	for b.Loop() {
		q.charge(auth.Anonymous, QuotaProduce, 1, false)
	}
}
