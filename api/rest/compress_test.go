package rest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"leat/api"
	"leat/auth"
)

// Accept-Encoding is weighed as RFC 9110 section 12.5.3 says.
func TestAnswerCoding(t *testing.T) {
	for accept, want := range map[string]string{
		"": codingIdentity, "identity": codingIdentity, "br, deflate": codingIdentity, "gzip": codingGzip, "X-Gzip": codingGzip,
		"zstd": codingZstd, "gzip, deflate, br, zstd": codingZstd, "gzip;q=1.0, zstd;q=0.9": codingGzip, "GZIP ; Q=0.3": codingGzip,
		"gzip;q=0": codingIdentity, "gzip;q=0.5, identity": codingIdentity, "gzip;q=0.5, identity;q=0.4": codingGzip,
		"gzip, identity": codingGzip, "*": codingZstd, "zstd;q=0, *": codingGzip, "*;q=0": codingIdentity, "identity;q=0, *;q=0": codingIdentity,
		"gzip;q=NaN": codingIdentity, "gzip;q=2": codingIdentity, "gzip;q=-1": codingIdentity, "gzip;q=": codingIdentity, "gzip;x=1": codingIdentity,
		",,;,gzip": codingGzip, "gzip;q=0, gzip": codingIdentity,
	} {
		if got, _ := answerCoding(http.Header{"Accept-Encoding": {accept}}); got != want {
			t.Errorf("%q: %s, want %s", accept, got, want)
		}
	}
	for accept, want := range map[string]bool{
		"gzip": false, "gzip, identity;q=0": true, "gzip, *;q=0": true, "gzip, *;q=0, identity;q=0.1": false, "identity;q=0": false, "*;q=0": false, "gzip, *": false,
	} {
		if _, only := answerCoding(http.Header{"Accept-Encoding": {accept}}); only != want {
			t.Errorf("%q refuses what is not coded: %t", accept, only)
		}
	}
	if got, _ := answerCoding(http.Header{"Accept-Encoding": {"br", "gzip"}}); got != codingGzip {
		t.Errorf("in two lines: %s", got)
	}
	if got, _ := answerCoding(http.Header{}); got != codingIdentity {
		t.Errorf("without: %s", got)
	}
}

// decoded undoes the Content-Encoding of an answer.
func decoded(t *testing.T, res *http.Response) []byte {
	t.Helper()
	var src io.Reader = res.Body
	switch coding := res.Header.Get("Content-Encoding"); coding {
	case "":
	case codingGzip:
		z, err := gzip.NewReader(src)
		if err != nil {
			t.Fatal(err)
		}
		src = z
	case codingZstd:
		z, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		src = z
	default:
		t.Fatalf("Content-Encoding %q", coding)
	}
	text, err := io.ReadAll(src)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// encoded is the answer to a request with an Accept-Encoding, its body decoded.
func (d *door) encoded(t *testing.T, method, path, accept string, headers ...string) *answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+d.addr+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", accept)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	a := &answer{Response: res}
	if method != http.MethodHead {
		a.body = decoded(t, res)
	}
	return a
}

// An answer is compressed as its client accepts it and is the same once it is
// decoded, be it of one chunk or of many. What is small, has an entity tag or is
// compressed already goes as it is.
func TestCompressedAnswers(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.post(manyRecords(20_000)).want(t, http.StatusOK, "")
	const one = "/v1/topics/t/partitions/0/records?offset=0&max_records="
	for _, c := range []struct {
		path, accept string // of the media type
		coded        bool
	}{
		{fetchAll, "", true},
		{fetchAll, mediaNDJSON, true},
		{one + "100", "", true},
		{one + "1", "", false},
		{"/v1/topics/t/partitions/0/records?offset=0", mediaBatch, false},
		{"/v1/topics/t", "", false},
	} {
		var headers []string
		if c.accept != "" {
			headers = []string{"Accept", c.accept}
		}
		plain := d.encoded(t, http.MethodGet, c.path, codingIdentity, headers...)
		if coding := plain.Header.Get("Content-Encoding"); coding != "" {
			t.Errorf("%s: Content-Encoding %q, not asked for", c.path, coding)
		}
		for _, coding := range []string{codingGzip, codingZstd} {
			res := d.encoded(t, http.MethodGet, c.path, coding, headers...)
			if !bytes.Equal(res.body, plain.body) {
				t.Errorf("%s by %s: %d bytes, want %d", c.path, coding, len(res.body), len(plain.body))
			}
			if is := res.Header.Get("Content-Encoding") == coding; is != c.coded {
				t.Errorf("%s by %s: compressed %t, want %t", c.path, coding, is, c.coded)
			}
			varies := strings.Contains(strings.Join(res.Header["Vary"], ","), "Accept-Encoding")
			tagged := res.Header.Get("ETag") != "" || c.accept == mediaBatch
			if varies == tagged {
				t.Errorf("%s by %s: Vary %q", c.path, coding, res.Header["Vary"])
			}
		}
	}
	// Whoever refuses what is not coded gets a short answer coded too, be it empty
	// or a problem.
	for _, path := range []string{one + "1", one + "1&filter=false", "/healthz", "/v1/topics/none"} {
		plain := d.encoded(t, http.MethodGet, path, codingIdentity, "Accept", mediaNDJSON, "Request-Id", "same")
		res := d.encoded(t, http.MethodGet, path, "gzip, identity;q=0", "Accept", mediaNDJSON, "Request-Id", "same")
		if res.Header.Get("Content-Encoding") != codingGzip || !bytes.Equal(res.body, plain.body) {
			t.Errorf("%s: Content-Encoding %q, %q, want %q", path, res.Header.Get("Content-Encoding"), res.body, plain.body)
		}
	}
	if res := d.encoded(t, http.MethodGet, fetchAll, codingGzip, "Accept", mediaEvents, "Last-Event-ID", "x"); res.Header.Get("Content-Encoding") != "" {
		t.Errorf("an event stream: %v", res.Header)
	}
	if n := d.server.opts.Budget.Used(); n != 0 {
		t.Errorf("the budget has %d bytes left behind", n)
	}
}

// manyRecords is the body of a produce of n records.
func manyRecords(n int) string {
	var b strings.Builder
	b.WriteString(`{"records":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"value":{"number":%d,"text":"so many records"}}`, i)
	}
	b.WriteString(`]}`)
	return b.String()
}

// A text that is known as a whole has its length as it is sent, and HEAD says the
// same as GET; errors are compressed too.
func TestCompressedTexts(t *testing.T) {
	d := openDoor(t)
	for i := range 40 {
		d.topic("topic-"+strconv.Itoa(i), 1)
	}
	plain := d.encoded(t, http.MethodGet, "/v1/topics", codingIdentity)
	for _, coding := range []string{codingGzip, codingZstd} {
		res := d.encoded(t, http.MethodGet, "/v1/topics", coding)
		if !bytes.Equal(res.body, plain.body) || res.ContentLength <= 0 || res.ContentLength >= plain.ContentLength {
			t.Errorf("%s: %d bytes on the wire for %d", coding, res.ContentLength, plain.ContentLength)
		}
		head := d.encoded(t, http.MethodHead, "/v1/topics", coding)
		for _, name := range []string{"Content-Length", "Content-Encoding", "Vary"} {
			if head.Header.Get(name) != res.Header.Get(name) {
				t.Errorf("%s: HEAD has %s %q, GET %q", coding, name, head.Header.Get(name), res.Header.Get(name))
			}
		}
	}
	res := d.do(http.MethodPost, produceT, `{"records":[`+strings.Repeat(`{"x":1},`, 99)+`{"x":1}]}`, "Content-Type", mediaJSON)
	res.want(t, http.StatusBadRequest, "malformed_body")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.addr+produceT, strings.NewReader(`{"records":[`+strings.Repeat(`{"x":1},`, 99)+`{"x":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaJSON)
	req.Header.Set("Accept-Encoding", codingGzip)
	packed, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.Body.Close() }()
	if text := decoded(t, packed); packed.Header.Get("Content-Encoding") != codingGzip || !bytes.Contains(text, []byte(`"malformed_body"`)) {
		t.Errorf("a problem: %v %.200s", packed.Header, text)
	}
}

// Where the budget has no room for an encoder the answer goes as it is.
func TestCompressionWithinBudget(t *testing.T) {
	budget := api.NewBudget(8<<20, 8<<20)
	d := openDoor(t, func(s *setup) { s.Budget = budget })
	d.topic("t", 1)
	d.post(manyRecords(1000)).want(t, http.StatusOK, "")
	const held = 8<<20 - encoderBytes/2
	if err := budget.Take(auth.Anonymous, held); err != nil {
		t.Fatal(err)
	}
	full := d.encoded(t, http.MethodGet, fetchAll, codingGzip)
	if coding := full.Header.Get("Content-Encoding"); coding != "" {
		t.Errorf("%q beyond the budget", coding)
	}
	budget.Give(auth.Anonymous, held)
	res := d.encoded(t, http.MethodGet, fetchAll, codingGzip)
	if !bytes.Equal(res.body, full.body) || res.Header.Get("Content-Encoding") != codingGzip {
		t.Errorf("within it: %v, %d bytes, want %d", res.Header, len(res.body), len(full.body))
	}
}
