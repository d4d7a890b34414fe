package quorum_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leat/replication/quorum"
)

// TestShellDeadlines proves that whoever asks for something while the disk hangs is
// answered when its time is over: that the outcome is unknown if it was asked for
// before the disk hung, else that nothing was done; and what has no id is refused.
func TestShellDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShells(t, 1)
		q := s.node(1)
		synctest.Wait()
		hold := make(chan struct{})
		s.stores[1].set(hold, nil)
		asks := map[string]func(ctx context.Context, n byte) error{
			"propose": func(ctx context.Context, n byte) error { _, err := q.Propose(ctx, pid(n), nil); return err },
			"change": func(ctx context.Context, n byte) error {
				_, err := q.Change(ctx, pid(n+1), func(c *quorum.Core) error { return c.AddLearner(pid(n+1), 9) })
				return err
			},
			"barrier": func(ctx context.Context, n byte) error { _, err := q.Barrier(ctx, pid(n+2)); return err },
			"transfer": func(ctx context.Context, _ byte) error {
				return q.Do(ctx, func(c *quorum.Core) error { return c.Transfer(9) })
			},
		}
		began := time.Now()
		var wg sync.WaitGroup
		ask := func(what string, n byte, want error) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := asks[what](ctx, n); !errors.Is(err, want) || !errors.Is(err, context.DeadlineExceeded) ||
					errors.Is(err, quorum.ErrUnknownOutcome) != errors.Is(want, quorum.ErrUnknownOutcome) {
					t.Errorf("%s %d: %v, want %v", what, n, err, want)
				}
			})
		}
		ask("propose", 1, quorum.ErrUnknownOutcome)
		synctest.Wait() // it is being saved
		for what := range asks {
			ask(what, 10, context.DeadlineExceeded)
		}
		wg.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("after %s", took)
		}
		s.stores[1].set(nil, nil)
		close(hold)
		if _, err := q.Propose(t.Context(), pid(100), nil); err != nil {
			t.Error(err)
		}
		if _, err := q.Propose(t.Context(), quorum.ProposalID{}, nil); !errors.Is(err, quorum.ErrDropped) {
			t.Errorf("without an id: %v", err)
		}
	})
}
