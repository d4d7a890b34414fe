package api

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"leat/storage/record"
)

// The media types of CloudEvents in JSON, and the type that all formats of
// events begin with.
const (
	MediaEvent      = "application/cloudevents+json"
	MediaEventBatch = "application/cloudevents-batch+json"
	mediaEventAny   = "application/cloudevents"
)

// Where the Kafka binding of CloudEvents keeps the attributes of an event.
const (
	eventPrefix       = "ce_"
	contentTypeHeader = "content-type"
)

// Names of attributes that the door looks at.
const (
	attrContentType  = "datacontenttype"
	attrPartitionKey = "partitionkey"
)

// requiredAttributes are those that every event has.
var requiredAttributes = [...]string{"specversion", "id", "source", "type"}

const codeInvalidEvent = "invalid_cloudevent"

// Event collects the context attributes of a CloudEvent, each checked against
// the specification (version 1.0.2), in the form that the Kafka protocol binding
// gives them in binary mode: headers of a record. The zero value is ready.
type Event struct {
	headers  []record.Header
	media    []byte // of the data; nil if none is said
	key      []byte
	required uint8 // which of requiredAttributes are there
}

// Set takes an attribute by its canonical text, which is kept as it is. It says
// what is wrong with it, or "".
func (e *Event) Set(name string, value []byte) string { return e.set(eventPrefix+name, value) }

// set is Set by the name of the header that the attribute is stored in.
func (e *Event) set(header string, value []byte) string {
	name := header[len(eventPrefix):]
	if complaint := checkAttribute(name, value); complaint != "" {
		return complaint
	}
	if name == attrContentType {
		if e.media != nil {
			return name + " is given more than once"
		}
		e.media = value
		return ""
	}
	for i := range e.headers {
		if e.headers[i].Key == header {
			return name + " is given more than once"
		}
	}
	for i, required := range requiredAttributes {
		if name == required {
			e.required |= 1 << i
		}
	}
	if name == attrPartitionKey {
		e.key = value
	}
	e.headers = append(e.headers, record.Header{Key: header, Value: value})
	return ""
}

// Missing says which required attributes are not there, or "".
func (e *Event) Missing() string {
	var names []string
	for i, name := range requiredAttributes {
		if e.required&(1<<i) == 0 {
			names = append(names, name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "the required attribute " + names[0] + " is missing"
	}
	return "the required attributes " + strings.Join(names, ", ") + " are missing"
}

// reset empties e, keeping its memory.
func (e *Event) reset() {
	clear(e.headers)
	*e = Event{headers: e.headers[:0]}
}

// record is what the event is stored with: its key is the attribute
// partitionkey, which stays an attribute too.
func (e *Event) record() (key []byte, headers []record.Header) {
	if e.media != nil {
		e.headers = append(e.headers, record.Header{Key: contentTypeHeader, Value: e.media})
	}
	return e.key, e.headers
}

// AddEvent takes the only event of a request; data is nil if it has none.
func (rs *Records) AddEvent(e *Event, data []byte) {
	if detail := e.Missing(); detail != "" {
		rs.RefuseEvent(detail)
		return
	}
	key, headers := e.record()
	rs.add(numbered{}, rs.Route, -1, key, data, headers)
}

// RefuseEvent notes that the only record of a request is no CloudEvent.
func (rs *Records) RefuseEvent(detail string) {
	first := 0
	rs.note(asEventFault(&ItemError{Index: &first, Detail: detail}))
	rs.Count++
}

// asEventFault makes the error one of the rules for events.
func asEventFault(e *ItemError) *ItemError {
	e.Code, e.status, e.title = codeInvalidEvent, http.StatusBadRequest, "Invalid CloudEvent"
	return e
}

// checkAttribute says what is wrong with an attribute, or "".
func checkAttribute(name string, value []byte) string {
	if complaint := checkAttributeName(name); complaint != "" {
		return complaint
	}
	if !isEventString(value) {
		return name + " has characters that are not allowed: control characters, or what is no Unicode text"
	}
	text := string(value)
	if text == "" {
		switch name {
		case "id", "source", "type", "subject", "dataschema", attrContentType, attrPartitionKey:
			return name + " must not be empty"
		}
	}
	switch name {
	case "specversion":
		if text != "1.0" {
			return fmt.Sprintf("specversion %q is not known here: want \"1.0\"", Clip(text))
		}
	case "source":
		if !isURIReference(text) {
			return fmt.Sprintf("source %q is no URI reference (RFC 3986)", Clip(text))
		}
	case "dataschema":
		if u, err := url.Parse(text); err != nil || u.Scheme == "" || !isURIReference(text) {
			return fmt.Sprintf("dataschema %q is no absolute URI (RFC 3986)", Clip(text))
		}
	case "time":
		if !isRFC3339(text) {
			return fmt.Sprintf("time %q is no timestamp as in RFC 3339", Clip(text))
		}
	case attrContentType:
		if media, _, err := mime.ParseMediaType(text); err != nil || !strings.Contains(media, "/") {
			return fmt.Sprintf("datacontenttype %q is no media type (RFC 2046)", Clip(text))
		}
	}
	return ""
}

func checkAttributeName(name string) string {
	if name == "" {
		return "an attribute without a name"
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return fmt.Sprintf("%q is no name of an attribute: lower-case letters and digits only", Clip(name))
		}
	}
	if name == "data" {
		return "data is no attribute"
	}
	return ""
}

// isEventString reports whether text is a String of the type system of
// CloudEvents: no control characters, surrogates or noncharacters.
func isEventString(text []byte) bool {
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return false
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 || r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return false
		}
		i += size
	}
	return true
}

// isURIReference reports whether text is a URI-reference of RFC 3986 section
// 4.1. The parser alone also takes characters that must be escaped.
func isURIReference(text string) bool {
	const marks = "-._~:/?#[]@!$&'()*+,;=%"
	hashes := 0
	for i := range len(text) {
		c := text[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case strings.IndexByte(marks, c) < 0:
			return false
		case c == '%' && (i+2 >= len(text) || !isHex(text[i+1]) || !isHex(text[i+2])):
			return false
		case c == '#':
			hashes++
		}
	}
	_, err := url.Parse(text)
	return err == nil && hashes <= 1
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// isRFC3339 reports whether text is a date-time of RFC 3339 section 5.6, which
// may be in lower case and may have a leap second.
func isRFC3339(text string) bool {
	const shape = "0000-00-00T00:00:00"
	if len(text) <= len(shape) || strings.Contains(text, ",") {
		return false
	}
	upper := []byte(strings.ToUpper(text))
	for i := range len(shape) {
		if digit := upper[i] >= '0' && upper[i] <= '9'; digit != (shape[i] == '0') || !digit && upper[i] != shape[i] {
			return false
		}
	}
	if string(upper[17:19]) == "60" {
		upper[17], upper[18] = '5', '9'
	}
	_, err := time.Parse(time.RFC3339, string(upper))
	return err == nil
}

// isJSONType reports whether a content type declares its data to be JSON; what
// is not said is.
func isJSONType(contentType []byte) bool {
	if contentType == nil {
		return true
	}
	media, _, _ := strings.Cut(string(contentType), ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}
