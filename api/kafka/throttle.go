package kafka

import (
	"context"
	"time"

	"leat/broker"
)

// maxThrottle bounds how long one answer holds its client back, so that the
// next comes before clients give up on it. What is owed beyond it holds back
// the next.
const maxThrottle = 10 * time.Second

// meter counts n to a quota of the client. Where it owes for that, the answer
// says for how long, and the connection is not read before (KIP-219), for
// clients that send all the same.
func (c *conn) meter(cl *call, q broker.Quota, n int64) {
	b := c.srv.opts.Broker
	if b == nil || !b.Metered() {
		return
	}
	owed := min(b.Spend(c.principal, q, n), maxThrottle)
	if owed == 0 {
		return
	}
	cl.throttle = max(cl.throttle, owed)
	for until := time.Now().Add(owed).UnixNano(); ; {
		had := c.until.Load()
		if had >= until || c.until.CompareAndSwap(had, until) {
			return
		}
	}
}

// throttleMillis is what the answer says.
func (cl *call) throttleMillis() int32 {
	return int32((cl.throttle + time.Millisecond - 1) / time.Millisecond)
}

// pause waits until the client may go on, or polls ends.
func (c *conn) pause(polls context.Context) {
	for {
		until := c.until.Load()
		if until == 0 {
			return
		}
		left := time.Until(time.Unix(0, until))
		if left <= 0 {
			c.until.CompareAndSwap(until, 0)
			continue
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-polls.Done():
			timer.Stop()
			return
		}
	}
}
