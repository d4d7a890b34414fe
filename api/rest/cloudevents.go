package rest

import (
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"leat/api"
)

// eventHeaderPrefix begins the request and response headers that are attributes
// of a CloudEvent in binary mode, as net/http writes it.
const eventHeaderPrefix = "Ce-"

// hasEventHeaders reports whether a request is meant as a CloudEvent in binary
// mode: it has a header of one of the attributes that every event has.
func hasEventHeaders(h http.Header) bool {
	for _, name := range []string{"Ce-Specversion", "Ce-Id", "Ce-Source", "Ce-Type"} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// parseEventHeaders takes the body as the data of a CloudEvent, whose attributes
// are the headers ce-* and Content-Type (HTTP protocol binding, section 3.1).
// The order of attributes means nothing; they are taken by name.
func parseEventHeaders(rs *api.Records, h http.Header, text []byte) {
	for _, name := range []string{"Record-Key", "Record-Key-B64"} {
		if _, given := h[name]; given {
			rs.RefuseEvent(name + " is given; the key of an event is its attribute partitionkey")
			return
		}
	}
	var names []string
	for name := range h {
		if strings.HasPrefix(name, eventHeaderPrefix) {
			names = append(names, name)
		}
	}
	if len(names) > api.MaxHeaders {
		rs.Refuse(&api.ItemError{Index: new(int)}, api.TooManyHeaders())
		rs.Count++
		return
	}
	slices.Sort(names)
	e := &api.Event{}
	for _, name := range names {
		if complaint := setEventHeader(e, name, h[name]); complaint != "" {
			rs.RefuseEvent(complaint)
			return
		}
	}
	if media := h.Get("Content-Type"); media != "" {
		if complaint := e.Set("datacontenttype", []byte(media)); complaint != "" {
			rs.RefuseEvent(complaint)
			return
		}
	}
	if len(text) == 0 {
		text = nil
	}
	rs.AddEvent(e, text)
}

// setEventHeader takes one header as an attribute and says what is wrong with it.
func setEventHeader(e *api.Event, header string, values []string) string {
	name := strings.ToLower(header[len(eventHeaderPrefix):])
	if len(values) != 1 {
		return "the header " + api.Clip(header) + " is given more than once"
	}
	if name == "datacontenttype" {
		return "datacontenttype is the header Content-Type"
	}
	value, ok := decodeEventValue(values[0])
	if !ok {
		return "the header " + api.Clip(header) + " is not percent-encoded UTF-8"
	}
	return e.Set(name, value)
}

// decodeEventValue undoes the encoding of an attribute as a header: that of a
// quoted string, which older versions of the specification wrote, then a round
// of percent-decoding (section 3.1.3.2).
func decodeEventValue(text string) ([]byte, bool) {
	if strings.HasPrefix(text, `"`) {
		var ok bool
		if text, ok = unquoteHeader(text); !ok {
			return nil, false
		}
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			out = append(out, text[i])
			continue
		}
		if i+2 >= len(text) {
			return nil, false
		}
		high, low := hexDigit(text[i+1]), hexDigit(text[i+2])
		if high < 0 || low < 0 {
			return nil, false
		}
		out = append(out, byte(high<<4|low))
		i += 2
	}
	return out, utf8.Valid(out)
}

// unquoteHeader reads a quoted string (RFC 7230 section 3.2.6) that is the whole
// value.
func unquoteHeader(text string) (string, bool) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return b.String(), i == len(text)-1
		case '\\':
			if i++; i == len(text) {
				return "", false
			}
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

// hexDigit is the value of a hexadecimal digit, or -1.
func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// encodeEventValue is an attribute as a header.
func encodeEventValue(value []byte) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, len(value))
	for _, c := range value {
		if c <= ' ' || c == '"' || c == '%' || c > '~' {
			out = append(out, '%', digits[c>>4], digits[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}
