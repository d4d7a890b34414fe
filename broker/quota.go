package broker

import (
	"container/list"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"leat/auth"
)

// Quota is a rate that each principal has for itself, over all doors.
type Quota int

// The quotas. Their rates are configs of the server; they are off by default.
const (
	QuotaProduce  Quota = iota // bytes of records taken, a second
	QuotaFetch                 // bytes of records given, a second
	QuotaRequests              // requests, a second
	quotaKinds
)

// quotaConfigs name the configs of the rates, by quota.
var quotaConfigs = [quotaKinds]string{"quota.producer.default", "quota.consumer.default", "leat.quota.requests.default"}

// These name the configs of what requests may hold in memory.
const (
	inFlightConfig     = "leat.inflight.bytes"
	inFlightEachConfig = "leat.inflight.bytes.per.principal"
)

// String is the quota as the answers and the metrics name it.
func (q Quota) String() string { return [quotaKinds]string{"produce", "fetch", "requests"}[q] }

// unit says what is counted.
func (q Quota) unit() string {
	return [quotaKinds]string{"bytes of records taken", "bytes of records given", "requests"}[q]
}

const (
	// quotaBurst is how long a principal that was quiet has saved up for.
	quotaBurst = time.Second
	// maxQuotaAccounts bounds the principals that are remembered. Beyond it the
	// one that has been quiet the longest is forgotten, with what it owes.
	maxQuotaAccounts = 10_000
	// maxQuotaDebt bounds what one can owe, as a time.
	maxQuotaDebt = 24 * time.Hour
)

// QuotaError says that a principal has to wait: it is ErrQuota.
type QuotaError struct {
	Quota Quota
	// Rate is what it may have a second, Wait how long until there is room.
	Rate int64
	Wait time.Duration
}

// Error says which quota it is.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("%v: %d %s a second", ErrQuota, e.Rate, e.Quota.unit())
}

// Unwrap is ErrQuota.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// QuotaState is what a principal has of a quota.
type QuotaState struct {
	// Rate is what it may have a second, Left what it may have at once, and
	// Reset how long until that is a whole second's.
	Rate, Left int64
	Reset      time.Duration
}

// quotas is what principals have had of their quotas. A quota is kept as one
// time for each: up to when what it had is paid for.
type quotas struct {
	// rates are what each principal may have a second, 0 for no bound.
	rates [quotaKinds]atomic.Int64
	on    atomic.Bool
	// inFlight are the bounds on bytes in memory, in all and for each.
	inFlight, inFlightEach atomic.Int64
	now                    func() time.Time
	began                  time.Time
	metrics                *metrics

	mu sync.Mutex
	// accounts are in recent too, the one used last in front.
	accounts map[auth.Principal]*list.Element
	recent   list.List
}

type account struct {
	who  auth.Principal
	paid [quotaKinds]time.Duration // since quotas.began
}

func newQuotas(now func() time.Time, m *metrics) *quotas {
	return &quotas{now: now, began: now(), metrics: m, accounts: map[auth.Principal]*list.Element{}}
}

// configure puts the rates into force.
func (q *quotas) configure(s serverConfigs) {
	on := false
	for k, name := range quotaConfigs {
		rate := s.number(name)
		if rate == math.MaxInt64 {
			rate = 0
		}
		q.rates[k].Store(rate)
		on = on || rate > 0
	}
	q.on.Store(on)
	q.inFlight.Store(s.number(inFlightConfig))
	q.inFlightEach.Store(s.number(inFlightEachConfig))
}

// accountLocked is the principal's account, made if need be.
func (q *quotas) accountLocked(p auth.Principal) *account {
	if e := q.accounts[p]; e != nil {
		q.recent.MoveToFront(e)
		return e.Value.(*account)
	}
	if len(q.accounts) >= maxQuotaAccounts {
		last := q.recent.Back()
		delete(q.accounts, last.Value.(*account).who)
		q.recent.Remove(last)
	}
	a := &account{who: p}
	for k := range a.paid {
		a.paid[k] = math.MinInt64
	}
	q.accounts[p] = q.recent.PushFront(a)
	return a
}

// charge adds n to what the principal had. With strict it does not where the
// principal would owe something then. owed is for how long it owes, or would.
func (q *quotas) charge(p auth.Principal, k Quota, n int64, strict bool) (rate int64, owed time.Duration) {
	if rate = q.rates[k].Load(); rate == 0 {
		return 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now().Sub(q.began)
	a := q.accountLocked(p)
	price := min(float64(n)/float64(rate)*float64(time.Second), float64(maxQuotaDebt))
	paid := min(max(a.paid[k], now-quotaBurst)+time.Duration(price), now+maxQuotaDebt)
	if owed = max(paid-now, 0); owed == 0 || !strict {
		a.paid[k] = paid
	}
	if owed > 0 {
		q.metrics.throttled[k].Inc()
	}
	return rate, owed
}

// InFlightLimits are the bytes that the doors for HTTP and WebSocket may hold in
// memory for requests, and for answers again as many: in all, and for each
// principal.
func (b *Broker) InFlightLimits() (total, each int64) {
	return b.quotas.inFlight.Load(), b.quotas.inFlightEach.Load()
}

// Metered reports whether any quota is on.
func (b *Broker) Metered() bool { return b.quotas.on.Load() }

// Admit counts n to the quota of p if it has room for that, else it counts
// nothing and is a *QuotaError. With 0 it asks whether p owes nothing for what
// it had before.
func (b *Broker) Admit(p auth.Principal, k Quota, n int64) error {
	if rate, owed := b.quotas.charge(p, k, n, true); owed > 0 {
		return &QuotaError{Quota: k, Rate: rate, Wait: owed}
	}
	return nil
}

// Spend counts n to the quota of p and returns for how long p has to pause for
// it, 0 if it may go on.
func (b *Broker) Spend(p auth.Principal, k Quota, n int64) time.Duration {
	_, owed := b.quotas.charge(p, k, n, false)
	return owed
}

// QuotaState is what p has left of a quota. ok is false if the quota is off.
func (b *Broker) QuotaState(p auth.Principal, k Quota) (s QuotaState, ok bool) {
	q := b.quotas
	if s.Rate = q.rates[k].Load(); s.Rate == 0 {
		return s, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now().Sub(q.began)
	paid := now - quotaBurst
	if e := q.accounts[p]; e != nil {
		paid = max(paid, e.Value.(*account).paid[k])
	}
	// What is left is rounded down, but not for the want of a nanosecond.
	s.Left = int64(max(now-paid+1, 0).Seconds() * float64(s.Rate))
	s.Reset = paid - (now - quotaBurst)
	return s, true
}
