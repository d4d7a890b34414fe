package web

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// answer is what the handler wrote.
type answer struct {
	status int
	header http.Header
	body   string
}

func get(method, target string, header http.Header) answer {
	r := httptest.NewRequest(method, target, nil)
	r.Header = header
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

// TestHandler proves that every page is there with its type and the headers that keep a browser safe, that HEAD has no
// body, and that an unchanged page is not sent again.
func TestHandler(t *testing.T) {
	for target, wantType := range map[string]string{
		"/":                       "text/html; charset=utf-8",
		"/docs/":                  "text/html; charset=utf-8",
		"/docs/groups":            "text/html; charset=utf-8",
		"/docs/reference":         "text/html; charset=utf-8",
		"/docs/problems":          "text/html; charset=utf-8",
		"/docs/docs.css":          "text/css; charset=utf-8",
		"/examples/tail.html":     "text/html; charset=utf-8",
		"/examples/tail.js":       "text/javascript; charset=utf-8",
		"/examples/page.js":       "text/javascript; charset=utf-8",
		"/examples/longpoll.html": "text/html; charset=utf-8",
		"/examples/longpoll.js":   "text/javascript; charset=utf-8",
		"/examples/leat.css":      "text/css; charset=utf-8",
	} {
		got := get(http.MethodGet, target, nil)
		if got.status != http.StatusOK || got.header.Get("Content-Type") != wantType || got.body == "" {
			t.Errorf("%s: %d %s, %d bytes", target, got.status, got.header.Get("Content-Type"), len(got.body))
		}
		policy := got.header.Get("Content-Security-Policy")
		if got.header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(policy, "script-src 'self';") {
			t.Errorf("%s: headers %v", target, got.header)
		}
		head := get(http.MethodHead, target, nil)
		if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") != strconv.Itoa(len(got.body)) {
			t.Errorf("HEAD %s: %d, %d bytes, %v", target, head.status, len(head.body), head.header)
		}
		again := get(http.MethodGet, target, http.Header{"If-None-Match": {got.header.Get("ETag")}})
		if again.status != http.StatusNotModified || again.body != "" {
			t.Errorf("%s again: %d, %d bytes", target, again.status, len(again.body))
		}
	}
}

// TestConditions proves that conditions hold as for every resource, that one that fails is a problem document, and that a
// range, good or bad, is passed over.
func TestConditions(t *testing.T) {
	plain := get(http.MethodGet, "/docs/", nil)
	tag := plain.header.Get("ETag")
	zipped := get(http.MethodGet, "/docs/", http.Header{"Accept-Encoding": {"gzip"}}).header.Get("ETag")
	if zipped == tag {
		t.Errorf("both forms have the tag %s", tag)
	}
	for _, c := range []struct {
		name, value string
		want        int
	}{
		{"If-None-Match", tag, 304},
		{"If-None-Match", "W/" + tag, 304},
		{"If-None-Match", `"a", ` + tag, 304},
		{"If-None-Match", "*", 304},
		{"If-None-Match", zipped, 200},
		{"If-None-Match", "", 200},
		{"If-Match", tag, 200},
		{"If-Match", "*", 200},
		{"If-Match", "W/" + tag, 412},
		{"If-Match", `"a"`, 412},
		{"If-Match", "", 412},
		{"Range", "bytes=0-9", 200},
		{"Range", "bytes=999999999-", 200},
		{"Range", "bytes=9-0", 200},
	} {
		got := get(http.MethodGet, "/docs/", http.Header{c.name: {c.value}})
		if got.status != c.want {
			t.Errorf("%s: %s: %d, want %d", c.name, c.value, got.status, c.want)
		}
		switch {
		case got.status == 200 && got.body != plain.body:
			t.Errorf("%s: %s: %d bytes, want %d", c.name, c.value, len(got.body), len(plain.body))
		case got.status == 304 && (got.body != "" || got.header.Get("ETag") != tag):
			t.Errorf("%s: %s: %v", c.name, c.value, got.header)
		case got.status == 412 && (got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("ETag") != ""):
			t.Errorf("%s: %s: %v", c.name, c.value, got.header)
		}
	}
}

// TestRefused proves that what is no page is a problem document, and never another file of the program.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		method, target string
		want           int
	}{
		{http.MethodGet, "/index.html", 404},
		{http.MethodGet, "/embed.go", 404},
		{http.MethodGet, "/examples", 404},
		{http.MethodGet, "/examples/", 404},
		{http.MethodGet, "/examples/../embed.go", 404},
		{http.MethodPost, "/", 405},
		{http.MethodDelete, "/nothing", 405},
	} {
		got := get(c.method, c.target, nil)
		kind := got.header.Get("Content-Type")
		if got.status != c.want || kind != "application/problem+json" || !strings.Contains(got.body, `"retriable":false`) {
			t.Errorf("%s %s: %d %s %s", c.method, c.target, got.status, kind, got.body)
		}
	}
}

// TestRefusedNamesRequest proves that a refusal carries the id that the door gave the request, whatever is in it.
func TestRefusedNamesRequest(t *testing.T) {
	w := httptest.NewRecorder()
	w.Header().Set("Request-Id", `a"b`)
	Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/nothing", nil))
	var got struct{ Type, Instance, Code string }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Type != "/problems/not_found" || got.Instance != `a"b` || got.Code != "not_found" {
		t.Errorf("%+v", got)
	}
}

// TestStatementsEnd proves that no line of a script begins with what would go on with the line before: without semicolons,
// a list or a bracket there is an index or a call.
func TestStatementsEnd(t *testing.T) {
	joined := regexp.MustCompile("(?m)^\\s*(?:[\\[(`+]|-[^-]|/[^/*]).*")
	for _, target := range []string{"/examples/tail.js", "/examples/page.js", "/examples/longpoll.js"} {
		if line := joined.FindString(get(http.MethodGet, target, nil).body); line != "" {
			t.Errorf("%s: %s", target, strings.TrimSpace(line))
		}
	}
}

// TestPolicyHolds proves that the pages live by their own policy: no inline script, style or handler, no other origin;
// and that every local link leads to a page or to a route of the HTTP door.
func TestPolicyHolds(t *testing.T) {
	inline := regexp.MustCompile(`<script>|<style|\sstyle=|\son[a-z]+=|https?://`)
	link := regexp.MustCompile(`(?:href|src)="(/[^"]*)"`)
	for _, target := range []string{"/", "/examples/tail.html", "/examples/longpoll.html"} {
		body := get(http.MethodGet, target, nil).body
		if found := inline.FindString(body); found != "" {
			t.Errorf("%s has %q", target, found)
		}
		for _, match := range link.FindAllStringSubmatch(body, -1) {
			local := match[1]
			if local == "/openapi.yaml" || strings.HasPrefix(local, "/v1/") || local == "/readyz" {
				continue
			}
			if got := get(http.MethodGet, local, nil); got.status != http.StatusOK {
				t.Errorf("%s links to %s: %d", target, local, got.status)
			}
		}
	}
}
