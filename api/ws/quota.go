package ws

import (
	"time"

	"leat/broker"
)

// room waits until the client may go on: it has receipts or answers to take
// first, or is beyond a quota. It reports false at the end.
func (s *session) room() bool {
	held := s.owed > 0
	if held {
		timer := time.AfterFunc(s.owed, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			held = false
			s.mu.changed.Broadcast()
		})
		defer timer.Stop()
		s.owed = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for (held || s.mu.size > maxOutbox || s.mu.unacked >= maxUnacked) && !s.mu.closing && !s.mu.dead {
		s.reads.Add(1) // a ping that is not answered now is no fault of the client
		s.mu.changed.Wait()
		s.reads.Add(1)
	}
	return !s.mu.closing && !s.mu.dead
}

// meter counts a message to the quotas of its client. The message is taken, but
// the client is told that it is beyond one, and not read until that is paid for.
func (s *session) meter(m *message, size int) {
	b := s.srv.broker
	if !b.Metered() {
		return
	}
	spend := func(q broker.Quota, n int64) {
		if owed := b.Spend(s.principal, q, n); owed > s.owed {
			s.owed = owed
			st, _ := b.QuotaState(s.principal, q)
			s.post(&event{reply: failure("", m.sub, s.id, &broker.QuotaError{Quota: q, Rate: st.Rate, Wait: owed})}, true)
		}
	}
	spend(broker.QuotaRequests, 1)
	if m.kind == kindProduce {
		spend(broker.QuotaProduce, int64(size))
	}
}
