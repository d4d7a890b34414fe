package rest

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"leat/storage/record"
)

// encoder writes records as JSON objects, in an array or one a line. The bytes
// of a key or value stand in exactly one of three members: the plain one if
// they are JSON, the one with _str if they are text, else the one with _b64.
// null is a null value and nothing else: the bytes of the word null are text.
type encoder struct {
	out   *chunks
	form  string
	lines bool
	count int64
}

func (e *encoder) record(rec *record.Record) {
	out := e.out
	if e.count > 0 && !e.lines {
		out.text(",")
	}
	e.count++
	out.text(`{"offset":`)
	out.integer(rec.Offset)
	out.text(`,"timestamp":`)
	out.integer(rec.Timestamp)
	e.member(`,"key`, rec.Key)
	e.member(`,"value`, rec.Value)
	out.text(`,"headers":[`)
	for i := range rec.Headers {
		if i > 0 {
			out.text(",")
		}
		e.header(&rec.Headers[i])
	}
	out.text("]}")
	if e.lines {
		out.text("\n")
	}
	out.flushFull()
}

// member writes a key or value; name begins with the comma and ends before the
// suffix.
func (e *encoder) member(name string, p []byte) {
	out := e.out
	out.text(name)
	if p == nil {
		out.text(`":null`)
		return
	}
	oneLine := !e.lines || bytes.IndexByte(p, '\n') < 0 && bytes.IndexByte(p, '\r') < 0
	switch form := e.form; {
	case form == formBase64:
		e.base64(p)
	case form == formString:
		e.str(p)
	case oneLine && isJSON(p):
		out.text(`":`)
		out.bytes(p)
	case form == formJSON && oneLine:
		// Forced, so it is a JSON string of the text.
		out.text(`":`)
		out.quoteBytes(p)
	case utf8.Valid(p) || form == formJSON:
		e.str(p)
	default:
		e.base64(p)
	}
}

func (e *encoder) str(p []byte) {
	e.out.text(`_str":`)
	e.out.quoteBytes(p)
}

func (e *encoder) base64(p []byte) {
	e.out.text(`_b64":"`)
	e.out.buf = base64.StdEncoding.AppendEncode(e.out.buf, p)
	e.out.text(`"`)
}

func (e *encoder) header(h *record.Header) {
	out := e.out
	out.text(`{"name":`)
	out.quote(h.Key)
	switch {
	case h.Value == nil:
		out.text(`,"value":null}`)
	case e.form == formBase64, e.form == formAuto && !utf8.Valid(h.Value):
		out.text(`,"value_b64":"`)
		out.buf = base64.StdEncoding.AppendEncode(out.buf, h.Value)
		out.text(`"}`)
	default:
		out.text(`,"value":`)
		out.quoteBytes(h.Value)
		out.text("}")
	}
}

// quoteBytes writes p as a JSON string; bytes that are no UTF-8 become U+FFFD.
func (c *chunks) quoteBytes(p []byte) {
	// The error tells of just that.
	c.buf, _ = jsontext.AppendQuote(c.buf, p)
}

var valueOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

// isJSON reports whether p is the text of a JSON value other than null.
func isJSON(p []byte) bool {
	text := bytes.Trim(p, " \t\r\n")
	if len(text) == 0 || !mayBeJSON(text[0]) || string(text) == "null" {
		return false
	}
	return jsontext.Value(p).IsValid(valueOptions...)
}

// mayBeJSON tells at a glance most of what is no JSON.
func mayBeJSON(c byte) bool {
	switch c {
	case '{', '[', '"', 't', 'f', 'n', '-':
		return true
	}
	return c >= '0' && c <= '9'
}
