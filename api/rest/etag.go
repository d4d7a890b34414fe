package rest

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"leat/api"
)

// entityTag is the strong tag of what text says (RFC 9110 section 8.8.3): it
// changes whenever a byte of that does.
func entityTag(text []byte) string {
	sum := sha256.Sum256(text)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

// conditions are the If-Match and If-None-Match of a request.
type conditions struct{ match, noneMatch *tagList }

// tagList is the tags of a condition, or "*", which is any tag.
type tagList struct {
	any  bool
	tags []string // with their quotes, and W/ before a weak one
}

// readConditions reads the request's conditions. What cannot be read is an
// error: a condition must not be taken for none.
func readConditions(r *http.Request) (c conditions, err error) {
	if c.match, err = readTags(r, "If-Match"); err == nil {
		c.noneMatch, err = readTags(r, "If-None-Match")
	}
	return c, err
}

func readTags(r *http.Request, name string) (*tagList, error) {
	lines, given := r.Header[http.CanonicalHeaderKey(name)]
	if !given {
		return nil, nil //nolint:nilnil // no condition, and nothing wrong
	}
	bad := api.InvalidParameter(name, `want "*" or entity tags in double quotes, as the ETag of an earlier answer has them`)
	text := strings.Trim(strings.Join(lines, ","), " \t")
	if text == "*" {
		return &tagList{any: true}, nil
	}
	list := &tagList{}
	for {
		text = strings.TrimLeft(text, " \t,")
		if text == "" {
			break
		}
		opaque := strings.TrimPrefix(text, "W/")
		if !strings.HasPrefix(opaque, `"`) {
			return nil, bad
		}
		end := strings.IndexByte(opaque[1:], '"')
		if end < 0 {
			return nil, bad
		}
		size := len(text) - len(opaque) + end + 2
		list.tags = append(list.tags, text[:size])
		if text = strings.TrimLeft(text[size:], " \t"); text != "" && text[0] != ',' {
			return nil, bad
		}
	}
	if len(list.tags) == 0 {
		return nil, bad
	}
	return list, nil
}

// check is the answer to a condition of a change that the resource, whose tag
// this is, does not meet; nil if it meets them. exists is what "*" asks for. A
// weak tag never matches in If-Match.
func (c conditions) check(tag string, exists bool) error {
	switch {
	case c.match != nil && (!c.match.any || !exists) && !slices.Contains(c.match.tags, tag):
		return preconditionFailed("this was changed since: its ETag is not the one of If-Match; read it again")
	case c.noneMatch != nil && (!c.noneMatch.any || exists) && c.noneMatch.has(tag):
		return preconditionFailed("this exists, which If-None-Match rules out")
	default:
		return nil
	}
}

// has compares as for If-None-Match: a tag may be weak.
func (l *tagList) has(tag string) bool {
	return l.any || slices.ContainsFunc(l.tags, func(t string) bool { return strings.TrimPrefix(t, "W/") == tag })
}

func preconditionFailed(detail string) *api.Problem {
	return &api.Problem{
		Status: http.StatusPreconditionFailed, Code: "precondition_failed", Title: "Precondition failed", Detail: detail,
	}
}

// writeTagged answers a GET with a JSON text and its tag, with 304 if the client
// has it already, or with 412 if it wanted another.
func (s *Server) writeTagged(w *responseWriter, r *http.Request, c conditions, tag string, v any) error {
	none := c.noneMatch
	c.noneMatch = nil
	if err := c.check(tag, true); err != nil {
		return err
	}
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "no-cache")
	if none != nil && none.has(tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	s.writeJSON(w, r, http.StatusOK, v)
	return nil
}
