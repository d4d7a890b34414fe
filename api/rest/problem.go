package rest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// maxItemErrors is how many errors of single records a problem lists.
const maxItemErrors = 100

// problem is an error as the client sees it (RFC 9457). Handlers return it
// where no error of broker fits; every other error becomes one by api.Describe.
type problem struct {
	Type         string      `json:"type"`
	Title        string      `json:"title"`
	Status       int         `json:"status"`
	Detail       string      `json:"detail,omitzero"`
	Instance     string      `json:"instance"`
	Code         string      `json:"code"`
	Retriable    bool        `json:"retriable"`
	RetryAfterMS int64       `json:"retry_after_ms,omitzero"`
	MaybeWritten bool        `json:"maybe_written,omitzero"`
	Parameter    string      `json:"parameter,omitzero"`
	Limit        int64       `json:"limit,omitzero"`
	Topic        string      `json:"topic,omitzero"`
	Partition    *int32      `json:"partition,omitzero"`
	LogStart     *int64      `json:"log_start_offset,omitzero"`
	LogEnd       *int64      `json:"log_end_offset,omitzero"`
	Errors       []itemError `json:"errors,omitzero"`
	Truncated    bool        `json:"errors_truncated,omitzero"`

	// close ends the connection after the answer, because the request's body
	// was not read to its end.
	close bool
	cause error
}

// itemError is what is wrong with one record or one place of the body.
type itemError struct {
	// Index is the number of the record in the request, from 0; nil where the
	// error is outside of all records.
	Index *int `json:"index,omitzero"`
	// Line is counted from 1, Byte from 0; both are of the decoded body.
	Line    int    `json:"line,omitzero"`
	Byte    *int64 `json:"byte,omitzero"`
	Pointer string `json:"pointer,omitzero"`
	Code    string `json:"code"`
	Detail  string `json:"detail,omitzero"`
	status  int
	title   string
}

// Error is the problem in words, for logs: it has the cause even where the
// client is not told.
func (p *problem) Error() string {
	if p.cause != nil {
		return p.Code + ": " + p.cause.Error()
	}
	return p.Code + ": " + p.Detail
}

// Unwrap is the error of the domain that the problem tells of.
func (p *problem) Unwrap() error { return p.cause }

// describe makes any error a problem.
func describe(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	e := api.Describe(err)
	p := &problem{
		Status: e.Status, Code: e.Code, Title: e.Title, Detail: e.Detail,
		Retriable: e.Retriable, MaybeWritten: e.MaybeWritten, cause: err,
	}
	if de, ok := errors.AsType[*damageError](err); ok {
		p.Detail = fmt.Sprintf("the batch with offset %d is damaged", de.offset)
	}
	if oe, ok := errors.AsType[*broker.OffsetError](err); ok {
		p.LogStart, p.LogEnd = &oe.Start, &oe.End
		if oe.Offset < oe.Start {
			p.Status, p.Code, p.Title = http.StatusGone, "offset_expired", "Offset expired"
		}
	}
	return p
}

// at adds the place that the problem is about.
func (p *problem) at(topic string, partition int32) *problem {
	p.Topic = topic
	if partition >= 0 {
		p.Partition = &partition
	}
	return p
}

// fail answers with err.
func (s *Server) fail(w *responseWriter, r *http.Request, err error) {
	p := *describe(err)
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
	if p.close {
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

func invalidParameter(name, detail string) *problem {
	return &problem{
		Status: http.StatusBadRequest, Code: "invalid_parameter", Title: "Invalid parameter",
		Parameter: name, Detail: detail,
	}
}
