package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	typeJSON   = "application/json"
	typeNDJSON = "application/x-ndjson"
	typeBytes  = "application/octet-stream"
	typeBatch  = "application/vnd.leat.recordbatch"
)

// answer is an HTTP response, read whole.
type answer struct {
	t      testing.TB
	asked  string
	status int
	header http.Header
	body   []byte
	closes bool
}

// httpClient follows nothing and decodes nothing, so that a test sees what the server says.
var httpClient = &http.Client{
	Transport:     checked(&http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256}),
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       patience + 60*time.Second,
}

// do sends a request; headers are "Name: value".
func (s *server) do(method, path string, body []byte, headers ...string) answer {
	s.t.Helper()
	a, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *server) try(method, path string, body []byte, headers ...string) (answer, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequest(method, "http://"+s.HTTP+path, reader)
	if err != nil {
		return answer{}, err
	}
	return s.send(req, headers...)
}

func (s *server) send(req *http.Request, headers ...string) (answer, error) {
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	return readAnswer(s.t, req.Method+" "+req.URL.RequestURI(), resp)
}

func readAnswer(t testing.TB, asked string, resp *http.Response) (answer, error) {
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	body, err := io.ReadAll(resp.Body)
	return answer{t, asked, resp.StatusCode, resp.Header, body, resp.Close}, err
}

// get is a GET that must be answered with 200.
func (s *server) get(path string, headers ...string) answer {
	s.t.Helper()
	return s.do(http.MethodGet, path, nil, headers...).want(http.StatusOK)
}

// post is a POST of a body that must be answered with 200.
func (s *server) post(path, media, body string, headers ...string) answer {
	s.t.Helper()
	return s.do(http.MethodPost, path, []byte(body), append(headers, "Content-Type: "+media)...).want(http.StatusOK)
}

// raw sends the text of a request as it is, over its own connection, and reads one answer.
func (s *server) raw(request string) answer {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close() //nolint:errcheck // nothing more is sent
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	// The server may answer and close before all is sent.
	_, _ = io.WriteString(nc, request)
	line, _, _ := strings.Cut(request, "\r\n")
	method, _, _ := strings.Cut(line, " ")
	resp, err := http.ReadResponse(bufio.NewReader(nc), &http.Request{Method: method})
	if err != nil {
		s.t.Fatalf("%q: %v", clip(line), err)
	}
	peek(line, resp)
	a, err := readAnswer(s.t, clip(line), resp)
	if err != nil {
		s.t.Fatalf("%q: %v", clip(line), err)
	}
	return a
}

func clip(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}

func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d: %s", clip(a.asked), a.status, status, tail(string(a.body), 600))
	}
	return a
}

// decode reads the JSON body into v.
func (a answer) decode(v any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		a.t.Fatalf("%s: %v: %s", a.asked, err, tail(string(a.body), 600))
	}
}

// problem is what every error of the HTTP door looks like (RFC 9457).
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Instance  string `json:"instance"`
	Code      string `json:"code"`
	Retriable *bool  `json:"retriable"`
	Errors    []struct {
		Index   *int   `json:"index"`
		Line    int    `json:"line"`
		Byte    *int64 `json:"byte"`
		Pointer string `json:"pointer"`
		Code    string `json:"code"`
		Detail  string `json:"detail"`
	} `json:"errors"`
}

// refused checks that the answer is a whole problem with this status and code, and shows nothing of the inside.
func (a answer) refused(status int, code string) problem {
	a.t.Helper()
	p, err := a.asProblem(status, code)
	if err != nil {
		a.t.Errorf("%s: %v", clip(a.asked), err)
	}
	return p
}

func (a answer) asProblem(status int, code string) (problem, error) {
	var p problem
	text := tail(string(a.body), 600)
	if a.status != status {
		return p, fmt.Errorf("status %d, want %d %s: %s", a.status, status, code, text)
	}
	if media := a.header.Get("Content-Type"); media != "application/problem+json" {
		return p, fmt.Errorf("content type %q: %s", media, text)
	}
	if err := json.Unmarshal(a.body, &p); err != nil {
		return p, fmt.Errorf("%w: %s", err, text)
	}
	if p.Code != code || p.Status != status || p.Title == "" || p.Instance == "" || p.Type != "/problems/"+code || p.Retriable == nil {
		return p, fmt.Errorf("want code %s in a whole problem: %s", code, text)
	}
	for _, inside := range []string{"goroutine", ".go:", "panic", "runtime error", "leat/"} {
		if strings.Contains(string(a.body), inside) {
			return p, fmt.Errorf("the answer shows %q: %s", inside, text)
		}
	}
	return p, nil
}

// fetched is the JSON answer of a fetch. Fields that may be absent are raw, so that absent and null differ.
type fetched struct {
	Records []struct {
		Offset    int64           `json:"offset"`
		Timestamp int64           `json:"timestamp"`
		Key       json.RawMessage `json:"key"`
		KeyStr    *string         `json:"key_str"`
		Value     json.RawMessage `json:"value"`
		ValueStr  *string         `json:"value_str"`
		ValueB64  *string         `json:"value_b64"`
	} `json:"records"`
	Next  int64 `json:"next_offset"`
	High  int64 `json:"high_watermark"`
	Start int64 `json:"log_start_offset"`
}

// records fetches from one partition.
func (s *server) records(topic string, partition int, query string) fetched {
	s.t.Helper()
	var f fetched
	s.get(fmt.Sprintf("/v1/topics/%s/partitions/%d/records?%s", topic, partition, query)).decode(&f)
	return f
}

// createTopic makes a topic over HTTP; configs are "name=value".
func (s *server) createTopic(name string, partitions int, configs ...string) {
	s.t.Helper()
	set := map[string]string{}
	for _, c := range configs {
		k, v, _ := strings.Cut(c, "=")
		set[k] = v
	}
	body, err := json.Marshal(map[string]any{"name": name, "partitions": partitions, "configs": set})
	if err != nil {
		s.t.Fatal(err)
	}
	s.do(http.MethodPost, "/v1/topics", body, "Content-Type: "+typeJSON).want(http.StatusCreated)
}

// receipts is the answer of a produce; full receipts have offset, a summary has the bounds.
type receipts struct {
	Each []struct {
		Partition int32 `json:"partition"`
		Offset    int64 `json:"offset"`
		Timestamp int64 `json:"timestamp"`
	} `json:"receipts"`
	Partitions []struct {
		Partition int32 `json:"partition"`
		Base      int64 `json:"base_offset"`
		Last      int64 `json:"last_offset"`
		Count     int   `json:"count"`
	} `json:"partitions"`
}
