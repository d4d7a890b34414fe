package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const (
	corsMethods = "GET, HEAD, POST, PATCH, DELETE"
	corsHeaders = "Authorization, Content-Type, Content-Encoding, Idempotency-Key, Last-Event-ID, Prefer, " +
		"Producer-Id, Producer-Epoch, Producer-Seq, Record-Key, Record-Key-B64, Request-Id"
	corsExpose = "Next-Offset, High-Watermark, Log-Start-Offset, Applied-Max-Bytes, Request-Id, Retry-After, " +
		"RateLimit, RateLimit-Policy, Idempotency-Replayed"
	corsMaxAge = "7200"
	// recordHeaderPrefix begins the request headers that become record headers;
	// a preflight is told of those that it asks for.
	recordHeaderPrefix = "record-header-"
)

// origin is one entry of the list of allowed origins.
type origin struct {
	// exact is scheme://host[:port], or for a wildcard the scheme with "://".
	exact string
	// suffix is what follows the wildcard label, with the dot; empty if exact.
	suffix string
}

// CheckOrigin reports why text cannot be an allowed origin, or nil. It is
// scheme://host[:port] as browsers send it: no path, no "null", no "*" but for
// the first label of the host, as in https://*.example.com.
func CheckOrigin(text string) error {
	_, err := parseOrigin(text)
	return err
}

func parseOrigin(text string) (origin, error) {
	u, err := url.Parse(strings.Replace(text, "://*.", "://wildcard.", 1))
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil,
		u.Path != "", u.RawQuery != "", u.Fragment != "", strings.Contains(u.Host, "*"):
		return origin{}, fmt.Errorf("allowed origin %q: want scheme://host[:port], with * at most as the host's first label", text)
	}
	text = strings.ToLower(text)
	if scheme, rest, ok := strings.Cut(text, "://*."); ok {
		return origin{exact: scheme + "://", suffix: "." + rest}, nil
	}
	return origin{exact: text}, nil
}

// parseOrigins drops what CheckOrigin refuses.
func parseOrigins(texts []string) []origin {
	var out []origin
	for _, text := range texts {
		if o, err := parseOrigin(text); err == nil {
			out = append(out, o)
		}
	}
	return out
}

// covers reports whether o allows from, an Origin header.
func (o origin) covers(from string) bool {
	if o.suffix == "" {
		return from == o.exact
	}
	label, ok := strings.CutPrefix(from, o.exact)
	if !ok {
		return false
	}
	label, ok = strings.CutSuffix(label, o.suffix)
	return ok && label != "" && !strings.ContainsAny(label, "./:@")
}

// cors adds the headers that let an allowed origin read the answer, and
// answers preflights, which are for no other handler. It reports whether it
// answered. A refused origin gets its answer without the headers, which the
// browser then keeps from the page; nothing that changes state can be asked for
// without a preflight, because no body type of such a route is simple.
func (s *Server) cors(w *responseWriter, r *http.Request) (answered bool) {
	if len(s.origins) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	from := r.Header.Get("Origin")
	if from == "" {
		return false
	}
	allowed := s.allows(from)
	if allowed {
		h.Set("Access-Control-Allow-Origin", from)
		h.Set("Access-Control-Expose-Headers", corsExpose)
	}
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	if !allowed {
		s.fail(w, r, &problem{
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

func (s *Server) allows(from string) bool {
	from = strings.ToLower(from)
	for _, o := range s.origins {
		if o.covers(from) {
			return true
		}
	}
	return false
}

// recordHeaders lists the Record-Header-* names in a preflight's wish, each
// after a comma. What is echoed is checked to be a header name.
func recordHeaders(wish string) string {
	var out strings.Builder
	for name := range strings.SplitSeq(wish, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if strings.HasPrefix(name, recordHeaderPrefix) && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" {
			out.WriteString(", " + name)
		}
	}
	return out.String()
}
