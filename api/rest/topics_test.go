package rest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// A topic is made, shown, changed by merge patch, and deleted.
func TestTopicLife(t *testing.T) {
	d := openDoor(t)
	a := d.do("POST", "/v1/topics", `{"name":"a.b","partitions":3,"configs":{"retention.ms":"86400000","max.message.bytes":2000000}}`, "Content-Type", mediaJSON).want(t, 201, "")
	a.contains(t, `"name":"a.b"`, `"partitions":3`, `"replication_factor":1`, `"retention.ms":"86400000"`, `"max.message.bytes":"2000000"`)
	if got := a.Header.Get("Location"); got != "/v1/topics/a.b" {
		t.Errorf("Location %q", got)
	}
	d.do("POST", "/v1/topics", `{"name":"a.b"}`, "Content-Type", mediaJSON).want(t, 409, "topic_exists")
	d.do("PATCH", "/v1/topics/a.b", `{"configs":{"retention.ms":null,"max.message.bytes":3000000}}`, "Content-Type", mediaMerge).want(t, 200, "").
		contains(t, `"configs":{"max.message.bytes":"3000000"}`)
	d.do("PATCH", "/v1/topics/a.b?validate_only=true", `{"configs":{"max.message.bytes":4000000}}`, "Content-Type", mediaMerge).want(t, 200, "").
		contains(t, `"configs":{"max.message.bytes":"3000000"}`)
	d.do("PATCH", "/v1/topics/a.b", `{}`, "Content-Type", mediaJSON).want(t, 200, "")
	d.do("GET", "/v1/topics/a.b", nil).want(t, 200, "").contains(t, `"configs":{"max.message.bytes":"3000000"}`, `"name":"retention.ms"`)
	d.do("GET", "/v1/topics/a.b/partitions", nil).want(t, 200, "").contains(t, `{"partition":2,"leader":1,"leader_epoch":0,"replicas":[1],"isr":[1],"offline":[],"log_start_offset":0,"high_watermark":0}`)
	d.do("DELETE", "/v1/topics/a.b", nil).want(t, 204, "")
	d.do("DELETE", "/v1/topics/a.b", nil).want(t, 404, "unknown_topic")
	d.do("GET", "/v1/topics/a.b", nil).want(t, 404, "unknown_topic")
	d.do("PATCH", "/v1/topics/a.b", `{"configs":{"retention.ms":1}}`, "Content-Type", mediaMerge).want(t, 404, "unknown_topic")
	d.do("POST", "/v1/topics?validate_only=true", `{"name":"c"}`, "Content-Type", mediaJSON).want(t, 200, "")
	d.do("GET", "/v1/topics/c", nil).want(t, 404, "unknown_topic")
}

// A bad request about topics is told precisely and changes nothing.
func TestBadTopicRequests(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, tc := range []struct {
		body   string
		status int
		code   string
	}{
		{``, 400, "empty_body"},
		{`[]`, 400, "malformed_body"},
		{`null`, 400, "malformed_body"},
		{`{"name":"x"`, 400, "malformed_body"},
		{`{"name":"x"}{}`, 400, "malformed_body"},
		{`{"name":"x","nam":"y"}`, 400, "malformed_body"},
		{`{"name":"x","name":"y"}`, 400, "malformed_body"},
		{`{"name":1}`, 400, "malformed_body"},
		{`{"name":"x","partitions":"3"}`, 400, "malformed_body"},
		{`{"name":"x","partitions":1.5}`, 400, "malformed_body"},
		{`{"name":"x","partitions":99999999999}`, 400, "malformed_body"},
		{`{"name":"x","configs":{"retention.ms":[]}}`, 400, "malformed_body"},
		{`{}`, 400, "invalid_topic"},
		{`{"name":""}`, 400, "invalid_topic"},
		{`{"name":"."}`, 400, "invalid_topic"},
		{`{"name":".."}`, 400, "invalid_topic"},
		{`{"name":"a/b"}`, 400, "invalid_topic"},
		{`{"name":"ü"}`, 400, "invalid_topic"},
		{`{"name":"` + strings.Repeat("x", 250) + `"}`, 400, "invalid_topic"},
		{`{"name":"x","partitions":0}`, 422, "invalid_partitions"},
		{`{"name":"x","partitions":-1}`, 422, "invalid_partitions"},
		{`{"name":"x","replication_factor":0}`, 422, "invalid_replication_factor"},
		{`{"name":"x","replication_factor":3}`, 422, "invalid_replication_factor"},
		{`{"name":"x","configs":{"no.such":"1"}}`, 422, "invalid_config"},
		{`{"name":"x","configs":{"retention.ms":"soon"}}`, 422, "invalid_config"},
	} {
		a := d.do("POST", "/v1/topics", tc.body, "Content-Type", mediaJSON)
		if p := a.problem(t); a.StatusCode != tc.status || p.Code != tc.code {
			t.Errorf("%s: %d %s", tc.body, a.StatusCode, a.body)
		}
	}
	d.do("POST", "/v1/topics", `{"name":"x"}`, "Content-Type", "text/plain").want(t, 415, "unsupported_media_type")
	d.do("POST", "/v1/topics?validate_only=maybe", `{"name":"x"}`, "Content-Type", mediaJSON).want(t, 400, "invalid_parameter")
	d.do("POST", "/v1/topics", `{"name":"`+strings.Repeat("x", 2<<20)+`"}`, "Content-Type", mediaJSON).want(t, 413, "request_too_large")
	d.do("PATCH", "/v1/topics/t", `{"configs":{"retention.ms":"soon"}}`, "Content-Type", mediaMerge).want(t, 422, "invalid_config")
	for body, want := range map[string]string{
		`{"partitions":0}`: "422 invalid_partitions", `{"partitions":-1}`: "422 invalid_partitions", `{"partitions":null}`: "422 invalid_partitions",
		`{"partitions":200000}`: "422 invalid_partitions", `{"partitions":"3"}`: "400 malformed_body", `{"partitions":1.5}`: "400 malformed_body",
		`{"partitions":9e9}`: "400 malformed_body", `{"partitions":99999999999}`: "400 malformed_body", `{"configs":[]}`: "400 malformed_body",
		`{"configs":{"retention.ms":{}}}`: "400 malformed_body", `{"configs":{"no.such":null}}`: "422 invalid_config", `{"name":"u"}`: "400 malformed_body",
		`{"partitions":3,"configs":{"retention.ms":"soon"}}`: "422 invalid_config", `{"partitions":200000,"configs":{"retention.ms":1}}`: "422 invalid_partitions",
		`null`: "400 malformed_body", `[]`: "400 malformed_body", ``: "400 empty_body",
	} {
		a := d.do("PATCH", "/v1/topics/t", body, "Content-Type", mediaMerge)
		if got := fmt.Sprint(a.StatusCode, " ", a.problem(t).Code); got != want {
			t.Errorf("PATCH %s: %s, want %s: %s", body, got, want, a.body)
		}
	}
	d.do("GET", "/v1/topics/t", nil).want(t, 200, "").contains(t, `"partitions":1`, `"configs":{}`)
	if a := d.do("PATCH", "/v1/topics/t", `{}`, "Content-Type", "text/plain").want(t, 415, "unsupported_media_type"); a.Header.Get("Accept-Patch") == "" {
		t.Error("415 without Accept-Patch")
	}
	d.do("GET", "/v1/topics/t?x=1", nil).want(t, 400, "invalid_parameter")
	d.do("DELETE", "/v1/topics/t?force=1", nil).want(t, 400, "invalid_parameter")
	d.do("GET", "/v1/topics", nil).want(t, 200, "").contains(t, `"items":[{"name":"t"`)
	topics, err := d.broker.Topics(t.Context(), principal(nil))
	if err != nil || len(topics) != 1 {
		t.Errorf("%v %v", topics, err)
	}
}

// A merge patch grows partitions, and with null puts one config or all of them
// back; what is so already is no change.
func TestMergePatch(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2, "retention.ms", "5000", "max.message.bytes", "2000000", "cleanup.policy", "compact")
	patch := func(body, partitions, configs string) {
		t.Helper()
		d.do("PATCH", "/v1/topics/t", body, "Content-Type", mediaMerge).want(t, 200, "").contains(t, `"partitions":`+partitions+`,`, `"configs":`+configs+`,`)
	}
	all := `{"cleanup.policy":"compact","max.message.bytes":"2000000","retention.ms":"5000"}`
	patch(`{}`, "2", all)
	patch(`{"partitions":2,"configs":{}}`, "2", all)
	patch(`{"configs":{"segment.bytes":null}}`, "2", all)
	patch(`{"partitions":5,"configs":{"max.message.bytes":null,"retention.ms":6000}}`, "5", `{"cleanup.policy":"compact","retention.ms":"6000"}`)
	d.do("PATCH", "/v1/topics/t", `{"partitions":4}`, "Content-Type", mediaMerge).want(t, 422, "invalid_partitions")
	d.do("PATCH", "/v1/topics/t?validate_only=true", `{"partitions":4}`, "Content-Type", mediaMerge).want(t, 422, "invalid_partitions")
	d.do("PATCH", "/v1/topics/t?validate_only=true", `{"partitions":9}`, "Content-Type", mediaMerge).want(t, 200, "")
	patch(`{"configs":null}`, "5", `{}`)
	d.do("POST", "/v1/topics/t/partitions/4/records", `[{"value":1}]`, "Content-Type", mediaJSON).want(t, 200, "")
}

// The ETag of a topic tells every change of it, whoever made it; If-Match keeps
// a change from another's, also when all come at once.
func TestTopicETag(t *testing.T) {
	d := openDoor(t)
	tag := d.do("POST", "/v1/topics", `{"name":"t","partitions":1}`, "Content-Type", mediaJSON).want(t, 201, "").Header.Get("ETag")
	get := func() string {
		t.Helper()
		a := d.do("GET", "/v1/topics/t", nil).want(t, 200, "")
		if head := d.do("HEAD", "/v1/topics/t", nil); head.Header.Get("ETag") != a.Header.Get("ETag") {
			t.Errorf("HEAD has another tag: %v", head.Header)
		}
		return a.Header.Get("ETag")
	}
	if got := get(); got != tag || tag == "" {
		t.Fatalf("tag %s after create, %s from GET", tag, got)
	}
	d.do("GET", "/v1/topics/t", nil, "If-None-Match", tag).want(t, 304, "")
	d.do("GET", "/v1/topics/t", nil, "If-None-Match", `"x", W/`+tag).want(t, 304, "")
	d.do("GET", "/v1/topics/t", nil, "If-None-Match", `"x"`).want(t, 200, "")
	d.do("GET", "/v1/topics/t", nil, "If-Match", `"x"`).want(t, 412, "precondition_failed")
	patch := func(body string, status int, code string, headers ...string) {
		t.Helper()
		a := d.do("PATCH", "/v1/topics/t", body, append(headers, "Content-Type", mediaMerge)...).want(t, status, code)
		if now := get(); status == 200 && a.Header.Get("ETag") != now {
			t.Errorf("%s: tag %s, then %s", body, a.Header.Get("ETag"), now)
		}
	}
	patch(`{"configs":{"retention.ms":1000}}`, 412, "precondition_failed", "If-Match", `"x"`)
	patch(`{"configs":{"retention.ms":1000}}`, 412, "precondition_failed", "If-Match", "W/"+tag)
	patch(`{"configs":{"retention.ms":1000}}`, 412, "precondition_failed", "If-None-Match", "*")
	for _, bad := range []string{"", "x", `"x`, `"x" "y"`, `*, "x"`, `"x"y`, `w/"x"`} {
		patch(`{"configs":{"retention.ms":1000}}`, 400, "invalid_parameter", "If-Match", bad)
	}
	if get() != tag {
		t.Error("a refused change changed the tag")
	}
	patch(`{"configs":{"retention.ms":1000}}`, 200, "", "If-Match", `"x", `+tag)
	patch(`{"configs":{"retention.ms":2000}}`, 412, "precondition_failed", "If-Match", tag)
	patch(`{"configs":{"retention.ms":2000}}`, 200, "", "If-Match", "*")
	before := get()
	d.addPartitions(3)
	if get() == before {
		t.Error("more partitions, the same tag")
	}
	d.do("PATCH", "/v1/topics/u", `{}`, "Content-Type", mediaMerge, "If-Match", "*").want(t, 404, "unknown_topic")

	now := get()
	answers := make(chan int)
	const writers = 8
	for i := range writers {
		go func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+d.addr+"/v1/topics/t", strings.NewReader(fmt.Sprintf(`{"configs":{"retention.ms":%d}}`, 10000+i)))
			if err != nil {
				t.Error(err)
			}
			req.Header.Set("Content-Type", mediaMerge)
			req.Header.Set("If-Match", now)
			res, err := d.client.Do(req)
			if err != nil {
				t.Error(err)
				answers <- 0
				return
			}
			_ = res.Body.Close()
			answers <- res.StatusCode
		}()
	}
	count := map[int]int{}
	for range writers {
		count[<-answers]++
	}
	if count[200] != 1 || count[412] != writers-1 {
		t.Errorf("of %d changes with one tag: %v", writers, count)
	}
}

// The partitions of a topic come in pages, each once and in order.
func TestPartitionPages(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 12)
	var got []int32
	for token := ""; ; {
		var list struct {
			Items []partitionInfo `json:"items"`
			Next  *string         `json:"next_page_token"`
		}
		a := d.do("GET", "/v1/topics/t/partitions?limit=5"+token, nil).want(t, 200, "")
		if err := json.Unmarshal(a.body, &list); err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			got = append(got, p.Partition)
		}
		if list.Next == nil {
			break
		}
		token = "&page_token=" + *list.Next
	}
	if want := []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	for _, query := range []string{"limit=0", "limit=1001", "page_token=!", "page_token=dA", "page_token=MDE", "page_token=LTE"} {
		d.do("GET", "/v1/topics/t/partitions?"+query, nil).want(t, 400, "invalid_parameter")
	}
}

// A list comes in pages, by name, each topic once.
func TestTopicPages(t *testing.T) {
	d := openDoor(t)
	d.do("GET", "/v1/topics", nil).want(t, 200, "").contains(t, `{"items":[],"next_page_token":null}`)
	for i := range 5 {
		d.topic(fmt.Sprintf("t%d", 4-i), 1)
	}
	var names []string
	token := ""
	for {
		var page struct {
			Items []topicInfo `json:"items"`
			Next  string      `json:"next_page_token"`
		}
		a := d.do("GET", "/v1/topics?limit=2"+token, nil).want(t, 200, "")
		if err := json.Unmarshal(a.body, &page); err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			names = append(names, item.Name)
		}
		if page.Next == "" {
			break
		}
		token = "&page_token=" + page.Next
	}
	if got := strings.Join(names, " "); got != "t0 t1 t2 t3 t4" {
		t.Errorf("%s", got)
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "page_token=!", "page_token=dA%0A", "page_token=dB", "page_token=", "page_token=Li4"} {
		d.do("GET", "/v1/topics?"+query, nil).want(t, 400, "invalid_parameter")
	}
}

// The health pages tell the state; the contract and the page are served.
func TestHealth(t *testing.T) {
	var notReady error
	d := openDoor(t, func(s *setup) {
		s.Ready = func() error { return notReady }
		s.Web = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<!doctype html>")
		})
	})
	d.do("GET", "/healthz", nil).want(t, 200, "").contains(t, `{"status":"ok"}`)
	d.do("GET", "/readyz", nil).want(t, 200, "").contains(t, `{"status":"ready"}`)
	notReady = errors.New("two partitions are opening")
	d.do("GET", "/readyz", nil).want(t, 503, "not_ready").contains(t, "two partitions are opening")
	d.do("GET", "/", nil).want(t, 200, "").contains(t, "<!doctype html>")
	if a := d.do("GET", "/openapi.yaml", nil).want(t, 200, ""); string(a.body) != string(contractText()) {
		t.Error("openapi.yaml differs")
	}
}

// The metrics count requests by route, bytes and records.
func TestMetrics(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.post(`[{"value":1},{"value":2}]`).want(t, 200, "")
	d.post(`[`).want(t, 400, "malformed_body")
	d.do("GET", fetchAll, nil).want(t, 200, "")
	d.do("GET", "/nowhere", nil)
	m := d.server.metrics
	// A request is counted after its answer is out; another one on the same
	// connection comes after that.
	d.do("GET", "/healthz", nil)
	for _, tc := range []struct {
		name string
		got  float64
		want float64
	}{
		{"posts", counted(t, m.requests.WithLabelValues("/v1/topics/{topic}/records", "POST", "2xx")), 1},
		{"bad posts", counted(t, m.requests.WithLabelValues("/v1/topics/{topic}/records", "POST", "4xx")), 1},
		{"no route", counted(t, m.requests.WithLabelValues("none", "GET", "4xx")), 1},
		{"in", counted(t, m.recordsIn), 2},
		{"out", counted(t, m.recordsOut), 2},
		{"received", counted(t, m.received), 26},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
		}
	}
	if families, err := d.reg.Gather(); err != nil || len(families) < 7 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
}

// A refused body closes the connection; an accepted one leaves it open.
func TestConnectionAfterRefusal(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.MaxRequestBytes = 1000 })
	d.topic("t", 1)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nExpect: 100-continue\r\nContent-Length: 100000000\r\n\r\n", produceT, mediaJSON); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 413 ") || strings.Contains(string(text), "100 Continue") {
		t.Errorf("%v: %s", err, text)
	}
}

// A topic or a group is deleted only as the client knows it, if it says so.
func TestConditionalDelete(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	tag := d.do("GET", "/v1/topics/t", nil).want(t, 200, "").Header.Get("ETag")
	d.addPartitions(2)
	for value, code := range map[string]string{tag: "precondition_failed", `"x"`: "precondition_failed", "x": "invalid_parameter"} {
		status := map[string]int{"precondition_failed": 412, "invalid_parameter": 400}[code]
		d.do("DELETE", "/v1/topics/t", nil, "If-Match", value).want(t, status, code)
	}
	d.do("DELETE", "/v1/topics/t", nil, "If-None-Match", "*").want(t, 412, "precondition_failed")
	d.do("PUT", "/v1/groups/g/offsets", `{"offsets":[{"topic":"t","partition":0,"offset":1}]}`, "Content-Type", mediaJSON).want(t, 200, "")
	d.do("DELETE", "/v1/groups/g", nil, "If-Match", `"x"`).want(t, 412, "precondition_failed")
	d.do("DELETE", "/v1/groups/g", nil, "If-Match", "*").want(t, 204, "")
	now := d.do("GET", "/v1/topics/t", nil).want(t, 200, "").Header.Get("ETag")
	d.do("DELETE", "/v1/topics/t", nil, "If-Match", now).want(t, 204, "")
	d.do("DELETE", "/v1/topics/t", nil, "If-Match", "*").want(t, 404, "unknown_topic")
}
