package ws

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/api"
	"leat/auth"
)

// reply is the head of an answer.
type reply struct {
	status int
	header http.Header
}

// request sends a request as it is and gives the answer.
func (d *door) request(text string) (reply, string) {
	d.t.Helper()
	nc, err := d.connect()
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := io.WriteString(nc, text); err != nil {
		d.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := reply{resp.StatusCode, resp.Header}
	if out.status == http.StatusSwitchingProtocols {
		return out, ""
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, resp.ContentLength))
	if err != nil {
		d.t.Fatal(err)
	}
	return out, string(body)
}

// A request that cannot become a WebSocket gets a problem, and one that can does.
func TestHandshake(t *testing.T) {
	d := openDoor(t, func(o *Options) { o.AllowOrigins = []string{"https://app.example.com", "https://*.example.org"} })
	host := d.addr
	for _, tc := range []struct {
		name    string
		headers []string
		status  int
		code    string
	}{
		{"plain", nil, 101, ""},
		{"list of subprotocols", []string{"Sec-WebSocket-Protocol", "other, leat.v1.json"}, 101, ""},
		{"list of connection options", []string{"Connection", "keep-alive, Upgrade"}, 101, ""},
		{"no upgrade", []string{"Connection", "", "Upgrade", ""}, 426, "upgrade_required"},
		{"connection only", []string{"Upgrade", "h2c"}, 426, "upgrade_required"},
		{"old version", []string{"Sec-WebSocket-Version", "8"}, 426, "unsupported_version"},
		{"no key", []string{"Sec-WebSocket-Key", ""}, 400, "bad_handshake"},
		{"short key", []string{"Sec-WebSocket-Key", "c2hvcnQ="}, 400, "bad_handshake"},
		{"no subprotocol", []string{"Sec-WebSocket-Protocol", ""}, 400, "unsupported_subprotocol"},
		{"unknown subprotocol", []string{"Sec-WebSocket-Protocol", "leat.v2.json"}, 400, "unsupported_subprotocol"},
		{"own origin", []string{"Origin", "http://" + host}, 101, ""},
		{"listed origin", []string{"Origin", "https://app.example.com"}, 101, ""},
		{"listed wildcard", []string{"Origin", "https://a.example.org"}, 101, ""},
		{"wildcard is one label", []string{"Origin", "https://a.b.example.org"}, 403, "origin_not_allowed"},
		{"other origin", []string{"Origin", "https://evil.example.com"}, 403, "origin_not_allowed"},
		{"other scheme", []string{"Origin", "http://app.example.com"}, 403, "origin_not_allowed"},
		{"other port", []string{"Origin", "http://127.0.0.1:1"}, 403, "origin_not_allowed"},
		{"null origin", []string{"Origin", "null"}, 403, "origin_not_allowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, body := d.request(handshake(host, tc.headers...))
			if resp.status != tc.status {
				t.Fatalf("%d %s", resp.status, body)
			}
			if tc.status == 101 {
				return
			}
			var p api.Problem
			if err := json.Unmarshal([]byte(body), &p); err != nil || p.Code != tc.code || p.Status != tc.status ||
				resp.header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%v, %s", resp.header, body)
			}
			if tc.status == 426 && resp.header.Get("Upgrade") != "websocket" {
				t.Errorf("no Upgrade header in %v", resp.header)
			}
		})
	}
	query := strings.Replace(handshake(host), "/v1/ws", "/v1/ws?token=secret", 1)
	if resp, body := d.request(query); resp.status != http.StatusBadRequest || !strings.Contains(body, `"parameter":"token"`) || strings.Contains(body, "secret") {
		t.Errorf("a parameter: %d %s", resp.status, body)
	}
	if n := d.metric("leat_ws_refused_total", "reason", "origin_not_allowed"); n != 5 {
		t.Errorf("%v refused origins, want 5", n)
	}
}

// Connections beyond the bound are told to come later, and may when one leaves.
func TestMaxConnections(t *testing.T) {
	d := openDoor(t, func(o *Options) { o.MaxConnections = 2 })
	first := d.raw()
	d.raw()
	resp, body := d.request(handshake(d.addr))
	if resp.status != http.StatusServiceUnavailable || resp.header.Get("Retry-After") != "1" || !strings.Contains(body, `"too_many_connections"`) {
		t.Fatalf("%d %v %s", resp.status, resp.header, body)
	}
	_ = first.nc.Close()
	eventually(t, "room", func() bool { return d.metric("leat_ws_connections") == 1 })
	d.raw()
}

// What a client sends right behind its handshake is read.
func TestPipelined(t *testing.T) {
	d := openDoor(t)
	nc, err := d.connect()
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t: t, nc: nc, in: bufio.NewReader(nc)}
	long := `{"type":"ping","id":"` + strings.Repeat("x", 60) + `"}` + strings.Repeat(" ", 2000)
	r.write(append([]byte(handshake(d.addr)), maskedFrame(final|opText, []byte(long))...))
	r.upgraded()
	if _, text := r.frame(); !strings.Contains(string(text), `"pong"`) {
		t.Fatalf("%s", text)
	}
}

// One principal has a bound of its own on connections, and one that goes makes
// room; others, and those who did not say who they are, are not held up by it.
func TestConnectionsOfPrincipal(t *testing.T) {
	d := openDoor(t, func(o *Options) {
		o.principalConns = 3
		o.Principal = func(r *http.Request) auth.Principal { return auth.Principal{Name: r.Header.Get("X-Who")} }
	})
	ann := handshake(d.addr, "X-Who", "ann")
	first, err := d.connect()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(first, ann); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(first).ReadString('\n'); err != nil || !strings.Contains(line, "101") {
		t.Fatalf("%q: %v", line, err)
	}
	for range 2 {
		if a, body := d.request(ann); a.status != 101 {
			t.Fatalf("%d %s", a.status, body)
		}
	}
	a, body := d.request(ann)
	if a.status != 429 || a.header.Get("Retry-After") != "1" || !strings.Contains(body, `"code":"quota_connections"`) {
		t.Fatalf("%d %v %s", a.status, a.header, body)
	}
	for range 5 {
		if a, body := d.request(handshake(d.addr, "X-Who", "bob")); a.status == 101 {
			continue
		} else if !strings.Contains(body, "quota_connections") {
			t.Fatalf("%d %s", a.status, body)
		}
	}
	for range 5 {
		if a, body := d.request(handshake(d.addr)); a.status != 101 {
			t.Fatalf("%d %s", a.status, body)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for a.status != 101 {
		if a, body = d.request(ann); time.Now().After(deadline) {
			t.Fatalf("%d %s", a.status, body)
		}
	}
}
