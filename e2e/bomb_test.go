package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// zeros writes one record with a value of n zeros, as it stands in a batch.
func zeros(w io.Writer, n int64) error {
	body := []byte{0, 0, 0, 1} // attributes, time, offset, no key
	body = binary.AppendVarint(body, n)
	if _, err := w.Write(binary.AppendVarint(nil, int64(len(body))+n+1)); err != nil {
		return err
	}
	if _, err := w.Write(body); err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for left := n; left > 0; left -= int64(len(block)) {
		if _, err := w.Write(block[:min(left, int64(len(block)))]); err != nil {
			return err
		}
	}
	_, err := w.Write([]byte{0}) // no headers
	return err
}

// bombs are bodies of batches that are small and expand to far more than is allowed.
func bombs(t *testing.T) map[string][]byte {
	t.Helper()
	const gib = 1 << 30
	all := map[string][]byte{}
	stream := func(name string, open func(io.Writer) (io.WriteCloser, error)) {
		var out bytes.Buffer
		w, err := open(&out)
		if err == nil {
			err = zeros(w, gib)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = out.Bytes()
	}
	stream("gzip", func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) })
	stream("lz4", func(w io.Writer) (io.WriteCloser, error) { return lz4.NewWriter(w), nil })
	stream("zstd", func(w io.Writer) (io.WriteCloser, error) {
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	})
	// Snappy cannot pack a gibibyte into a batch; 160 MiB it can, in one block, and in the framing of the Java client.
	var record bytes.Buffer
	const most = 160 << 20
	if err := zeros(&record, most); err != nil {
		t.Fatal(err)
	}
	all["snappy"] = s2.EncodeSnappy(nil, record.Bytes())
	const chunk = 32 << 10
	framed := []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
	block := s2.EncodeSnappy(nil, record.Bytes()[:chunk])
	rest := s2.EncodeSnappy(nil, make([]byte, chunk))
	for range most / chunk {
		framed = append(binary.BigEndian.AppendUint32(framed, uint32(len(block))), block...)
		block = rest
	}
	all["snappy, framed"] = framed
	all["snappy, a lie"] = binary.AppendUvarint(nil, gib) // says 1 GiB and ends
	return all
}

// TestCase06Bombs proves, for each codec, that a small batch that expands beyond the limit is refused over both doors
// in bounded memory, and that nothing of it is written.
func TestCase06Bombs(t *testing.T) {
	all := bombs(t)
	s := start(t, "--set", "message.max.bytes=16777216")
	s.createTopic("t", 1)
	w := s.wire()
	w.mustProduce("t", 0, encode(t, kgo.NoCompression(), values(1, "a")))
	now := time.Now().UnixMilli()
	for _, c := range codecs[1:] {
		for name, body := range all {
			if name != c.name && !strings.HasPrefix(name, c.name+",") {
				continue
			}
			bomb := seal(c.number, 1, now, now, body)
			t.Logf("%s: %d KiB", name, len(bomb)>>10)
			wantCode, wantStatus, wantSlug := codeMessageTooLarge, 413, "batch_expands_too_large"
			before := s.memory()
			stop := s.watchMemory()
			p := w.produce("t", 0, -1, bomb)
			a := s.do("POST", "/v1/topics/t/partitions/0/records", bomb, "Content-Type: "+typeBatch)
			if grown := stop() - before; grown > 64<<20 {
				t.Errorf("%s: memory grew by %d MiB", name, grown>>20)
			}
			if p.ErrorCode != wantCode {
				t.Errorf("%s: code %d (%s), want %d", name, p.ErrorCode, text(p.ErrorMessage), wantCode)
			}
			if _, err := a.asProblem(wantStatus, wantSlug); err != nil {
				t.Errorf("%s over HTTP: %v", name, err)
			}
			if end := w.end("t", 0); end != 1 {
				t.Fatalf("%s: end offset %d, want 1", name, end)
			}
		}
	}
	// What expands to just less is taken.
	var fits bytes.Buffer
	z := gzip.NewWriter(&fits)
	if err := zeros(z, 60<<20); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if base := w.mustProduce("t", 0, seal(kgo.CodecGzip, 1, now, now, fits.Bytes())); base != 1 {
		t.Errorf("base offset %d, want 1", base)
	}
	before := s.memory()
	stop := s.watchMemory()
	if offset, _ := w.listOffset("t", 0, now); offset != 1 {
		t.Errorf("a lookup by time gives offset %d, want 1", offset)
	}
	if grown := stop() - before; grown > 64<<20 {
		t.Errorf("a lookup by time grew memory by %d MiB", grown>>20)
	}
}

// TestCase08BodyLimit proves that the body limit holds with Content-Length, without it, and for what a compressed body
// expands to, in bounded memory.
func TestCase08BodyLimit(t *testing.T) {
	s := start(t, "--max-request-bytes", "1048576")
	s.createTopic("t", 1)
	const path = "/v1/topics/t/partitions/0/records"
	big := bytes.Repeat([]byte("a line of the body\n"), 2<<20/19+1)
	packed := func(w io.WriteCloser, out *bytes.Buffer, n int) []byte {
		for range n {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var gz, zs, little bytes.Buffer
	zw, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	gzipBomb := packed(gzip.NewWriter(&gz), &gz, 100)
	zstdBomb := packed(zw, &zs, 100)
	twoMiB := packed(gzip.NewWriter(&little), &little, 2)

	before := s.memory()
	stop := s.watchMemory()
	head := "POST " + path + "?value=line HTTP/1.1\r\nHost: x\r\nContent-Type: " + typeNDJSON + "\r\n"
	for name, request := range map[string]string{
		"Content-Length":        fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(big), big),
		"chunked":               fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(big), big),
		"chunked without end":   fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", head, 1<<30, big),
		"huge Content-Length":   head + "Content-Length: 9223372036854775807\r\n\r\nx",
		"gzip bomb":             fmt.Sprintf("%sContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", head, len(gzipBomb), gzipBomb),
		"gzip bomb, chunked":    fmt.Sprintf("%sContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(gzipBomb), gzipBomb),
		"gzip of two mebibytes": fmt.Sprintf("%sContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", head, len(twoMiB), twoMiB),
		"zstd bomb":             fmt.Sprintf("%sContent-Encoding: zstd\r\nContent-Length: %d\r\n\r\n%s", head, len(zstdBomb), zstdBomb),
	} {
		a := s.raw(request)
		if _, err := a.asProblem(413, "request_too_large"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !a.closes && !strings.HasPrefix(name, "gzip") && !strings.HasPrefix(name, "zstd") {
			t.Errorf("%s: the connection stays open", name)
		}
	}
	if grown := stop() - before; grown > 32<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	w := s.wire()
	if end := w.end("t", 0); end != 0 {
		t.Errorf("end offset %d, want 0", end)
	}
	// The limit itself is taken.
	fits := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20/16)
	s.post(path+"?value=line", typeNDJSON, string(fits))
	s.do("POST", path+"?value=line", append(fits, 'x'), "Content-Type: "+typeNDJSON).refused(413, "request_too_large")
	if end := w.end("t", 0); end != 1<<20/16 {
		t.Errorf("end offset %d, want %d", end, 1<<20/16)
	}
}
