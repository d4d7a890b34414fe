package contract

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// exchange makes one of a request line, a body, and an answer's status, media type and body. headers of the request are names and
// values in turn.
func exchange(target, sent string, status int, media, body string, headers ...string) *Exchange {
	method, path, _ := strings.Cut(target, " ")
	r := httptest.NewRequest(method, path, strings.NewReader(sent))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	x := &Exchange{Request: r, Response: &http.Response{StatusCode: status, Header: http.Header{}}, Body: []byte(body)}
	if sent != "" {
		x.Sent = []byte(sent)
	}
	if media != "" {
		x.Response.Header.Set("Content-Type", media)
	}
	return x
}

const (
	readT   = "GET /v1/topics/t/partitions/0/records?offset=0"
	postT   = "POST /v1/topics/t/records"
	record  = `{"partition":0,"offset":0,"timestamp":1,"key":null,"value":1,"headers":[]}`
	fetched = `{"records":[` + record + `],"next_offset":1,"high_watermark":1,"log_start_offset":0}`
	refusal = `{"type":"/problems/unknown_topic","title":"Unknown topic","status":404,"instance":"1","code":"unknown_topic","retriable":false}`
)

// TestCheck proves that exchanges as the contract has them pass, and that each kind of departure from it is found.
func TestCheck(t *testing.T) {
	c := load(t)
	for _, tc := range []struct {
		name, fault string // no fault: it passes
		x           *Exchange
	}{
		{"fetch", "", exchange(readT, "", 200, "application/json", fetched)},
		{"fetch of an escaped name", "", exchange("GET /v1/topics/%61/partitions/0/records?offset=0", "", 200, "application/json", fetched)},
		{"problem", "", exchange(readT, "", 404, "application/problem+json", refusal)},
		{"no such path", "", exchange("GET /nowhere", "", 404, "application/problem+json", refusal)},
		{"no such method", "", exchange("PUT /v1/topics", "", 405, "application/problem+json", refusal)},
		{"bad request refused", "", exchange(readT+"&wait=soon", "", 400, "application/problem+json", refusal)},
		{"HEAD", "", exchange("HEAD /healthz", "", 200, "application/json", "")},
		{"produce", "", exchange(postT, `[{"value":1}]`, 200, "application/json", `{"count":1}`, "Content-Type", "application/json")},
		{"number beyond a float64", "", exchange(postT, `[{"value":1e400}]`, 200, "application/json", `{"count":1}`, "Content-Type", "application/json")},
		{"lines as values", "", exchange(postT+"?value=line", "{\n", 200, "application/json", `{"count":1}`, "Content-Type", "application/x-ndjson")},
		{"stream", "", exchange("GET /v1/topics/t/records?stream=true", "", 200, "application/x-ndjson", `{"$":"position","cursor":"c"}`+"\n"+record+"\n"+`{"par`)},
		{"events", "", exchange("GET /v1/topics/t/records", "", 200, "text/event-stream", "id: 1\n\n: hb\n\nid: 2\ndata: "+record+"\n\nevent: gap\ndata: {\"partition\":0,\"from\":1,\"to\":2}\n\nda")},

		{"status", "text/plain", exchange("GET /healthz", "", 302, "text/plain", "")},
		{"media type", "text/plain", exchange(readT, "", 200, "text/plain", "x")},
		{"member missing", "next_offset", exchange(readT, "", 200, "application/json", `{"records":[]}`)},
		{"member unknown", "more", exchange(readT, "", 200, "application/json", strings.Replace(fetched, `"records"`, `"more":1,"records"`, 1))},
		{"record deep in a long list", "offset", exchange(readT, "", 200, "application/json", strings.Replace(fetched, record, strings.Repeat(record+",", 100)+`{}`, 1))},
		{"problem of an unknown code", "code", exchange(readT, "", 404, "application/problem+json", strings.Replace(refusal, `"code":"unknown_topic"`, `"code":"x"`, 1))},
		{"error that is no problem", "text/plain", exchange("GET /nowhere", "", 404, "text/plain", "404")},
		{"path served", "does not have", exchange("GET /nowhere", "", 200, "text/plain", "")},
		{"HEAD with a body", "HEAD", exchange("HEAD /healthz", "", 200, "application/json", "{}")},
		{"parameter taken", "wait", exchange(readT+"&wait=soon", "", 200, "application/json", fetched)},
		{"path parameter taken", "partition", exchange("GET /v1/topics/t/partitions/-1/records?offset=0", "", 200, "application/json", fetched)},
		{"body taken", "valu", exchange(postT, `[{"valu":1}]`, 200, "application/json", `{"count":1}`, "Content-Type", "application/json")},
		{"line taken", "line 2", exchange(postT, "{\"value\":1}\n{\"valu\":1}\n", 200, "application/json", `{"count":1}`, "Content-Type", "application/x-ndjson")},
		{"line of an answer", "line 2", exchange("GET /v1/topics/t/records?stream=true", "", 200, "application/x-ndjson", record+"\n{}\n")},
		{"event of an unknown name", "noise", exchange("GET /v1/topics/t/records", "", 200, "text/event-stream", "event: noise\ndata: 1\n\n")},
		{"data of an event", "event 0", exchange("GET /v1/topics/t/records", "", 200, "text/event-stream", "data: {}\n\n")},
	} {
		err := c.Check(tc.x)
		if tc.fault == "" && err != nil || tc.fault != "" && (err == nil || !strings.Contains(err.Error(), tc.fault)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.fault)
		}
	}
}

// TestTransport proves that an exchange is checked once its answer is read or closed, that a stream is checked as far as it
// came, and that what is skipped is not looked at.
func TestTransport(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, r.Header.Get("Line")+"\n")
		w.(http.Flusher).Flush()
		if r.Header.Get("Ends") == "" {
			<-r.Context().Done()
		}
	}))
	defer s.Close()
	var faults []error
	client := &http.Client{Transport: &Transport{
		Contract: load(t), Base: http.DefaultTransport, Report: func(err error) { faults = append(faults, err) },
		Skip: func(r *http.Request) bool { return r.Header.Get("Skip") != "" },
	}}
	for _, tc := range []struct {
		headers http.Header
		faults  int
	}{
		{http.Header{"Line": {record}, "Ends": {"yes"}}, 0},
		{http.Header{"Line": {record}}, 0},
		{http.Header{"Line": {"{}"}, "Ends": {"yes"}}, 1},
		{http.Header{"Line": {"{}"}}, 1},
		{http.Header{"Line": {"{}"}, "Skip": {"yes"}, "Ends": {"yes"}}, 0},
	} {
		faults = nil
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/topics/t/records?stream=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = tc.headers
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var whole io.Reader = res.Body
		if tc.headers.Get("Ends") == "" {
			whole = io.LimitReader(res.Body, int64(len(tc.headers.Get("Line")))+1)
		}
		if _, err := io.ReadAll(whole); err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if len(faults) != tc.faults {
			t.Errorf("%v: faults %v, want %d", tc.headers, faults, tc.faults)
		}
	}
}
