package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const typeSSE = "text/event-stream"

// streamRecord is a record as every stream gives it.
type streamRecord struct {
	Partition int32           `json:"partition"`
	Offset    int64           `json:"offset"`
	Timestamp int64           `json:"timestamp"`
	Value     json.RawMessage `json:"value"`
	ValueStr  *string         `json:"value_str"`
	ValueB64  *string         `json:"value_b64"`
}

// content is the bytes of the value, whichever form it came in.
func (r *streamRecord) content() string {
	switch {
	case r.ValueStr != nil:
		return *r.ValueStr
	case r.ValueB64 != nil:
		p, err := base64.StdEncoding.DecodeString(*r.ValueB64)
		if err != nil {
			return "not base64: " + *r.ValueB64
		}
		return string(p)
	}
	return string(r.Value)
}

// stream is one HTTP answer that does not end by itself.
type stream struct {
	nc   net.Conn
	resp *http.Response
	body *bufio.Reader
}

// openStream asks for a path over a connection; headers are "Name: value". Without status 200 the error is a
// *refusedError. Whoever closes the connection closes the stream.
func openStream(nc net.Conn, path string, headers ...string) (*stream, error) {
	request := "GET " + path + " HTTP/1.1\r\nHost: " + nc.RemoteAddr().String() + "\r\n"
	for _, h := range headers {
		request += h + "\r\n"
	}
	if _, err := io.WriteString(nc, request+"\r\n"); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(nc), &http.Request{Method: http.MethodGet})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		peek("GET "+path, resp)
		return nil, refuse(resp)
	}
	return &stream{nc: nc, resp: resp, body: bufio.NewReaderSize(resp.Body, 4<<10)}, nil
}

// stream opens a stream that must be answered with 200 and the media type that it asks for.
func (s *server) stream(path, accept string, headers ...string) *listener {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.streamOver(nc, path, accept, headers...)
}

func (s *server) streamOver(nc net.Conn, path, accept string, headers ...string) *listener {
	s.t.Helper()
	s.t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		s.t.Fatal(err)
	}
	st, err := openStream(nc, path, append(headers, "Accept: "+accept)...)
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	if media := st.resp.Header.Get("Content-Type"); !strings.HasPrefix(media, accept) {
		s.t.Fatalf("GET %s: %s", path, media)
	}
	return &listener{st, s.t}
}

// listener is a stream of a test, whose every failure fails the test.
type listener struct {
	*stream
	t testing.TB
}

// event is one event of an SSE stream; comments alone are an event without anything.
type event struct {
	name, id, data string
	hasID          bool
	comments       []string
	retry          string
}

// readEvent reads to the next blank line. What a cut leaves half is never an event.
func (st *stream) readEvent() (event, error) {
	var e event
	var data []string
	for {
		line, err := st.body.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			e.data = strings.Join(data, "\n")
			return e, nil
		}
		if strings.ContainsRune(line, '\r') {
			return event{}, &violationError{fmt.Sprintf("a CR in an event: %q", clip(line))}
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "":
			e.comments = append(e.comments, value)
		case "event":
			e.name = value
		case "id":
			e.id, e.hasID = value, true
		case "data":
			data = append(data, value)
		case "retry":
			e.retry = value
		default:
			return event{}, &violationError{fmt.Sprintf("an unknown field: %q", clip(line))}
		}
	}
}

// records are those of a message event: an array in batched form, one object otherwise.
func (e *event) records() ([]streamRecord, error) {
	var many []streamRecord
	if strings.HasPrefix(e.data, "[") {
		err := json.Unmarshal([]byte(e.data), &many)
		return many, err
	}
	var one streamRecord
	err := json.Unmarshal([]byte(e.data), &one)
	return []streamRecord{one}, err
}

// wantEvent returns the next event that is more than a comment or a retry time.
func (l *listener) wantEvent(name string) event {
	l.t.Helper()
	for {
		e, err := l.readEvent()
		if err != nil {
			l.t.Fatalf("want event %q: %v", name, err)
		}
		if e.name == "" && e.data == "" {
			continue
		}
		if e.name != name {
			l.t.Fatalf("want event %q, got %q %s", name, e.name, clip(e.data))
		}
		return e
	}
}

// line is one line of an NDJSON stream: a record, or a control line with "$".
type line struct {
	streamRecord
	Control    string  `json:"$"`
	Cursor     string  `json:"cursor"`
	NextOffset *int64  `json:"next_offset"`
	From       int64   `json:"from"`
	To         int64   `json:"to"`
	Reason     string  `json:"reason"`
	Problem    problem `json:"problem"`
	text       string
}

// readLine reads one whole line. What a cut leaves half is never a line.
func (st *stream) readLine() (line, error) {
	text, err := st.body.ReadBytes('\n')
	if err != nil {
		return line{}, err
	}
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return line{}, &violationError{fmt.Sprintf("line %q: %v", clip(string(text)), err)}
	}
	if l.Control == "" && !bytes.HasPrefix(text, []byte(`{"partition":`)) {
		return line{}, &violationError{fmt.Sprintf("line %q is neither a record nor a control line", clip(string(text)))}
	}
	l.text = string(text)
	return l, nil
}

// wantLine returns the next control line but positions, or with "" the next record.
func (l *listener) wantLine(control string) line {
	l.t.Helper()
	for {
		got, err := l.readLine()
		if err != nil {
			l.t.Fatalf("want line %q: %v", control, err)
		}
		if got.Control == "position" && control != "position" {
			continue
		}
		if got.Control != control {
			l.t.Fatalf("want line %q, got %s", control, clip(got.text))
		}
		return got
	}
}

// violationError is what no cut excuses: the promise of a stream is broken.
type violationError struct{ what string }

func (v *violationError) Error() string { return v.what }

func violated(format string, args ...any) error { return &violationError{fmt.Sprintf(format, args...)} }

func isViolation(err error) bool {
	_, ok := errors.AsType[*violationError](err)
	return ok
}
