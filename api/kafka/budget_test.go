package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
)

// Loans are granted in the order of asking while they fit, one may pass the
// bound, and what is given back lets the next ones in.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{max: 100}
		ctx := context.Background()
		loans := make([]loan, 5)
		granted := make([]bool, len(loans))
		take := func(i int, n int64) {
			go func() {
				if err := b.take(ctx, &loans[i], n); err != nil {
					t.Error(err)
				}
				granted[i] = true
			}()
			synctest.Wait()
		}
		check := func(used int64, want ...bool) {
			t.Helper()
			for i, w := range want {
				if granted[i] != w {
					t.Fatalf("granted %v, want %v", granted, want)
				}
			}
			if got := b.inFlight(); got != used {
				t.Fatalf("%d in flight, want %d", got, used)
			}
		}
		take(0, 60)
		take(1, 40)
		check(100, true, true, false, false, false)
		take(2, 30) // passes the bound, alone
		check(130, true, true, true, false, false)
		take(3, 1)
		take(4, 90)
		check(130, true, true, true, false, false)
		granted[2] = false
		take(2, 300) // the one that passed it is not held up
		check(400, true, true, true, false, false)
		b.give(&loans[2])
		synctest.Wait()
		// 1 would pass the bound, and may; 90 behind it may not.
		check(101, true, true, true, true, false)
		b.give(&loans[3])
		synctest.Wait()
		check(190, true, true, true, true, true)
		for i := range loans {
			b.give(&loans[i])
		}
		check(0, true, true, true, true, true)
	})
}

// A wait ends with its context, and does not hold up who stood behind it.
func TestBudgetCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{max: 10}
		var first, over, gone, behind loan
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		for _, l := range []*loan{&first, &over} {
			if err := b.take(ctx, l, 6); err != nil {
				t.Fatal(err)
			}
		}
		errs := make(chan error, 2)
		go func() { errs <- b.take(ctx, &gone, 20) }()
		synctest.Wait()
		go func() { errs <- b.take(context.Background(), &behind, 2) }()
		synctest.Wait()
		b.give(&first) // 6 left, over the bound no more; 20 waits all the same
		synctest.Wait()
		cancel(why)
		if err := <-errs; !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
		if err := <-errs; err != nil || b.inFlight() != 8 || gone.n != 0 {
			t.Errorf("error %v, %d in flight", err, b.inFlight())
		}
	})
}

// Many that grow step by step, as frames do, all come to their end within the
// bound and one loan.
func TestBudgetNeverLocks(t *testing.T) {
	const most = 64
	b := &budget{max: 100}
	var all sync.WaitGroup
	for seed := range uint64(16) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			var l loan
			for range 500 {
				for n := int64(1); n <= most; n *= 2 {
					if err := b.take(context.Background(), &l, n); err != nil {
						t.Error(err)
					}
					if used := b.inFlight(); used > b.max+most {
						t.Errorf("%d in flight", used)
					}
					if rng.IntN(8) == 0 {
						break
					}
				}
				b.give(&l)
			}
		})
	}
	all.Wait()
	if used := b.inFlight(); used != 0 || len(b.mu.waiting) != 0 || b.mu.over != nil {
		t.Errorf("%d left", used)
	}
}
