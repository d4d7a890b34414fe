package api

import (
	"fmt"
	"net/url"
	"strings"
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

// Origins are the origins that browsers may call from. The zero value allows
// none.
type Origins struct{ list []origin }

// ParseOrigins drops what CheckOrigin refuses.
func ParseOrigins(texts []string) Origins {
	var out Origins
	for _, text := range texts {
		if o, err := parseOrigin(text); err == nil {
			out.list = append(out.list, o)
		}
	}
	return out
}

// Empty reports whether nothing is allowed.
func (o Origins) Empty() bool { return len(o.list) == 0 }

// Allows reports whether origin, the value of an Origin header, is allowed.
func (o Origins) Allows(origin string) bool {
	origin = strings.ToLower(origin)
	for i := range o.list {
		if o.list[i].covers(origin) {
			return true
		}
	}
	return false
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
