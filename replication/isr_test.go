package replication

import (
	"errors"
	"slices"
	"testing"
	"time"

	"leat/replication/controller"
)

// A change of the set in sync names each follower in the life that it fetched in
// (KIP-903). Who has not fetched yet, or came back in another life, has the time of
// lag to catch up, however many records it lacks.
func TestAlterNamesLives(t *testing.T) {
	r, l := led(t, Options{LagMessages: 5}, 10)
	if a, ok := r.Alter(0); ok {
		t.Fatalf("at the begin of an office: %+v", a)
	}
	fetched(t, r, ask(2, 10), 0)
	again := ask(2, 6)
	again.BrokerEpoch = 2
	fetched(t, r, again, ms)
	if a, ok := r.Alter(2 * ms); ok {
		t.Fatalf("in another life: %+v", a)
	}
	again = ask(2, 10)
	again.BrokerEpoch = 2
	fetched(t, r, again, 9*time.Second)
	l.append(3, 1, "x", false)
	want := []controller.Member{{ID: 1, Epoch: -1}, {ID: 2, Epoch: 2}}
	if a, ok := r.Alter(11 * time.Second); !ok || !slices.Equal(a.ISR, want) {
		t.Errorf("3 is silent: %+v, %t, want %v", a, ok, want)
	}
}

// Only a decision of a higher partition epoch, in this leader epoch, ends a change that
// was asked for: until then a copy of the request may still come into force, and who
// was asked for counts.
func TestOnlyADecisionEndsAnAlter(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		change func(p *controller.Partition)
		err    error
		ends   bool
	}{
		"lost":                    {func(p *controller.Partition) { *p = controller.Partition{} }, errNoAnswer, false},
		"refused as it is":        {func(*controller.Partition) {}, refused, false},
		"refused as it was":       {func(p *controller.Partition) { p.Epoch-- }, refused, false},
		"of another leader epoch": {func(p *controller.Partition) { p.Epoch, p.LeaderEpoch = p.Epoch+1, p.LeaderEpoch+1 }, nil, false},
		"that cannot be":          {func(p *controller.Partition) { p.Epoch, p.ISR = p.Epoch+1, []int32{2} }, nil, false},
		"decided":                 {func(p *controller.Partition) { p.Epoch++ }, nil, true},
		"refused anew":            {func(p *controller.Partition) { p.Epoch++ }, refused, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := led(t, Options{}, 10)
			p := r.Partition()
			p.ISR, p.Epoch = []int32{1, 2}, 6
			if _, err := r.Decide(p, nil, 0); err != nil {
				t.Fatal(err)
			}
			fetched(t, r, ask(2, 10), 0)
			fetched(t, r, ask(3, 10), 0)
			asked, ok := r.Alter(0)
			if !ok {
				t.Fatal("it asks nothing")
			}
			got := r.Partition()
			c.change(&got)
			r.Altered(asked, got, c.err, 0)
			if counts := slices.Contains(r.Maximal(), 3); counts == c.ends {
				t.Errorf("3 counts: %t", counts)
			}
			if epoch := r.Partition().Epoch; (epoch > 6) != c.ends {
				t.Errorf("it knows partition epoch %d", epoch)
			}
			if _, asks := r.Alter(20*ms - 1); asks && !c.ends {
				t.Error("it asks again at once")
			}
			if again, asks := r.Alter(20 * ms); !asks && !c.ends || !c.ends && again.PartitionEpoch != asked.PartitionEpoch {
				t.Errorf("after a pause it asks %+v, %t", again, asks)
			}
		})
	}
}

// A decision gives who is in sync no more time than it had.
func TestDecisionsDoNotForgive(t *testing.T) {
	r, l := led(t, Options{}, 10)
	for _, id := range []int32{2, 3} {
		fetched(t, r, ask(id, 10), time.Second)
	}
	l.append(3, 1, "x", false)
	p := r.Partition()
	p.Epoch++
	if _, err := r.Decide(p, nil, 9*time.Second); err != nil {
		t.Fatal(err)
	}
	if a, ok := r.Alter(11 * time.Second); ok {
		t.Errorf("within the time of lag: %+v", a)
	}
	if a, ok := r.Alter(11*time.Second + 1); !ok || len(a.ISR) != 1 {
		t.Errorf("both are silent: %+v, %t", a, ok)
	}
}
