package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	linesPer   = 1000 // lines of a request
	lineSize   = 100  // bytes of a line, with its end
	linesConns = 8
)

// BenchmarkLines measures the throughput of `value=line` produce with 1,000 lines of 100 bytes a request, against a
// bare net/http server that splits the lines, frames a record batch, checksums it and writes the same bytes: in
// page-cache mode, and in fsync mode with a group commit on both sides.
func BenchmarkLines(b *testing.B) {
	for _, mode := range []struct {
		name     string
		fsync    string // of the bare server
		flush    string // flush.messages of the topic
		requests int    // of one run
	}{
		{"page-cache mode", "false", "1000000", 1600},
		{"fsync mode", "true", "1", 800},
	} {
		b.Run(mode.name, func(b *testing.B) {
			l := startLeat(b)
			other := startBare(b, "lines", filepath.Join(b.TempDir(), "log"), mode.fsync)
			line := strings.Repeat("x", lineSize-21)
			var body bytes.Buffer
			for i := range linesPer {
				fmt.Fprintf(&body, "%019d %s\n", i, line)
			}
			run := func(addr, path string) float64 {
				request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s", path, body.Len(), body.Bytes())
				begun := time.Now()
				err := parallel(linesConns, func(int) error { return postAll(addr, request, mode.requests/linesConns) })
				if err != nil {
					b.Fatal(err)
				}
				return float64(mode.requests*linesPer) / 1e6 / time.Since(begun).Seconds()
			}
			ours := func() float64 {
				topic := l.nextTopic(map[string]string{"flush.messages": mode.flush})
				return run(l.HTTP, "/v1/topics/"+topic+"/records?value=line")
			}
			theirs := func() float64 {
				resp, err := http.Post("http://"+other.addr+"/reset", "", nil)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
				return run(other.addr, "/records")
			}
			for b.Loop() {
				compare(b, "value=line produce, "+mode.name+", against bare net/http", "M records/s", goal{least: 0.5}, ours, theirs)
			}
			l.stop()
		})
	}
}

// postAll sends a request n times over one connection, each after the answer to the one before.
func postAll(addr string, request []byte, n int) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	r := bufio.NewReader(nc)
	for range n {
		if _, err := nc.Write(request); err != nil {
			return err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d: %.300s: %w", resp.StatusCode, text, err)
		}
	}
	return nil
}

// serveLines is the bare server: it takes lines and appends them as one batch to the file that it is given.
func serveLines(args []string) error {
	log, err := createLog(args[0], args[1] == "true")
	if err != nil {
		return err
	}
	ln, err := listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reset", func(w http.ResponseWriter, _ *http.Request) {
		if err := log.reset(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /records", func(w http.ResponseWriter, r *http.Request) {
		batch, count, err := readLines(r)
		if err == nil {
			var base int64
			if base, err = log.appendBatch(batch, count); err == nil {
				_, err = fmt.Fprintf(w, `{"base_offset":%d,"count":%d}`, base, count)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}).Serve(ln)
}

// readLines frames a body's lines as one record batch.
func readLines(r *http.Request) (batch []byte, count int, err error) {
	if r.ContentLength < 0 {
		return nil, 0, errors.New("no Content-Length")
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, 0, err
	}
	batch = make([]byte, 61, 61+len(body)+16*bytes.Count(body, []byte{'\n'}))
	for len(body) > 0 {
		line := body
		if end := bytes.IndexByte(body, '\n'); end >= 0 {
			line, body = body[:end], body[end+1:]
		} else {
			body = nil
		}
		batch = appendLine(batch, count, line)
		count++
	}
	return sealBatch(batch, count), count, nil
}

// appendLine appends a record without key and headers.
func appendLine(dst []byte, i int, value []byte) []byte {
	return appendRecord(dst, i, value, noHeaders)
}

var noHeaders = []byte{0}

// appendRecord appends a record without key. Its headers are encoded, their number in front.
func appendRecord(dst []byte, i int, value, headers []byte) []byte {
	var fields [2 * binary.MaxVarintLen32]byte
	n := binary.PutVarint(fields[:], int64(i))
	lengthAt := n
	n += binary.PutVarint(fields[n:], int64(len(value)))
	size := 1 + 1 + lengthAt + 1 + (n - lengthAt) + len(value) + len(headers)
	dst = binary.AppendVarint(dst, int64(size))
	dst = append(dst, 0, 0) // attributes, time
	dst = append(dst, fields[:lengthAt]...)
	dst = append(dst, 1) // no key
	dst = append(dst, fields[lengthAt:n]...)
	dst = append(dst, value...)
	return append(dst, headers...)
}
