package rest

import (
	"net/http"
	"strings"
	"testing"
)

const appOrigin = "https://app.example.com"

func allowOrigins(origins ...string) func(*setup) {
	return func(s *setup) { s.AllowOrigins = origins }
}

// Case 63: an allowed origin gets its headers on every answer, errors too; a
// forbidden one gets none, and changes nothing; bodies arrive whole.
func TestCORS(t *testing.T) {
	d := openDoor(t, allowOrigins(appOrigin, "http://*.dev.test:3000"))
	d.topic("t", 1)
	for origin, allowed := range map[string]bool{
		appOrigin: true, "HTTPS://APP.example.com": true, "http://a.dev.test:3000": true,
		"http://app.example.com": false, "https://app.example.com:444": false, "https://evil.com": false, "null": false, "*": false,
		"https://app.example.com.evil.com": false, "https://xapp.example.com": false, "http://dev.test:3000": false, "http://.dev.test:3000": false,
		"http://a.b.dev.test:3000": false, "http://a.dev.test": false, "http://evil.com/.dev.test:3000": false,
	} {
		for _, tc := range []struct {
			method, path, body string
			status             int
		}{
			{"GET", "/v1/topics", "", 200},
			{"POST", produceT, `[{"value":1}]`, 200},
			{"POST", produceT, `[`, 400},
			{"GET", "/v1/topics/none", "", 404},
			{"GET", "/nowhere", "", 404},
			{"PUT", produceT, "", 405},
			{"GET", recordsOfT0 + "offset=99", "", 416},
		} {
			a := d.do(tc.method, tc.path, tc.body, "Origin", origin, "Content-Type", mediaJSON)
			want, status := "", tc.status
			if allowed {
				want = origin
			} else if tc.method != http.MethodGet {
				status = http.StatusForbidden
			}
			if got := a.Header.Get("Access-Control-Allow-Origin"); got != want || a.StatusCode != status {
				t.Errorf("%s %s from %s: %d, Allow-Origin %q", tc.method, tc.path, origin, a.StatusCode, got)
			}
			if !strings.Contains(strings.Join(a.Header.Values("Vary"), ","), "Origin") {
				t.Errorf("%s: Vary %q", tc.path, a.Header.Values("Vary"))
			}
			if allowed != strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "Next-Offset") {
				t.Errorf("Expose-Headers %q", a.Header.Get("Access-Control-Expose-Headers"))
			}
		}
	}
}

// A preflight is answered before all else: 204 with what is allowed, or 403
// without any CORS header.
func TestPreflight(t *testing.T) {
	d := openDoor(t, allowOrigins(appOrigin))
	preflight := func(origin string) *answer {
		return d.do("OPTIONS", "/v1/topics/t/records", nil, "Origin", origin, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "content-type, record-header-trace, ce-id, record-header-\"x, x-evil")
	}
	a := preflight(appOrigin)
	h := a.Header
	if a.StatusCode != http.StatusNoContent || h.Get("Access-Control-Allow-Origin") != appOrigin || h.Get("Access-Control-Max-Age") != "7200" || len(a.body) > 0 {
		t.Errorf("%d %v", a.StatusCode, h)
	}
	for _, name := range []string{
		"Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", "If-Match", "Producer-Id", "Producer-Epoch", "Producer-Seq",
		"Last-Event-ID", "Prefer", "Traceparent", "record-header-trace", "ce-id",
	} {
		if !strings.Contains(h.Get("Access-Control-Allow-Headers"), name) {
			t.Errorf("Allow-Headers lacks %s: %q", name, h.Get("Access-Control-Allow-Headers"))
		}
	}
	if s := h.Get("Access-Control-Allow-Headers"); strings.Contains(s, "evil") || strings.Contains(s, `"`) {
		t.Errorf("Allow-Headers %q", s)
	}
	if !strings.Contains(h.Get("Access-Control-Allow-Methods"), "DELETE") || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%v", h)
	}
	for _, origin := range []string{"https://evil.com", "null"} {
		a := preflight(origin).want(t, 403, "origin_not_allowed")
		for name := range a.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: %s", origin, name)
			}
		}
	}
}

// Without allowed origins there is no CORS at all.
func TestNoCORS(t *testing.T) {
	d := openDoor(t)
	a := d.do("OPTIONS", "/v1/topics", nil, "Origin", appOrigin, "Access-Control-Request-Method", "GET").want(t, 405, "method_not_allowed")
	if a.Header.Get("Access-Control-Allow-Origin") != "" || strings.Join(a.Header["Vary"], ",") != "Accept-Encoding" {
		t.Errorf("%v", a.Header)
	}
}

// Case 63: what a page of a refused origin sends without a preflight, which a
// browser does for some types of bodies, is not done; with and without allowed
// origins. The server's own pages and clients that are no browser go on.
func TestForeignPost(t *testing.T) {
	for _, origins := range [][]string{nil, {appOrigin}} {
		d := openDoor(t, func(s *setup) { s.AllowOrigins = origins })
		d.topic("t", 1)
		raw := produceT + "?raw=true"
		for _, origin := range []string{"https://evil.com", "null", "http://" + d.addr + ".evil.com"} {
			d.do("POST", raw, "x", "Content-Type", "text/plain", "Origin", origin).want(t, 403, "origin_not_allowed")
			d.do("DELETE", "/v1/topics/t", nil, "Origin", origin).want(t, 403, "origin_not_allowed")
			d.do("GET", "/v1/topics/t", nil, "Origin", origin).want(t, 200, "")
		}
		if got := d.end("t"); got != 0 {
			t.Errorf("end %d", got)
		}
		d.do("POST", raw, "x", "Content-Type", "text/plain", "Origin", "http://"+d.addr).want(t, 200, "")
		d.do("POST", raw, "x", "Content-Type", "text/plain").want(t, 200, "")
		if origins != nil {
			d.do("POST", raw, "x", "Content-Type", "text/plain", "Origin", appOrigin).want(t, 200, "")
		}
	}
}
