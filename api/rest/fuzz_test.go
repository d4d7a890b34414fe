package rest

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"leat/broker"
	"leat/storage/record"
)

// memorySink keeps what it is given.
type memorySink struct{ records []record.Record }

func (m *memorySink) Add(_ int32, ts int64, key, value []byte, headers []record.Header) error {
	m.records = append(m.records, record.Record{Timestamp: ts, Key: bytes.Clone(key), Value: bytes.Clone(value), Headers: headers})
	return nil
}

// Whatever the body, parsing it neither panics nor leaves an error without a
// place; a body that is taken is JSON, and what it says is written again as
// JSON.
func FuzzProduceJSON(f *testing.F) {
	for _, seed := range []string{
		`{"records":[{"key":"a","value":{"x":1.10},"headers":{"h":null},"partition":1,"timestamp":5}]}`,
		`[{"value_b64":"AA==","headers":[{"name":"a","value_b64":"/w=="}]},{"key_json":[1],"value_str":"\u0041\n"}]`,
		"{\"value\":1}\n{\"value\":2}\r\n\n", `[{"valu":1}]`, `[{"key"="a"}]`, `{"records":[]}`, `[[`, "[{\"value\":\"\xff\"}]", `{"records":{}}x`, ``,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		sink := &memorySink{}
		rs := &records{sink: sink, route: anyPartition}
		parse := parseJSON
		if lines {
			parse = parseNDJSON
		}
		err := parse(rs, body)
		if err == nil {
			err = rs.finish()
		}
		if err != nil {
			p, ok := errors.AsType[*problem](err)
			if !ok || p.Status < 400 || p.Status > 499 || p.Code == "" || p.Detail == "" {
				t.Fatalf("%q: %#v", body, err)
			}
			for _, e := range p.Errors {
				if e.Line < 1 || e.Byte == nil || *e.Byte > int64(len(body)) {
					t.Fatalf("%q: no place: %+v", body, e)
				}
			}
			return
		}
		if !lines && !jsontext.Value(body).IsValid(valueOptions...) {
			t.Fatalf("took %q", body)
		}
		for i := range sink.records {
			for _, form := range []string{formAuto, formJSON, formString, formBase64} {
				w := httptest.NewRecorder()
				out := newChunks(newResponseWriter(w, ""), http.StatusOK, mediaNDJSON)
				e := &encoder{out: out, form: form, lines: true}
				e.record(&sink.records[i])
				_ = out.finish()
				out.release()
				if text := w.Body.Bytes(); !jsontext.Value(text).IsValid(valueOptions...) || bytes.Count(text, []byte("\n")) != 1 {
					t.Fatalf("%q as %s: %q", body, form, text)
				}
			}
		}
	})
}

// Whatever the query, reading it neither panics nor takes a value out of range.
func FuzzParams(f *testing.F) {
	for _, seed := range []string{
		"offset=0", "from=tail:5&wait=20", "from=ts:2026-01-02T03:04:05Z&max_bytes=1", "wait=1e9", "offset=0&offset=0", "%zz", "a=b;c", "&&=", "offset=%30&wait=.5s", "wait=NaN",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{RawQuery: query}, Header: http.Header{}}
		ps, err := parseParams(r, "offset", "from", "wait", "min_bytes", "max_bytes", "max_records", "as")
		o := &fetchOptions{offset: -1}
		if err == nil {
			err = firstError(o.place(ps), o.sizes(ps))
		}
		if err == nil {
			o.wait, err = waitParam(r, ps)
		}
		if err != nil {
			p, ok := errors.AsType[*problem](err)
			if !ok || p.Status != http.StatusBadRequest || p.Code != "invalid_parameter" {
				t.Fatalf("%q: %#v", query, err)
			}
			return
		}
		if o.wait < 0 || o.wait > maxFetchWait || o.minBytes < 0 || o.minBytes > o.maxBytes || o.maxBytes > maxFetchSize || o.maxRecords < 1 ||
			o.from == "" && o.offset < 0 {
			t.Fatalf("%q: %+v", query, o)
		}
	})
}

// Whatever the segment, it is a topic name as it stands or an error; it never
// becomes a path.
func FuzzTopicPath(f *testing.F) {
	for _, seed := range []string{"a", "a.b", "a%2Eb", "..", "%2e%2e", "a%2Fb", "%00", "%", "%zz", strings.Repeat("x", 250), "", "ü"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, segment string) {
		name, err := parseTopic(segment)
		if err != nil {
			if !errors.Is(err, broker.ErrInvalidTopic) {
				t.Fatalf("%q: %v", segment, err)
			}
			return
		}
		if name == "" || name == "." || name == ".." || len(name) > 249 || strings.ContainsAny(name, "/\\%\x00 ") {
			t.Fatalf("%q is taken as %q", segment, name)
		}
		if again, err := parseTopic(url.PathEscape(name)); err != nil || again != name {
			t.Fatalf("%q: %q, %v", name, again, err)
		}
	})
}

// Whatever the text, a wait is within its bounds or an error.
func FuzzSeconds(f *testing.F) {
	for _, seed := range []string{"20", "0.5", ".5s", "500ms", "1m", "NaN", "1e3", "0x1p-2", "1_0", "", "s", "99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := seconds("wait", text, time.Minute); err == nil && (d < 0 || d > time.Minute) {
			t.Fatalf("%q is %v", text, d)
		}
	})
}
