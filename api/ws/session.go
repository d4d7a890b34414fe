package ws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"leat/api"
	"leat/auth"
	"leat/broker"
)

// The states of a session between the pool and those who wake it.
const (
	idle    int32 = iota
	queued        // it waits for a worker
	running       // a worker has it
	woken         // a worker has it, and it was woken since
	over          // it has ended
)

// closeTimeout is how long a client has to answer a close.
const closeTimeout = 2 * time.Second

// eventSize is what an event counts for beside its reply, in bytes.
const eventSize = 128

// session is one connection. Its reader is its only goroutine while nothing is
// sent; what is sent leaves in turns, which workers of the pool run one at a
// time. The core belongs to who runs a turn.
type session struct {
	srv       *Server
	principal auth.Principal
	ws        *websocket.Conn
	wire      *wire
	id        string

	state atomic.Int32
	core  core
	// counted are the subscriptions that the metrics know of.
	counted int
	// timed is the time for which a turn is in the wheel of delays, 0 if none is.
	timed atomic.Int64
	// mute says that nothing can be sent any more.
	mute bool

	// sentAt is when the last message left, writing says that one is leaving.
	sentAt  atomic.Int64
	writing atomic.Bool
	// reads counts up when the reader has something else to do, and when it
	// reads again: it is even while it reads.
	reads atomic.Int64
	// owed is for how long the client is not read, because it is beyond a quota;
	// the reader's.
	owed time.Duration
	// pulse is what the wheel has of the session, until the end. pingAt is when
	// the next ping goes; the wheel's alone.
	pulse  *pulse
	pingAt int64

	mu struct {
		sync.Mutex
		// changed tells those who wait for room, or for the end.
		changed sync.Cond
		// inbox are the events for the next turn, of size bytes.
		inbox []event
		size  int
		// pending are the produced records whose receipts are due, in order, of
		// unacked bytes; settling says that a goroutine waits for them, and
		// appending that the reader is about to add to them.
		pending             []*production
		unacked             int
		settling, appending bool
		// stop ends what waits for receipts.
		stop context.CancelFunc
		// draining says that no more is taken in, closing that the connection
		// ends, handshake that a goroutine sees to it, dead that nothing is read
		// any more.
		draining, closing, handshake, dead bool
		cause                              closeCause
	}
}

// newSession readies a session; start begins it.
func newSession(srv *Server, p auth.Principal, c *websocket.Conn, w *wire) *session {
	s := &session{srv: srv, principal: p, ws: c, wire: w, id: fmt.Sprintf("%016x", rand.Uint64()), pulse: &pulse{}}
	s.pulse.session.Store(s)
	s.mu.changed.L = &s.mu.Mutex
	s.core.conn, s.core.pace = s.id, &srv.pace
	w.owner = s
	return s
}

// start tells the client that all is ready and starts the reader.
func (s *session) start() {
	now := s.srv.now()
	s.sentAt.Store(now)
	// Those who come together shall not be pinged together for ever.
	beat := int64(s.srv.opts.heartbeat)
	s.pingAt = now + beat/2 + rand.Int64N(beat/2+1)
	s.srv.log.Debug("websocket opened", slog.String("conn", s.id), slog.String("principal", s.principal.String()))
	s.post(&event{reply: s.ready()}, false)
	s.srv.alive.add(s.pulse, time.Duration(s.pingAt-now))
	go s.read()
}

func (s *session) ready() text {
	t := begin(kindReady, "", "").quote("conn", s.id).integer("hb_ms", s.srv.opts.heartbeat.Milliseconds()).name("limits")
	t.b = fmt.Appendf(t.b, `{"subscriptions":%d,"control_bytes":%d,"produce_bytes":%d,"unacked_bytes":%d,"frame_bytes":%d,"max_delay_ms":%d}`,
		maxSubscriptions, maxControlBytes, s.srv.opts.MaxRequestBytes, maxUnacked, maxFrameBytes, maxAskedDelay.Milliseconds())
	return t.close()
}

// read reads one message, has it done, and goes on in a fresh goroutine: the
// stack that the work took is not kept while the client is silent.
func (s *session) read() {
	if !s.one() {
		s.finish()
		return
	}
	go s.read()
}

// one takes one message and reports whether to read on.
func (s *session) one() (more bool) {
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked(cause)
			more = false
		}
	}()
	if !s.room() {
		return false
	}
	typ, r, err := s.ws.Reader(s.srv.quiet)
	if err != nil {
		s.readFailed(err)
		return false
	}
	if typ != websocket.MessageText {
		s.shut(causeBinary, "messages are text")
		return false
	}
	buf, err := s.slurp(r)
	if err != nil {
		s.readFailed(err)
		return false
	}
	s.reads.Add(1)
	defer s.reads.Add(1)
	size := cap(buf.b)
	defer s.giveBack(buf, size)
	if !utf8.Valid(buf.message()) {
		s.shut(causeUTF8, "a text message must be UTF-8")
		return false
	}
	s.message(buf.message())
	return true
}

// errOverloaded says that the clients send more at a time than there is memory
// for.
var errOverloaded = errors.New("too many bytes in flight")

// slurp reads a message to its end. A message that the end of the connection
// cut off may seem whole, but is no JSON then.
func (s *session) slurp(r io.Reader) (*buffer, error) {
	buf := newBuffer(classes[0] - headRoom)
	for {
		if len(buf.b) == cap(buf.b) {
			var err error
			if buf, err = s.widen(buf); err != nil {
				return nil, err
			}
		}
		n, err := r.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		switch err {
		case nil:
		case io.EOF:
			limit := s.srv.opts.MaxRequestBytes
			if int64(len(buf.message())) > limit && isProduce(buf.message()) {
				s.giveBack(buf, cap(buf.b))
				return nil, websocket.ErrMessageTooBig
			}
			return buf, nil
		default:
			s.giveBack(buf, cap(buf.b))
			return nil, err
		}
	}
}

// widen moves a message into a larger buffer, if it may become larger.
func (s *session) widen(buf *buffer) (*buffer, error) {
	defer s.giveBack(buf, cap(buf.b))
	have := len(buf.message())
	if have > maxControlBytes && !isProduce(buf.message()) {
		return nil, websocket.ErrMessageTooBig
	}
	size := 4 * cap(buf.b)
	if have <= maxControlBytes {
		size = min(size, maxControlBytes+1)
	}
	size = min(size, int(max(s.srv.opts.MaxRequestBytes, maxControlBytes))+1)
	wide := newBuffer(max(size, have+1))
	own := int64(0) // of this message, until it has moved
	if buf.class < 0 {
		own = int64(cap(buf.b))
	}
	if wide.class < 0 && s.srv.opts.Budget.Grow(s.principal, own, int64(cap(wide.b))) != nil {
		return nil, errOverloaded
	}
	wide.b = append(wide.b, buf.message()...)
	return wide, nil
}

// giveBack releases a buffer of slurp, of size bytes.
func (s *session) giveBack(buf *buffer, size int) {
	if buf.class < 0 {
		s.srv.opts.Budget.Give(s.principal, int64(size))
	}
	buf.release()
}

// readFailed notes why there is nothing more to read.
func (s *session) readFailed(err error) {
	switch cause := readCause(err); {
	case errors.Is(err, errOverloaded):
		s.shut(causeOverloaded, "")
	case s.wire.late.Load():
		s.shut(causeSlow, "")
	case cause == causeTooBig:
		s.shut(cause, "")
	case cause == causeProtocol:
		s.shut(cause, err.Error())
	default:
		s.mu.Lock()
		if !s.mu.closing {
			s.mu.cause = cause
		}
		s.mu.Unlock()
	}
}

// finish ends a session whose reader ends.
func (s *session) finish() {
	s.mu.Lock()
	s.mu.dead = true
	handshake, stop := s.mu.handshake, s.mu.stop
	s.mu.changed.Broadcast()
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	if !handshake {
		_ = s.ws.CloseNow() // there is nobody to tell
	}
	s.kick()
}

// message does what a message asks for.
func (s *session) message(b []byte) {
	began := time.Now()
	m, err := parseMessage(b)
	if err != nil {
		s.srv.metrics.in[kindInvalid].Inc()
		s.fail(&m, err)
		return
	}
	s.srv.metrics.in[m.kind].Inc()
	s.meter(&m, len(b))
	switch m.kind {
	case kindPing:
		s.post(&event{reply: plain(kindPong, m.id, "")}, true)
	case kindProduce:
		s.produce(&m, len(b), began)
	case kindSubscribe:
		s.subscribe(&m)
	default:
		// It outlives the text.
		s.post(&event{client: m}, true)
	}
}

// fail answers a message with an error.
func (s *session) fail(m *message, err error) {
	s.post(&event{reply: s.failure(m, err)}, true)
}

// failure is the answer to a message that failed.
func (s *session) failure(m *message, err error) text {
	p := api.ProblemOf(err)
	if p.Status >= http.StatusInternalServerError {
		s.srv.log.LogAttrs(s.srv.quiet, slog.LevelWarn, "websocket request failed", slog.String("conn", s.id),
			slog.String("type", kindNames[m.kind]), slog.String("topic", m.topic), slog.Any("err", err))
	}
	return failure(m.id, m.sub, s.id, p)
}

// post gives an event to the next turn. With wait it waits for room, unless the
// session ends.
func (s *session) post(e *event, wait bool) {
	s.mu.Lock()
	for wait && s.mu.size > maxOutbox && !s.mu.closing && !s.mu.dead {
		s.mu.changed.Wait()
	}
	if s.mu.dead {
		s.mu.Unlock()
		e.discard()
		return
	}
	s.mu.inbox = append(s.mu.inbox, *e)
	s.mu.size += eventSize + len(e.reply.b)
	s.mu.Unlock()
	s.kick()
}

// discard ends what an event holds that no turn takes.
func (e *event) discard() {
	if e.subscribe != nil {
		e.subscribe.src.Close()
	}
}

// shut begins to close the connection, for the first cause given.
func (s *session) shut(cause closeCause, detail string) {
	s.mu.Lock()
	if s.mu.closing || s.mu.dead {
		s.mu.Unlock()
		return
	}
	s.mu.closing, s.mu.handshake, s.mu.cause = true, true, cause
	s.mu.changed.Broadcast()
	s.srv.wg.Add(1) // under the lock: the session has not ended
	s.mu.Unlock()
	s.wire.linger.Store(!s.wire.late.Load())
	go func() {
		defer s.srv.wg.Done()
		// The library waits for the client's close frame, and without a bound
		// for the rest of a frame that was begun.
		_ = s.wire.SetReadDeadline(time.Now().Add(closeTimeout))
		// The error is that of a client that is gone, or does not answer.
		_ = s.ws.Close(closeCodes[cause], closeReason(closeNames[cause], detail))
	}()
}

// abort ends the connection at once.
func (s *session) abort() {
	s.mu.Lock()
	if !s.mu.closing {
		s.mu.closing, s.mu.cause = true, causeDraining
	}
	s.mu.changed.Broadcast()
	s.mu.Unlock()
	_ = s.wire.Conn.Close() // there is nothing left to lose
}

// drain tells the client to go. The connection is closed when all receipts are
// out.
func (s *session) drain() {
	s.mu.Lock()
	s.mu.draining = true
	s.mu.Unlock()
	s.post(&event{drain: true, away: s.srv.away()}, false)
}

func (s *session) panicked(cause any) {
	s.srv.log.LogAttrs(s.srv.quiet, slog.LevelError, "websocket session panicked", slog.String("conn", s.id),
		slog.String("cause", fmt.Sprint(cause)), slog.String("stack", string(debug.Stack())))
	s.shut(causeInternal, "")
}

// end is the last turn.
func (s *session) end() {
	s.core.close()
	s.count()
	s.mu.Lock()
	inbox, cause := s.mu.inbox, s.mu.cause
	s.mu.inbox, s.mu.pending = nil, nil
	s.mu.Unlock()
	for i := range inbox {
		inbox[i].discard()
	}
	s.srv.metrics.closes[cause].Inc()
	s.srv.log.Debug("websocket closed", slog.String("conn", s.id), slog.String("cause", closeNames[cause]))
	s.state.Store(over)
	s.pulse.session.Store(nil)
	s.srv.dismiss(s, s.principal)
}

// count keeps the number of subscriptions in the metrics.
func (s *session) count() {
	if n := len(s.core.subs); n != s.counted {
		s.srv.metrics.subs.Add(float64(n - s.counted))
		s.counted = n
	}
}

// subscribe opens what a new subscription reads from and gives it to the core.
func (s *session) subscribe(m *message) {
	sub := &subscription{}
	topic, err := s.open(m, sub)
	switch {
	case errors.Is(err, api.ErrStreamReset):
		s.post(&event{reply: streamResetText(m.id, m.sub, m.topic)}, true)
	case err != nil:
		s.fail(m, api.ProblemOf(err).At(m.topic, api.AnyPartition))
	default:
		sub.begin(m)
		reply := subscribedText(m.id, m.sub, topic, sub.positions())
		s.post(&event{subscribe: sub, client: message{kind: m.kind, id: m.id, sub: m.sub}, reply: reply}, true)
	}
}

// open resolves where a subscription starts.
func (s *session) open(m *message, sub *subscription) (broker.Topic, error) {
	b := s.srv.broker
	topic, err := b.Topic(s.srv.ctx, s.principal, broker.TopicRef{Name: m.topic})
	if err != nil {
		return topic, err
	}
	if m.topicID != "" && m.topicID != topic.ID.String() {
		return topic, api.ErrStreamReset
	}
	place, err := m.from.place()
	if err != nil {
		return topic, err
	}
	var filter *broker.Filter
	if m.filter != "" {
		if filter, err = api.CompileFilter(s.srv.ctx, b, m.filter); err != nil {
			return topic, err
		}
	}
	starts, err := place.Starts(s.srv.ctx, b, s.principal, topic, m.partitions)
	if err != nil {
		return topic, err
	}
	all := m.allPartitions || m.partitions == nil && m.from.kind != fromOffsets
	// By id, so that the positions are of the same incarnation.
	tail, err := b.Tail(s.principal, broker.TopicRef{ID: topic.ID}, starts, all, func() {
		sub.woken.Store(true)
		s.kick()
	})
	if errors.Is(err, broker.ErrUnknownTopicID) {
		return topic, api.ErrStreamReset
	}
	if err != nil {
		return topic, err
	}
	if err := reachable(tail); err != nil {
		tail.Close()
		return topic, err
	}
	sub.src = &feedSource{srv: s.srv, tail: tail, form: api.Form{As: m.as}, filter: filter}
	return topic, nil
}

// reachable refuses positions that the log does not come to: a subscription
// there would wait in silence, and later miss what it was not told of.
func reachable(t *broker.Tail) error {
	for i := range t.Len() {
		if hw, _, err := t.Watermark(i); err != nil || t.Position(i).Offset <= hw {
			continue // what is wrong with a partition is told when it is read
		}
		res := t.Read(i, 0)
		if res.Section != nil {
			res.Section.Release()
		}
		if res.Err != nil {
			return api.ProblemOf(res.Err).At(t.Topic().Name, t.Position(i).Partition)
		}
	}
	return nil
}

// place is the place in the words of package api.
func (f *from) place() (api.Place, error) {
	switch f.kind {
	case fromOffsets:
		at := make(map[int32]int64, len(f.offsets))
		for _, o := range f.offsets {
			at[o.Partition] = o.Offset
		}
		return api.PlaceOffsets(at), nil
	case fromTime:
		return api.PlaceTime(f.ms), nil
	case fromPlace:
		if isPlace(f.text) {
			return api.ParsePlace(f.text)
		}
	case fromCursor:
	}
	c, err := api.ParseCursor(f.text)
	return api.PlaceCursor(c), err
}

// isPlace tells the words for places from cursors, in whose alphabet there is
// no colon.
func isPlace(text string) bool {
	return text == api.FromEarliest || text == api.FromLatest || slices.Contains([]byte(text), ':')
}

// feedSource is the source of a subscription in the server.
type feedSource struct {
	srv    *Server
	tail   *broker.Tail
	form   api.Form
	filter *broker.Filter
}

func (f *feedSource) Len() int                        { return f.tail.Len() }
func (f *feedSource) Position(i int) broker.TailStart { return f.tail.Position(i) }
func (f *feedSource) Next() int                       { return f.tail.Next() }
func (f *feedSource) Seek(i int, offset int64)        { f.tail.Seek(i, offset) }
func (f *feedSource) Err() error                      { return f.tail.Err() }
func (f *feedSource) Close()                          { f.tail.Close() }

func (f *feedSource) Read(i int, most api.Limits) (run, error) {
	if f.filter != nil { // it may have to wait for its turn
		f.srv.pool.leave()
		defer f.srv.pool.back()
	}
	r, err := f.srv.opts.Feed.Read(f.srv.ctx, f.tail, i, f.form, f.filter, most)
	if err != nil {
		return run{}, err
	}
	return run{next: r.Next, count: r.Count(), failed: r.Failed, text: r.Text()}, nil
}

func (f *feedSource) Lag(i int) int64 {
	hw, _, err := f.tail.Watermark(i)
	if err != nil {
		return 0
	}
	return hw - f.tail.Position(i).Offset
}
