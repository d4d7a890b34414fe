package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func (p *jsonParser) recordMember(name []byte) (err error) {
	switch string(name) {
	case "key":
		p.key, err = p.keyMember()
	case "key_str":
		p.key, err = p.stringMember(memberKey, "key")
	case "key_b64":
		p.key, err = p.base64Member(memberKey, "key")
	case "key_json":
		p.key, err = p.jsonMember(memberKey, "key")
	case "value":
		p.value, err = p.jsonMember(memberValue, "value")
	case "value_str":
		p.value, err = p.stringMember(memberValue, "value")
	case "value_b64":
		p.value, err = p.base64Member(memberValue, "value")
	case "headers":
		p.once(memberHeaders, "headers")
		err = p.headersMember()
	case "partition":
		err = p.partitionMember()
	case "timestamp":
		err = p.timestampMember()
	default:
		err = p.unknown(name)
	}
	return err
}

// unknown refuses a member and skips its value.
func (p *jsonParser) unknown(name []byte) error {
	p.complain(fmt.Sprintf("unknown member %q", Clip(string(name))))
	return p.dec.SkipValue()
}

// once complains if a member, in any of its forms, was given before.
func (p *jsonParser) once(m member, what string) {
	if p.seen&m != 0 {
		p.complain(what + " is given more than once")
	}
	p.seen |= m
}

// raw reads a value and returns it as a slice of the body.
func (p *jsonParser) raw() ([]byte, error) {
	v, err := p.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := int(p.dec.InputOffset())
	return p.doc[end-len(v) : end : end], nil
}

// text reads a string, or the name of a member, decoded.
func (p *jsonParser) text() ([]byte, error) {
	raw, err := p.raw()
	if err != nil {
		return nil, err
	}
	return p.unquote(raw), nil
}

// unquote decodes a valid JSON string.
func (p *jsonParser) unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1 : len(raw)-1]
	}
	from := len(p.scratch)
	// The decoder has checked the string.
	p.scratch, _ = jsontext.AppendUnquote(p.scratch, raw)
	return p.scratch[from:len(p.scratch):len(p.scratch)]
}

func (p *jsonParser) stringMember(m member, what string) ([]byte, error) {
	p.once(m, what)
	raw, err := p.raw()
	if err != nil {
		return nil, err
	}
	return p.stringOf(raw, "want a string"), nil
}

// keyMember reads a key that is a string or null.
func (p *jsonParser) keyMember() ([]byte, error) {
	p.once(memberKey, "key")
	raw, err := p.raw()
	if err != nil || raw[0] == 'n' {
		return nil, err
	}
	return p.stringOf(raw, "key must be a string or null; key_json takes any JSON value"), nil
}

// stringOf is the text of a JSON string; of anything else it is nil, and what is
// wrong is noted.
func (p *jsonParser) stringOf(raw []byte, complaint string) []byte {
	if raw[0] != '"' {
		p.complain(complaint)
		return nil
	}
	return p.unquote(raw)
}

func (p *jsonParser) base64Member(m member, what string) ([]byte, error) {
	text, err := p.stringMember(m, what)
	if err != nil || text == nil {
		return nil, err
	}
	return p.decode64(text), nil
}

func (p *jsonParser) decode64(text []byte) []byte {
	from := len(p.scratch)
	var err error
	if p.scratch, err = AppendBase64(p.scratch, base64.StdEncoding, text); err != nil {
		p.complain("want base64 with padding (RFC 4648 section 4)")
		return nil
	}
	// Never nil: an empty string is an empty value.
	if p.scratch == nil {
		p.scratch = make([]byte, 0, 64)
	}
	return p.scratch[from:len(p.scratch):len(p.scratch)]
}

// AppendBase64 decodes what is nothing but the alphabet and its padding; the
// decoder alone passes over CR and LF.
func AppendBase64(dst []byte, coding *base64.Encoding, text []byte) ([]byte, error) {
	if i := bytes.IndexAny(text, "\r\n"); i >= 0 {
		return dst, base64.CorruptInputError(i)
	}
	return coding.Strict().AppendDecode(dst, text)
}

// jsonMember reads any JSON value, of which null means none.
func (p *jsonParser) jsonMember(m member, what string) ([]byte, error) {
	p.once(m, what)
	raw, err := p.raw()
	if err != nil || raw[0] == 'n' {
		return nil, err
	}
	if tooDeep(raw) {
		p.complain(fmt.Sprintf("arrays and objects nest deeper than %d", maxDepth))
	}
	return raw, nil
}

func (p *jsonParser) partitionMember() error {
	p.once(memberPartition, "partition")
	raw, err := p.raw()
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(string(raw), 10, 31)
	switch {
	case err != nil:
		p.complain("partition must be a whole number from 0 to 2147483647")
	case p.rs.Route >= 0 && int32(n) != p.rs.Route:
		p.complain(fmt.Sprintf("partition %d is not the one that the path names", n))
	default:
		p.partition = int32(n)
	}
	return nil
}

func (p *jsonParser) timestampMember() error {
	p.once(memberTimestamp, "timestamp")
	raw, err := p.raw()
	if err != nil {
		return err
	}
	text := raw
	if raw[0] == '"' {
		text = p.unquote(raw)
	}
	ts, ok := ParseTimestamp(string(text))
	if !ok {
		p.complain("timestamp must be milliseconds since 1970, or a time as in RFC 3339")
	}
	p.ts = ts
	return nil
}

// tooDeep reports whether the arrays and objects of a valid JSON value nest
// deeper than maxDepth.
func tooDeep(raw []byte) bool {
	if raw[0] != '{' && raw[0] != '[' ||
		bytes.Count(raw, []byte{'{'})+bytes.Count(raw, []byte{'['}) <= maxDepth {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// ParseTimestamp reads a time as requests give it, milliseconds since 1970 or
// RFC 3339. It gives milliseconds since 1970, never negative.
func ParseTimestamp(text string) (int64, bool) {
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return ms, ms >= 0 && text[0] != '+' && text[0] != '-'
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, false
	}
	return t.UnixMilli(), t.UnixMilli() >= 0
}
