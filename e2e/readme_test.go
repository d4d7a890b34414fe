package e2e

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// realInput copies a real log of the machine, or where there is none makes lines like it.
func realInput(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/var/log/dpkg.log")
	if err != nil || len(text) == 0 {
		var b bytes.Buffer
		for i := range 5000 {
			fmt.Fprintf(&b, "2026-01-%02d %02d:%02d:%02d status installed package-%d:amd64 1.%d-1\n", i%28+1, i%24, i%60, i*7%60, i%400, i%90)
		}
		text = b.Bytes()
	}
	name := filepath.Join(t.TempDir(), "input.log")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func sortedLines(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Sort(lines)
	return lines
}

// TestReadme proves the flow of the README on real input: lines in over HTTP to a topic that is made on demand, the
// same lines out by kcat, and the first three by long poll.
func TestReadme(t *testing.T) {
	needTool(t, "kcat")
	s := start(t)
	input, err := os.ReadFile(realInput(t))
	if err != nil {
		t.Fatal(err)
	}
	s.post("/v1/topics/logs/records?value=line", typeNDJSON, string(input))

	kcat := exec.Command("kcat", "-C", "-b", s.Kafka, "-t", "logs", "-e", "-q")
	out, err := kcat.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sortedLines(string(out)), sortedLines(string(input)); !slices.Equal(got, want) {
		t.Fatalf("kcat gave %d lines, want the %d of the input", len(got), len(want))
	}

	polled := 0
	for p := range 4 { // num.partitions
		f := s.records("logs", p, "from=earliest&max_records=3&wait=0")
		polled += len(f.Records)
		for i, r := range f.Records {
			if r.Offset != int64(i) || r.ValueStr == nil || !bytes.Contains(input, []byte(*r.ValueStr)) {
				t.Errorf("record %d of partition %d: %+v", i, p, r)
			}
		}
		if len(f.Records) > 3 || len(f.Records) > 0 && f.Next != int64(len(f.Records)) {
			t.Errorf("partition %d: %d records, next offset %d", p, len(f.Records), f.Next)
		}
	}
	if polled == 0 {
		t.Error("long poll gave nothing")
	}
}

// TestLongPoll proves that a poll at the end waits, and is answered by the record that comes.
func TestLongPoll(t *testing.T) {
	s := start(t)
	s.createTopic("poll", 1)
	got := make(chan answer, 1)
	go func() {
		a, err := s.try("GET", "/v1/topics/poll/partitions/0/records?from=latest&wait=30", nil)
		if err != nil {
			a.body = []byte(err.Error())
		}
		got <- a
	}()
	eventually(t, "the poll to wait", func() error {
		select {
		case a := <-got:
			t.Fatalf("the poll did not wait: %d %s", a.status, a.body)
		default:
		}
		if n := s.metric("leat_broker_waiting_fetches"); n != 1 {
			return fmt.Errorf("%v waiting fetches", n)
		}
		return nil
	})
	s.post("/v1/topics/poll/partitions/0/records?value=line", typeNDJSON, "hello\n")
	var f fetched
	(<-got).want(200).decode(&f)
	if len(f.Records) != 1 || f.Records[0].Offset != 0 || f.Records[0].ValueStr == nil || *f.Records[0].ValueStr != "hello" || f.Next != 1 {
		t.Errorf("got %+v", f)
	}
}

// TestDoorsShareKeys proves that a key lands in the same partition through every door.
func TestDoorsShareKeys(t *testing.T) {
	s := start(t)
	s.createTopic("keys", 16)
	var overHTTP, overKafka strings.Builder
	for i := range 200 {
		fmt.Fprintf(&overHTTP, `{"key":"key-%d","value_str":"v"}`+"\n", i)
		fmt.Fprintf(&overKafka, "key-%d:v\n", i)
	}
	var r receipts
	s.post("/v1/topics/keys/records?receipts=full", typeNDJSON, overHTTP.String()).decode(&r)
	if _, words, code := run(t, overKafka.String(), "produce", "keys", "--key-separator", ":", "--server", s.Kafka); code != 0 {
		t.Fatalf("exit code %d: %s", code, words)
	}
	w := s.wire()
	for p := range int32(16) {
		n := 0
		for _, rec := range r.Each {
			if rec.Partition == p {
				n++
			}
		}
		if end := w.end("keys", p); end != int64(2*n) {
			t.Errorf("partition %d has %d records, want %d from each door", p, end, n)
		}
	}
}

// TestTopicsOverHTTP proves that a topic can be made, seen, changed, listed and deleted over HTTP, and that Kafka
// clients see each step.
func TestTopicsOverHTTP(t *testing.T) {
	s := start(t)
	s.createTopic("t", 3, "max.message.bytes=2000")
	if got := string(s.get("/v1/topics").body); !strings.Contains(got, `"t"`) {
		t.Errorf("list: %s", got)
	}
	if got := string(s.get("/v1/topics/t").body); !strings.Contains(got, "2000") {
		t.Errorf("describe: %s", got)
	}
	s.do("PATCH", "/v1/topics/t", []byte(`{"configs":{"max.message.bytes":"3000"}}`), "Content-Type: application/merge-patch+json").want(200)
	if got := string(s.get("/v1/topics/t").body); !strings.Contains(got, "3000") {
		t.Errorf("describe after the change: %s", got)
	}
	w := s.wire()
	for p := range int32(3) {
		if end := w.end("t", p); end != 0 {
			t.Errorf("end of partition %d is %d", p, end)
		}
	}
	s.do("DELETE", "/v1/topics/t", nil).want(204)
	s.do("GET", "/v1/topics/t", nil).refused(404, "unknown_topic")
	if out, _, code := run(t, "", "topic", "list", "--server", s.Kafka); code != 0 || strings.Contains(out, "t ") {
		t.Errorf("exit code %d, list %q", code, out)
	}
}

// TestPages proves that the example page, the API description and the health routes are served.
func TestPages(t *testing.T) {
	s := start(t)
	for path, want := range map[string]string{
		"/": "<html", "/openapi.yaml": "openapi: 3.1", "/healthz": "", "/readyz": "",
	} {
		if got := string(s.get(path).body); !strings.Contains(got, want) {
			t.Errorf("%s: %q does not contain %q", path, clip(got), want)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		u := url.URL{Scheme: "http", Host: s.Ops, Path: path}
		resp, err := httpClient.Get(u.String())
		if err != nil {
			t.Fatal(err)
		}
		if a, err := readAnswer(t, path, resp); err != nil || a.status != 200 || len(a.body) == 0 {
			t.Errorf("%s on the operators' port: %d, %v", path, a.status, err)
		}
	}
	if s.ClusterID == "" || len(s.ClusterID) != 22 || s.NodeID != 1 || s.PID != s.pid() || s.Peer != nil {
		t.Errorf("ready file %+v", s.addresses)
	}
}
