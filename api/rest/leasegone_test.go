package rest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"leat/api"
	"leat/auth"
	"leat/broker"
	"leat/storage/record"
)

// TestLeaseClientGone proves that a take whose client is gone before the answer
// begins counts as no delivery, and leaves no lease.
func TestLeaseClientGone(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.tried(produceT0, mediaJSON, `[{"value":1}]`).want(t, 200, "")
	for range 3 {
		leases, err := d.broker.TakeLeases(t.Context(), auth.Anonymous, "g", &broker.LeaseRequest{Topics: []string{"t"}})
		if err != nil || len(leases) != 1 || leases[0].Deliveries != 1 {
			t.Fatalf("%+v, %v", leases, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/groups/g/leases", nil)
		a := &leaseAnswer{s: d.server, w: &responseWriter{}, r: r, group: "g", leases: leases, memory: d.server.holding(r)}
		if err := a.write(); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		a.release()
	}
	if l := d.takeOne("g", `{"topics":["t"]}`); l.DeliveryCount != 1 {
		t.Errorf("delivery %d", l.DeliveryCount)
	}
}

// TestLeaseBudget proves that what batches of leases and of one record are expanded
// to is counted in the budget of answers, and that a lease which there was no room
// to show was not delivered.
func TestLeaseBudget(t *testing.T) {
	budget := api.NewBudget(8<<20, 8<<20)
	d := openDoor(t, func(s *setup) { s.Answers = budget })
	d.topic("t", 1)
	var w record.Builder
	w.Reset(record.Options{Codec: record.Zstd})
	w.AddValue(1767323045000, make([]byte, 900<<10))
	batch, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	d.do("POST", produceT0, string(batch), "Content-Type", mediaBatch).want(t, 200, "")
	const held = 8<<20 - 500<<10
	if err := budget.Take(auth.Anonymous, held); err != nil {
		t.Fatal(err)
	}
	d.do("GET", produceT0+"/0", nil).want(t, 503, "overloaded")
	d.take("g", `{"topics":["t"]}`).want(t, 503, "overloaded")
	budget.Give(auth.Anonymous, held)
	d.do("GET", produceT0+"/0", nil).want(t, 200, "")
	if l := d.takeOne("g", `{"topics":["t"]}`); l.DeliveryCount != 1 {
		t.Errorf("delivery %d", l.DeliveryCount)
	}
}
