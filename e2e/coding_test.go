package e2e

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// TestAnswerCodings proves that an answer is compressed only as Accept-Encoding allows, is the same when it is
// decompressed, goes as it is where a client refuses all there is, and says that it varies; that streams are never
// compressed.
func TestAnswerCodings(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const path = "/v1/topics/t/partitions/0/records?from=earliest"
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat("line after line\n", 1000))
	plain := s.get(path).body
	for accept, coding := range map[string]string{
		"gzip": "gzip", "zstd": "zstd", "gzip, zstd": "zstd", "zstd;q=0.5, gzip": "gzip", "br": "", "identity": "", "gzip;q=0": "", "*;q=0": "",
		"identity;q=0": "", "identity;q=0, br": "", "identity;q=0, gzip": "gzip", "*": "zstd", "GZIP": "gzip", "": "",
	} {
		a := s.get(path, "Accept-Encoding: "+accept)
		if got := a.header.Get("Content-Encoding"); got != coding || !strings.Contains(strings.Join(a.header["Vary"], ","), "Accept-Encoding") {
			t.Errorf("%q: Content-Encoding %q, want %q; Vary %q", accept, got, coding, a.header["Vary"])
			continue
		}
		body, err := expand(coding, a.body)
		if err != nil || !bytes.Equal(body, plain) {
			t.Errorf("%q: %v, %d bytes, want %d", accept, err, len(body), len(plain))
		}
	}
	for _, accept := range []string{typeSSE, typeNDJSON} {
		l := s.stream(path+"&stream=true", accept, "Accept-Encoding: zstd, gzip, identity;q=0")
		if got := l.resp.Header.Get("Content-Encoding"); got != "" {
			t.Errorf("a stream of %s is %s", accept, got)
		}
		if accept == typeSSE {
			l.wantEvent("")
		} else {
			l.wantLine("")
		}
	}
}

// expand decodes a body.
func expand(coding string, body []byte) ([]byte, error) {
	switch coding {
	case "gzip":
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	case "zstd":
		r, err := zstd.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	return body, nil
}
