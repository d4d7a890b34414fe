package api

import (
	"errors"
	"sync"
	"testing"

	"leat/auth"
)

// A budget refuses a principal beyond its share with 429 and everybody beyond
// the total with 503, both with a time to come again; what was refused counts
// nothing, and a principal that holds nothing is forgotten.
func TestBudget(t *testing.T) {
	b := NewBudget(100, 60)
	ann, bob := auth.Principal{Name: "ann"}, auth.Principal{Name: "bob"}
	refused := func(err error, code string) {
		t.Helper()
		if p := ProblemOf(err); p == nil || p.Code != code || !p.Retriable || p.RetryAfterMS < 1 {
			t.Errorf("%v, want %s", err, code)
		}
	}
	if err := b.Take(ann, 60); err != nil {
		t.Fatal(err)
	}
	refused(b.Take(ann, 1), "quota_in_flight")
	refused(b.Take(bob, 41), "overloaded")
	if err := b.Take(bob, 40); err != nil {
		t.Fatal(err)
	}
	refused(b.Take(bob, 1), "overloaded")
	if b.Used() != 100 || b.Principals() != 2 {
		t.Errorf("%d bytes of %d principals", b.Used(), b.Principals())
	}
	b.Give(ann, 60)
	if b.Used() != 40 || b.Principals() != 1 {
		t.Errorf("%d bytes of %d principals", b.Used(), b.Principals())
	}
	b.Give(bob, 40)
	if b.Used() != 0 || b.Principals() != 0 {
		t.Errorf("%d bytes of %d principals", b.Used(), b.Principals())
	}
	// Who is alone may have more than his share, and never more than there is.
	if err := errors.Join(b.Take(ann, 50), b.Grow(ann, 50, 30)); err != nil {
		t.Error(err)
	}
	refused(b.Grow(ann, 50, 1), "quota_in_flight") // two requests now
	refused(b.Grow(ann, 80, 21), "overloaded")
}

// Many at once never hold more than the bound, and leave nothing behind.
func TestBudgetConcurrently(t *testing.T) {
	b := NewBudget(1000, 400)
	var work sync.WaitGroup
	for i := range 8 {
		p := auth.Principal{Name: string(rune('a' + i%4))}
		work.Go(func() {
			for range 1000 {
				if b.Take(p, 150) == nil {
					if used := b.Used(); used > 1000 {
						t.Errorf("%d bytes", used)
					}
					b.Give(p, 150)
				}
			}
		})
	}
	work.Wait()
	if b.Used() != 0 || b.Principals() != 0 {
		t.Errorf("%d bytes of %d principals left", b.Used(), b.Principals())
	}
}
