package rest

import (
	"encoding/base64"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"leat/api"
	"leat/storage/record"
)

// maxRecordHeaders is how many bytes of a record's key and headers stand in the
// headers of an answer: clients bound those. The rest is left out, and the answer
// says so.
const maxRecordHeaders = 32 << 10

// recordHeadersOf puts what belongs to a value into headers: exactly as it is
// where a header can hold it, else in base64.
func recordHeadersOf(h http.Header, partition int32, rec *record.Record) {
	h.Set("Record-Partition", strconv.Itoa(int(partition)))
	h.Set("Record-Offset", strconv.FormatInt(rec.Offset, 10))
	h.Set("Record-Timestamp", strconv.FormatInt(rec.Timestamp, 10))
	if rec.Value == nil {
		h.Set("Record-Value", "null")
	}
	left := maxRecordHeaders
	var omitted []string
	if rec.Key != nil {
		switch {
		case base64.StdEncoding.EncodedLen(len(rec.Key)) > left:
			omitted = append(omitted, "key")
		case isHeaderValue(rec.Key):
			h["Record-Key"] = []string{string(rec.Key)}
			left -= len(rec.Key)
		default:
			coded := base64.StdEncoding.EncodeToString(rec.Key)
			h["Record-Key-B64"] = []string{coded}
			left -= len(coded)
		}
	}
	if !setRecordHeaders(h, rec.Headers, left) {
		omitted = append(omitted, "headers")
	}
	if omitted != nil {
		h.Set("Record-Omitted", strings.Join(omitted, ", "))
	}
}

// setRecordHeaders sets a header Record-Header-NAME for each header of a record
// that one can hold, name and value. The others stand together in
// Record-Headers-B64, as JSON in base64. If it is too much nothing is set.
func setRecordHeaders(h http.Header, headers []record.Header, left int) bool {
	set := http.Header{}
	others := record.Record{}
	for _, rh := range headers {
		if left -= len(rh.Key) + len(rh.Value); left < 0 {
			return false
		}
		if rh.Value != nil && isHeaderName(rh.Key) && isHeaderValue(rh.Value) {
			name := http.CanonicalHeaderKey(recordHeaderPrefix + rh.Key)
			set[name] = append(set[name], string(rh.Value))
		} else {
			others.Headers = append(others.Headers, rh)
		}
	}
	if len(others.Headers) > 0 {
		coded := base64.StdEncoding.EncodeToString(api.AppendHeaders(nil, others.Headers))
		if left -= len(coded); left < 0 {
			return false
		}
		set["Record-Headers-B64"] = []string{coded}
	}
	maps.Copy(h, set)
	return true
}

// isHeaderName reports whether a name of a record's header comes back as it is as
// the end of an HTTP header's name, which has no case.
func isHeaderName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// isHeaderValue reports whether an HTTP header holds exactly these bytes.
func isHeaderValue(value []byte) bool {
	for i, c := range value {
		if c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(value)-1) {
			return false
		}
	}
	return true
}

// eventHeaders puts the attributes of a CloudEvent into headers (HTTP protocol
// binding, section 3.1), unless it is too much.
func eventHeaders(h http.Header, e *api.Event) bool {
	set := map[string]string{}
	left := maxRecordHeaders
	e.Attributes(func(name string, value []byte) {
		if left -= len(name) + 3*len(value); left >= 0 {
			set[eventHeaderPrefix+name] = encodeEventValue(value)
		}
	})
	if left < 0 {
		return false
	}
	for name, value := range set {
		h.Set(name, value)
	}
	// Without a type net/http would guess one.
	h["Content-Type"] = nil
	if media := e.ContentType(); media != nil {
		h.Set("Content-Type", string(media))
	}
	return true
}
