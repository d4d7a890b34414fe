package api

import (
	"bytes"
	"errors"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"leat/storage/record"
)

// memorySink keeps what it is given.
type memorySink struct{ records []record.Record }

func (m *memorySink) Add(_ int32, ts int64, key, value []byte, headers []record.Header) error {
	kept := make([]record.Header, len(headers))
	for i, h := range headers {
		kept[i] = record.Header{Key: h.Key, Value: bytes.Clone(h.Value)}
	}
	m.records = append(m.records, record.Record{Timestamp: ts, Key: bytes.Clone(key), Value: bytes.Clone(value), Headers: kept})
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
		rs := &Records{Sink: sink, Route: AnyPartition}
		parse := ParseJSON
		if lines {
			parse = ParseNDJSON
		}
		err := parse(rs, body)
		if err == nil {
			err = rs.Finish()
		}
		if err != nil {
			p, ok := errors.AsType[*Problem](err)
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
			for _, as := range []string{AsAuto, AsJSON, AsString, AsBase64} {
				text := AppendRecord(nil, 3, &sink.records[i], Form{As: as, Lines: true})
				if !jsontext.Value(text).IsValid(valueOptions...) || bytes.ContainsAny(text, "\r\n") || !bytes.HasPrefix(text, []byte(`{"partition":3,"offset":0,`)) {
					t.Fatalf("%q as %s: %q", body, as, text)
				}
			}
		}
	})
}
