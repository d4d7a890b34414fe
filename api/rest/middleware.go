package rest

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"leat/api"
	"leat/auth"
)

// maxRequestID is the longest request id of a client that is echoed, in bytes.
const maxRequestID = 128

// observe is what stands around every request: its id, CORS, the metrics, the
// log line, and the answer to a panic.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(hw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		w := newResponseWriter(hw, requestID(r))
		w.Header()["Request-Id"] = []string{w.id}
		w.unread = r.Body != nil && r.Body != http.NoBody
		w.flight = s.under.enter(began)
		defer s.under.leave(w.flight)
		w.compression = s.compressionFor(r)
		rctx := chi.RouteContext(r.Context())
		rctx.RoutePath = r.URL.EscapedPath()
		s.allowHead(rctx, r)
		finished := false
		defer func() {
			// chi takes its context back once this function is left.
			s.observed(w, r, rctx.RoutePattern(), time.Since(began))
		}()
		defer func() {
			if !finished {
				// The recovered value is nil only for runtime.Goexit.
				s.recovered(w, r, recover())
			}
		}()
		if !s.cors(w, r) {
			next.ServeHTTP(w, r)
		}
		finished = true
	})
}

// allowHead serves HEAD by the GET of the same path; net/http drops the body.
func (s *Server) allowHead(rctx *chi.Context, r *http.Request) {
	if r.Method == http.MethodHead && !s.router.Match(chi.NewRouteContext(), http.MethodHead, rctx.RoutePath) {
		rctx.RouteMethod = http.MethodGet
	}
}

// recovered answers for a handler that panicked. http.ErrAbortHandler is a
// handler's way to break an answer off, and goes on to net/http, as does any
// panic after the header went out: the client must not take the rest as whole.
func (s *Server) recovered(w *responseWriter, r *http.Request, cause any) {
	if cause == http.ErrAbortHandler { //nolint:errorlint // the very value is the signal
		panic(cause)
	}
	s.log.LogAttrs(r.Context(), slog.LevelError, "request panicked",
		slog.String("request_id", w.id), slog.String("cause", fmt.Sprint(cause)), slog.String("stack", string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	s.fail(w, r, &api.Problem{Status: http.StatusInternalServerError, Code: "internal", Title: "Internal error"})
}

func (s *Server) observed(w *responseWriter, r *http.Request, pattern string, took time.Duration) {
	s.metrics.request(pattern, r.Method, w, took)
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.LogAttrs(r.Context(), slog.LevelDebug, "http request",
			slog.String("request_id", w.id), slog.String("trace_id", traceID(r.Header)), slog.String("method", r.Method), slog.String("route", pattern),
			slog.Int("status", w.status), slog.Int64("bytes", w.sent), slog.Duration("took", took))
	}
}

// requestID is the client's own id if it is presentable, else a new one.
func requestID(r *http.Request) string {
	if v := r.Header["Request-Id"]; len(v) == 1 && presentable(v[0]) {
		return v[0]
	}
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
}

// traceID is the id of the trace that the request is part of, "" if it does not
// say (W3C Trace Context, the header traceparent).
func traceID(h http.Header) string {
	const (
		idAt, idEnd = 3, 35 // version "-" trace id "-" parent id "-" flags
		length      = 55
	)
	values := h["Traceparent"]
	if len(values) != 1 || len(values[0]) < length {
		return ""
	}
	v := values[0]
	version, id, rest := v[:2], v[idAt:idEnd], v[length:]
	well := version != "ff" && (rest == "" || version != "00" && rest[0] == '-') &&
		strings.Trim(id, "0") != "" && strings.Trim(v[36:52], "0") != ""
	for i := range length {
		switch i {
		case 2, 35, 52:
			well = well && v[i] == '-'
		default:
			well = well && (v[i] >= '0' && v[i] <= '9' || v[i] >= 'a' && v[i] <= 'f')
		}
	}
	if !well {
		return ""
	}
	return id
}

func presentable(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// principal is who asks. Until there is authentication that is nobody.
func principal(*http.Request) auth.Principal { return auth.Anonymous }
