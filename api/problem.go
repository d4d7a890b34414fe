package api

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/broker"
)

// maxItemErrors is how many errors of single records a problem lists.
const maxItemErrors = 100

// Problem is an error as a client of the JSON doors sees it (RFC 9457). Handlers
// return it where no error of broker fits; every other error becomes one by
// ProblemOf. Instance is set by the door that sends it, Type by JSON.
type Problem struct { //nolint:errname // the RFC's own word
	Type         string `json:"type"`
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail,omitzero"`
	Instance     string `json:"instance"`
	Code         string `json:"code"`
	Retriable    bool   `json:"retriable"`
	RetryAfterMS int64  `json:"retry_after_ms,omitzero"`
	MaybeWritten bool   `json:"maybe_written,omitzero"`
	Parameter    string `json:"parameter,omitzero"`
	Limit        int64  `json:"limit,omitzero"`
	Topic        string `json:"topic,omitzero"`
	Partition    *int32 `json:"partition,omitzero"`
	LogStart     *int64 `json:"log_start_offset,omitzero"`
	LogEnd       *int64 `json:"log_end_offset,omitzero"`
	// The offsets that cannot be read: the first, and that behind the last.
	DamagedFrom *int64 `json:"damaged_from_offset,omitzero"`
	DamagedTo   *int64 `json:"damaged_to_offset,omitzero"`

	Errors    []ItemError `json:"errors,omitzero"`
	Truncated bool        `json:"errors_truncated,omitzero"`

	// Close ends the connection after the answer, because the request's body
	// was not read to its end.
	Close bool `json:"-"`
	// Cause is the error behind it, for the log only; nil if there is none.
	Cause error `json:"-"`
}

// ItemError is what is wrong with one record or one place of the body.
type ItemError struct {
	// Index is the number of the record in the request, from 0; nil where the
	// error is outside of all records.
	Index *int `json:"index,omitzero"`
	// Line is counted from 1, Byte from 0; both are of the decoded body.
	Line    int    `json:"line,omitzero"`
	Byte    *int64 `json:"byte,omitzero"`
	Pointer string `json:"pointer,omitzero"`
	Code    string `json:"code"`
	Detail  string `json:"detail,omitzero"`

	status int
	title  string
}

// Error is the problem in words, for logs: it has the cause even where the
// client is not told.
func (p *Problem) Error() string {
	if p.Cause != nil {
		return p.Code + ": " + p.Cause.Error()
	}
	return p.Code + ": " + p.Detail
}

// Unwrap is the error of the domain that the problem tells of.
func (p *Problem) Unwrap() error { return p.Cause }

// ProblemOf makes any error a problem; one that is a problem stays as it is.
func ProblemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	e := Describe(err)
	p := &Problem{
		Status: e.Status, Code: e.Code, Title: e.Title, Detail: e.Detail,
		Retriable: e.Retriable, MaybeWritten: e.MaybeWritten, Cause: err,
	}
	if ce, ok := errors.AsType[*broker.CorruptError](err); ok && ce.From >= 0 {
		p.DamagedFrom, p.DamagedTo = &ce.From, &ce.To
	}
	if qe, ok := errors.AsType[*broker.QuotaError](err); ok {
		p.Limit, p.RetryAfterMS = qe.Rate, (qe.Wait + time.Millisecond - 1).Milliseconds()
	}
	if oe, ok := errors.AsType[*broker.OffsetError](err); ok {
		p.LogStart, p.LogEnd = &oe.Start, &oe.End
		if oe.Offset < oe.Start {
			p.Status, p.Code, p.Title = http.StatusGone, "offset_expired", "Offset expired"
		}
	}
	return p
}

// At adds the place that the problem is about, a partition unless it is
// negative, and returns p.
func (p *Problem) At(topic string, partition int32) *Problem {
	p.Topic = topic
	if partition >= 0 {
		p.Partition = &partition
	}
	return p
}

// JSON is the problem as text, its Type filled in.
func (p *Problem) JSON() []byte {
	out := *p
	out.Type = "/problems/" + p.Code
	text, err := json.Marshal(&out, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		// Every field can be encoded.
		panic(err)
	}
	return text
}

const (
	codeMalformed  = "malformed_body"
	titleMalformed = "Malformed body"
)

// Malformed is a problem of a body that cannot be read.
func Malformed(detail string) *Problem {
	return &Problem{Status: http.StatusBadRequest, Code: codeMalformed, Title: titleMalformed, Detail: detail}
}

// EmptyBody is a problem of a body without anything in it.
func EmptyBody(detail string) *Problem {
	return &Problem{Status: http.StatusBadRequest, Code: "empty_body", Title: "Empty body", Detail: detail}
}

// InvalidParameter is a problem of one parameter of a request.
func InvalidParameter(name, detail string) *Problem {
	return &Problem{
		Status: http.StatusBadRequest, Code: "invalid_parameter", Title: "Invalid parameter",
		Parameter: name, Detail: detail,
	}
}

// Clip bounds what an error repeats of a request.
func Clip(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
