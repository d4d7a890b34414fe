package rest

import (
	"net/http"
	"strings"

	"leat/api"
)

const (
	corsMethods = "GET, HEAD, POST, PUT, PATCH, DELETE"
	corsHeaders = "Authorization, Content-Type, Content-Encoding, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, Prefer, " +
		"Producer-Id, Producer-Epoch, Producer-Seq, Record-Key, Record-Key-B64, Request-Id"
	corsExpose = "ETag, Next-Offset, High-Watermark, Log-Start-Offset, Cursor, Gap, Applied-Max-Bytes, Request-Id, Retry-After, " +
		"RateLimit, RateLimit-Policy, Idempotency-Replayed"
	corsMaxAge = "7200"
	// recordHeaderPrefix begins the request headers that become record headers;
	// a preflight is told of those that it asks for.
	recordHeaderPrefix = "record-header-"
)

// cors adds the headers that let an allowed origin read the answer, and
// answers preflights, which are for no other handler. It reports whether it
// answered. A refused origin gets its answer without the headers, which the
// browser then keeps from the page; nothing that changes state can be asked for
// without a preflight, because no body type of such a route is simple.
func (s *Server) cors(w *responseWriter, r *http.Request) (answered bool) {
	if s.origins.Empty() {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	from := r.Header.Get("Origin")
	if from == "" {
		return false
	}
	allowed := s.origins.Allows(from)
	if allowed {
		h.Set("Access-Control-Allow-Origin", from)
		h.Set("Access-Control-Expose-Headers", corsExpose)
	}
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	if !allowed {
		s.fail(w, r, &api.Problem{
			Status: http.StatusForbidden, Code: "origin_not_allowed", Title: "Origin not allowed",
			Detail: "this origin is not among the allowed ones",
		})
		return true
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsHeaders+recordHeaders(r.Header.Get("Access-Control-Request-Headers")))
	h.Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}

// recordHeaders lists the Record-Header-* and ce-* names in a preflight's wish,
// each after a comma. What is echoed is checked to be a header name.
func recordHeaders(wish string) string {
	var out strings.Builder
	for name := range strings.SplitSeq(wish, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if (strings.HasPrefix(name, recordHeaderPrefix) || strings.HasPrefix(name, "ce-")) && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" {
			out.WriteString(", " + name)
		}
	}
	return out.String()
}
