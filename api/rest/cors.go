package rest

import (
	"net/http"
	"net/url"
	"strings"

	"leat/api"
)

const (
	corsMethods = "GET, HEAD, POST, PUT, PATCH, DELETE"
	corsHeaders = "Authorization, Content-Type, Content-Encoding, Idempotency-Key, If-Match, If-None-Match, If-Range, Last-Event-ID, Prefer, " +
		"Producer-Id, Producer-Epoch, Producer-Seq, Range, Record-Key, Record-Key-B64, Request-Id, Traceparent, Tracestate"
	corsExpose = "ETag, Next-Offset, High-Watermark, Log-Start-Offset, Cursor, Gap, Applied-Max-Bytes, Applied-Wait, Filter-Scanned, Filter-Failed, " +
		"Record-Partition, Record-Offset, Record-Timestamp, Record-Key, Record-Key-B64, Record-Value, Record-Headers-B64, Record-Omitted, " +
		"Accept-Ranges, Content-Range, " +
		"Location, Allow, Accept-Post, Accept-Patch, Request-Id, Retry-After, RateLimit, RateLimit-Policy, Idempotency-Replayed"
	corsMaxAge = "7200"
	// recordHeaderPrefix begins the request headers that become record headers,
	// eventPrefix those of a CloudEvent; a preflight is told of those that it
	// asks for.
	recordHeaderPrefix = "record-header-"
	eventPrefix        = "ce-"
)

// cors adds the headers that let an allowed origin read the answer, and
// answers preflights, which are for no other handler. It reports whether it
// answered. A refused origin gets its answer without the headers, which the
// browser then keeps from the page; but what would change something is refused,
// because a browser sends bodies of some types without asking before, also
// where no origin is allowed.
func (s *Server) cors(w *responseWriter, r *http.Request) (answered bool) {
	h := w.Header()
	if !s.origins.Empty() {
		h.Add("Vary", "Origin")
	}
	given := r.Header["Origin"]
	if len(given) == 0 {
		return false
	}
	from := given[0]
	allowed := len(given) == 1 && s.origins.Allows(from)
	if allowed {
		h.Set("Access-Control-Allow-Origin", from)
		h.Set("Access-Control-Expose-Headers", corsExpose)
	}
	if s.origins.Empty() || r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		switch {
		case allowed, r.Method == http.MethodGet, r.Method == http.MethodHead, r.Method == http.MethodOptions, len(given) == 1 && ownOrigin(r, from):
			return false
		}
		s.refuseOrigin(w, r)
		return true
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	if !allowed {
		s.refuseOrigin(w, r)
		return true
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsHeaders+recordHeaders(r.Header.Get("Access-Control-Request-Headers")))
	h.Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}

// ownOrigin reports whether a page of this server asks.
func ownOrigin(r *http.Request, from string) bool {
	u, err := url.Parse(from)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

func (s *Server) refuseOrigin(w *responseWriter, r *http.Request) {
	s.fail(w, r, &api.Problem{
		Status: http.StatusForbidden, Code: "origin_not_allowed", Title: "Origin not allowed",
		Detail: "this origin is neither the server's own nor among the allowed ones",
	})
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
