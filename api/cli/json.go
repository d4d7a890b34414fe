package cli

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/twmb/franz-go/pkg/kgo"
)

// appendRecord appends a record as one line of JSON without its LF, in the form of the HTTP door: bytes that are JSON go
// out untouched as "value", other text as "value_str", anything else as "value_b64", and null is always a null value.
func appendRecord(dst []byte, r *kgo.Record) []byte {
	dst = append(dst, `{"topic":`...)
	dst = appendString(dst, r.Topic)
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(r.Partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, r.Timestamp.UnixMilli(), 10)
	dst = append(dst, ',')
	dst = appendBytes(dst, "key", r.Key)
	dst = append(dst, ',')
	dst = appendBytes(dst, "value", r.Value)
	dst = append(dst, `,"headers":[`...)
	for i, h := range r.Headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendHeader(dst, h)
	}
	return append(dst, "]}"...)
}

// appendHeader appends a header as an object. The value of a header is text, not JSON, so a string stands for itself.
func appendHeader(dst []byte, h kgo.RecordHeader) []byte {
	dst = append(dst, `{"name":`...)
	dst = appendString(dst, h.Key)
	switch {
	case h.Value == nil:
		dst = append(dst, `,"value":null`...)
	case utf8.Valid(h.Value):
		dst = append(dst, `,"value":`...)
		dst = appendString(dst, string(h.Value))
	default:
		dst = append(dst, `,"value_b64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, h.Value)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// appendBytes appends one member of the family name, name_str, name_b64.
func appendBytes(dst []byte, name string, b []byte) []byte {
	dst = append(dst, '"')
	dst = append(dst, name...)
	switch {
	case b == nil:
		return append(dst, `":null`...)
	case isJSONLine(b):
		dst = append(dst, `":`...)
		return append(dst, b...)
	case utf8.Valid(b):
		dst = append(dst, `_str":`...)
		return appendString(dst, string(b))
	}
	dst = append(dst, `_b64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// isJSONLine tells whether b can stand in a line of JSON as it is. The text null cannot: it would read as a null value.
func isJSONLine(b []byte) bool {
	return !bytes.ContainsAny(b, "\r\n") && !bytes.Equal(bytes.TrimSpace(b), []byte("null")) &&
		jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true))
}

// appendString appends s as a JSON string; what is not UTF-8 in it becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	quoted, _ := jsontext.AppendQuote(dst, s) // the error only tells of U+FFFD
	return quoted
}
