package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/twmb/franz-go/pkg/kgo"
)

// limitRow is a request at or beyond a limit, with the answer that the list of limits promises it.
type limitRow struct {
	name    string
	method  string
	path    string
	body    string
	headers []string
	status  int
	code    string // none: the answer is no problem
	// answers are headers of the answer; "*" is any value.
	answers []string
	limit   int64
	closes  bool
}

// check sends the request and holds the answer against the row.
func (r *limitRow) check(t *testing.T, s *server) {
	t.Helper()
	var body []byte
	if r.body != "" || r.method == "POST" {
		body = []byte(r.body)
	}
	a := s.do(r.method, r.path, body, r.headers...)
	a.t = t
	if r.code == "" {
		a.want(r.status)
	} else {
		a.refused(r.status, r.code)
	}
	for _, h := range r.answers {
		name, want, _ := strings.Cut(h, ": ")
		if got := a.header.Get(name); got == "" || want != "*" && got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	var p struct {
		Limit int64 `json:"limit"`
	}
	if r.limit != 0 {
		if a.decode(&p); p.Limit != r.limit {
			t.Errorf("limit %d, want %d: %s", p.Limit, r.limit, a.body)
		}
	}
	if a.closes != r.closes {
		t.Errorf("the connection closes: %v, want %v", a.closes, r.closes)
	}
}

// lines is a body of n times the same line.
func lines(line string, n int) string { return strings.Repeat(line+"\n", n) }

// packedHex is a gzip body that expands to n hexadecimal digits, to about half of which they are packed.
func packedHex(t *testing.T, n int) string {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = "0123456789abcdef"[rng.IntN(16)]
	}
	for left := n; left > 0; left -= len(block) {
		if _, err := z.Write(block[:min(left, len(block))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestLimits walks the documented limits in their order: each is reached and gone beyond at a server as it is by default,
// and each answer is the promised one. Where a row has a number, the last value that is allowed is taken.
func TestLimits(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	s.createTopic("t", 1)
	s.createTopic("small", 1, "max.message.bytes=10000")
	s.createTopic("compact", 1, "cleanup.policy=compact")
	s.createTopic("two", 1, "min.insync.replicas=2")
	const post, one, get = "/v1/topics/t/records", "/v1/topics/t/partitions/0/records", "/v1/topics/t/partitions/0/records?offset=0"
	json1, ndjson, binary, batch := "Content-Type: "+typeJSON, "Content-Type: "+typeNDJSON, "Content-Type: "+typeBytes, "Content-Type: "+typeBatch
	const body = 16 << 20
	good := `{"records":[{"value":1}]}`
	headers := func(n int) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`{"name":"h%d","value":"v"}`, i))
		}
		return `[{"value":1,"headers":[` + strings.Join(out, ",") + `]}]`
	}
	deep := func(n int) string {
		return `[{"value":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}]`
	}
	now := time.Now().UnixMilli()
	whole := string(encode(t, kgo.NoCompression(), values(now, "a")))
	broken := []byte(whole)
	broken[atCRC]++
	old := []byte(whole)
	old[atMagic] = 1
	for _, r := range []limitRow{
		{name: "body: the limit itself", method: "POST", path: post + "?value=line", body: lines(strings.Repeat("x", 1<<10-1), body>>10), headers: []string{ndjson}, status: 200},
		{name: "body: a byte more", method: "POST", path: post + "?value=line", body: lines(strings.Repeat("x", 1<<10-1), body>>10) + "x", headers: []string{ndjson}, status: 413, code: "request_too_large", limit: body, closes: true},
		{name: "body: decoded", method: "POST", path: post, body: packedHex(t, body+1), headers: []string{binary, "Content-Encoding: gzip"}, status: 413, code: "request_too_large", limit: body},
		{name: "records: the limit itself", method: "POST", path: post, body: lines(`{"value":1}`, 100_000), headers: []string{ndjson}, status: 200},
		{name: "records: one more", method: "POST", path: post, body: lines(`{"value":1}`, 100_001), headers: []string{ndjson}, status: 413, code: "too_many_records", limit: 100_000},
		{name: "records: one more line", method: "POST", path: post + "?value=line", body: lines("1", 100_001), headers: []string{ndjson}, status: 413, code: "too_many_records", limit: 100_000},
		{name: "records: one more in JSON", method: "POST", path: post, body: "[" + strings.Repeat(`{"value":1},`, 100_000) + `{"value":1}]`, headers: []string{json1}, status: 413, code: "too_many_records", limit: 100_000},
		{name: "record size: the only one", method: "POST", path: "/v1/topics/small/records", body: `[{"value_str":"` + strings.Repeat("x", 10_000) + `"}]`, headers: []string{json1}, status: 413, code: "record_too_large"},
		{name: "record size: one of two", method: "POST", path: "/v1/topics/small/records", body: `[{"value":1},{"value_str":"` + strings.Repeat("x", 10_000) + `"}]`, headers: []string{json1}, status: 422, code: "record_too_large"},
		{name: "headers of a record: the limit itself", method: "POST", path: post, body: headers(100), headers: []string{json1}, status: 200},
		{name: "headers of a record: one more", method: "POST", path: post, body: headers(101), headers: []string{json1}, status: 422, code: "too_many_headers"},
		{name: "depth of JSON", method: "POST", path: post, body: deep(65), headers: []string{json1}, status: 400, code: "malformed_body"},
		{name: "max_bytes", method: "GET", path: get + "&max_bytes=33554433&max_records=1", status: 200, answers: []string{"Applied-Max-Bytes: 33554432"}},
		{name: "max_bytes: negative", method: "GET", path: get + "&max_bytes=-1", status: 400, code: "invalid_parameter"},
		{name: "wait", method: "GET", path: get + "&wait=61", status: 200, answers: []string{"Applied-Wait: 60"}},
		{name: "wait: more than an hour", method: "GET", path: get + "&wait=3601", status: 400, code: "invalid_parameter"},
		{name: "wait: no number", method: "GET", path: get + "&wait=NaN", status: 400, code: "invalid_parameter"},
		{name: "malformed JSON", method: "POST", path: post, body: `{"records":[{"value":}]}`, headers: []string{json1}, status: 400, code: "malformed_body"},
		{name: "truncated line", method: "POST", path: post, body: `{"value":1}` + "\n" + `{"val`, headers: []string{ndjson}, status: 400, code: "malformed_body"},
		{name: "bad UTF-8", method: "POST", path: post, body: "[{\"value\":\"\xff\"}]", headers: []string{json1}, status: 400, code: "malformed_body"},
		{name: "a member twice", method: "POST", path: post, body: `[{"value":1,"value":2}]`, headers: []string{json1}, status: 400, code: "malformed_body"},
		{name: "unknown member", method: "POST", path: post, body: `[{"valu":1}]`, headers: []string{json1}, status: 400, code: "malformed_body"},
		{name: "empty body", method: "POST", path: post, headers: []string{json1}, status: 400, code: "empty_body"},
		{name: "unknown media type", method: "POST", path: post, body: "a,b", headers: []string{"Content-Type: text/csv"}, status: 415, code: "unsupported_media_type", answers: []string{"Accept-Post: *"}},
		{name: "unknown Accept", method: "GET", path: get, headers: []string{"Accept: text/csv"}, status: 406, code: "not_acceptable"},
		{name: "unknown Content-Encoding", method: "POST", path: post, body: good, headers: []string{json1, "Content-Encoding: br7"}, status: 415, code: "unsupported_content_encoding", answers: []string{"Accept-Encoding: *"}},
		{name: "unknown topic", method: "POST", path: "/v1/topics/missing/records", body: good, headers: []string{json1}, status: 404, code: "unknown_topic"},
		{name: "unknown partition", method: "GET", path: "/v1/topics/t/partitions/1/records?offset=0", status: 404, code: "unknown_partition"},
		{name: "partition -1", method: "GET", path: "/v1/topics/t/partitions/-1/records?offset=0", status: 400, code: "invalid_partition"},
		{name: "partition 2^31", method: "GET", path: "/v1/topics/t/partitions/2147483648/records?offset=0", status: 400, code: "invalid_partition"},
		{name: "unknown group", method: "GET", path: "/v1/groups/missing", status: 404, code: "unknown_group"},
		{name: "method", method: "PATCH", path: post, status: 405, code: "method_not_allowed", answers: []string{"Allow: GET, HEAD, POST"}},
		{name: "no key for a compacted topic", method: "POST", path: "/v1/topics/compact/records", body: good, headers: []string{json1}, status: 422, code: "invalid_record"},
		{name: "checksum of a batch", method: "POST", path: one, body: string(broken), headers: []string{batch}, status: 400, code: "corrupt_batch"},
		{name: "magic of a batch", method: "POST", path: one, body: string(old), headers: []string{batch}, status: 400, code: "corrupt_batch"},
		{name: "codec of a batch", method: "POST", path: one, body: string(seal(5, 1, now, now, []byte("xxxx"))), headers: []string{batch}, status: 415, code: "unsupported_codec"},
		{name: "too few replicas", method: "POST", path: "/v1/topics/two/records", body: good, headers: []string{json1}, status: 503, code: "not_enough_replicas", answers: []string{"Retry-After: 1"}},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, s) })
	}
	t.Run("a record too large is named", func(t *testing.T) {
		p := s.do("POST", "/v1/topics/small/records", []byte(`[{"value":1},{"value_str":"`+strings.Repeat("x", 10_000)+`"}]`), json1).refused(422, "record_too_large")
		if len(p.Errors) != 1 || p.Errors[0].Index == nil || *p.Errors[0].Index != 1 || p.Errors[0].Code != "record_too_large" {
			t.Errorf("places %+v", p.Errors)
		}
	})
	w := s.wire()
	for topic, want := range map[string]int64{"small": 0, "compact": 0, "two": 0, "t": body>>10 + 100_000 + 1} {
		if end := w.end(topic, 0); end != want {
			t.Errorf("topic %s ends at %d, want %d", topic, end, want)
		}
	}
}

// hold opens a request that has sent n bytes of its body and lacks one.
func (s *server) hold(path string, n int) net.Conn {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = nc.Close() })
	if _, err := fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", path, typeBytes, n+1, strings.Repeat("x", n)); err != nil {
		s.t.Fatal(err)
	}
	return nc
}

// TestLimitsInFlight proves what the budgets of bytes in flight answer: 429 to a client that holds its share, 503 where
// all is taken, both with when to come again, and that there is room as soon as the bytes are gone.
func TestLimitsInFlight(t *testing.T) {
	s := start(t, "--set", "leat.inflight.bytes=262144", "--set", "leat.inflight.bytes.per.principal=65536")
	s.createTopic("t", 1)
	const path = "/v1/topics/t/records"
	binary := "Content-Type: " + typeBytes
	(&limitRow{method: "POST", path: path, body: strings.Repeat("x", 300<<10), headers: []string{binary}, status: 503, code: "overloaded", answers: []string{"Retry-After: 1"}, closes: true}).check(t, s)
	s.post(path, typeBytes, strings.Repeat("x", 100<<10)) // alone it may have more than its share
	// The bytes of a request count for a moment after its answer, and those of the held one from when it is read: another
	// request at that time could take its place.
	counted := func(some bool) {
		t.Helper()
		eventually(t, "the bytes that count", func() error {
			if n := s.metric("leat_http_in_flight_bytes"); n > 0 != some {
				return fmt.Errorf("are %v", n)
			}
			return nil
		})
	}
	counted(false)
	held := s.hold(path, 1000)
	counted(true)
	full := limitRow{method: "POST", path: path, body: "x", headers: []string{binary}, status: 429, code: "quota_in_flight", answers: []string{"Retry-After: 1"}, limit: 65536, closes: true}
	full.check(t, s)
	if _, err := io.WriteString(held, "x"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room", func() error {
		if a := s.do("POST", path, []byte("x"), binary); a.status != 200 {
			return fmt.Errorf("status %d: %s", a.status, a.body)
		}
		return nil
	})
}

// TestLimitsRate proves what a quota answers: over HTTP a refusal with when to come again, on a socket an error, after
// which it goes on.
func TestLimitsRate(t *testing.T) {
	s := start(t, "--set", "leat.quota.requests.default=5")
	for range 100 {
		a := s.do("GET", "/v1/topics", nil)
		if a.status == 200 {
			if a.header.Get("RateLimit-Policy") != `"requests";q=5;w=1` {
				t.Fatalf("headers %v", a.header)
			}
			continue
		}
		p := a.refused(429, "quota_rate")
		if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 1 || after > 2 || a.header.Get("RateLimit") == "" || !*p.Retriable {
			t.Errorf("429 with %v: %s", a.header, a.body)
		}
		break
	}
	if a := s.do("GET", "/v1/topics", nil); a.status != 429 {
		t.Errorf("a hundred requests at once: status %d", a.status)
	}

	s = start(t, "--set", "quota.producer.default=20000")
	s.createTopic("t", 1)
	k := s.socket()
	const produce = `{"type":"produce","id":%d,"topic":"t","records":[{"value":"%s"}]}`
	k.say(produce, 1, strings.Repeat("x", 50_000))
	kinds := map[string]message{}
	for range 2 {
		m, err := k.next()
		if err != nil {
			t.Fatal(err)
		}
		kinds[m.Type] = m
	}
	if e := kinds["error"]; kinds["produced"].ID == nil || e.ID != nil || e.Problem.Code != "quota_rate" || e.Problem.Status != 429 {
		t.Errorf("%+v", kinds)
	}
	a := s.do("POST", "/v1/topics/t/records", []byte(`[{"value":1}]`), "Content-Type: "+typeJSON)
	if a.refused(429, "quota_rate"); a.header.Get("Retry-After") == "" {
		t.Errorf("429 with %v", a.header)
	}
	k.say(produce, 2, "x")
	for m := kinds["error"]; m.Type != "produced" || string(m.ID) != "2"; {
		var err error
		if m, err = k.next(); err != nil || m.Type != "produced" && m.Problem.Code != "quota_rate" {
			t.Fatalf("%s, %v", m.text, err)
		}
	}
}

// TestLimitsSockets proves the limits of a socket: subscriptions, and the size of a message and of a produce.
func TestLimitsSockets(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	k := s.socket()
	for i := range 128 {
		k.say(`{"type":"subscribe","sub":%d,"topic":"t"}`, i)
		k.want("subscribed")
	}
	k.say(`{"type":"subscribe","sub":128,"topic":"t"}`)
	if m := k.want("error"); m.Problem.Code != "too_many_subscriptions" || m.Problem.Status != 422 || !strings.Contains(m.text, `"limit":128`) {
		t.Errorf("%s", m.text)
	}
	k.say(`{"type":"unsubscribe","sub":0}`)
	k.want("unsubscribed")
	k.say(`{"type":"subscribe","sub":128,"topic":"t"}`)
	k.want("subscribed")

	k = s.socket()
	k.mustFrame(true, opText, padded(t, `{"type":"ping","id":1}`, 1<<20))
	k.want("pong")
	k.mustFrame(true, opText, padded(t, `{"type":"ping","id":1}`, 1<<20+1))
	k.wantClose(1009)
	for _, size := range []int{16 << 20, 16<<20 + 1} {
		k = s.socket()
		// What stands before the records tells that it is a produce; most of it is white space.
		text := fmt.Appendf(nil, `{"type":"produce","id":1,"topic":"t","records":[{"value":1}]%s}`, strings.Repeat(" ", size-len(`{"type":"produce","id":1,"topic":"t","records":[{"value":1}]}`)))
		if err := k.frame(true, opText, text); err != nil && size == 16<<20 {
			t.Fatal(err)
		}
		if size == 16<<20 {
			k.want("produced")
		} else {
			k.wantClose(1009)
		}
	}
	a := s.do("GET", "/v1/ws", nil)
	if a.refused(426, "upgrade_required"); a.header.Get("Upgrade") != "websocket" {
		t.Errorf("headers %v", a.header)
	}
}

// TestLimitsHeaderPhase proves that a client has 5 s for the head of its request, whatever it sends meanwhile, and that a
// head that is too long is refused. The long form also proves the 30 s for a body that does not come.
func TestLimitsHeaderPhase(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	body := make(chan answer, 1)
	if long() {
		go func() {
			body <- s.raw("POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: " + typeJSON + "\r\nContent-Length: 100\r\n\r\n{")
		}()
	}
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close() //nolint:errcheck // the server closes it
	begun := time.Now()
	if err := nc.SetDeadline(begun.Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(nc, "GET /v1/topics HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(nc)
	if took := time.Since(begun); err != nil || took < 4*time.Second || took > 10*time.Second || len(got) > 0 && !bytes.HasPrefix(got, []byte("HTTP/1.1 408 ")) {
		t.Errorf("after %v: %q, %v", took, got, err)
	}
	if a := s.raw("GET /v1/topics HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 100<<10) + "\r\n\r\n"); a.status != 431 || !a.closes {
		t.Errorf("a long head: status %d, closes %v", a.status, a.closes)
	}
	if long() {
		a := <-body
		var p problem
		if err := json.Unmarshal(a.body, &p); a.status != 408 || !a.closes || err != nil || p.Code != "request_timeout" || !*p.Retriable {
			t.Errorf("a body that does not come: status %d, closes %v: %s", a.status, a.closes, a.body)
		}
	}
}
