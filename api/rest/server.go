package rest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"leat/api"
	"leat/broker"
)

const (
	headerTimeout  = 5 * time.Second
	idleTimeout    = 120 * time.Second
	maxHeaderBytes = 64 << 10

	defaultMaxRequestBytes = 16 << 20
)

// Options configure a Server.
type Options struct {
	// Broker serves the requests. Required.
	Broker *broker.Broker
	// Logger takes requests at debug and failures at error; nil discards.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps them to the Server.
	Registerer prometheus.Registerer
	// MaxRequestBytes limits a request's body, on the wire and decoded, each;
	// 0 means 16 MiB.
	MaxRequestBytes int64
	// Budget bounds the body bytes of all requests at a time, and those of each
	// principal; share one among the doors. nil makes one of the usual size.
	Budget *api.Budget
	// Answers bounds in the same way what answers are made in, which is not
	// what goes from file to socket. nil makes one of the usual size.
	Answers *api.Budget
	// MaxConnections bounds the open connections; more are closed at once.
	// 0 means no bound but that of the file descriptors.
	MaxConnections int
	// AllowOrigins lists the origins that browsers may call from; empty turns
	// CORS off. See CheckOrigin for the form; others never match.
	AllowOrigins []string
	// Feed makes the text of streams; share one among the doors, with the same
	// Answers. nil makes one of the usual size.
	Feed *api.Feed
	// WebSocket serves /v1/ws; nil leaves it without a route. It may return
	// before the connection that it hijacked is closed.
	WebSocket http.Handler
	// OpenAPI is the text served at /openapi.yaml.
	OpenAPI []byte
	// Web serves "/"; nil leaves it without a page.
	Web http.Handler
	// Ready says why the server is not ready, or nil; nil means always ready.
	// Its text goes to the client.
	Ready func() error
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
	if o.Answers == nil {
		o.Answers = api.NewBudget(0, 0)
	}
	if o.Feed == nil {
		o.Feed = api.NewFeed(api.FeedOptions{Answers: o.Answers, Registerer: o.Registerer})
	}
}

// Server is the HTTP door. It is safe for concurrent use.
type Server struct {
	opts    Options
	broker  *broker.Broker
	log     *slog.Logger
	limit   api.LogLimit
	router  *chi.Mux
	http    *http.Server
	metrics *metrics
	// asYAML and asJSON are the contract.
	asYAML, asJSON func() document
	origins        api.Origins
	bodies         decoders
	answers        encoders
	feed           *api.Feed
	// scans has room for the answers that look for what their filters let
	// through.
	scans chan struct{}
	pace  pace
	pacer pacer
	conns atomic.Int64 // open connections, without hijacked ones
	under oldest

	// drain ends the waits of long polls and the streams.
	drain struct {
		sync.Mutex
		started bool
		waits   map[*wait]struct{}
	}
}

// wait is one long poll or stream that a drain must end.
type wait struct{ cancel context.CancelFunc }

// New makes a Server. It starts nothing and does no I/O.
func New(opts Options) *Server {
	opts.setDefaults()
	s := &Server{
		opts:    opts,
		broker:  opts.Broker,
		log:     opts.Logger,
		feed:    opts.Feed,
		scans:   make(chan struct{}, maxScans),
		pace:    usualPace,
		origins: api.ParseOrigins(opts.AllowOrigins),
	}
	s.bodies.maxBytes = opts.MaxRequestBytes
	s.answers.budget = opts.Budget
	s.drain.waits = make(map[*wait]struct{})
	s.asYAML, s.asJSON = documents(opts.OpenAPI)
	s.metrics = newMetrics(opts.Registerer, &opts, &s.conns, &s.under)
	s.router = s.newRouter()
	s.http = &http.Server{
		Handler:           s.router,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         s.count,
		ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// count keeps the number of connections and closes those beyond the bound as
// they come.
func (s *Server) count(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if n := s.conns.Add(1); s.opts.MaxConnections > 0 && n > int64(s.opts.MaxConnections) {
			s.metrics.refused.Inc()
			_ = c.Close() // nothing was read or written
		}
	case http.StateClosed, http.StateHijacked:
		s.conns.Add(-1)
	case http.StateActive, http.StateIdle:
	}
}

// Handler is the door without a listener, for tests and embedding.
func (s *Server) Handler() http.Handler { return s.router }

// Serve answers connections of ln until Shutdown, which makes it return nil,
// or until ctx ends, which breaks the connections off. It closes ln. Give it
// the TCP listener itself: a wrapped connection cannot sendfile.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown stops the listeners, wakes every long poll, ends every stream, which
// tells its client to come back, and waits until the requests under way are
// answered. Hijacked connections are their handler's to end. When ctx ends
// first it breaks the requests off and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain.Lock()
	s.drain.started = true
	for w := range s.drain.waits {
		w.cancel()
	}
	s.drain.Unlock()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// waitContext derives a context that also ends when the server drains. The
// caller must call done.
func (s *Server) waitContext(parent context.Context) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(parent)
	w := &wait{cancel: cancel}
	s.drain.Lock()
	defer s.drain.Unlock()
	if s.drain.started {
		cancel()
		return ctx, cancel
	}
	s.drain.waits[w] = struct{}{}
	return ctx, func() {
		s.drain.Lock()
		delete(s.drain.waits, w)
		s.drain.Unlock()
		cancel()
	}
}
