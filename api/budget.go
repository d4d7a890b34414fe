package api

import (
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
	total, each int64

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
	return &Budget{total: total, each: min(each, total), by: map[auth.Principal]int64{}}
}

// Take counts n more bytes to p, or returns a problem and counts nothing. The
// caller gives back what it took.
func (b *Budget) Take(p auth.Principal, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	have := b.by[p]
	switch {
	case b.used+n > b.total:
		return Overloaded("other requests fill the memory that is set aside for them")
	case have+n > b.each:
		return &Problem{
			Status: http.StatusTooManyRequests, Code: "quota_in_flight", Title: "Too many bytes in flight", Retriable: true,
			RetryAfterMS: time.Second.Milliseconds(), Limit: b.each,
			Detail: fmt.Sprintf("the requests of %s that are being handled hold as many bytes as they may, %d in all", p, b.each),
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
