package kafka

import (
	"context"
	"sync"
)

// budget bounds the buffers of the requests that are being read, over all
// connections. A connection at the bound waits, and TCP holds its client back.
//
// Loans grow as bytes arrive, so all may wait while each holds a part. One at a
// time, in the order of asking, is therefore lent more than there is until it
// gives all back: the bound is max and one request.
type budget struct {
	max int64
	mu  struct {
		sync.Mutex
		used    int64
		over    *loan // the one that may pass max
		waiting []*claim
	}
}

// loan is what one connection holds of a budget. Its owner takes and gives.
type loan struct{ n int64 }

type claim struct {
	loan    *loan
	n       int64
	granted chan struct{}
}

// take makes l a loan of n in all, waiting until that fits. Errors: ctx's
// cause; l is unchanged then.
func (b *budget) take(ctx context.Context, l *loan, n int64) error {
	b.mu.Lock()
	if len(b.mu.waiting) == 0 && b.grantLocked(l, n) {
		b.mu.Unlock()
		return nil
	}
	a := &claim{loan: l, n: n, granted: make(chan struct{})}
	b.mu.waiting = append(b.mu.waiting, a)
	b.serveLocked()
	b.mu.Unlock()
	select {
	case <-a.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range b.mu.waiting {
		if w == a {
			b.mu.waiting = append(b.mu.waiting[:i], b.mu.waiting[i+1:]...)
			// Whoever stood behind may fit.
			b.serveLocked()
			return context.Cause(ctx)
		}
	}
	return nil // granted meanwhile
}

// give ends a loan.
func (b *budget) give(l *loan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= l.n
	l.n = 0
	if b.mu.over == l {
		b.mu.over = nil
	}
	b.serveLocked()
}

// serveLocked grants what it can in the order of asking. The one that may pass
// the bound goes before all, since the others wait for it.
func (b *budget) serveLocked() {
	for i, a := range b.mu.waiting {
		if a.loan == b.mu.over {
			b.mu.waiting = append(b.mu.waiting[:i], b.mu.waiting[i+1:]...)
			b.grantLocked(a.loan, a.n)
			close(a.granted)
			break
		}
	}
	for len(b.mu.waiting) > 0 && b.grantLocked(b.mu.waiting[0].loan, b.mu.waiting[0].n) {
		close(b.mu.waiting[0].granted)
		b.mu.waiting = b.mu.waiting[1:]
	}
}

// grantLocked makes l a loan of n if that fits or l may pass the bound.
func (b *budget) grantLocked(l *loan, n int64) bool {
	more := n - l.n
	if b.mu.used+more > b.max {
		if b.mu.over != nil && b.mu.over != l {
			return false
		}
		b.mu.over = l
	}
	b.mu.used += more
	l.n = n
	return true
}

// inFlight is the sum of all loans.
func (b *budget) inFlight() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.used
}
