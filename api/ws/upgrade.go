package ws

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/api"
)

// subprotocol is the one that the door speaks.
const subprotocol = "leat.v1.json"

// check says why a request cannot become a WebSocket, or nil.
func (s *Server) check(r *http.Request) error {
	if r.URL.RawQuery != "" {
		for name := range r.URL.Query() {
			return api.InvalidParameter(name, "this path takes no parameters")
		}
	}
	switch {
	case !r.ProtoAtLeast(1, 1), r.ProtoMajor > 1, !has(r, "Connection", "upgrade"), !has(r, "Upgrade", "websocket"):
		return &api.Problem{
			Status: http.StatusUpgradeRequired, Code: "upgrade_required", Title: "Upgrade required",
			Detail: "this path is a WebSocket: open it with HTTP/1.1, Upgrade: websocket and Sec-WebSocket-Protocol: " + subprotocol,
		}
	case r.Header.Get("Sec-Websocket-Version") != "13":
		return &api.Problem{
			Status: http.StatusUpgradeRequired, Code: "unsupported_version", Title: "Unsupported WebSocket version",
			Detail: "want Sec-WebSocket-Version: 13",
		}
	case !goodKey(r):
		return &api.Problem{
			Status: http.StatusBadRequest, Code: "bad_handshake", Title: "Bad WebSocket handshake",
			Detail: "want one Sec-WebSocket-Key of 16 bytes in base64",
		}
	case !has(r, "Sec-Websocket-Protocol", subprotocol):
		return &api.Problem{
			Status: http.StatusBadRequest, Code: "unsupported_subprotocol", Title: "Unsupported subprotocol",
			Detail: "want Sec-WebSocket-Protocol: " + subprotocol,
		}
	}
	return s.checkOrigin(r)
}

// has reports whether a header lists a token.
func has(r *http.Request, header, token string) bool {
	for _, line := range r.Header[header] {
		for item := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}

func goodKey(r *http.Request) bool {
	keys := r.Header["Sec-Websocket-Key"]
	if len(keys) != 1 {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(keys[0]))
	return err == nil && len(raw) == 16
}

// checkOrigin refuses pages of other origins, which a browser lets connect to
// anywhere. No browser leaves the header out.
func (s *Server) checkOrigin(r *http.Request) error {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return nil
	}
	if len(origins) == 1 {
		u, err := url.Parse(origins[0])
		if err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) || s.origins.Allows(origins[0]) {
			return nil
		}
	}
	return &api.Problem{
		Status: http.StatusForbidden, Code: "origin_not_allowed", Title: "Origin not allowed",
		Detail: "this origin is neither the server's own nor among the allowed ones",
	}
}

// refuse answers a request that does not become a WebSocket.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	p := *api.ProblemOf(err)
	h := w.Header()
	p.Instance = h.Get("Request-Id")
	switch p.Status {
	case http.StatusUpgradeRequired:
		h.Set("Upgrade", "websocket")
		h.Set("Connection", "Upgrade")
		h.Set("Sec-WebSocket-Version", "13")
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		p.RetryAfterMS = time.Second.Milliseconds()
		h.Set("Retry-After", "1")
	}
	body := append(p.JSON(), '\n')
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	s.metrics.refused(p.Code)
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that is gone cannot be told
}

// closeReason is the reason in a close frame: a code word, and what there is to
// say, cut to what fits (RFC 6455 section 5.5).
func closeReason(code, detail string) string {
	const most = 123
	reason := code
	if detail != "" {
		reason = fmt.Sprintf("%s: %s", code, detail)
	}
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "")
	}
	return reason
}

var refusals = []string{
	"upgrade_required", "unsupported_version", "bad_handshake", "unsupported_subprotocol", "origin_not_allowed",
	"too_many_connections", "quota_connections", "shutting_down",
}

// refusal is the label of a refused handshake.
func refusal(code string) string {
	if slices.Contains(refusals, code) {
		return code
	}
	return "other"
}
