package rest

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
)

// fail answers with err.
func (s *Server) fail(w *responseWriter, r *http.Request, err error) {
	p := *api.ProblemOf(err)
	p.Instance = w.id
	if skipped, ok := s.mayLog(err); p.Status >= http.StatusInternalServerError && ok {
		s.log.LogAttrs(r.Context(), levelOf(p.Status), "request failed", slog.Int("skipped", skipped), slog.String("request_id", w.id),
			slog.Int("status", p.Status), slog.String("code", p.Code), slog.String("path", r.URL.EscapedPath()), slog.Any("err", err))
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable && p.Retriable && p.RetryAfterMS == 0 {
		p.RetryAfterMS = time.Second.Milliseconds()
	}
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	if p.Close {
		h.Set("Connection", "close")
	}
	writeText(w, r, p.Status, p.JSON())
}

// mayLog says whether to log err, and how many lines of its kind were held back:
// a fault of the server's files may meet every request.
func (s *Server) mayLog(err error) (skipped int, ok bool) {
	kind := api.Fault(err)
	if kind == "" {
		return 0, true
	}
	return s.limit.Allow(kind, api.FaultInterval, time.Now())
}

// levelOf keeps what a client can provoke at will out of the error log.
func levelOf(status int) slog.Level {
	if status < http.StatusInternalServerError {
		return slog.LevelDebug
	}
	if status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// writeJSON answers with v.
func (s *Server) writeJSON(w *responseWriter, r *http.Request, status int, v any) {
	text, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		// Every type that comes here can be encoded.
		panic(err)
	}
	w.Header().Set("Content-Type", mediaJSON)
	writeText(w, r, status, text)
}

// writeText answers with a JSON text and, for who reads it in a terminal, the end
// of its line.
func writeText(w *responseWriter, r *http.Request, status int, text []byte) {
	text = w.compressWhole(append(text, '\n'))
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	// A client that is gone cannot be told.
	_, _ = w.Write(text)
}
