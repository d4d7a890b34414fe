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
	p.Type, p.Instance = "/problems/"+p.Code, w.id
	if p.Status >= http.StatusInternalServerError {
		s.log.LogAttrs(r.Context(), levelOf(p.Status), "request failed", slog.String("request_id", w.id),
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
	s.writeJSON(w, r, p.Status, &p)
}

// levelOf keeps what a client can provoke at will out of the error log.
func levelOf(status int) slog.Level {
	if status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// writeJSON answers with v; the Content-Type is JSON unless one is set.
func (s *Server) writeJSON(w *responseWriter, r *http.Request, status int, v any) {
	text, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		// Every type that comes here can be encoded.
		panic(err)
	}
	h := w.Header()
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	// A client that is gone cannot be told.
	_, _ = w.Write(text)
}
