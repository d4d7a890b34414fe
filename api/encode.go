package api

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"leat/storage/record"
)

// Form says how the keys and values of records are written.
type Form struct {
	// As is one form for all: "json", "string" or "base64"; "" takes for each
	// the first that fits.
	As string
	// Lines writes what has a raw CR or LF as a string, where it is escaped, so
	// that a record is one line.
	Lines bool
	// Events shows records as CloudEvents: one of EventsOnly and EventsWrap; ""
	// does not. As is "" then.
	Events string
	// Topic is the topic's name, for EventsWrap.
	Topic string
}

// The values of Form.As.
const (
	AsAuto   = ""
	AsJSON   = "json"
	AsString = "string"
	AsBase64 = "base64"
)

// AppendRecord appends a record as a JSON object. The bytes of a key or value
// stand in exactly one of three members: the plain one if they are JSON, the
// one with _str if they are text, else the one with _b64, as is a large text of
// which much is control characters. null is a null value
// and nothing else: the bytes of the word null are text. It never fails.
func AppendRecord(dst []byte, partition int32, r *record.Record, f Form) []byte {
	if f.Events != "" {
		if dst, ok := f.appendEvent(dst, r); ok {
			return dst
		}
		return f.wrap(dst, partition, r)
	}
	dst = append(dst, `{"partition":`...)
	dst = strconv.AppendInt(dst, int64(partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, r.Timestamp, 10)
	dst = f.member(dst, `,"key`, r.Key)
	dst = f.member(dst, `,"value`, r.Value)
	dst = append(dst, `,"headers":`...)
	return append(f.headers(dst, r.Headers), '}')
}

// AppendHeaders appends headers of a record as a JSON array, as AppendRecord has
// them.
func AppendHeaders(dst []byte, headers []record.Header) []byte { return Form{}.headers(dst, headers) }

func (f Form) headers(dst []byte, headers []record.Header) []byte {
	dst = append(dst, '[')
	for i := range headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = f.header(dst, &headers[i])
	}
	return append(dst, ']')
}

// member writes a key or value; name begins with the comma and ends before the
// suffix.
func (f Form) member(dst []byte, name string, p []byte) []byte {
	dst = append(dst, name...)
	if p == nil {
		return append(dst, `":null`...)
	}
	oneLine := !f.Lines || bytes.IndexByte(p, '\n') < 0 && bytes.IndexByte(p, '\r') < 0
	switch {
	case f.As == AsBase64:
		return appendB64(dst, p)
	case f.As == AsString:
		return appendStr(dst, p)
	case oneLine && isJSON(p):
		dst = append(dst, `":`...)
		return append(dst, p...)
	case f.As == AsJSON && oneLine:
		// Forced, so it is a JSON string of the text.
		dst = append(dst, `":`...)
		return appendQuote(dst, p)
	case f.As == AsJSON || utf8.Valid(p) && (len(p) < largeText || quotedSize(p) < 2*len(p)):
		return appendStr(dst, p)
	default:
		return appendB64(dst, p)
	}
}

// largeText is from where on the size of a text is looked at before it is made:
// control characters take six bytes each, and a record of nothing else would
// take the memory of many.
const largeText = 64 << 10

// quotedSize is the size of p as a JSON string, about: that of what is not UTF-8
// may be less.
func quotedSize(p []byte) int {
	n := len(p) + 2
	for _, c := range p {
		switch {
		case c == '"', c == '\\', c >= '\b' && c <= '\r' && c != '\v':
			n++
		case c < ' ':
			n += 5
		}
	}
	return n
}

func appendStr(dst, p []byte) []byte {
	if len(p) >= largeText {
		dst = slices.Grow(dst, quotedSize(p)+largeText)
	}
	return appendQuote(append(dst, `_str":`...), p)
}

func appendB64(dst, p []byte) []byte {
	dst = append(dst, `_b64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, p)
	return append(dst, '"')
}

func (f Form) header(dst []byte, h *record.Header) []byte {
	dst = append(dst, `{"name":`...)
	dst = appendQuote(dst, h.Key)
	switch {
	case h.Value == nil:
		return append(dst, `,"value":null}`...)
	case f.As == AsBase64, f.As == AsAuto && !utf8.Valid(h.Value):
		dst = append(dst, `,"value_b64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, h.Value)
		return append(dst, `"}`...)
	default:
		dst = append(dst, `,"value":`...)
		return append(appendQuote(dst, h.Value), '}')
	}
}

// appendQuote writes p as a JSON string; bytes that are no UTF-8 become U+FFFD.
func appendQuote[T string | []byte](dst []byte, p T) []byte {
	// The error tells of just that.
	dst, _ = jsontext.AppendQuote(dst, p)
	return dst
}

var valueOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

// isJSON reports whether p is the text of a JSON value other than null that a
// reader can be given within its own: one that nests too deep for its parser
// would cost it all that stands around it.
func isJSON(p []byte) bool {
	text := bytes.Trim(p, " \t\r\n")
	if len(text) == 0 || !mayBeJSON(text[0]) || string(text) == "null" {
		return false
	}
	return jsontext.Value(p).IsValid(valueOptions...) && !tooDeep(text)
}

// mayBeJSON tells at a glance most of what is no JSON.
func mayBeJSON(c byte) bool {
	switch c {
	case '{', '[', '"', 't', 'f', 'n', '-':
		return true
	}
	return c >= '0' && c <= '9'
}
