package rest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"leat/api"
)

const uploadT = produceT + "?stream=true"

// sending is an upload under way: what is written to it is sent at once.
type sending struct {
	io.Writer
	t     testing.TB
	res   *http.Response
	lines *bufio.Reader
	end   func() // of the body
}

// send begins an upload.
func (d *door) send(path string, headers ...string) *sending {
	d.t.Helper()
	return d.sendBy(d.client.Transport, "http://"+d.addr, path, headers...)
}

func (d *door) sendBy(client http.RoundTripper, base, path string, headers ...string) *sending {
	d.t.Helper()
	body, w := io.Pipe()
	ctx, cancel := context.WithCancel(d.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaNDJSON)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.RoundTrip(req)
	if err != nil {
		cancel()
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		cancel()
		_ = w.Close()
		_ = res.Body.Close()
	})
	return &sending{Writer: w, t: d.t, res: res, lines: bufio.NewReader(res.Body), end: func() { _ = w.Close() }}
}

// line sends text.
func (s *sending) line(text string) *sending {
	s.t.Helper()
	if _, err := io.WriteString(s, text); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// want reads lines of the answer, but for heartbeats, each of which must contain
// the next part.
func (s *sending) want(parts ...string) *sending {
	s.t.Helper()
	for _, part := range parts {
		line := "{\"$\":\"hb\"}\n"
		for line == "{\"$\":\"hb\"}\n" {
			var err error
			if line, err = s.lines.ReadString('\n'); err != nil {
				s.t.Fatalf("%v after %q, want %s", err, line, part)
			}
		}
		if !strings.Contains(line, part) {
			s.t.Fatalf("got %s want %s", line, part)
		}
	}
	return s
}

// over fails unless the answer ends here, with the reason in the trailer.
func (s *sending) over(reason string) {
	s.t.Helper()
	if rest, err := io.ReadAll(s.lines); err != nil || len(rest) > 0 {
		s.t.Fatalf("%v, and %q after the end", err, rest)
	}
	if got := s.res.Trailer.Get(closeReason); got != reason {
		s.t.Errorf("Close-Reason %q, want %q", got, reason)
	}
}

// until polls until ok.
func (d *door) until(what string, ok func() bool) {
	d.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			d.t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// Each line is receipted while the body is still open, in order, in every form
// of receipts.
func TestUploadReceipts(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	full := d.send(uploadT + "&receipts=full").line("{\"value\":1}\n").want(`{"seq":0,"partition":0,"offset":0,"timestamp":`)
	full.line("\n{\"val").line("ue\":2,\"timestamp\":5}\r\n").want(`{"seq":1,"partition":0,"offset":1,"timestamp":5}`)
	full.line("{\"value\":3}\n{\"value\":4}").end()
	full.want(`{"seq":2,"partition":0,"offset":2,`, `{"seq":3,"partition":0,"offset":3,`, `{"$":"end","reason":"complete","count":4,"failed":0}`).over(endComplete)
	summary := d.send(uploadT).line("{\"value\":5}\n{\"value\":6}\n").
		want(`{"seq":0,"count":2,"partitions":[{"partition":0,"base_offset":4,"last_offset":5,"count":2}]}`)
	summary.end()
	summary.want(`"count":2,"failed":0}`).over(endComplete)
	none := d.send(uploadT + "&receipts=none&acks=leader").line("{\"value\":7}\n")
	none.end()
	none.want(`{"$":"end","reason":"complete","count":1,"failed":0}`).over(endComplete)
	unsaid := d.send(uploadT + "&acks=none&receipts=full").line("{\"value\":8}\n")
	unsaid.end()
	unsaid.want(`{"$":"end","reason":"complete","count":1,`).over(endComplete)
	if unsaid.res.StatusCode != http.StatusAccepted || none.res.StatusCode != http.StatusOK {
		t.Errorf("statuses %d, %d", unsaid.res.StatusCode, none.res.StatusCode)
	}
	empty := d.send(uploadT)
	empty.end()
	empty.want(`"reason":"complete","count":0,"failed":0}`).over(endComplete)
	d.until("the end is 8", func() bool { return d.end("t") == 8 })
	d.until("the budget has everything back", func() bool { return d.server.opts.Budget.Used() == 0 })
}

// value=line, with and without keys, and a given partition.
func TestUploadLines(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	lines := d.send("/v1/topics/t/partitions/1/records?stream=true&value=line").line("a\r\n\nb\n").want(`{"seq":0,"count":3,"partitions":[{"partition":1,"base_offset":0,`)
	lines.line("c").end()
	lines.want(`{"seq":3,"count":1,`, `"count":4`).over(endComplete)
	fast := d.send(uploadT + "&value=line").line("x\ny\n").want(`{"seq":0,"count":2,"partitions":[{"partition":`)
	fast.end()
	fast.want(`"complete"`).over(endComplete)
	keyed := d.send("/v1/topics/t/partitions/0/records?stream=true&value=line&key_pointer=/k&receipts=full").line("{\"k\":\"a\"}\n").want(`{"seq":0,`)
	keyed.line("plain\n").want(`{"seq":1,"line":2,"byte":10,"taken":1,"error":{"code":"malformed_body","status":400,"retriable":false,"detail":"the line is not one JSON value`, `"reason":"error","count":1`).over(endError)
	d.do("GET", "/v1/topics/t/partitions/1/records?from=earliest", nil).contains(t, `"value_str":"a\r"`, `"value_str":"",`, `"value_str":"c"`)
}

// The first bad line ends the upload: it is named, what stands before it is taken,
// what stands behind it is not.
func TestUploadBadLine(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for i, tc := range []struct {
		query, text, receipt string
		taken                int
	}{
		{"", "{\"value\":1}\n{\"value\":2}\n{\"valu\":3}\n{\"value\":4}\n", `{"seq":2,"line":3,"byte":31,"taken":2,"error":{"code":"malformed_body","status":400,"retriable":false,"detail":"unknown member \"valu\" (at record 2, line 3, byte 31)"}}`, 2},
		{"", "{\"value\":1}\n\n{\"value\":", `{"seq":1,"line":3,"byte":22,"taken":1,"error":{"code":"malformed_body"`, 1},
		{"&receipts=full", "{\"value\":1}\nx\n", `{"seq":1,"line":2,"byte":12,"taken":1,`, 1},
		{"", "{\"value\":1}\n{\"value\":1,\"partition\":9}\n", `"line":2,"byte":37,"taken":1,"error":{"code":"unknown_partition","status":404`, 1},
		{"&value=line", "a\nb\n" + strings.Repeat("x", 2<<20) + "\nc\n", `{"seq":2,"line":3,"byte":4,"taken":2,"error":{"code":"record_too_large","status":422`, 2},
	} {
		s := d.send(uploadT + tc.query)
		go func() {
			_, _ = io.WriteString(s, tc.text) // the server may end it
			s.end()
		}()
		line := ""
		for !strings.Contains(line, `"error"`) {
			var err error
			if line, err = s.lines.ReadString('\n'); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		if !strings.Contains(line, tc.receipt) {
			t.Errorf("%d: %s want %s", i, line, tc.receipt)
		}
		s.want(fmt.Sprintf(`{"$":"end","reason":"error","count":%d,"failed":0,"problem":{"type":"/problems/`, tc.taken)).over(endError)
	}
	if got := d.end("t"); got != 7 {
		t.Errorf("end %d", got)
	}
	// Before anything is taken and said, it is an answer like any other.
	bad := d.do("POST", "/v1/topics/new/records?stream=true", "nonsense\n", "Content-Type", mediaNDJSON).want(t, 400, "malformed_body")
	if bad.Header.Get("Trailer") != "" || d.end("new") != 0 {
		t.Errorf("headers %v", bad.Header)
	}
}

// Compressed bodies are taken as far as they are flushed; a bomb is not.
func TestUploadCodings(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for coding, open := range map[string]func(io.Writer) interface {
		io.WriteCloser
		Flush() error
	}{
		codingGzip: func(w io.Writer) interface {
			io.WriteCloser
			Flush() error
		} {
			return gzip.NewWriter(w)
		},
		codingZstd: func(w io.Writer) interface {
			io.WriteCloser
			Flush() error
		} {
			z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
			if err != nil {
				t.Fatal(err)
			}
			return z
		},
	} {
		// Not the client that holds exchanges against the contract: it sees no body
		// before the answer.
		plain := &http.Transport{}
		s := d.sendBy(plain, "http://"+d.addr, uploadT, "Content-Encoding", coding)
		z := open(s)
		for i := range 3 {
			if _, err := io.WriteString(z, "{\"value\":1}\n"); err != nil {
				t.Fatal(err)
			}
			if err := z.Flush(); err != nil {
				t.Fatal(err)
			}
			s.want(fmt.Sprintf(`{"seq":%d,"count":1,`, i))
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		s.end()
		s.want(`"complete","count":3`).over(endComplete)
		bomb := d.sendBy(plain, "http://"+d.addr, uploadT+"&value=line&receipts=none", "Content-Encoding", coding)
		go func() {
			z := open(bomb)
			block := strings.Repeat(strings.Repeat("x", 99)+"\n", 10000)
			for range 200 {
				if _, err := io.WriteString(z, block); err != nil {
					return
				}
			}
			_ = z.Close()
			bomb.end()
		}()
		bomb.want(`"error":{"code":"request_too_large","status":413`, `"reason":"error"`).over(endError)
		cut := d.sendBy(plain, "http://"+d.addr, uploadT, "Content-Encoding", coding).line("nonsense")
		cut.end()
		cut.want(`"taken":0,"error":{"code":"malformed_body"`, `"end"`).over(endError)
	}
	d.do("POST", uploadT, "x", "Content-Type", mediaNDJSON, "Content-Encoding", "br").want(t, 415, "unsupported_content_encoding")
}

// A body that is cut off is taken up to its last whole line, and a receipt that
// was given holds.
func TestUploadCut(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	chunk := func(text string) {
		if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", len(text), text); err != nil {
			t.Fatal(err)
		}
	}
	_, err = io.WriteString(conn, "POST "+uploadT+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	chunk("{\"value\":1}\n")
	for line := ""; !strings.HasPrefix(line, `{"seq":0,"count":1`); {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	chunk("{\"value\":2}\n{\"value\":3}")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || !strings.Contains(string(rest), `{"seq":2,"line":3,"byte":24,"taken":2,"error":{"code":"malformed_body","status":400,"retriable":false,"detail":"the body ended early"}}`) {
		t.Errorf("%s, %v", rest, err)
	}
	if got := d.end("t"); got != 2 {
		t.Errorf("end %d", got)
	}
}

// A client that never reads its receipts is not read from, and is cut off when a
// receipt cannot be written in time; neither costs memory for good.
func TestUploadUnread(t *testing.T) {
	d := paced(t, func(p *pace) { p.write = 200 * time.Millisecond })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := errors.Join(conn.(*net.TCPConn).SetReadBuffer(4096), conn.SetDeadline(time.Now().Add(30*time.Second))); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(conn, "POST "+uploadT+"&receipts=full&acks=leader HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	text := strings.Repeat("{}\n", 20000)
	frame := fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
	sent := 0
	for err == nil {
		_, err = io.WriteString(conn, frame)
		sent += len(text)
		if runtime.ReadMemStats(&now); now.HeapAlloc > before.HeapAlloc+128<<20 {
			t.Fatalf("%d MiB of heap after %d bytes", (now.HeapAlloc-before.HeapAlloc)>>20, sent)
		}
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Fatalf("still open after %d bytes", sent)
	}
	d.until("the upload has ended", func() bool { return counted(t, d.server.metrics.streams[kindUpload].ended[endSlow]) == 1 })
	d.until("the budget has everything back", func() bool { return d.server.opts.Budget.Used() == 0 })
}

// paced is a door whose pace is changed before its first request.
func paced(t *testing.T, change func(*pace)) *door {
	t.Helper()
	d := openDoor(t, func(s *setup) { s.configs["auto.create.topics.enable"] = "false" })
	change(&d.server.pace)
	d.topic("t", 1)
	return d
}

// An upload ends by its age, by a drain, by silence and by a deleted topic, and
// says so; its last words come although the client goes on sending.
func TestUploadEnds(t *testing.T) {
	s := paced(t, func(p *pace) { p.life = 300 * time.Millisecond }).send(uploadT).line("{\"value\":1}\n").want(`{"seq":0,"count":1`)
	go func() {
		for {
			if _, err := io.WriteString(s, "{}"); err != nil {
				return
			}
		}
	}()
	s.want(`{"$":"end","reason":"lifetime","count":1,"failed":0,"in_ms":`).over(endLifetime)
	paced(t, func(p *pace) { p.idle = 100 * time.Millisecond }).send(uploadT).line("{\"value\":2}\n{\"v").
		want(`"count":1`, `{"seq":1,"line":2,"byte":12,"taken":1,"error":{"code":"request_timeout","status":408,"retriable":true,"detail":"no byte of the body came for 0.1 s"`, `"end"`).over(endError)
	d := paced(t, func(p *pace) { p.beat = 20 * time.Millisecond })
	s = d.send(uploadT)
	if line, err := s.lines.ReadString('\n'); err != nil || line != "{\"$\":\"hb\"}\n" {
		t.Errorf("%q, %v", line, err)
	}
	s.line("{\"value\":3}\n").want(`"count":1`)
	d.do(http.MethodDelete, "/v1/topics/t", nil).want(t, 204, "")
	s.line("{\"value\":4}\n").want(`{"seq":1,"taken":1,"error":{"code":"unknown_topic","status":404`, `"end"`).over(endError)
	d.do("POST", uploadT, "{}\n", "Content-Type", mediaNDJSON).want(t, 404, "unknown_topic")
	d.topic("t", 1)
	s = d.send(uploadT).line("{\"value\":5}\n").want(`"count":1`)
	drained := make(chan error, 1)
	go func() { drained <- d.server.Shutdown(t.Context()) }()
	s.want(`{"$":"end","reason":"draining","count":1,"failed":0,"in_ms":`).over(endDrain)
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// What is no stream of lines is refused before the first byte.
func TestUploadRefused(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.do("POST", uploadT, "[]", "Content-Type", mediaJSON).want(t, 400, "invalid_parameter")
	for _, name := range []string{"Idempotency-Key", "Producer-Id", "Producer-Epoch", "Producer-Seq"} {
		d.do("POST", uploadT, "{}\n", "Content-Type", mediaNDJSON, name, "12345678").want(t, 400, "invalid_request")
	}
	d.do("POST", "/v1/topics/t/partitions/1/records?stream=true", "{}\n", "Content-Type", mediaNDJSON).want(t, 404, "unknown_partition")
	small := openDoor(t, func(s *setup) { s.Budget = api.NewBudget(100_000, 0) })
	small.topic("t", 1)
	small.do("POST", uploadT, "{}\n", "Content-Type", mediaNDJSON).want(t, 503, "overloaded")
	long := openDoor(t, func(s *setup) { s.MaxRequestBytes = 300_000 })
	long.topic("t", 1)
	s := long.send(uploadT)
	go func() { _, _ = io.WriteString(s, "{\"value\":1}\n{\"value_str\":\""+strings.Repeat("x", 1<<20)) }()
	s.want(`"count":1`, `{"seq":1,"line":2,"byte":12,"taken":1,"error":{"code":"request_too_large","status":413,"retriable":false,"detail":"a line of a stream may have 300000 bytes`, `"end"`)
}

// Records that cannot be written are told of in every form of receipts, and the
// upload goes on.
func TestUploadFailures(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1, "min.insync.replicas", "2")
	const failure = `"error":{"code":"not_enough_replicas","status":503,"retriable":true`
	for receipts, want := range map[string]string{
		"full": `{"seq":0,"partition":0,` + failure, "summary": `{"seq":0,"count":1,"failed":1,"partitions":[{"partition":0,` + failure, "none": `{"seq":0,"count":1,"failed":1,`,
	} {
		s := d.send(uploadT + "&receipts=" + receipts).line("{\"value\":1}\n").want(want)
		s.line("{\"value\":2}\n").want(`{"seq":1,`)
		s.end()
		s.want(`{"$":"end","reason":"complete","count":2,"failed":2}`).over(endComplete)
	}
}

// Over HTTP/2 an upload is the same.
func TestUploadHTTP2(t *testing.T) {
	d := paced(t, func(p *pace) { p.write, p.beat = 100*time.Millisecond, 10*time.Millisecond })
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: d.server.Handler(), Protocols: &protocols, ReadHeaderTimeout: time.Minute}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	client := &http.Transport{Protocols: &protocols}
	base := "http://" + ln.Addr().String()
	s := d.sendBy(client, base, uploadT).line("{\"value\":1}\n").want(`{"seq":0,"count":1,`)
	if s.res.ProtoMajor != 2 {
		t.Fatalf("HTTP/%d", s.res.ProtoMajor)
	}
	s.line("{\"value\":2}\nx\n").want(`{"seq":1,"count":1,`, `{"seq":2,"line":3,"byte":24,"taken":2,`, `"reason":"error"`).over(endError)
	s = d.sendBy(client, base, uploadT).line("{\"value\":3}\n").want(`{"seq":0,"count":1,`)
	for range 30 { // beats, for longer than a write may take
		if _, err := s.lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	s.line("{\"value\":4}").end()
	s.want(`{"seq":1,"count":1,`, `"complete","count":2`).over(endComplete)
	client.CloseIdleConnections()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if got := d.end("t"); got != 4 {
		t.Errorf("end %d", got)
	}
}
