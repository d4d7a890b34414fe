package rest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"leat/api"
	"leat/auth"
	"leat/broker"
	"leat/e2e/contract"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// contractText is openapi.yaml, read once.
var contractText = sync.OnceValue(func() []byte {
	text, err := os.ReadFile("../../openapi.yaml")
	if err != nil {
		panic(err)
	}
	return text
})

// checker holds exchanges against the contract.
var checker = sync.OnceValue(func() *contract.Contract {
	c, err := contract.New(contractText())
	if err != nil {
		panic(err)
	}
	return c
})

// door is a server over a real broker and a real listener.
type door struct {
	t      testing.TB
	broker *broker.Broker
	server *Server
	reg    *prometheus.Registry
	addr   string
	dir    string // the data directory
	client *http.Client
}

type setup struct {
	Options
	configs map[string]string
}

func openDoor(t testing.TB, change ...func(*setup)) *door {
	t.Helper()
	reg := prometheus.NewRegistry()
	s := &setup{Options: Options{OpenAPI: contractText(), Registerer: reg}, configs: map[string]string{}}
	for _, c := range change {
		c(s)
	}
	dir := t.TempDir()
	b, err := broker.Open(t.Context(), broker.Options{Path: dir, Configs: s.configs, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	s.Broker = b
	d := &door{t: t, broker: b, server: New(s.Options), reg: reg, dir: dir}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.addr = ln.Addr().String()
	d.client = &http.Client{Timeout: 30 * time.Second, Transport: &contract.Transport{
		Contract: checker(), Base: &http.Transport{DisableCompression: true}, Report: func(err error) { t.Error(err) },
	}}
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { served <- d.server.Serve(ctx, ln) }()
	t.Cleanup(func() {
		d.client.CloseIdleConnections()
		stopCtx, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		if err := d.server.Shutdown(stopCtx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		cancel()
		if err := b.Close(); err != nil {
			t.Errorf("close broker: %v", err)
		}
	})
	return d
}

// topic makes a topic of one partition, unless said otherwise.
func (d *door) topic(name string, partitions int32, configs ...string) {
	d.t.Helper()
	spec := broker.TopicSpec{Name: name, Partitions: partitions, ReplicationFactor: -1, Configs: map[string]string{}}
	for i := 0; i < len(configs); i += 2 {
		spec.Configs[configs[i]] = configs[i+1]
	}
	if err := d.broker.CreateTopics(d.t.Context(), auth.Anonymous, []broker.TopicSpec{spec}, false)[0].Err; err != nil {
		d.t.Fatal(err)
	}
}

// end is the sum of the high watermarks of a topic, 0 if there is none.
func (d *door) end(topic string) int64 {
	d.t.Helper()
	t, err := d.broker.Topic(d.t.Context(), auth.Anonymous, broker.TopicRef{Name: topic})
	if err != nil {
		return 0
	}
	var sum int64
	for i := range t.Partitions {
		r := d.broker.ListOffsets(d.t.Context(), auth.Anonymous, []broker.OffsetQuery{
			{Topic: topic, Partition: int32(i), Timestamp: broker.OffsetLatest, Epoch: -1},
		})[0]
		if r.Err != nil {
			d.t.Fatal(r.Err)
		}
		sum += r.Offset
	}
	return sum
}

type answer struct {
	*http.Response
	body []byte
}

// do sends a request, whose exchange the client checks against the contract, and
// checks the answer. headers are names and values in turn.
func (d *door) do(method, path string, body any, headers ...string) *answer {
	d.t.Helper()
	var src io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		src = strings.NewReader(b)
	case []byte:
		src = bytes.NewReader(b)
	case io.Reader:
		src = b
	}
	req, err := http.NewRequestWithContext(d.t.Context(), method, "http://"+d.addr+path, src)
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := d.client.Do(req)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatalf("%s %s: read body: %v", method, path, err)
	}
	a := &answer{Response: res, body: text}
	d.check(req, a)
	return a
}

// check compares an answer, and every error, with what the contract cannot say.
func (d *door) check(req *http.Request, a *answer) {
	d.t.Helper()
	if a.Header.Get("Request-Id") == "" {
		d.t.Errorf("%s %s: no Request-Id", req.Method, req.URL)
	}
	if a.StatusCode >= 400 && req.Method != http.MethodHead {
		if ct := a.Header.Get("Content-Type"); ct != "application/problem+json" {
			d.t.Errorf("%s %s: %d with Content-Type %q", req.Method, req.URL, a.StatusCode, ct)
		}
		p := a.problem(d.t)
		if p.Status != a.StatusCode || p.Type != "/problems/"+p.Code || p.Instance != a.Header.Get("Request-Id") {
			d.t.Errorf("%s %s: problem does not fit its answer: %s", req.Method, req.URL, a.body)
		}
		for _, inside := range []string{"goroutine", ".go:", "/tmp", "rest.", "jsontext", "broker."} {
			if bytes.Contains(a.body, []byte(inside)) {
				d.t.Errorf("%s %s: answer shows %q: %s", req.Method, req.URL, inside, a.body)
			}
		}
	}
}

func (a *answer) problem(t testing.TB) *api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("no problem: %v: %s", err, a.body)
	}
	return &p
}

// want fails unless the answer has the status, and the code if it is an error.
func (a *answer) want(t testing.TB, status int, code string) *answer {
	t.Helper()
	got := ""
	if a.StatusCode >= 400 && len(a.body) > 0 {
		got = a.problem(t).Code
	}
	if a.StatusCode != status || got != code {
		t.Fatalf("%s %s: %d %q, want %d %q: %.500s", a.Request.Method, a.Request.URL, a.StatusCode, got, status, code, a.body)
	}
	return a
}

// contains fails unless the body has every part.
func (a *answer) contains(t testing.TB, parts ...string) *answer {
	t.Helper()
	for _, part := range parts {
		if !bytes.Contains(a.body, []byte(part)) {
			t.Errorf("%s %s: body lacks %s: %.800s", a.Request.Method, a.Request.URL, part, a.body)
		}
	}
	return a
}

const (
	produceT  = "/v1/topics/t/records"
	produceT0 = "/v1/topics/t/partitions/0/records"
	fetchAll  = "/v1/topics/t/partitions/0/records?from=earliest&max_bytes=33554432"
)

// post sends JSON records to the topic t.
func (d *door) post(body string) *answer {
	d.t.Helper()
	return d.do(http.MethodPost, produceT, body, "Content-Type", mediaJSON)
}

// counted is the value of a counter.
func counted(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue()
}

// addPartitions makes the topic t have count partitions.
func (d *door) addPartitions(count int32) {
	d.t.Helper()
	spec := []broker.PartitionsSpec{{Topic: "t", Count: count}}
	if err := d.broker.CreatePartitions(d.t.Context(), auth.Anonymous, spec, false)[0].Err; err != nil {
		d.t.Fatal(err)
	}
}
