package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	doorPairs    = 7
	doorConns    = 4
	doorRecords  = 500  // of a request
	doorRequests = 200  // of a run, on all connections
	doorSingles  = 4000 // of a run, if a request has one record; on each connection, if an answer has one
	doorBatches  = 256  // in the log that is read
)

// doorValue is a JSON value of 100 bytes.
func doorValue(i int) string {
	return fmt.Sprintf(`{"id":1%05d,"name":"some name of a thing","tags":["a","b"],"ok":true,"price":1.25,"text":"%s"}`, i, strings.Repeat("t", 7))
}

// doorProduce is one way in: what goes over a connection n times, each after the answer to the one before, or with
// stream=true without a pause.
type doorProduce struct {
	name string
	path string // of Leat, behind the topic
	bare string
	kind string
	body []byte
	post func(addr string, message []byte, n int) error
}

// records is how many records a message has.
func (c *doorProduce) records() int {
	if c.bare == "/bytes" || c.bare == "/event" {
		return 1
	}
	return doorRecords
}

// message is a whole request, or a frame's text.
func (c *doorProduce) message(path, topic string) []byte {
	if c.kind == "" {
		return fmt.Appendf(nil, `{"type":"produce","id":1,"topic":%q,"receipts":"summary","records":%s}`, topic, c.body)
	}
	length := fmt.Sprintf("Content-Length: %d", len(c.body))
	if c.bare == "/stream" {
		length = "Transfer-Encoding: chunked"
	}
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n%s\r\n\r\n%s", path, c.kind, length, c.body)
}

// BenchmarkProduceDoors measures the server's processor time for each record of a produce through the HTTP and
// WebSocket doors, against a server that does the same with net/http, encoding/json and coder/websocket: parse, frame a
// batch, checksum, append. Page-cache mode on both sides. What a request of one record costs is mostly the request.
func BenchmarkProduceDoors(b *testing.B) {
	var objects, lines, events []string
	for i := range doorRecords {
		objects = append(objects, `{"value":`+doorValue(i)+`}`)
		lines = append(lines, doorValue(i))
		events = append(events, doorEvent(i))
	}
	records := "[" + strings.Join(objects, ",") + "]"
	ndjson := strings.Join(objects, "\n") + "\n"
	chunk := fmt.Appendf(nil, "%x\r\n%s\r\n", len(ndjson), ndjson)
	for _, c := range []doorProduce{
		{"JSON", "/partitions/0/records", "/json", "application/json", []byte(`{"records":` + records + `}`), postAll},
		{"NDJSON", "/partitions/0/records", "/ndjson", "application/x-ndjson", []byte(ndjson), postAll},
		{"a stream of NDJSON", "/partitions/0/records?stream=true", "/stream", "application/x-ndjson", chunk, streamAll},
		{"value=line", "/partitions/0/records?value=line", "/lines", "application/x-ndjson", []byte(strings.Join(lines, "\n") + "\n"), postAll},
		{"record batches", "/partitions/0/records", "/batch", "application/vnd.leat.recordbatch", doorBatch(), postAll},
		{"a value of bytes", "/partitions/0/records", "/bytes", "application/octet-stream", []byte(doorValue(0)), postAll},
		{"batches of CloudEvents", "/partitions/0/records", "/events", "application/cloudevents-batch+json", []byte("[" + strings.Join(events, ",") + "]"), postAll},
		{"a CloudEvent", "/partitions/0/records", "/event", "application/cloudevents+json", []byte(doorEvent(0)), postAll},
		{"WebSocket", "", "", "", []byte(records), sendAll},
	} {
		b.Run(c.name, func(b *testing.B) {
			l, other := startLeat(b), startBare(b, "doors", filepath.Join(b.TempDir(), "log"))
			requests := doorRequests
			if c.records() == 1 {
				requests = doorSingles
			}
			run := func(p process, addr string, message []byte) cost {
				return costOf(b, p, float64(requests*c.records())/1e6, func() error {
					return parallel(doorConns, func(int) error { return c.post(addr, message, requests/doorConns) })
				})
			}
			ours := func() cost {
				topic := l.nextTopic(map[string]string{"flush.messages": "1000000"})
				return run(l.process, l.HTTP, c.message("/v1/topics/"+topic+c.path, topic))
			}
			theirs := func() cost {
				resp, err := http.Post("http://"+other.addr+"/reset", "", nil)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
				return run(other.process, other.addr, c.message(c.bare, "t"))
			}
			for b.Loop() {
				compareCosts(b, doorPairs, "produce by "+c.name+", 100 B values, page-cache mode", "µs/record", ours, theirs)
			}
			l.stop()
			other.kill()
		})
	}
}

// sendAll sends a message n times over a socket, each after the answer to the one before.
func sendAll(addr string, message []byte, n int) error {
	s, err := dialSocket(addr, 16<<10)
	if err != nil {
		return err
	}
	defer s.nc.Close() //nolint:errcheck // every answer has been read
	frame := textFrame(message)
	for range n {
		if _, err := s.nc.Write(frame); err != nil {
			return err
		}
		if _, err := s.await("produced"); err != nil {
			return err
		}
	}
	return nil
}

// doorFetch is one way out: how to read the whole log once, from a server at addr.
type doorFetch struct {
	name   string
	accept string
	read   func(addr, path, accept string) error
	leat   string // path, but for an offset
	bare   string
	batch  []byte // what the log consists of
	each   int    // records that read reads
}

// BenchmarkFetchDoors measures the server's processor time for each record that leaves through the HTTP and WebSocket
// doors, read from the start of a log of 100-byte values, against a server that does the same with the standard
// library: read the file, walk the batches, check whether a value is JSON, write objects; for raw batches by sendfile.
// Events come from a log of events; single records are read from all over it.
func BenchmarkFetchDoors(b *testing.B) {
	const topic = "/v1/topics/fetch/partitions/0/records?"
	values := doorBatch()
	for _, c := range []doorFetch{
		{"JSON", "application/json", readPages, topic, "/read?form=json&", values, doorEnd},
		{"NDJSON", "application/x-ndjson", readPages, topic, "/read?form=ndjson&", values, doorEnd},
		{"record batches", "application/vnd.leat.recordbatch", readPages, topic, "/read?form=batch&", values, doorEnd},
		{"batches of CloudEvents", "application/cloudevents-batch+json", readPages, topic, "/read?form=events&", eventBatch(), doorEnd},
		{"a value of bytes", "application/octet-stream", readRecords, strings.TrimSuffix(topic, "?") + "/", "/record/", values, doorSingles},
		{"SSE", "text/event-stream", readEvents, topic + "batch=true&", "/read?form=sse&", values, doorEnd},
		{"WebSocket", "", readSocket, "fetch", "fetch", values, doorEnd},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := startLeat(b)
			l.createTopic("fetch", map[string]string{"flush.messages": "1000000"})
			l.fill("fetch", c.batch, doorBatches)
			names, err := filepath.Glob(filepath.Join(l.dir, "logs", "*", "*.log"))
			if err != nil || len(names) != 1 {
				b.Fatalf("log files %v, %v", names, err)
			}
			other := startBare(b, "doors", filepath.Join(b.TempDir(), "log"), names[0])
			run := func(p process, addr, path string) cost {
				return costOf(b, p, float64(fetchConns*c.each)/1e6, func() error {
					return everyConn(func() error { return c.read(addr, path, c.accept) })
				})
			}
			for b.Loop() {
				compareCosts(b, doorPairs, "fetch by "+c.name+", 100 B values", "µs/record",
					func() cost { return run(l.process, l.HTTP, c.leat) }, func() cost { return run(other.process, other.addr, c.bare) })
			}
			l.stop()
			other.kill()
		})
	}
}

const doorEnd = doorBatches * doorRecords

// readPages reads the log by one request after the other, as far as each answer says.
func readPages(addr, path, accept string) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	r := bufio.NewReaderSize(nc, 64<<10)
	for next := int64(0); next < doorEnd; {
		if _, err := fmt.Fprintf(nc, "GET %soffset=%d&max_bytes=1048576 HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n", path, next, accept); err != nil {
			return err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		end, err := lastBytes(resp.Body, 300)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d: %s: %w", resp.StatusCode, end, err)
		}
		at := field(end, `"next_offset":`)
		if header := resp.Header.Get("Next-Offset"); header != "" {
			at, err = strconv.ParseInt(header, 10, 64)
		}
		if err != nil || at <= next {
			return fmt.Errorf("next offset %d after %d: %w", at, next, err)
		}
		next = at
	}
	return nil
}

// lastBytes reads to the end and keeps the last n bytes.
func lastBytes(r io.Reader, n int) ([]byte, error) {
	buf, kept := make([]byte, 64<<10), []byte(nil)
	for {
		k, err := r.Read(buf)
		kept = append(kept, buf[max(0, k-n):k]...)
		kept = kept[max(0, len(kept)-n):]
		if errors.Is(err, io.EOF) {
			return kept, nil
		}
		if err != nil {
			return kept, err
		}
	}
}

// readEvents reads a stream of events until one has the log's end as its id.
func readEvents(addr, path, accept string) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // nothing more is wanted
	if _, err := fmt.Fprintf(nc, "GET %sfrom=earliest HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n", path, accept); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(nc, 64<<10), nil) //nolint:bodyclose // the connection is closed
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	r := bufio.NewReaderSize(resp.Body, 64<<10)
	for over := false; ; {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return err
		}
		if digits, ok := bytes.CutPrefix(line, []byte("id:")); ok {
			over = field(bytes.TrimSpace(digits), "") == doorEnd
		}
		if over && len(line) == 1 {
			return nil
		}
	}
}

// readSocket follows a topic from its start until a frame ends at the log's end.
func readSocket(addr, topic, _ string) error {
	s, err := dialSocket(addr, 64<<10)
	if err != nil {
		return err
	}
	defer s.nc.Close() //nolint:errcheck // nothing more is wanted
	if err := s.send(`{"type":"subscribe","id":1,"sub":1,"topic":%q,"from":"earliest"}`, topic); err != nil {
		return err
	}
	for {
		size, err := s.next()
		if err != nil {
			return err
		}
		head, err := s.r.Peek(min(size, 200))
		if err != nil {
			return err
		}
		if bytes.HasPrefix(head, []byte(`{"type":"error"`)) {
			return fmt.Errorf("%s", head)
		}
		over := field(head, `"next":`) == doorEnd
		if _, err := s.r.Discard(size); err != nil {
			return err
		}
		if over {
			return nil
		}
	}
}
