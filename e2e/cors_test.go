package e2e

import (
	"strings"
	"testing"
)

// TestCase63CORS proves the matrix of origins: preflights, answers and errors carry the headers for allowed origins
// only, and bodies arrive whole.
func TestCase63CORS(t *testing.T) {
	const ok, wild, bad = "https://ok.example", "https://a.wild.example", "https://evil.example"
	s := start(t, "--allow-origin", ok, "--allow-origin", "https://*.wild.example")
	s.createTopic("t", 1)
	const path = "/v1/topics/t/partitions/0/records"
	for _, origin := range []string{ok, wild} {
		a := s.do("OPTIONS", path, nil, "Origin: "+origin, "Access-Control-Request-Method: POST",
			"Access-Control-Request-Headers: content-type,authorization")
		if a.status < 200 || a.status > 299 || a.header.Get("Access-Control-Allow-Origin") != origin ||
			!strings.Contains(a.header.Get("Access-Control-Allow-Methods"), "POST") {
			t.Errorf("preflight from %s: status %d, %v", origin, a.status, a.header)
		}
		for _, name := range []string{"Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key"} {
			if !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), name) {
				t.Errorf("preflight from %s: %s is not allowed: %v", origin, name, a.header)
			}
		}
		s.post(path, typeJSON, `{"records":[{"value":"whole"}]}`, "Origin: "+origin)
		for name, a := range map[string]answer{
			"GET":  s.get(path+"?from=earliest", "Origin: "+origin),
			"404":  s.do("GET", "/v1/topics/missing", nil, "Origin: "+origin).want(404),
			"400":  s.do("GET", path+"?offset=x", nil, "Origin: "+origin).want(400),
			"405":  s.do("PUT", path, nil, "Origin: "+origin).want(405),
			"POST": s.post(path, typeJSON, `{"records":[{"value":"whole"}]}`, "Origin: "+origin),
		} {
			if got := a.header.Get("Access-Control-Allow-Origin"); got != origin {
				t.Errorf("%s from %s: Allow-Origin %q", name, origin, got)
			}
			if !strings.Contains(a.header.Get("Vary"), "Origin") || !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "Next-Offset") {
				t.Errorf("%s from %s: %v", name, origin, a.header)
			}
		}
	}
	for _, origin := range []string{bad, "null", "https://ok.example.evil.example", "http://ok.example", "https://ok.example:444", "https://wild.example", "https://a.b.wild.example"} {
		for name, a := range map[string]answer{
			"preflight": s.do("OPTIONS", path, nil, "Origin: "+origin, "Access-Control-Request-Method: POST"),
			"GET":       s.get(path+"?from=earliest", "Origin: "+origin),
		} {
			if got := a.header.Get("Access-Control-Allow-Origin"); got != "" {
				t.Errorf("%s from %s: Allow-Origin %q", name, origin, got)
			}
		}
	}
	f := s.records("t", 0, "from=earliest")
	if len(f.Records) != 4 {
		t.Errorf("%d records, want 4", len(f.Records))
	}
	for _, r := range f.Records {
		if string(r.Value) != `"whole"` {
			t.Errorf("a body did not arrive whole: %s", r.Value)
		}
	}
	// Without the flag there are no CORS headers at all.
	plain := start(t)
	if a := plain.do("GET", "/v1/topics", nil, "Origin: "+ok); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("CORS without --allow-origin: %v", a.header)
	}
}
