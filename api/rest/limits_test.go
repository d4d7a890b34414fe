package rest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"leat/api"
	"leat/auth"
)

func compress(t testing.TB, coding string, p []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	var err error
	if coding == codingGzip {
		z := gzip.NewWriter(&buf)
		_, err = z.Write(p)
		err = firstError(err, z.Close())
	} else {
		var z *zstd.Encoder
		z, err = zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
		if err == nil {
			_, err = z.Write(p)
			err = firstError(err, z.Close())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Case 9: gzip and zstd bodies are stored inflated, in every media type;
// truncated and trailing bytes are told of.
func TestContentEncoding(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, coding := range []string{codingGzip, codingZstd} {
		whole := compress(t, coding, []byte(`[{"value":"`+coding+`"}]`))
		for range 3 { // decoders are reused
			d.do("POST", produceT, whole, "Content-Type", mediaJSON, "Content-Encoding", coding).want(t, 200, "")
		}
		d.do("POST", produceT+"?value=line", compress(t, coding, []byte(strings.Repeat("line\n", 500))), "Content-Type", mediaNDJSON, "Content-Encoding", strings.ToUpper(coding)).want(t, 200, "")
		d.do("POST", produceT, whole[:len(whole)-3], "Content-Type", mediaJSON, "Content-Encoding", coding).want(t, 400, "malformed_body")
		d.do("POST", produceT, append(bytes.Clone(whole), "garbage"...), "Content-Type", mediaJSON, "Content-Encoding", coding).want(t, 400, "malformed_body")
		d.do("POST", produceT, compress(t, coding, nil), "Content-Type", mediaJSON, "Content-Encoding", coding).want(t, 400, "empty_body")
	}
	d.do("POST", produceT, `[{"value":"identity"}]`, "Content-Type", mediaJSON, "Content-Encoding", "identity").want(t, 200, "")
	d.do("GET", fetchAll, nil).contains(t, `"value":"gzip"`, `"value":"zstd"`, `"value":"identity"`)
	if got := d.end("t"); got != 2*(3+500)+1 {
		t.Errorf("end %d", got)
	}
}

// chunked hides the length of a body from net/http.
type chunked struct{ *bytes.Reader }

// Case 8: the limit holds with Content-Length, chunked and for bombs; nothing
// is written and the connection is closed.
func TestBodyLimits(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.MaxRequestBytes = 1 << 20 })
	d.topic("t", 1)
	large := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17)
	random := make([]byte, 2<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(random)
	for _, tc := range []struct {
		name   string
		body   any
		coding string
	}{
		{"content-length", large, ""},
		{"chunked", chunked{bytes.NewReader(large)}, ""},
		{"gzip bomb", compress(t, codingGzip, make([]byte, 100<<20)), codingGzip},
		{"zstd bomb", compress(t, codingZstd, make([]byte, 100<<20)), codingZstd},
		{"gzip bomb in chunks", chunked{bytes.NewReader(compress(t, codingGzip, make([]byte, 2<<20)))}, codingGzip},
		{"compressed", compress(t, codingGzip, random), codingGzip},
	} {
		headers := []string{"Content-Type", mediaNDJSON}
		if tc.coding != "" {
			headers = append(headers, "Content-Encoding", tc.coding)
		}
		a := d.do("POST", produceT+"?value=line", tc.body, headers...)
		if p := a.problem(t); a.StatusCode != http.StatusRequestEntityTooLarge || p.Code != "request_too_large" || p.Limit != 1<<20 {
			t.Errorf("%s: %d %s", tc.name, a.StatusCode, a.body)
		}
	}
	if got := d.end("t"); got != 0 {
		t.Errorf("end %d", got)
	}
	d.do("POST", produceT+"?value=line", large[:1<<20], "Content-Type", mediaNDJSON).want(t, 200, "")
}

// A body below the limit still may not expand beyond a hundred times.
func TestRatio(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.do("POST", produceT+"?value=line", compress(t, codingGzip, make([]byte, 15<<20)), "Content-Type", mediaNDJSON, "Content-Encoding", "gzip").want(t, 413, "request_too_large")
}

// A zstd frame in a single segment that is smaller than the limit may still
// have too large a window, and the answer says that this is why.
func TestZstdWindow(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	random := make([]byte, 15<<20)
	rng := rand.NewChaCha8([32]byte{2})
	_, _ = rng.Read(random)
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	a := d.do("POST", produceT, z.EncodeAll(random, nil), "Content-Type", mediaBytes, "Content-Encoding", "zstd").want(t, 413, "request_too_large")
	if p := a.problem(t); p.Limit != zstdWindow || !strings.Contains(p.Detail, "window") {
		t.Errorf("%s", a.body)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// raw sends the text of a request by a connection of its own.
func (d *door) raw(text string) *answer {
	d.t.Helper()
	return d.sent(text, true)
}

// sent is raw; without whole, more of the request seems to come.
func (d *door) sent(text string, whole bool) *answer {
	d.t.Helper()
	conn, err := new(net.Dialer).DialContext(d.t.Context(), "tcp", d.addr)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, text)
	if whole {
		err = errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}
	if err = errors.Join(err, conn.SetReadDeadline(time.Now().Add(20*time.Second))); err != nil {
		d.t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	req, err := http.NewRequestWithContext(d.t.Context(), method, "http://"+d.addr, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	// As the answer to a GET, so that one to CONNECT has a body.
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	res.Request = req
	return &answer{Response: res, body: body}
}

// A chunked body that is no chunked body is told apart from one that ended
// early.
func TestChunkedBody(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, tc := range []struct{ coding, chunks, detail string }{
		{"identity", "zz\r\n[{\"value\":1}]\r\n0\r\n\r\n", "the chunked body is malformed"},
		{"identity", "-1\r\n", "the chunked body is malformed"},
		{"identity", "\r\n", "the chunked body is malformed"},
		{"identity", "11111111111111111\r\n", "the chunked body is malformed"},
		{"identity", "2\r\n[]x\r\n0\r\n\r\n", "the chunked body is malformed"},
		{"gzip", "zz\r\n", "the chunked body is malformed"},
		{"identity", "ff\r\n[", "the body ended early"},
		{"identity", "", "the body ended early"},
	} {
		d.raw("POST "+produceT+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: "+tc.coding+
			"\r\nTransfer-Encoding: chunked\r\n\r\n"+tc.chunks).want(t, 400, "malformed_body").contains(t, tc.detail)
	}
	if got := d.end("t"); got != 0 {
		t.Errorf("end %d", got)
	}
}

// The bodies of all requests have one budget; beyond it the answer is 503, and
// 429 where the principal's own share is full. Nothing stays reserved.
func TestBudget(t *testing.T) {
	for _, tc := range []struct {
		total, each int64
		status      int
		code        string
	}{
		{32 << 10, 32 << 10, 503, "overloaded"},
		{1 << 20, 32 << 10, 429, "quota_in_flight"},
	} {
		budget := api.NewBudget(tc.total, tc.each)
		d := openDoor(t, func(s *setup) { s.Budget = budget })
		d.topic("t", 1)
		if err := budget.Take(auth.Anonymous, 1); err != nil { // another request
			t.Fatal(err)
		}
		a := d.post(`[{"value":1}]`).want(t, tc.status, tc.code)
		if a.Header.Get("Retry-After") != "1" || !a.problem(t).Retriable {
			t.Errorf("%v %s", a.Header, a.body)
		}
		budget.Give(auth.Anonymous, 1)
		if budget.Used() != 0 || budget.Principals() != 0 {
			t.Errorf("%d bytes still reserved", budget.Used())
		}
	}
}

// A client that sends its body a byte at a time is told that it is too slow,
// however steady it is, and its bytes are not held any longer. One that is slow
// but brings enough in each span is served.
func TestSlowBody(t *testing.T) {
	for _, tc := range []struct {
		name   string
		bytes  int // at a time
		status int
	}{{"a byte at a time", 1, 408}, {"enough at a time", bodyPace, 200}} {
		d := openDoor(t)
		d.topic("t", 1)
		atPace(d, func(p *pace) { p.body = 200 * time.Millisecond })
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		const size = 10 * bodyPace
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", produceT, mediaBytes, size); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for n := 0; n < size; n += tc.bytes {
				if _, err := conn.Write(make([]byte, tc.bytes)); err != nil {
					return
				}
				<-tick.C
			}
		}()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); res.StatusCode != tc.status || took < 200*time.Millisecond || took > 5*time.Second {
			t.Errorf("%s: status %d after %v", tc.name, res.StatusCode, took)
		}
		if d.server.opts.Budget.Used() != 0 {
			t.Errorf("%s: %d bytes still reserved", tc.name, d.server.opts.Budget.Used())
		}
		_, _ = res.Body.Close(), conn.Close()
		<-sent
	}
}

// What a fetch is answered from counts, too: a batch that expands to more than
// there is room for beside other requests is refused and not taken for damaged,
// a client that is alone gets it, a window that has no room becomes smaller, and
// nothing stays reserved.
func TestAnswerBudget(t *testing.T) {
	answers := api.NewBudget(16<<20, 2<<20)
	d := openDoor(t, func(s *setup) { s.Answers = answers })
	d.topic("t", 1, "max.message.bytes", "10000000")
	d.topic("z", 1, "compression.type", "zstd", "max.message.bytes", "10000000")
	d.do("POST", "/v1/topics/z/records", make([]byte, 6<<20), "Content-Type", mediaBytes).want(t, 200, "")
	for range 20 {
		d.do("POST", produceT, make([]byte, 100<<10), "Content-Type", mediaBytes).want(t, 200, "")
	}
	const fetchZ = "/v1/topics/z/records?from=earliest&max_bytes=10000000"
	d.do("GET", fetchZ, nil).want(t, 200, "")
	if answers.Used() != 0 {
		t.Errorf("%d bytes still reserved", answers.Used())
	}
	if err := answers.Take(auth.Anonymous, 1<<20); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.do("GET", fetchZ, nil).want(t, 429, "quota_in_flight")
		d.do("GET", streamT0+"?from=earliest&max_bytes=1900000", nil).want(t, 200, "")
	}
	other := auth.Principal{Name: "other"}
	if err := answers.Take(other, 15<<20-answerBytes+1); err != nil {
		t.Fatal(err)
	}
	a := d.do("GET", fetchAll, nil).want(t, 503, "overloaded")
	if a.Header.Get("Retry-After") != "1" || a.Header.Get("Next-Offset") != "" {
		t.Errorf("%v", a.Header)
	}
	answers.Give(other, 15<<20-answerBytes+1)
	answers.Give(auth.Anonymous, 1<<20)
	d.do("GET", fetchZ, nil).want(t, 200, "")
	if answers.Used() != 0 || answers.Principals() != 0 {
		t.Errorf("%d bytes still reserved", answers.Used())
	}
}

// A stream for whose next batch there is no memory lags until there is: it is not
// ended, shows that it lives, and misses nothing.
func TestStreamNoRoom(t *testing.T) {
	answers := api.NewBudget(16<<20, 0)
	d := openDoor(t, func(s *setup) { s.Answers = answers })
	atPace(d, func(p *pace) { p.position = 50 * time.Millisecond })
	d.topic("t", 1, "compression.type", "zstd", "max.message.bytes", "10000000")
	d.post(`[{"value":1}]`).want(t, 200, "")
	d.do("POST", produceT, make([]byte, 6<<20), "Content-Type", mediaBytes).want(t, 200, "")
	other := auth.Principal{Name: "other"}
	if err := answers.Take(other, 16<<20); err != nil {
		t.Fatal(err)
	}
	l := d.follow(streamT0+"?from=earliest&stream=true", mediaNDJSON)
	l.control("position")
	if s := l.item(); s.Offset != 0 || s.Control != "" {
		t.Fatalf("%+v", s)
	}
	for range 3 { // of which each comes after a silence
		l.control("position")
	}
	answers.Give(other, 16<<20)
	for s := l.item(); ; s = l.item() {
		if s.Control == "" {
			if s.Offset != 1 {
				t.Errorf("%+v", s)
			}
			break
		}
	}
	l.close()
	if used := answers.Used(); used != 0 {
		t.Errorf("%d bytes still reserved", used)
	}
}

// A take of leases and a look at one record are bound like a fetch. A lease that
// there was no memory for does not count as delivered, so that nothing goes to
// the dead letters because of other clients.
func TestAnswerBudgetElsewhere(t *testing.T) {
	answers := api.NewBudget(16<<20, 2<<20)
	d := openDoor(t, func(s *setup) { s.Answers = answers })
	d.topic("dead", 1)
	d.topic("z", 1, "compression.type", "zstd", "max.message.bytes", "10000000")
	d.do("POST", "/v1/topics/z/records", make([]byte, 6<<20), "Content-Type", mediaBytes).want(t, 200, "")
	const record, work = "/v1/topics/z/partitions/0/records/0", `{"topics":["z"],"max_bytes":10000000,"max_deliveries":2,"dead_letter_topic":"dead"}`
	if err := answers.Take(auth.Anonymous, 1<<20); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if a := d.take("g", work).want(t, 429, "quota_in_flight"); a.Header.Get("Retry-After") != "1" {
			t.Errorf("%v", a.Header)
		}
		d.do("GET", record, nil).want(t, 429, "quota_in_flight")
		if answers.Used() != 1<<20 {
			t.Fatalf("%d bytes still reserved", answers.Used()-1<<20)
		}
	}
	answers.Give(auth.Anonymous, 1<<20)
	if l := d.takeOne("g", work); l.DeliveryCount != 1 || len(l.Records) != 1 {
		t.Errorf("delivery %d of %d records", l.DeliveryCount, len(l.Records))
	}
	d.do("GET", record, nil).want(t, 200, "")
	if answers.Used() != 0 || d.end("dead") != 0 {
		t.Errorf("%d bytes still reserved, %d dead letters", answers.Used(), d.end("dead"))
	}
}

// A body that nobody wants is not waited for: what is wrong with the rest of the
// request is answered although it does not come.
func TestBodyNotAwaited(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, c := range []struct {
		line, headers string
		status        int
		code          string
	}{
		{"POST /nothing", "Content-Length: 10", 404, "not_found"},
		{"POST " + produceT, "Content-Length: 10\r\nContent-Type: text/csv", 415, "unsupported_media_type"},
		{"POST " + produceT, "Content-Length: 10\r\nContent-Type: application/json\r\nContent-Encoding: br", 415, "unsupported_content_encoding"},
		{"POST " + produceT + "?acks=7", "Transfer-Encoding: chunked\r\nContent-Type: application/json", 400, "invalid_parameter"},
		{"POST /v1/topics/t/partitions/7/records?stream=true", "Transfer-Encoding: chunked\r\nContent-Type: application/x-ndjson", 404, "unknown_partition"},
		{"POST " + produceT + "?stream=true", "Transfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\nIdempotency-Key: abcdefgh", 400, "invalid_request"},
		{"GET /healthz", "Content-Length: 10", 200, ""},
		{"DELETE /v1/topics/t", "Content-Length: 10", 204, ""},
	} {
		d.sent(c.line+" HTTP/1.1\r\nHost: x\r\n"+c.headers+"\r\n\r\n", false).want(t, c.status, c.code)
	}
}
