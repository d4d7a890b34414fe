package rest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"leat/api"
	"leat/storage/record"
)

// maxHeaders is how many headers one record may have.
const maxHeaders = 100

// adder takes records; *broker.RecordSet is one.
type adder interface {
	Add(partition int32, ts int64, key, value []byte, headers []record.Header) error
}

// placer says where the record being added stands.
type placer interface{ place() *itemError }

// numbered is a record that has only its number to be found by; inLines says
// that it is also the number of its line.
type numbered struct {
	index   int
	inLines bool
}

func (n numbered) place() *itemError {
	e := &itemError{Index: &n.index}
	if n.inLines {
		e.Line = n.index + 1
	}
	return e
}

// records collects what a parser finds, the good and the bad.
type records struct {
	// sink takes the good records; nil only checks.
	sink adder
	// route is the partition that the path names, or anyPartition.
	route int32
	// now is the time of records without one, in ms.
	now int64
	// count is the number of records so far, good and bad.
	count int
	times []int64
	errs  []itemError
	// more says that there are errors beyond errs.
	more bool
}

// add takes one record. at is where it stands, for the error that the sink may
// have; ts is -1 for now.
func (rs *records) add(at placer, partition int32, ts int64, key, value []byte, headers []record.Header) {
	rs.count++
	if rs.sink == nil {
		return
	}
	if ts < 0 {
		ts = rs.now
	}
	if err := rs.sink.Add(partition, ts, key, value, headers); err != nil {
		rs.refuse(at.place(), err)
		return
	}
	rs.times = append(rs.times, ts)
}

// refuse notes that the domain does not take the record at that place.
func (rs *records) refuse(at *itemError, err error) {
	e := api.Describe(err)
	at.Code, at.Detail, at.status, at.title = e.Code, e.Detail, e.Status, e.Title
	rs.note(at)
}

// note keeps an error; of many, the first maxItemErrors.
func (rs *records) note(e *itemError) {
	if len(rs.errs) == maxItemErrors {
		rs.more = true
		return
	}
	rs.errs = append(rs.errs, *e)
}

// finish says what is wrong with the request as a whole, or nil.
func (rs *records) finish() error {
	if len(rs.errs) == 0 {
		if rs.count == 0 {
			return emptyBody("there is no record in the body")
		}
		return nil
	}
	first := &rs.errs[0]
	p := &problem{
		Status: first.status, Code: first.Code, Title: first.title, Detail: first.Detail,
		Errors: rs.errs, Truncated: rs.more,
	}
	switch {
	case slices.ContainsFunc(rs.errs, func(e itemError) bool { return e.Code == codeMalformed }):
		p.Status, p.Code, p.Title = http.StatusBadRequest, codeMalformed, titleMalformed
	case slices.ContainsFunc(rs.errs, func(e itemError) bool { return e.Code != first.Code }):
		p.Status, p.Code, p.Title = http.StatusUnprocessableEntity, "invalid_records", "Invalid records"
	case p.Status == http.StatusRequestEntityTooLarge && rs.count > 1:
		// The request is not too large, one of its records is.
		p.Status = http.StatusUnprocessableEntity
	}
	p.Detail += where(first)
	return p
}

// where puts the place of an error into words.
func where(e *itemError) string {
	var b strings.Builder
	if e.Index != nil {
		fmt.Fprintf(&b, ", record %d", *e.Index)
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, ", line %d", e.Line)
	}
	if e.Byte != nil {
		fmt.Fprintf(&b, ", byte %d", *e.Byte)
	}
	if b.Len() == 0 {
		return ""
	}
	return " (at" + b.String()[1:] + ")"
}

const (
	codeMalformed  = "malformed_body"
	titleMalformed = "Malformed body"
)

func malformed(detail string) *problem {
	return &problem{Status: http.StatusBadRequest, Code: codeMalformed, Title: titleMalformed, Detail: detail}
}

func emptyBody(detail string) *problem {
	return &problem{Status: http.StatusBadRequest, Code: "empty_body", Title: "Empty body", Detail: detail}
}

func tooManyRecords() *problem {
	return &problem{
		Status: http.StatusRequestEntityTooLarge, Code: "too_many_records", Title: "Too many records",
		Limit: maxRecords, Detail: fmt.Sprintf("a request may have %d records", maxRecords),
	}
}

// countLines counts the lines of a body; a last one without LF counts.
func countLines(text []byte) (int, error) {
	n := bytes.Count(text, []byte{'\n'})
	if text[len(text)-1] != '\n' {
		n++
	}
	if n > maxRecords {
		return 0, tooManyRecords()
	}
	return n, nil
}

// parseLines takes each line as a value. It is for what AddLines does not do:
// a given partition, and a receipt for each record.
func parseLines(rs *records, text []byte) error {
	if _, err := countLines(text); err != nil {
		return err
	}
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		rs.add(numbered{rs.count, true}, rs.route, -1, nil, line, nil)
	}
	return nil
}

// parseBytes takes the body as one value, its key and headers from the
// request's headers. HTTP does not keep the case of header names, so the names
// of the record's headers are in lower case, in alphabetical order.
func parseBytes(rs *records, r *http.Request, text []byte) error {
	var key []byte
	plain, isPlain := r.Header["Record-Key"]
	coded, isCoded := r.Header["Record-Key-B64"]
	switch {
	case len(plain)+len(coded) > 1:
		return malformed("Record-Key and Record-Key-B64 may be given once in all")
	case isPlain:
		key = []byte(plain[0])
	case isCoded:
		var err error
		if key, err = appendBase64([]byte{}, base64.StdEncoding, []byte(coded[0])); err != nil {
			return malformed("Record-Key-B64 is not base64")
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
	if len(headers) > maxHeaders {
		return tooManyHeaders()
	}
	slices.SortStableFunc(headers, func(a, b record.Header) int { return strings.Compare(a.Key, b.Key) })
	rs.add(numbered{}, rs.route, -1, key, text, headers)
	return nil
}

const codeTooManyHeaders = "too_many_headers"

func tooManyHeaders() *problem {
	return &problem{
		Status: http.StatusUnprocessableEntity, Code: codeTooManyHeaders, Title: "Too many headers",
		Limit: maxHeaders, Detail: fmt.Sprintf("a record may have %d headers", maxHeaders),
	}
}
