package rest

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/broker"
)

// metered are the quotas that a route is bound by. What is not of the API is
// bound by none: health must be told to whoever asks.
func (rt *route) metered() []broker.Quota {
	records := strings.HasSuffix(rt.pattern, "/records") || strings.Contains(rt.pattern, "/records/")
	switch {
	case !strings.HasPrefix(rt.pattern, "/v1/"):
		return nil
	case records && rt.method == http.MethodPost:
		return []broker.Quota{broker.QuotaRequests, broker.QuotaProduce}
	case records, strings.HasSuffix(rt.pattern, "/leases"):
		return []broker.Quota{broker.QuotaRequests, broker.QuotaFetch}
	default:
		return []broker.Quota{broker.QuotaRequests}
	}
}

// meter stands around the handler of a route that quotas are for. A request is
// refused while its client owes for those before; what it brings itself, however
// much, is taken and counted. While no quota is on it does nothing.
func (s *Server) meter(rt route) handler {
	quotas := rt.metered()
	if quotas == nil {
		return rt.handle
	}
	return func(w *responseWriter, r *http.Request) error {
		if !s.broker.Metered() {
			return rt.handle(w, r)
		}
		who := principal(r)
		w.beforeHeader = func(h http.Header) {
			policy, left := s.rateFields(r, quotas)
			h["RateLimit-Policy"], h["RateLimit"] = []string{policy}, []string{left}
		}
		for _, q := range quotas {
			n := int64(0)
			if q == broker.QuotaRequests {
				n = 1
			}
			if err := s.broker.Admit(who, q, n); err != nil {
				return err
			}
		}
		if slices.Contains(quotas, broker.QuotaFetch) {
			defer func() { s.spendSent(w, r) }()
		}
		return rt.handle(w, r)
	}
}

// spend counts bytes to the quota of who asks, and says for how long he owes
// then.
func (s *Server) spend(w *responseWriter, r *http.Request, q broker.Quota, n int64) time.Duration {
	if w.beforeHeader == nil {
		return 0
	}
	return s.broker.Spend(principal(r), q, n)
}

// spendSent counts what was sent and is not counted yet.
func (s *Server) spendSent(w *responseWriter, r *http.Request) time.Duration {
	n := w.sent - w.spent
	w.spent = w.sent
	return s.spend(w, r, broker.QuotaFetch, n)
}

// rateFields are the fields RateLimit-Policy and RateLimit of the IETF's draft
// (draft-ietf-httpapi-ratelimit-headers-10): for each quota that is on what
// there is a second, and what is left of it until all is there again. Where none
// is on any more they are empty, which is as good as none.
func (s *Server) rateFields(r *http.Request, quotas []broker.Quota) (policy, left string) {
	var ps, ls []string
	for _, q := range quotas {
		st, ok := s.broker.QuotaState(principal(r), q)
		if !ok {
			continue
		}
		p := `"` + q.String() + `";q=` + strconv.FormatInt(st.Rate, 10) + ";w=1"
		if q != broker.QuotaRequests {
			p += `;qu="content-bytes"`
		}
		reset := int64((st.Reset + time.Second - 1) / time.Second)
		ps = append(ps, p)
		ls = append(ls, `"`+q.String()+`";r=`+strconv.FormatInt(st.Left, 10)+";t="+strconv.FormatInt(reset, 10))
	}
	return strings.Join(ps, ", "), strings.Join(ls, ", ")
}

// pay holds a stream back while its client owes for what it was sent. The
// stream shows all the while that it lives.
func (st *stream) pay(ctx context.Context) {
	owed := st.s.spendSent(st.w, st.r)
	if owed == 0 || st.err != nil {
		return
	}
	st.err = st.w.flush() // what was sent is not to wait
	for until := time.Now().Add(owed); st.err == nil; {
		now := time.Now()
		left := min(until.Sub(now), st.end.Sub(now))
		if left <= 0 {
			return
		}
		timer := time.NewTimer(min(left, st.silence))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if left > st.silence {
			st.take()
			st.frame.beat()
			st.flush()
		}
	}
}
