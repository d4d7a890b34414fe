package ws

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"leat/api"
	"leat/auth"
	"leat/broker"
)

const (
	defaultMaxRequestBytes = 16 << 20
	// maxControlBytes bounds a message that is no produce.
	maxControlBytes = 1 << 20
	// maxUnacked is how many bytes of produce messages may wait for their
	// receipts; beyond it a connection is not read.
	maxUnacked = 4 << 20
	// maxOutbox is how many bytes of messages may wait for their turn to be
	// sent; beyond it a connection is not read.
	maxOutbox = 256 << 10
	// maxPrincipalConns bounds the open connections of a principal. Who did not
	// say who he is cannot be told from others, and has the server's bound only.
	maxPrincipalConns = 1000

	defaultHeartbeat    = 25 * time.Second
	defaultPongTimeout  = 10 * time.Second
	defaultWriteTimeout = 10 * time.Second

	defaultDrain = 10 * time.Second
	// firstBack is the share of Options.Drain in which no client comes back, as
	// the server is still there then.
	firstBack = 20
)

// Options configure a Server.
type Options struct {
	// Broker serves the sessions, and Feed encodes records for them. Required.
	Broker *broker.Broker
	Feed   *api.Feed
	// Logger takes connections at debug and failures of the server at error;
	// nil discards.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps them to the Server.
	Registerer prometheus.Registerer
	// AllowOrigins lists the origins that browsers may connect from beside the
	// server's own. See api.CheckOrigin for the form; others never match.
	AllowOrigins []string
	// MaxConnections bounds the open connections; more get 503. 0 means no
	// bound but that of the file descriptors.
	MaxConnections int
	// MaxRequestBytes limits a produce message; 0 means 16 MiB.
	MaxRequestBytes int64
	// Budget bounds the bytes of messages that all clients are in the middle of
	// sending, and those of each principal; beyond it the connection is closed.
	// Small messages do not count. Share one among the doors; nil makes one of
	// the usual size.
	Budget *api.Budget
	// Drain is how long a stop may take, as Shutdown's context has it. Clients
	// are told to come back spread over as long; 0 means 10 s.
	Drain time.Duration
	// Principal says who asks; nil means auth.Anonymous.
	Principal func(*http.Request) auth.Principal

	// Shorter in tests.
	heartbeat, pongTimeout, writeTimeout time.Duration
	principalConns                       int
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxRequestBytes <= 0 {
		o.MaxRequestBytes = defaultMaxRequestBytes
	}
	if o.Budget == nil {
		o.Budget = api.NewBudget(0, 0)
	}
	if o.Drain <= 0 {
		o.Drain = defaultDrain
	}
	if o.Principal == nil {
		o.Principal = func(*http.Request) auth.Principal { return auth.Anonymous }
	}
	if o.principalConns == 0 {
		o.principalConns = maxPrincipalConns
	}
	if o.heartbeat == 0 {
		o.heartbeat, o.pongTimeout, o.writeTimeout = defaultHeartbeat, defaultPongTimeout, defaultWriteTimeout
	}
}

// Server is the WebSocket door. It is safe for concurrent use.
type Server struct {
	opts    Options
	broker  *broker.Broker
	log     *slog.Logger
	origins api.Origins
	metrics *metrics
	pace    pace
	pool    pool
	// delays wakes sessions whose frames wait for company, alive those that
	// must show that they live.
	delays *wheel[*session]
	alive  *wheel[*pulse]
	// began is what times of day are counted from.
	began time.Time
	// blocked counts the connections whose client does not take what is sent.
	blocked atomic.Int64

	// quiet never ends: it is for the library, to which the end of a context
	// means the end of its connection, and which pays for each that can.
	quiet context.Context
	// ctx ends with the Server and bounds all waits.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		draining bool
		// open counts the sessions and the handshakes under way, openOf those of
		// each principal that has any.
		open     int
		openOf   map[auth.Principal]int
		sessions map[*session]struct{}
	}
}

// New makes a Server. It starts nothing and does no I/O.
func New(opts Options) *Server {
	opts.setDefaults()
	s := &Server{
		opts: opts, broker: opts.Broker, log: opts.Logger.With(slog.String("component", "ws")),
		origins: api.ParseOrigins(opts.AllowOrigins), began: time.Now(),
		quiet: context.Background(), //nolint:forbidigo // connections outlive the requests they begin with; Shutdown ends them
	}
	s.ctx, s.cancel = context.WithCancel(s.quiet)
	s.pool.most, s.pool.wg = 4*runtime.GOMAXPROCS(0), &s.wg
	s.delays = newWheel(time.Millisecond, 128, (*session).delayed)
	// The longest wait is a heartbeat, or a ping's.
	tick := max(opts.heartbeat/50, time.Millisecond)
	s.alive = newWheel(tick, 64, (*pulse).beat)
	s.mu.sessions = map[*session]struct{}{}
	s.mu.openOf = map[auth.Principal]int{}
	s.metrics = newMetrics(opts.Registerer, s)
	return s
}

// now is the time that frames and delays are counted in, in ns.
func (s *Server) now() int64 { return int64(time.Since(s.began)) }

// ServeHTTP makes a request a WebSocket, or answers with a problem. It returns
// as soon as it did.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.check(r); err != nil {
		s.refuse(w, err)
		return
	}
	who := s.opts.Principal(r)
	if err := s.admit(who); err != nil {
		s.refuse(w, err)
		return
	}
	h := &hijacker{ResponseWriter: w, wire: &wire{srv: s}}
	c, err := websocket.Accept(h, r, &websocket.AcceptOptions{
		Subprotocols: []string{subprotocol}, InsecureSkipVerify: true, // check has looked at the Origin
		OnPingReceived: h.wire.ping,
	})
	if err != nil {
		s.log.Debug("websocket was not accepted", slog.Any("err", err))
		if h.wire.Conn != nil {
			_ = h.wire.Conn.Close() // it is of no use any more
		}
		s.dismiss(nil, who)
		return
	}
	// Nothing was read yet. The library put a reader of its own in between,
	// for what would be in the buffer.
	h.in.Reset(h.wire)
	c.SetReadLimit(max(s.opts.MaxRequestBytes, maxControlBytes))
	s.metrics.opened.Inc()
	s.enrol(newSession(s, who, c, h.wire))
}

// admit counts a connection in, unless there are enough.
func (s *Server) admit(who auth.Principal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.draining:
		return broker.ErrShuttingDown
	case s.opts.MaxConnections > 0 && s.mu.open >= s.opts.MaxConnections:
		return &api.Problem{
			Status: http.StatusServiceUnavailable, Code: "too_many_connections", Title: "Too many connections",
			Retriable: true, Limit: int64(s.opts.MaxConnections), Detail: "the server has as many connections as it may have",
		}
	case who != auth.Anonymous && s.mu.openOf[who] >= s.opts.principalConns:
		return &api.Problem{
			Status: http.StatusTooManyRequests, Code: "quota_connections", Title: "Too many connections of one client",
			Retriable: true, Limit: int64(s.opts.principalConns), Detail: who.String() + " has as many connections as one may have",
		}
	}
	s.mu.open++
	s.mu.openOf[who]++
	// A connection is one unit until it has ended; what it starts adds its own.
	s.wg.Add(1)
	return nil
}

// enrol begins a session.
func (s *Server) enrol(sess *session) {
	s.mu.Lock()
	s.mu.sessions[sess] = struct{}{}
	draining := s.mu.draining
	s.mu.Unlock()
	sess.start()
	if draining { // it came between the two
		sess.drain()
	}
}

// dismiss counts a connection out; sess is nil if it did not become a session.
func (s *Server) dismiss(sess *session, who auth.Principal) {
	s.mu.Lock()
	delete(s.mu.sessions, sess)
	s.mu.open--
	if s.mu.openOf[who]--; s.mu.openOf[who] == 0 {
		delete(s.mu.openOf, who)
	}
	s.mu.Unlock()
	s.wg.Done()
}

// Shutdown refuses new connections, tells every client to go, and closes the
// connections with 4010 as soon as the receipts of what they produced are out.
// It returns when all are closed. When ctx ends first it breaks them off, and
// returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.mu.draining = true
	s.mu.Unlock()
	for _, sess := range s.sessions() {
		sess.drain()
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
		for _, sess := range s.sessions() {
			sess.abort()
		}
	}
	s.cancel()
	<-done
	s.delays.stop()
	s.alive.stop()
	return err
}

// away is when a client that is told to go should come again: each at its own
// time, so that they do not all come at once, and the last when the server has
// stopped at the latest.
func (s *Server) away() time.Duration {
	first := s.opts.Drain / firstBack
	return first + rand.N(s.opts.Drain-first)
}

func (s *Server) sessions() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.mu.sessions))
}
