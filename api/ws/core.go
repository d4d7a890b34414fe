package ws

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"leat/api"
)

// maxSubscriptions is how many subscriptions a connection may have.
const maxSubscriptions = 128

// core decides what a session sends: it takes events and gives messages, one at
// a time. It has no goroutine, clock, lock or socket; only the sources of its
// subscriptions read the log. It is used by one goroutine at a time.
type core struct {
	conn string
	pace *pace
	subs []*subscription
	// turn is the index of the subscription whose turn it is.
	turn int
	// out are the messages that go before all data, in order.
	out []text
	// draining says that no more data goes, held until when none goes because
	// the client is beyond its quota.
	draining bool
	held     int64
}

// event is something that happened to a session. Exactly one of reply,
// subscribe, client and drain is set.
type event struct {
	// reply goes to the client as it is.
	reply text
	// subscribe is a new subscription; client is the message that asked for
	// it, reply the answer if it is taken.
	subscribe *subscription
	// client is a message about a subscription.
	client message
	drain  bool
	// away is when the client should come again, with drain.
	away time.Duration
}

// frame is a data message under way.
type frame struct {
	buf     *buffer
	sub     *subscription
	records int
}

// apply takes an event.
func (c *core) apply(e *event) {
	switch {
	case e.drain:
		c.draining = true
		c.out = append(c.out, begin(kindGoaway, "", "").integer("after_ms", e.away.Milliseconds()).close())
	case e.subscribe != nil:
		c.subscribe(e)
	case e.reply.kind != kindInvalid:
		c.out = append(c.out, e.reply)
	default:
		c.client(&e.client)
	}
}

func (c *core) subscribe(e *event) {
	s, m := e.subscribe, &e.client
	var err error
	switch {
	case c.find(m.sub) >= 0:
		err = &api.Problem{
			Status: http.StatusConflict, Code: "subscription_exists", Title: "Subscription exists", Parameter: "sub",
			Detail: "the connection has a subscription of this name; unsubscribe it first",
		}
	case len(c.subs) == maxSubscriptions:
		err = &api.Problem{
			Status: http.StatusUnprocessableEntity, Code: "too_many_subscriptions", Title: "Too many subscriptions",
			Limit: maxSubscriptions, Detail: fmt.Sprintf("a connection may have %d subscriptions", maxSubscriptions),
		}
	}
	if err != nil {
		s.src.Close()
		c.out = append(c.out, failure(m.id, m.sub, c.conn, err))
		return
	}
	s.conn = c.conn
	c.out = append(c.out, e.reply)
	c.subs = append(c.subs, s)
}

func (c *core) find(sub ident) int {
	return slices.IndexFunc(c.subs, func(s *subscription) bool { return s.id == sub })
}

// client does what a message asks of a subscription.
func (c *core) client(m *message) {
	i := c.find(m.sub)
	if i < 0 {
		c.out = append(c.out, failure(m.id, m.sub, c.conn, &api.Problem{
			Status: http.StatusNotFound, Code: "unknown_subscription", Title: "Unknown subscription", Parameter: "sub",
			Detail: "the connection has no subscription of this name",
		}))
		return
	}
	s := c.subs[i]
	switch m.kind { //nolint:exhaustive // the other kinds are not about a subscription that is
	case kindCredit:
		s.credit.add(m.credit)
	case kindPause:
		s.paused = true
		c.out = append(c.out, plain(kindPaused, m.id, m.sub))
	case kindResume:
		s.paused = false
		c.out = append(c.out, plain(kindResumed, m.id, m.sub))
	case kindUnsubscribe:
		c.remove(i)
		c.out = append(c.out, plain(kindUnsubscribed, m.id, m.sub))
	}
}

// remove ends a subscription.
func (c *core) remove(i int) {
	c.subs[i].src.Close()
	c.subs = slices.Delete(c.subs, i, i+1)
	if c.turn > i {
		c.turn--
	}
}

// close ends all subscriptions.
func (c *core) close() {
	for len(c.subs) > 0 {
		c.remove(len(c.subs) - 1)
	}
	c.out = nil
}

// next gives what to send now: a message, or a data frame in f, which is then
// to be followed by written. Without either, wait is how long until there may
// be something, or 0 until an event or wake.
func (c *core) next(now int64, f *frame) (t text, wait time.Duration) {
	switch {
	case len(c.out) > 0, c.draining:
	case c.held > now:
		wait = time.Duration(c.held - now)
	default:
		wait = c.data(now, f)
	}
	if len(c.out) == 0 {
		return text{}, wait
	}
	t = c.out[0]
	c.out[0] = text{}
	c.out = c.out[1:]
	if len(c.out) == 0 {
		c.out = nil // an idle session keeps nothing
	}
	return t, 0
}

// data gives each subscription its turn until one has something.
func (c *core) data(now int64, f *frame) (wait time.Duration) {
	for n := len(c.subs); n > 0; n-- {
		if c.turn >= len(c.subs) {
			c.turn = 0
		}
		s := c.subs[c.turn]
		if s.woken.Swap(false) {
			s.hot = true
			if err := s.src.Err(); err != nil {
				c.out = append(c.out, s.gone(err))
				c.remove(c.turn)
				return 0
			}
		}
		due, later := s.tells(now)
		if due {
			s.hot, s.tell = true, 0
		}
		if !s.ready() {
			if later > 0 {
				wait = sooner(wait, later)
			}
			c.turn++
			continue
		}
		if s.due > now {
			wait = sooner(wait, time.Duration(s.due-now))
			c.turn++
			continue
		}
		what, message := s.turn(now, c.pace, f)
		switch what {
		case nothing:
		case framed:
			c.turn++
			return 0
		case told:
			c.out = append(c.out, message)
			return 0
		case ended:
			c.out = append(c.out, message)
			c.remove(c.turn)
			return 0
		}
		c.turn++
		if _, later := s.tells(now); later > 0 {
			wait = sooner(wait, later)
		}
		if s.hot {
			wait = sooner(wait, max(time.Duration(s.due-now), 1))
		}
	}
	return wait
}

// rest reports, after a frame, whether there is nothing left to send, and wait
// as next does. So a frame needs no other turn that finds nothing.
func (c *core) rest(now int64) (wait time.Duration, ok bool) {
	if len(c.out) > 0 || c.draining {
		return 0, false
	}
	if c.held > now {
		return time.Duration(c.held - now), true
	}
	for _, s := range c.subs {
		if s.woken.Load() {
			return 0, false
		}
		due, later := s.tells(now)
		if due {
			return 0, false
		}
		if later > 0 {
			wait = sooner(wait, later)
		}
		if !s.ready() {
			continue
		}
		if s.due <= now && !s.rest(now, c.pace) {
			return 0, false
		}
		if s.hot {
			wait = sooner(wait, time.Duration(s.due-now))
		}
	}
	return wait, true
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// written says that the frame that next gave has left.
func (c *core) written(now int64, f *frame) {
	c.pace.sent(now)
	f.sub.credit.written()
}
