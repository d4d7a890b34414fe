package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestCase25HEAD proves that HEAD is answered at once and with headers alone on every route of records, also where GET
// would wait or never end, and that it leaves nothing running.
func TestCase25HEAD(t *testing.T) {
	n := 200 // on each of five routes
	s := start(t)
	s.createTopic("t", 2)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\n")
	routes := []struct{ path, accept string }{
		{"/v1/topics/t/partitions/0/records?from=latest", typeSSE},
		{"/v1/topics/t/records?from=earliest", typeSSE},
		{"/v1/topics/t/records?from=latest&stream=true", typeNDJSON},
		{"/v1/topics/t/partitions/1/records?from=latest&wait=30", typeJSON},
		{"/v1/topics/t/records?from=latest&wait=30", typeJSON},
	}
	head := func(path, accept string) {
		t.Helper()
		a := s.do(http.MethodHead, path, nil, "Accept: "+accept).want(200)
		if len(a.body) > 0 || !strings.HasPrefix(a.header.Get("Content-Type"), accept) {
			t.Fatalf("HEAD %s: %d bytes, %v", path, len(a.body), a.header)
		}
	}
	for _, r := range routes {
		head(r.path, r.accept)
	}
	baseline := s.metric("go_goroutines")
	begun := time.Now()
	for range n {
		for _, r := range routes {
			head(r.path, r.accept)
		}
	}
	// A single one that waited would take 30 s; all of them have the patience of one.
	if took := time.Since(begun); took > patience {
		t.Errorf("%d HEADs took %v", n*len(routes), took)
	} else {
		t.Logf("%d HEADs, each in %v", n*len(routes), took/time.Duration(n*len(routes)))
	}
	eventually(t, "goroutines back to what they were", func() error {
		if now := s.metric("go_goroutines"); now > baseline+2 {
			return fmt.Errorf("%v goroutines, %v before", now, baseline)
		}
		return nil
	})
	if n := s.metric("leat_broker_waiting_fetches"); n != 0 {
		t.Errorf("%v fetches wait", n)
	}
	for path, status := range map[string]int{
		"/v1/topics/missing/records?from=latest": 404, "/v1/topics/t/partitions/9/records?from=latest": 404,
		"/v1/topics/t/partitions/0/records?offset=99": 416, "/v1/topics/t/records?from=yesterday": 400,
		"/healthz": 200, "/v1/topics/t": 200,
	} {
		if a := s.do(http.MethodHead, path, nil); a.status != status || len(a.body) > 0 {
			t.Errorf("HEAD %s: status %d, want %d; %d bytes", path, a.status, status, len(a.body))
		}
	}
}

// TestCase60Origin proves the matrix of origins for sockets: a page of another site is refused with 403 before the
// upgrade, whatever its origin looks like; the server's own page, a listed site and programs are let in.
func TestCase60Origin(t *testing.T) {
	listed := start(t, "--allow-origin", "https://ok.example", "--allow-origin", "https://*.wild.example")
	plain := start(t)
	for _, s := range []*server{listed, plain} {
		s.socket() // a program sends no origin
		s.socket("Origin: http://" + s.HTTP)
		for _, origin := range []string{
			"https://evil.example", "null", "http://localhost", "http://" + s.Kafka, "http://" + s.HTTP + ".evil.example",
			"https://ok.example.evil.example", "https://notok.example", "http://ok.example", "https://ok.example:444", "https://wild.example",
			"https://a.b.wild.example", "https://ok.example@evil.example", "file://", "*", "https://ok.example https://evil.example",
		} {
			a := s.refusal("Origin: " + origin)
			a.refused(403, "origin_not_allowed")
			if a.header.Get("Sec-WebSocket-Accept") != "" {
				t.Errorf("Origin %s: an upgrade with status 403", origin)
			}
		}
	}
	for _, origin := range []string{"https://ok.example", "https://a.wild.example", "https://OK.example"} {
		listed.socket("Origin: " + origin)
		if origin != "https://OK.example" {
			plain.refusal("Origin: "+origin).refused(403, "origin_not_allowed")
		}
	}
	// Two are never right, whichever a browser or a proxy meant.
	listed.refusal("Origin: https://ok.example", "Origin: https://evil.example").refused(403, "origin_not_allowed")
}
