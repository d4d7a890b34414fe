package rest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
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
	conn, err := new(net.Dialer).DialContext(d.t.Context(), "tcp", d.addr)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, text)
	if err = errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err != nil {
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

// The bodies of all requests have one budget; beyond it the answer is 503.
func TestBudget(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.MaxInFlightBytes = 32 << 10 })
	d.topic("t", 1)
	a := d.post(`[{"value":1}]`).want(t, 503, "overloaded")
	if a.Header.Get("Retry-After") != "1" || !a.problem(t).Retriable {
		t.Errorf("%v %s", a.Header, a.body)
	}
	if used := d.server.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes still reserved", used)
	}
}
