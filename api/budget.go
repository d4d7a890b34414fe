package api

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"leat/auth"
)

// What a Budget holds unless its options say otherwise.
const (
	defaultBudget     = 512 << 20
	defaultBudgetEach = 64 << 20
)

// Budget bounds the bytes that the requests of all clients keep in memory at a
// time, and those of each principal. It never waits: beyond a bound it refuses,
// and the client is told when to come again. Of a principal that holds nothing
// it knows nothing. It is safe for concurrent use; share one among the doors.
type Budget struct {
	limits func() (total, each int64)

	mu   sync.Mutex
	used int64
	by   map[auth.Principal]int64
}

// NewBudget makes a Budget of so many bytes in all and for each principal; 0
// means 512 MiB and 64 MiB.
func NewBudget(total, each int64) *Budget {
	if total <= 0 {
		total = defaultBudget
	}
	if each <= 0 {
		each = defaultBudgetEach
	}
	return NewBudgetOf(func() (int64, int64) { return total, each })
}

// NewBudgetOf makes a Budget whose bounds are those that limits returns at the
// time.
func NewBudgetOf(limits func() (total, each int64)) *Budget {
	return &Budget{limits: limits, by: map[auth.Principal]int64{}}
}

// Take counts n bytes to p for a request that holds none yet, as Grow does.
func (b *Budget) Take(p auth.Principal, n int64) error { return b.Grow(p, 0, n) }

// Grow counts n more bytes to p for a request that holds own of them already,
// or returns a problem and counts nothing. The caller gives back what it took. A
// request that is the only one of its principal may have more than its share,
// up to the total, so that none has to be refused for ever.
func (b *Budget) Grow(p auth.Principal, own, n int64) error {
	total, each := b.limits()
	b.mu.Lock()
	defer b.mu.Unlock()
	have := b.by[p]
	switch {
	case b.used+n > total:
		return Overloaded("other requests fill the memory that is set aside for them")
	case have+n > each && have > own:
		return &Problem{
			Status: http.StatusTooManyRequests, Code: "quota_in_flight", Title: "Too many bytes in flight", Retriable: true,
			RetryAfterMS: time.Second.Milliseconds(), Limit: each,
			Detail: fmt.Sprintf("the requests of %s that are being handled hold as many bytes as they may, %d in all", p, each),
		}
	}
	b.used += n
	b.by[p] = have + n
	return nil
}

// Give takes n bytes off p.
func (b *Budget) Give(p auth.Principal, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if left := b.by[p] - n; left > 0 {
		b.by[p] = left
	} else {
		delete(b.by, p)
	}
}

// ErrNoRoom is a reader of streams that finds the budget of answers used up: it is
// to read on a little later.
var ErrNoRoom = errors.New("the memory that is set aside for answers is in use")

// NoRoomWait is how much later that is.
const NoRoomWait = 200 * time.Millisecond

// claim is what one piece of work counts for in a budget.
type claim struct {
	budget *Budget
	who    auth.Principal
	held   int64
}

// hold counts up to total bytes, or fails with ErrNoRoom.
func (c *claim) hold(total int64) error {
	more := total - c.held
	if more <= 0 {
		return nil
	}
	if err := c.budget.Grow(c.who, c.held, more); err != nil {
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	c.held += more
	return nil
}

func (c *claim) release() {
	c.budget.Give(c.who, c.held)
	c.held = 0
}

// Used is how many bytes are taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Principals is how many principals hold something.
func (b *Budget) Principals() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.by)
}

// Overloaded is a problem of a server that has no room for the request now.
func Overloaded(detail string) *Problem {
	return &Problem{
		Status: http.StatusServiceUnavailable, Code: "overloaded", Title: "Overloaded", Retriable: true,
		RetryAfterMS: time.Second.Milliseconds(), Detail: detail,
	}
}
