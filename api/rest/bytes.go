package rest

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"leat/api"
	"leat/storage/record"
)

// parseBytes takes the body as one value, its key and headers from the
// request's headers. HTTP does not keep the case of header names, so the names
// of the record's headers are in lower case, in alphabetical order. With typed,
// the Content-Type is one of them.
func parseBytes(rs *api.Records, r *http.Request, text []byte, typed bool) error {
	var key []byte
	plain, isPlain := r.Header["Record-Key"]
	coded, isCoded := r.Header["Record-Key-B64"]
	switch {
	case len(plain)+len(coded) > 1:
		return api.Malformed("Record-Key and Record-Key-B64 may be given once in all")
	case isPlain:
		key = []byte(plain[0])
	case isCoded:
		var err error
		if key, err = api.AppendBase64([]byte{}, base64.StdEncoding, []byte(coded[0])); err != nil {
			return api.Malformed("Record-Key-B64 is not base64")
		}
	}
	var headers []record.Header
	for name, values := range r.Header {
		if tail, ok := strings.CutPrefix(strings.ToLower(name), recordHeaderPrefix); ok {
			for _, v := range values {
				headers = append(headers, record.Header{Key: tail, Value: []byte(v)})
			}
		}
	}
	if media := r.Header.Get("Content-Type"); typed && media != "" {
		headers = append(headers, record.Header{Key: "content-type", Value: []byte(media)})
	}
	if len(headers) > api.MaxHeaders {
		return api.TooManyHeaders()
	}
	slices.SortStableFunc(headers, func(a, b record.Header) int { return strings.Compare(a.Key, b.Key) })
	rs.AddOne(key, text, headers)
	return nil
}
