package kafka

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/api"
	"leat/auth"
	"leat/broker"
)

// ErrClosed is returned by Serve after Shutdown.
var ErrClosed = errors.New("kafka server is closed")

// Options says how a Server works. The zero value of a field means its
// default; only Broker is needed.
type Options struct {
	// Broker serves the requests.
	Broker *broker.Broker
	// Authorizer tells clients what they may do; the broker enforces it.
	// Default auth.AllowAll.
	Authorizer auth.Authorizer
	// Logger gets what an operator must know; default none.
	Logger *slog.Logger
	// Registerer gets the metrics; default none.
	Registerer prometheus.Registerer
	// MaxRequestBytes is the largest request in bytes, as Kafka's
	// socket.request.max.bytes; default 100 MiB.
	MaxRequestBytes int
	// MaxInFlightBytes bounds the buffers of the requests that are being read,
	// over all connections and but for one request; beyond it reading waits.
	// Default 256 MiB.
	MaxInFlightBytes int64
	// MaxConnections bounds the open connections; more are closed at once.
	// 0 means no bound but that of the file descriptors.
	MaxConnections int
	// MaxIdle is how long a connection may be silent, as Kafka's
	// connections.max.idle.ms; default 10 minutes.
	MaxIdle time.Duration
	// StallTimeout is how long a client may stop in the middle of a request,
	// or of taking an answer; default 1 minute.
	StallTimeout time.Duration
}

func (o *Options) setDefaults() {
	if o.Authorizer == nil {
		o.Authorizer = auth.AllowAll{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxRequestBytes <= 0 {
		o.MaxRequestBytes = 100 << 20
	}
	if o.MaxInFlightBytes <= 0 {
		o.MaxInFlightBytes = 256 << 20
	}
	if o.MaxIdle <= 0 {
		o.MaxIdle = 10 * time.Minute
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = time.Minute
	}
}

// Server is the Kafka door. Its methods are safe for concurrent use.
type Server struct {
	opts     Options
	log      *slog.Logger
	m        *metrics
	handlers *handlers
	// newest answers ApiVersions requests of versions that are not known yet.
	newest *handler
	limit  api.LogLimit
	budget budget
	// freed tells an accept loop that is out of descriptors that some came
	// back.
	freed chan struct{}
	mu    struct {
		sync.Mutex
		listeners map[net.Listener]context.CancelFunc
		conns     map[*conn]struct{}
		closed    bool
		ended     traffic // of the connections that are gone
	}
	serving sync.WaitGroup // calls of Serve
}

// New makes a server. It starts nothing.
func New(opts Options) *Server {
	opts.setDefaults()
	m := newMetrics()
	s := &Server{
		opts: opts, log: opts.Logger.With(slog.String("component", "kafka")),
		m: m, handlers: newHandlers(m), freed: make(chan struct{}, 1),
	}
	s.newest = newestAPIVersions(s.handlers.find(keyAPIVersions))
	s.mu.listeners = map[net.Listener]context.CancelFunc{}
	s.mu.conns = map[*conn]struct{}{}
	s.budget.max = opts.MaxInFlightBytes
	if opts.Registerer != nil {
		m.register(opts.Registerer, s)
	}
	return s
}

// Serve takes connections from ln, which it closes, until Shutdown, the end of
// ctx, or an error of the listener. It returns when all of its connections are
// closed: ErrClosed after Shutdown, the cause of ctx's end, or the error. The
// end of ctx closes them at once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.addListener(ln, cancel) {
		return errors.Join(ErrClosed, ln.Close())
	}
	defer s.serving.Done()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var owned sync.WaitGroup
	done := make(chan struct{})
	owned.Go(func() { s.sweep(done) })
	var conns sync.WaitGroup
	err := s.accept(ctx, ln, &conns)
	_ = ln.Close() // it may be closed already, which is an error
	if !errors.Is(err, ErrClosed) {
		cancel()
	}
	conns.Wait()
	close(done)
	owned.Wait()
	s.mu.Lock()
	delete(s.mu.listeners, ln)
	s.mu.Unlock()
	return err
}

func (s *Server) addListener(ln net.Listener, cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return false
	}
	s.mu.listeners[ln] = cancel
	s.serving.Add(1)
	return true
}

// accept runs the connections of ln in conns and returns why it stopped.
func (s *Server) accept(ctx context.Context, ln net.Listener, conns *sync.WaitGroup) error {
	pause := time.Duration(0)
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			s.open(ctx, nc, conns)
			continue
		case s.isClosed():
			return ErrClosed
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !transient(err):
			return err
		}
		if skipped, ok := s.limit.Allow("accept", logInterval, time.Now()); ok {
			s.log.LogAttrs(ctx, slog.LevelWarn, "kafka connections wait to be accepted",
				slog.Any("err", err), slog.Int("skipped", skipped))
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.pause(ctx, pause)
	}
}

// transient reports whether an error of Accept may pass: the process or the
// machine is out of descriptors or memory, or the client is gone already.
func transient(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// pause waits for d, or until a connection ends.
func (s *Server) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.freed:
	case <-ctx.Done():
	}
}

// open starts a connection, or closes it if there are too many.
func (s *Server) open(ctx context.Context, nc net.Conn, conns *sync.WaitGroup) {
	s.m.accepted.Inc()
	c := newConn(s, nc)
	ctx, c.cancel = context.WithCancel(ctx)
	polls, endPolls := context.WithCancel(ctx)
	c.endPolls = endPolls
	s.mu.Lock()
	full := s.opts.MaxConnections > 0 && len(s.mu.conns) >= s.opts.MaxConnections
	closed := s.mu.closed
	if !full && !closed {
		s.mu.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if full || closed {
		if full {
			s.refused(ctx, nc, refuse(reasonLimit, "%d are open", s.opts.MaxConnections))
		}
		c.abort()
		return
	}
	s.m.connections.Inc()
	conns.Go(func() {
		// The end of the server's context must reach a blocked read.
		stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
		c.run(ctx, polls)
		stop()
		c.cancel()
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.mu.ended.add(c)
		s.mu.Unlock()
		s.m.connections.Dec()
		signal(s.freed)
	})
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.closed
}

// traffic adds up what all connections have moved.
func (s *Server) traffic() traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.mu.ended
	for c := range s.mu.conns {
		t.add(c)
	}
	return t
}

// Shutdown stops accepting, lets the requests that have arrived be answered,
// wakes fetches that wait for data, and closes the connections. When ctx ends
// it closes what is left at once and returns ctx's cause. When it returns every
// Serve has ended its connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.mu.closed = true
	for ln := range s.mu.listeners {
		_ = ln.Close()
	}
	conns := slices.Collect(maps.Keys(s.mu.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.drain()
	}
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, cancel := range s.mu.listeners {
			cancel()
		}
	})
	s.serving.Wait()
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// sweep closes connections that have been silent or stalled for too long.
func (s *Server) sweep(done <-chan struct{}) {
	ticker := time.NewTicker(min(s.opts.MaxIdle, s.opts.StallTimeout) / 4)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-ticker.C:
			for _, c := range s.expired(now) {
				c.abort()
			}
		}
	}
}

func (s *Server) expired(now time.Time) (out []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		if c.expiredLocked(now, s.opts.MaxIdle, s.opts.StallTimeout) {
			out = append(out, c)
		}
	}
	return out
}

// refused counts a connection that was closed without an answer, and logs at
// most one line of a reason in ten seconds.
func (s *Server) refused(ctx context.Context, nc net.Conn, r *refusal) {
	s.m.refused.WithLabelValues(r.reason).Inc()
	skipped, ok := s.limit.Allow(r.reason, logInterval, time.Now())
	if !ok {
		return
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "kafka connection refused",
		slog.String("reason", r.reason), slog.String("detail", r.detail), slog.String("hint", r.hint),
		slog.String("peer", nc.RemoteAddr().String()), slog.Int("skipped", skipped))
}

// logInterval is the time between two log lines of one kind.
const logInterval = 10 * time.Second
