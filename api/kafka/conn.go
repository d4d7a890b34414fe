package kafka

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/auth"
	"leat/broker"
)

const (
	// maxCalls bounds the queue between reader and writer in calls; the
	// clients' own limit is 5 for most.
	maxCalls = 64
	// maxCost bounds it in bytes.
	maxCost = 8 << 20
	// lingerTime is how long a drained connection waits for the client to
	// take its last answers, because a close with unread input resets it.
	lingerTime = 250 * time.Millisecond
)

// errDropped ends a connection on purpose: acks=0 has no other way to say that
// a batch failed.
var errDropped = errors.New("a batch sent with acks=0 failed")

// conn is one connection. run owns both of its goroutines.
type conn struct {
	srv       *Server
	nc        net.Conn
	principal auth.Principal
	in        *frameReader
	out       *output
	// calls is the queue to the writer. pending counts the calls that the
	// writer has not ended: while it is 0 the reader owns out. cost is their
	// bytes. ended tells the reader that both shrank.
	calls   chan *call
	pending atomic.Int64
	cost    atomic.Int64
	ended   chan struct{}
	// cancel ends every wait of the connection, endPolls only the waits for
	// data.
	cancel, endPolls context.CancelFunc
	draining         atomic.Bool
	// client is what the client calls itself; the reader's.
	client string
	// names are the topic names that the client asks for again and again; the
	// reader's.
	names interner
	quiet quiet
	// until is when the client may go on that is beyond a quota, in ns since
	// 1970; 0 is now.
	until atomic.Int64
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{
		srv: s, nc: nc, principal: auth.Anonymous,
		in:    newFrameReader(nc, s.opts.MaxRequestBytes, &s.budget),
		out:   newOutput(nc),
		calls: make(chan *call, maxCalls),
		ended: make(chan struct{}, 1),
	}
}

// run serves the connection until the client closes it, it breaks, or the
// server drains. ctx bounds every call.
func (c *conn) run(ctx, polls context.Context) {
	var writer sync.WaitGroup
	writer.Go(func() { c.write(ctx, polls) })
	err := c.read(ctx, polls)
	c.in.release()
	// A client that closed its side in peace, or sent what is refused, may
	// still take the answers before; a wait for data is over all the same.
	c.endPolls()
	refused, isRefusal := errors.AsType[*refusal](err)
	if !isRefusal && !errors.Is(err, io.EOF) && !c.draining.Load() {
		c.cancel()
	}
	close(c.calls)
	writer.Wait()
	if isRefusal {
		c.srv.refused(ctx, c.nc, refused)
	}
	if c.draining.Load() {
		c.linger()
	}
	_ = c.nc.Close() // nothing is left to lose
}

// drain lets what has arrived be answered and nothing more arrive.
func (c *conn) drain() {
	c.draining.Store(true)
	c.endPolls()
	// A read under way ends with a deadline error, and so does the next.
	if err := c.nc.SetReadDeadline(time.Unix(1, 0)); err != nil {
		c.abort()
	}
}

// abort ends the connection at once.
func (c *conn) abort() {
	c.cancel()
	_ = c.nc.Close() // nothing is left to lose
}

// linger tells the client that no more comes and discards what it still sends.
func (c *conn) linger() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	scrap := getBuffer(readAhead)
	defer scrap.put()
	for {
		if _, err := c.nc.Read(scrap.b[:cap(scrap.b)]); err != nil {
			return
		}
	}
}

// read takes frames and starts their calls until there are no more. A call
// that has nothing to wait for, behind none that waits, is answered here: the
// hand-over to the writer would cost more than many a request.
func (c *conn) read(ctx, polls context.Context) error {
	for {
		c.pause(polls)
		cl, err := c.next(ctx)
		if err != nil {
			return err
		}
		c.meter(cl, broker.QuotaRequests, 1)
		if cl.h.start != nil {
			cl.h.start(ctx, c, cl)
		}
		c.in.release()
		if cl.h.ordered {
			c.settle(0, 0)
		}
		if c.pending.Load() > 0 || !cl.h.ready(ctx, c, cl) {
			c.admit(cl)
			continue
		}
		err = cl.h.answer(ctx, c, cl)
		c.end(cl, err)
		if err != nil {
			return err
		}
	}
}

// next reads one frame, judging its head before its body is taken in. The body
// is held until release.
func (c *conn) next(ctx context.Context) (*call, error) {
	head, err := c.in.head()
	if err != nil {
		return nil, err
	}
	h, version := c.srv.handlers.find(head.key), head.version
	switch {
	case h == nil:
		return nil, refuse(reasonKey, "key %d", head.key)
	case version >= h.accept && version <= h.max:
	case h.key == keyAPIVersions && version > h.max:
		h = c.srv.newest
	default:
		return nil, refuse(reasonVersion, "%s version %d, served are %d to %d", h.name, version, h.accept, h.max)
	}
	if h.maxBody > 0 && head.size > h.maxBody {
		return nil, refuse(reasonSize, "%s request of %d bytes, at most %d are taken", h.name, head.size, h.maxBody)
	}
	body, err := c.in.body(ctx, head)
	if err != nil {
		return nil, err
	}
	client, rest, ok := payload(body, version >= h.flexible)
	if !ok {
		err = errCut
	} else if string(client) != c.client {
		c.client = string(client)
	}
	cl := calls.Get().(*call)
	*cl = call{h: h, version: version, corr: head.corr, client: c.client, cost: int64(head.size), began: time.Now(), srv: c.srv}
	if err == nil {
		err = h.decode(c, cl, rest)
	}
	if err != nil {
		*cl = call{}
		calls.Put(cl)
		return nil, refuse(reasonMalformed, "%s version %d: %v", h.name, version, err)
	}
	return cl, nil
}

// errCut is a header or body with a field that does not fit.
var errCut = errors.New("a field does not fit")

// settle waits until at most so many calls are pending, of at most so many
// bytes. The writer takes calls until the queue is closed, also from a broken
// connection, so this ends.
func (c *conn) settle(calls, cost int64) {
	for c.pending.Load() > calls || c.cost.Load() > cost {
		<-c.ended
	}
}

// admit queues the call, waiting for room. One call is let in whatever it
// costs.
func (c *conn) admit(cl *call) {
	c.settle(maxCalls-1, max(maxCost-cl.cost, 0))
	c.pending.Add(1)
	c.cost.Add(cl.cost)
	c.calls <- cl
}

// write answers the calls in order. After an error it only takes them off the
// queue.
func (c *conn) write(ctx, polls context.Context) {
	var err error
	for cl := range c.calls {
		if err == nil {
			wait := ctx
			if cl.h.polls {
				wait = polls
			}
			if err = cl.h.answer(wait, c, cl); err != nil {
				c.abort()
			}
		}
		cost := cl.cost
		c.end(cl, err)
		c.cost.Add(-cost)
		c.pending.Add(-1)
		signal(c.ended)
	}
}

// end counts a call that is over and gives back it and what it holds.
func (c *conn) end(cl *call, err error) {
	cl.h.metrics.done(cl.began, cl.failed || err != nil)
	if cl.h.end != nil {
		cl.h.end(cl)
	}
	*cl = call{}
	calls.Put(cl)
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// respond sends a response that kmsg encodes. The answer of ApiVersions has
// the old response header in all versions (KIP-511).
func (c *conn) respond(cl *call, resp kmsg.Response) error {
	resp.SetVersion(cl.version)
	if t, ok := resp.(kmsg.SetThrottleResponse); ok && cl.throttle > 0 {
		t.SetThrottle(cl.throttleMillis())
	}
	c.out.begin(cl.corr, cl.version >= cl.h.flexible && cl.h.key != keyAPIVersions)
	c.out.buf.b = resp.AppendTo(c.out.buf.b)
	return c.out.flush()
}

// quiet is the janitor's memory of one connection, guarded by Server.mu.
type quiet struct {
	got, sent int64
	since     time.Time // nothing moved
	frame     int64
	frameFrom int64 // bytes got when the frame was first seen
	frameAt   time.Time
}

// minRate is the slowest that a frame may arrive once it has taken longer
// than StallTimeout, in bytes a second.
const minRate = 1 << 10

// expiredLocked reports whether the connection is to be closed: nothing moved for
// idle, a frame or an answer stopped in the middle for stall, or a frame
// dribbles in. The janitor calls it again and again.
func (c *conn) expiredLocked(now time.Time, idle, stall time.Duration) bool {
	q := &c.quiet
	got, sent := c.in.got.Load(), c.out.sent.Load()
	if q.since.IsZero() || got != q.got || sent != q.sent {
		q.got, q.sent, q.since = got, sent, now
	}
	inFrame := c.in.inside.Load()
	if frame := c.in.frames.Load(); !inFrame || frame != q.frame || q.frameAt.IsZero() {
		q.frame, q.frameFrom, q.frameAt = frame, got, now
	}
	still := now.Sub(q.since)
	if still > idle || still > stall && (inFrame || c.out.inside.Load()) {
		return true
	}
	age := now.Sub(q.frameAt)
	return age > stall && float64(got-q.frameFrom) < minRate*age.Seconds()
}
