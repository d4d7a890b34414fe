package rest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Case 3 and its kind: a bad body is a 4xx that says what and where, and
// nothing of it is written, nor a topic made.
func TestBadBodies(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	d.topic("compacted", 1, "cleanup.policy", "compact")
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	headers := strings.Repeat(`{"name":"a"},`, 100) + `{"name":"a"}`
	for _, tc := range []struct {
		media, body string
		status      int
		code        string
		detail      string // part of the body
	}{
		{mediaJSON, `{"records":[{"key":"a","valu":1}]}`, 400, "malformed_body", `"index":0,"line":1,"byte":29,"pointer":"/records/0/valu"`},
		{mediaJSON, `{"records":[{"key"="a"}]}`, 400, "malformed_body", `"line":1,"byte":18`},
		{mediaJSON, "[{\"value\":1},\n{\"value\":tru}]", 400, "malformed_body", `"index":1,"line":2`},
		{mediaJSON, ``, 400, "empty_body", ``},
		{mediaJSON, " \n", 400, "empty_body", ``},
		{mediaJSON, `[]`, 400, "empty_body", ``},
		{mediaJSON, `{"records":[]}`, 400, "empty_body", ``},
		{mediaJSON, `{}`, 400, "malformed_body", `records is missing`},
		{mediaJSON, `{"records":{}}`, 400, "malformed_body", `must be an array`},
		{mediaJSON, `{"record":[{"value":1}]}`, 400, "malformed_body", `unknown member`},
		{mediaJSON, `{"records":[{"value":1}],"records":[{"value":1}]}`, 400, "malformed_body", `more than once`},
		{mediaJSON, `{"records":[{"value":1}],"x":1}`, 400, "malformed_body", `/x`},
		{mediaJSON, `"text"`, 400, "malformed_body", `want an object`},
		{mediaJSON, `null`, 400, "malformed_body", `want an object`},
		{mediaJSON, `[1,{"value":1}]`, 400, "malformed_body", `must be an object`},
		{mediaJSON, `[{"value":1}]x`, 400, "malformed_body", `after the end`},
		{mediaJSON, `[{"value":1}][{"value":1}]`, 400, "malformed_body", `after the end`},
		{mediaJSON, `[{"value":1}`, 400, "malformed_body", `ended early`},
		{mediaJSON, `[{"value":1},]`, 400, "malformed_body", ``},
		{mediaJSON, `[{"value":01}]`, 400, "malformed_body", ``},
		{mediaJSON, `[{"value":NaN}]`, 400, "malformed_body", ``},
		{mediaJSON, "[{\"value\":\"\xff\"}]", 400, "malformed_body", `UTF-8`},
		{mediaJSON, `[{"value":"\ud800"}]`, 400, "malformed_body", ``},
		{mediaJSON, `[{"value":1,"value":2}]`, 400, "malformed_body", `more than once`},
		{mediaJSON, `[{"value":1,"value_str":"2"}]`, 400, "malformed_body", `more than once`},
		{mediaJSON, `[{"key":"a","key_b64":"AA=="}]`, 400, "malformed_body", `more than once`},
		{mediaJSON, `[{"partition":0,"partition":0}]`, 400, "malformed_body", `more than once`},
		{mediaJSON, `[{"key":1}]`, 400, "malformed_body", `key_json`},
		{mediaJSON, `[{"value_str":1}]`, 400, "malformed_body", `want a string`},
		{mediaJSON, `[{"value_b64":"AA"}]`, 400, "malformed_body", `base64`},
		{mediaJSON, `[{"value_b64":"_-8="}]`, 400, "malformed_body", `base64`},
		{mediaJSON, `[{"value_b64":"AA\n=="}]`, 400, "malformed_body", `base64`},
		{mediaJSON, `[{"value_b64":"AAAA\r\n"}]`, 400, "malformed_body", `base64`},
		{mediaJSON, `[{"key_b64":"\nAAAA"}]`, 400, "malformed_body", `base64`},
		{mediaJSON, `[{"value":` + deep(65) + `}]`, 400, "malformed_body", `deeper than 64`},
		{mediaJSON, `[{"value":` + deep(20_000) + `}]`, 400, "malformed_body", ``},
		{mediaJSON, strings.Repeat("[", 1<<20), 400, "malformed_body", ``},
		{mediaJSON, `[{"partition":-1}]`, 400, "malformed_body", `partition`},
		{mediaJSON, `[{"partition":1.5}]`, 400, "malformed_body", `partition`},
		{mediaJSON, `[{"partition":2147483648}]`, 400, "malformed_body", `partition`},
		{mediaJSON, `[{"partition":"0"}]`, 400, "malformed_body", `partition`},
		{mediaJSON, `[{"partition":99}]`, 404, "unknown_partition", `"index":0`},
		{mediaJSON, `[{"timestamp":-1}]`, 400, "malformed_body", `timestamp`},
		{mediaJSON, `[{"timestamp":1e3}]`, 400, "malformed_body", `timestamp`},
		{mediaJSON, `[{"timestamp":"yesterday"}]`, 400, "malformed_body", `timestamp`},
		{mediaJSON, `[{"timestamp":9999999999999}]`, 422, "invalid_timestamp", `"index":0`},
		{mediaJSON, `[{"headers":1}]`, 400, "malformed_body", `headers`},
		{mediaJSON, `[{"headers":{"a":1}}]`, 400, "malformed_body", `header`},
		{mediaJSON, `[{"headers":{"a":"1","a":"2"}}]`, 400, "malformed_body", `more than once`},
		{mediaJSON, `[{"headers":[1]}]`, 400, "malformed_body", `header`},
		{mediaJSON, `[{"headers":[{"value":"1"}]}]`, 400, "malformed_body", `needs a name`},
		{mediaJSON, `[{"headers":[{"name":"a","x":"1"}]}]`, 400, "malformed_body", `unknown member`},
		{mediaJSON, `[{"headers":[{"name":"a","value":"1","value_b64":"AA=="}]}]`, 400, "malformed_body", `more than once`},
		{mediaJSON, `[{"headers":[` + headers + `]}]`, 422, "too_many_headers", `"index":0`},
		{mediaJSON, `[{"value_str":"` + strings.Repeat("x", 2<<20) + `"}]`, 413, "record_too_large", `"index":0`},
		{mediaJSON, `[{"value":1},{"value_str":"` + strings.Repeat("x", 2<<20) + `"}]`, 422, "record_too_large", `"index":1`},
		{mediaJSON, `[{"value":1},{"partition":99},{"timestamp":9999999999999}]`, 422, "invalid_records", `"index":2`},
		{mediaJSON, `[` + strings.Repeat("{},", 100_000) + `{}]`, 413, "too_many_records", `"limit":100000`},
		{mediaNDJSON, "{\"value\":1}\n{\"valu\":2}\n\n{\"value\":\n", 400, "malformed_body", `"index":2,"line":4`},
		{mediaNDJSON, "{\"value\":1} {\"value\":2}\n", 400, "malformed_body", `after the end`},
		{mediaNDJSON, "{\"value\":1}\n{\"value\"", 400, "malformed_body", `"index":1,"line":2`},
		{mediaNDJSON, "{\n\"value\":1}\n", 400, "malformed_body", `"index":0`},
		{mediaNDJSON, "\n\r\n", 400, "empty_body", ``},
		{mediaNDJSON, strings.Repeat("{}\n", 100_001), 413, "too_many_records", ``},
		{mediaBytes, "", 400, "empty_body", ``},
	} {
		name := fmt.Sprintf("%.60s", tc.body)
		topics := []string{"t"}
		if tc.status == 400 || tc.code == "too_many_records" || tc.code == "too_many_headers" {
			// What is wrong shows without a topic, so none may be made.
			topics = append(topics, "fresh")
		}
		for _, topic := range topics {
			a := d.do("POST", "/v1/topics/"+topic+"/records", tc.body, "Content-Type", tc.media)
			if p := a.problem(t); a.StatusCode != tc.status || p.Code != tc.code || p.Retriable {
				t.Errorf("%s: %d %.300s, want %d %s", name, a.StatusCode, a.body, tc.status, tc.code)
			}
			a.contains(t, tc.detail)
			if got := d.end(topic); got != 0 {
				t.Fatalf("%s: wrote up to %d", name, got)
			}
		}
	}
	d.do("GET", "/v1/topics/fresh", nil).want(t, 404, "unknown_topic")
	d.do("POST", "/v1/topics/compacted/records", `[{"key":"a"},{"value":1}]`, "Content-Type", mediaJSON).want(t, 422, "invalid_record").contains(t, `"index":1`)
	d.do("POST", "/v1/topics/compacted/records?value=line", "a\n", "Content-Type", mediaNDJSON).want(t, 422, "invalid_record")
	if got := d.end("compacted"); got != 0 {
		t.Errorf("compacted: end %d", got)
	}
	d.post(`[{"value":`+deep(64)+`}]`).want(t, 200, "")
}

// At most 100 errors are listed, and the answer says that there are more.
func TestErrorsAreCapped(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	p := d.post("["+strings.Repeat(`{"x":1},`, 150)+`{"value":1}]`).want(t, 400, "malformed_body").problem(t)
	if len(p.Errors) != 100 || !p.Truncated || *p.Errors[99].Index != 99 {
		t.Errorf("%d errors, truncated %v", len(p.Errors), p.Truncated)
	}
}

// Media types, parameters and codings that are not known are refused before
// anything is written.
func TestBadProduceRequests(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	one := `[{"value":1}]`
	for _, tc := range []struct {
		query   string
		headers []string
		status  int
		code    string
		name    string // of the parameter
	}{
		{"", nil, 415, "unsupported_media_type", ""},
		{"", []string{"Content-Type", "text/plain"}, 415, "unsupported_media_type", ""},
		{"", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media_type", ""},
		{"", []string{"Content-Type", "garbage;;="}, 415, "unsupported_media_type", ""},
		{"", []string{"Content-Type", mediaJSON + "; charset=iso-8859-1"}, 415, "unsupported_media_type", ""},
		{"?value=line", []string{"Content-Type", mediaNDJSON + "; charset=utf-16"}, 415, "unsupported_media_type", ""},
		{"", []string{"Content-Type", mediaJSON, "Content-Type", mediaJSON}, 400, "invalid_request", ""},
		{"", []string{"Content-Type", mediaJSON, "Content-Type", mediaNDJSON}, 400, "invalid_request", ""},
		{"", []string{"Content-Type", mediaBatch}, 415, "unsupported_media_type", ""},
		{"", []string{"Content-Type", mediaJSON, "Content-Encoding", "br7"}, 415, "unsupported_content_encoding", ""},
		{"", []string{"Content-Type", mediaJSON, "Content-Encoding", "gzip, zstd"}, 415, "unsupported_content_encoding", ""},
		{"", []string{"Content-Type", mediaJSON, "Content-Encoding", "gzip"}, 400, "malformed_body", ""},
		{"", []string{"Content-Type", mediaJSON, "Content-Encoding", "zstd"}, 400, "malformed_body", ""},
		{"?acks=2", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "acks"},
		{"?acks=", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "acks"},
		{"?acks=all&acks=all", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "acks"},
		{"?timeout_ms=-1", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "timeout_ms"},
		{"?timeout_ms=1e3", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "timeout_ms"},
		{"?timeout_ms=99999999999999999999", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "timeout_ms"},
		{"?receipts=some", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "receipts"},
		{"?receipts=", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "receipts"},
		{"?value=line", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "value"},
		{"?value=row", []string{"Content-Type", mediaNDJSON}, 400, "invalid_parameter", "value"},
		{"?timeout=100", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "timeout"},
		{"?Acks=all", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "Acks"},
		{"?acks=%zz", []string{"Content-Type", mediaJSON}, 400, "invalid_parameter", "acks"},
		{"", []string{"Content-Type", mediaBytes, "Record-Key-B64", "x"}, 400, "malformed_body", ""},
		{"", []string{"Content-Type", mediaBytes, "Record-Key", "x", "Record-Key", "y"}, 400, "malformed_body", ""},
	} {
		a := d.do("POST", produceT+tc.query, one, tc.headers...).want(t, tc.status, tc.code)
		if p := a.problem(t); p.Parameter != tc.name {
			t.Errorf("%s: names %q, want %q", tc.query, p.Parameter, tc.name)
		}
		if a.StatusCode == http.StatusUnsupportedMediaType && tc.code == "unsupported_media_type" && a.Header.Get("Accept-Post") == "" {
			t.Error("415 without Accept-Post")
		}
	}
	if got := d.end("t"); got != 0 {
		t.Errorf("end %d", got)
	}
	d.do("POST", produceT, one, "Content-Type", mediaJSON+`; charset="UTF-8"`).want(t, 200, "")
}
