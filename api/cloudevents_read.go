package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"leat/storage/record"
)

// The values of Form.Events.
const (
	// EventsOnly shows records as the CloudEvents that they are. A reader stops
	// before one that is none.
	EventsOnly = "strict"
	// EventsWrap puts a record that is no CloudEvent into one of our own.
	EventsWrap = "wrap"
)

// NotEvent is the problem of a record that is to be shown as a CloudEvent and is
// none.
func NotEvent(offset int64) *Problem {
	return &Problem{
		Status: http.StatusNotAcceptable, Code: "not_a_cloudevent", Title: "Record is not a CloudEvent",
		Detail: fmt.Sprintf("the record at offset %d is no CloudEvent: read on behind it, or take all records with ce=wrap", offset),
	}
}

// IsEvent reports whether a record is a CloudEvent in a mode of the Kafka
// binding: structured in JSON, or binary.
func IsEvent(r *record.Record) bool {
	e := events.Get().(*Event)
	defer e.free()
	return IsStructured(r) || e.Load(r)
}

// events are those that records are looked at with, one after another.
var events = sync.Pool{New: func() any { return new(Event) }}

// free gives e back to events, with nothing of a record in it.
func (e *Event) free() {
	e.reset()
	events.Put(e)
}

// IsStructured reports whether the value of a record is a CloudEvent in JSON.
func IsStructured(r *record.Record) bool {
	media := contentType(r)
	if !hasEventType(media) {
		return false
	}
	media, _, _ = bytes.Cut(media, []byte{';'})
	if !strings.EqualFold(string(bytes.TrimSpace(media)), MediaEvent) {
		return false // a format that is not read here
	}
	rs := Records{}
	return len(r.Value) > 0 && ParseEvent(&rs, r.Value) == nil && rs.Finish() == nil
}

// hasEventType reports whether a content type says that the value is a whole
// event.
func hasEventType(media []byte) bool {
	return len(media) >= len(mediaEventAny) && strings.EqualFold(string(media[:len(mediaEventAny)]), mediaEventAny)
}

// contentType is the header content-type of a record, or nil.
func contentType(r *record.Record) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == contentTypeHeader {
			return r.Headers[i].Value
		}
	}
	return nil
}

// Load makes e the event that a record is in binary mode, and reports whether it
// is one: it has all that every event has, and nothing that an event may not
// have. The attributes are the record's own bytes.
func (e *Event) Load(r *record.Record) bool {
	e.reset()
	if hasEventType(contentType(r)) {
		return false
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		header := h.Key
		switch {
		case h.Key == contentTypeHeader:
			header = eventPrefix + attrContentType
		case !strings.HasPrefix(h.Key, eventPrefix):
			continue
		case h.Value != nil && h.Key == eventPrefix+attrContentType:
			return false
		}
		if h.Value != nil && e.set(header, h.Value) != "" {
			return false
		}
	}
	return e.Missing() == ""
}

// Attributes gives the attributes of the event, but for datacontenttype, to do.
func (e *Event) Attributes(do func(name string, value []byte)) {
	for i := range e.headers {
		do(e.headers[i].Key[len(eventPrefix):], e.headers[i].Value)
	}
}

// ContentType is what the event says of its data, or nil.
func (e *Event) ContentType() []byte { return e.media }

// appendEvent appends a record as a CloudEvent in the JSON format, or reports
// that it is none and appends nothing.
func (f Form) appendEvent(dst []byte, r *record.Record) ([]byte, bool) {
	if IsStructured(r) {
		return f.appendRaw(dst, bytes.Trim(r.Value, " \t\r\n")), true
	}
	e := events.Get().(*Event)
	defer e.free()
	if !e.Load(r) {
		return dst, false
	}
	open := byte('{')
	e.Attributes(func(name string, value []byte) {
		dst = append(dst, open, '"')
		dst = append(append(dst, name...), `":`...)
		dst = appendQuote(dst, value)
		open = ','
	})
	if e.media != nil {
		dst = append(dst, `,"`+attrContentType+`":`...)
		dst = appendQuote(dst, e.media)
	}
	dst = f.appendData(dst, e.media, r.Value)
	return append(dst, '}'), true
}

// appendData appends the member for the data: JSON as it stands, text as a
// string, and anything else in base64.
func (f Form) appendData(dst, media, value []byte) []byte {
	text := bytes.Trim(value, " \t\r\n")
	switch {
	case value == nil:
		return dst
	case isJSONType(media) && (isJSON(value) || string(text) == "null"):
		return f.appendRaw(append(dst, `,"data":`...), value)
	case !isJSONType(media) && isText(media, value):
		return appendQuote(append(dst, `,"data":`...), value)
	}
	dst = append(dst, `,"data_base64":"`...)
	return append(base64.StdEncoding.AppendEncode(dst, value), '"')
}

// isText reports whether a value can stand as a string: of a charset that is
// UTF-8 or not said, and not so full of control characters that it would take
// the memory of many.
func isText(media, value []byte) bool {
	_, args, err := mime.ParseMediaType(string(media))
	if charset, given := args["charset"]; err != nil || given && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return false
	}
	return utf8.Valid(value) && (len(value) < largeText || quotedSize(value) < 2*len(value))
}

// appendRaw appends JSON. Where a record is one line a line break, which stands
// between two tokens, becomes a space.
func (f Form) appendRaw(dst, p []byte) []byte {
	from := len(dst)
	dst = append(dst, p...)
	if f.Lines {
		for i, c := range dst[from:] {
			if c == '\n' || c == '\r' {
				dst[from+i] = ' '
			}
		}
	}
	return dst
}

// wrap makes an event of our own of a record that is none: its data is the
// record as the other forms have it, its source and id say where it stands.
func (f Form) wrap(dst []byte, partition int32, r *record.Record) []byte {
	dst = append(dst, `{"specversion":"1.0","id":"`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `","source":"/v1/topics/`...)
	dst = append(dst, f.Topic...)
	dst = append(dst, "/partitions/"...)
	dst = strconv.AppendInt(dst, int64(partition), 10)
	dst = append(dst, `","type":"leat.record"`...)
	// RFC 3339 has years of four digits.
	if at := time.UnixMilli(r.Timestamp).UTC(); at.Year() >= 0 && at.Year() <= 9999 {
		dst = append(dst, `,"time":"`...)
		dst = append(at.AppendFormat(dst, "2006-01-02T15:04:05.000Z"), '"')
	}
	dst = append(dst, `,"datacontenttype":"application/json","data":`...)
	f.Events = ""
	dst = AppendRecord(dst, partition, r, f)
	return append(dst, '}')
}

// Unfold makes a record whose value is a CloudEvent in JSON the record that the
// same event is in binary mode. Any other record stays as it is.
func Unfold(r *record.Record) *record.Record {
	if !IsStructured(r) {
		return r
	}
	out := &unfolded{record.Record{Offset: r.Offset, Timestamp: r.Timestamp}}
	rs := Records{Sink: out, Route: AnyPartition}
	if ParseEvent(&rs, r.Value) != nil || rs.Finish() != nil {
		return r
	}
	return &out.Record
}

// unfolded is a sink for one record.
type unfolded struct{ record.Record }

// Add copies the record, whose bytes are the parser's.
func (u *unfolded) Add(_ int32, _ int64, key, value []byte, headers []record.Header) error {
	u.Key, u.Value = bytes.Clone(key), bytes.Clone(value)
	for _, h := range headers {
		u.Headers = append(u.Headers, record.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	return nil
}
