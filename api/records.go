package api

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"leat/storage/record"
)

// MaxHeaders is how many headers one record may have.
const MaxHeaders = 100

// MaxRecords is how many records one request may have.
const MaxRecords = 100_000

// AnyPartition leaves the choice of a partition to the broker.
const AnyPartition int32 = -1

// Adder takes records; *broker.RecordSet is one.
type Adder interface {
	Add(partition int32, ts int64, key, value []byte, headers []record.Header) error
}

// placer says where the record being added stands.
type placer interface{ place() *ItemError }

// numbered is a record that has only its number to be found by; inLines says
// that it is also the number of its line.
type numbered struct {
	index   int
	inLines bool
}

func (n numbered) place() *ItemError {
	e := &ItemError{Index: &n.index}
	if n.inLines {
		e.Line = n.index + 1
	}
	return e
}

// Records collects what a parser finds, the good and the bad. Nothing is kept of
// the text that was parsed.
type Records struct {
	// Sink takes the good records; nil only checks.
	Sink Adder
	// Route is the partition that all records go to, or AnyPartition.
	Route int32
	// Now is the time of records without one, in ms.
	Now int64
	// Count is the number of records so far, good and bad.
	Count int
	// Key finds the keys of lines in them; nil leaves lines without a key.
	Key *Pointer
	// Times are the times of the records that the sink took, in ms.
	Times []int64

	errs []ItemError
	// firstOnly says that this is a part of a stream, whose parsing ends with the
	// first line that is bad.
	firstOnly bool
	// more says that there are errors beyond errs.
	more bool
}

// add takes one record. at is where it stands, for the error that the sink may
// have; ts is -1 for now.
func (rs *Records) add(at placer, partition int32, ts int64, key, value []byte, headers []record.Header) {
	rs.Count++
	if rs.Sink == nil {
		return
	}
	if ts < 0 {
		ts = rs.Now
	}
	if err := rs.Sink.Add(partition, ts, key, value, headers); err != nil {
		rs.Refuse(at.place(), err)
		return
	}
	rs.Times = append(rs.Times, ts)
}

// AddOne takes the only record of a request that is not a list of records.
func (rs *Records) AddOne(key, value []byte, headers []record.Header) {
	rs.add(numbered{}, rs.Route, -1, key, value, headers)
}

// Refuse notes that the domain does not take the record at that place.
func (rs *Records) Refuse(at *ItemError, err error) {
	e := Describe(err)
	at.Code, at.Detail, at.status, at.title = e.Code, e.Detail, e.Status, e.Title
	rs.note(at)
}

// note keeps an error; of many, the first maxItemErrors.
func (rs *Records) note(e *ItemError) {
	if len(rs.errs) == maxItemErrors {
		rs.more = true
		return
	}
	rs.errs = append(rs.errs, *e)
}

// Bad reports whether there is an error.
func (rs *Records) Bad() bool { return len(rs.errs) > 0 }

// Finish says what is wrong with the request as a whole, or nil. The error is a
// *Problem.
func (rs *Records) Finish() error {
	if len(rs.errs) == 0 {
		if rs.Count == 0 {
			return EmptyBody("there is no record in the body")
		}
		return nil
	}
	first := &rs.errs[0]
	p := &Problem{
		Status: first.status, Code: first.Code, Title: first.title, Detail: first.Detail,
		Errors: rs.errs, Truncated: rs.more,
	}
	switch {
	case slices.ContainsFunc(rs.errs, func(e ItemError) bool { return e.Code == codeMalformed }):
		p.Status, p.Code, p.Title = http.StatusBadRequest, codeMalformed, titleMalformed
	case slices.ContainsFunc(rs.errs, func(e ItemError) bool { return e.Code != first.Code }):
		p.Status, p.Code, p.Title = http.StatusUnprocessableEntity, "invalid_records", "Invalid records"
	case p.Status == http.StatusRequestEntityTooLarge && (rs.Count > 1 || rs.firstOnly):
		// The request is not too large, one of its records is.
		p.Status = http.StatusUnprocessableEntity
	}
	p.Detail += where(first)
	return p
}

// where puts the place of an error into words.
func where(e *ItemError) string {
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

func tooManyRecords() *Problem {
	return &Problem{
		Status: http.StatusRequestEntityTooLarge, Code: "too_many_records", Title: "Too many records",
		Limit: MaxRecords, Detail: fmt.Sprintf("a request may have %d records", MaxRecords),
	}
}

// CountLines counts the lines of a body; a last one without LF counts.
func CountLines(text []byte) (int, error) {
	n := bytes.Count(text, []byte{'\n'})
	if text[len(text)-1] != '\n' {
		n++
	}
	if n > MaxRecords {
		return 0, tooManyRecords()
	}
	return n, nil
}

// ParseLines takes each line as a value. It is for what AddLines does not do: a
// given partition, keys, and a receipt for each record.
func ParseLines(rs *Records, text []byte) error {
	if _, err := CountLines(text); err != nil {
		return err
	}
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		rs.line(line)
	}
	return nil
}

// line takes a line as a value, its key found in it if that is asked for.
func (rs *Records) line(line []byte) {
	var key []byte
	if rs.Key != nil {
		var err error
		if key, err = rs.Key.Key(line); err != nil {
			at := numbered{rs.Count, true}.place()
			at.Code, at.Detail, at.status, at.title = codeMalformed, err.Error(), http.StatusBadRequest, titleMalformed
			rs.note(at)
			rs.Count++
			return
		}
	}
	rs.add(numbered{rs.Count, true}, rs.Route, -1, key, line, nil)
}

const codeTooManyHeaders = "too_many_headers"

// TooManyHeaders is the problem of a record with more than MaxHeaders headers.
func TooManyHeaders() *Problem {
	return &Problem{
		Status: http.StatusUnprocessableEntity, Code: codeTooManyHeaders, Title: "Too many headers",
		Limit: MaxHeaders, Detail: fmt.Sprintf("a record may have %d headers", MaxHeaders),
	}
}
