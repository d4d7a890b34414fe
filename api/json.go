package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/storage/record"
)

// maxDepth is how deep arrays and objects of one JSON value may nest.
const maxDepth = 64

// parserOptions let duplicate names in values pass, which are stored as they
// are; the members of a record are checked here, at less cost.
var parserOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

// jsonParser reads records from JSON text by tokens. Values are slices of the
// text, so they are stored byte for byte.
type jsonParser struct {
	rs *Records
	// body is the whole text; doc the document being read, which is the body or
	// one line of it, from base on.
	body, doc []byte
	base      int
	// counted is up to where the line feeds of the body are counted, and feeds how
	// many there are: places come in about the order of the body.
	counted, feeds int

	dec jsontext.Decoder
	buf bytes.Buffer
	// scratch holds strings that had to be decoded. It is appended to only,
	// within a record, so that slices of it stay good.
	scratch []byte
	headers []record.Header

	// current is the index of the record being read, -1 outside of records.
	current int
	// alone says that the record is all of the document.
	alone      bool
	seen       member
	partition  int32
	ts         int64
	key, value []byte
	fault      *ItemError // the first error of the record
	ce         eventParser

	// Methods bound once, not for each record.
	takeRecordMember, takeHeader, takeEventMember func(name []byte) error
}

// member is a set of the members of a record that were given.
type member uint8

const (
	memberKey member = 1 << iota
	memberValue
	memberHeaders
	memberPartition
	memberTimestamp
	memberName // of a header
)

// maxKeptScratch is the largest scratch that is kept for the next request.
const maxKeptScratch = 1 << 20

var jsonParsers = sync.Pool{New: func() any {
	p := new(jsonParser)
	p.takeRecordMember, p.takeHeader, p.takeEventMember = p.recordMember, p.headerOfObject, p.eventMember
	return p
}}

func takeParser(rs *Records, body []byte) *jsonParser {
	p := jsonParsers.Get().(*jsonParser)
	p.rs, p.body, p.counted, p.feeds = rs, body, 0, 0
	return p
}

func (p *jsonParser) give() {
	if cap(p.scratch) > maxKeptScratch {
		p.scratch = nil
	}
	clear(p.headers[:cap(p.headers)])
	p.rs, p.body, p.doc, p.key, p.value, p.fault = nil, nil, nil, nil, nil, nil
	p.ce.event.headers = p.ce.event.headers[:cap(p.ce.event.headers)]
	p.ce.event.reset()
	p.ce.data = nil
	p.buf = bytes.Buffer{}
	p.dec.Reset(&p.buf)
	jsonParsers.Put(p)
}

// begin starts on a document that stands at base in the body.
func (p *jsonParser) begin(doc []byte, base int) {
	p.doc, p.base, p.current, p.alone = doc, base, -1, false
	p.buf = *bytes.NewBuffer(doc)
	p.dec.Reset(&p.buf, parserOptions...)
}

// ParseJSON reads {"records":[…]} or a bare array of records.
func ParseJSON(rs *Records, body []byte) error {
	p := takeParser(rs, body)
	defer p.give()
	p.begin(body, 0)
	var err error
	switch p.dec.PeekKind() {
	case '[':
		err = p.arrayOf(p.record)
	case '{':
		err = p.envelope()
	default:
		if _, err = p.dec.ReadValue(); err == nil {
			return Malformed("want an object with records, or an array of records")
		}
	}
	if err == nil {
		err = p.end()
	}
	return p.stop(err)
}

// ParseNDJSON reads a record from each line that is not blank.
func ParseNDJSON(rs *Records, body []byte) error {
	p := takeParser(rs, body)
	defer p.give()
	for base := 0; base < len(body); {
		line := body[base:]
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line = line[:end]
		}
		if len(bytes.TrimLeft(line, " \t\r\n")) > 0 {
			p.begin(line, base)
			before := rs.Count
			p.alone = true
			err := p.record()
			if _, fatal := errors.AsType[*Problem](err); fatal {
				return err
			}
			// A bad line does not hide those after it.
			if err != nil {
				rs.Count = before
				rs.note(p.syntaxError(err))
				rs.Count++
			}
			if rs.firstOnly && len(rs.errs) > 0 {
				return nil
			}
		}
		base += len(line) + 1
	}
	return nil
}

// stop makes the error that ended the parsing the request's: of the text as far
// as it was read.
func (p *jsonParser) stop(err error) error {
	if err == nil {
		return nil
	}
	if _, fatal := errors.AsType[*Problem](err); fatal {
		return err
	}
	if errors.Is(err, io.EOF) {
		return EmptyBody("the body is blank")
	}
	p.rs.note(p.syntaxError(err))
	return p.rs.Finish()
}

// errTrailing says that something follows the document.
var errTrailing = errors.New("data after the end of the JSON value")

// end checks that nothing follows the document.
func (p *jsonParser) end() error {
	if len(bytes.TrimLeft(p.doc[p.dec.InputOffset():], " \t\r\n")) > 0 {
		return errTrailing
	}
	return nil
}

func (p *jsonParser) envelope() error {
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	seen := false
	for p.dec.PeekKind() != '}' {
		name, err := p.text()
		if err != nil {
			return err
		}
		switch {
		case string(name) != "records":
			p.rs.note(p.here(fmt.Sprintf("unknown member %q", Clip(string(name)))))
			err = p.dec.SkipValue()
		case seen:
			p.rs.note(p.here("records is given more than once"))
			err = p.dec.SkipValue()
		case p.dec.PeekKind() != '[':
			seen = true
			if err = p.dec.SkipValue(); err == nil {
				p.rs.note(p.here("records must be an array"))
			}
		default:
			seen = true
			err = p.arrayOf(p.record)
		}
		if err != nil {
			return err
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	if !seen {
		p.rs.note(p.here("member records is missing"))
	}
	return nil
}

// arrayOf reads an array, each element by read.
func (p *jsonParser) arrayOf(read func() error) error {
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	for p.dec.PeekKind() != ']' {
		if err := read(); err != nil {
			return err
		}
	}
	p.current = -1
	_, err := p.dec.ReadToken()
	return err
}

// record reads one record. An error is of the syntax, or a *Problem that ends
// the request; what else is wrong goes to the collected errors.
func (p *jsonParser) record() error {
	p.current = p.rs.Count
	p.seen, p.partition, p.ts, p.key, p.value, p.fault = 0, p.rs.Route, -1, nil, nil, nil
	p.scratch, p.headers = p.scratch[:0], p.headers[:0]
	if p.rs.Count == MaxRecords {
		return tooManyRecords()
	}
	if p.dec.PeekKind() != '{' {
		if err := p.dec.SkipValue(); err != nil {
			return err
		}
		p.complain("a record must be an object")
	} else if err := p.members(p.takeRecordMember); err != nil {
		return err
	}
	if p.alone {
		// Before the record is taken.
		if err := p.end(); err != nil {
			return err
		}
	}
	if p.fault != nil {
		p.rs.note(p.fault)
		p.rs.Count++
		return nil
	}
	p.rs.add(p, p.partition, p.ts, p.key, p.value, p.headers)
	return nil
}

// members reads an object and gives each member's name to take, which reads
// the value.
func (p *jsonParser) members(take func(name []byte) error) error {
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	for p.dec.PeekKind() != '}' {
		name, err := p.text()
		if err != nil {
			return err
		}
		if err := take(name); err != nil {
			return err
		}
	}
	_, err := p.dec.ReadToken()
	return err
}

// complain notes the first error of the record, at the value just read.
func (p *jsonParser) complain(detail string) {
	if p.fault == nil {
		p.fault = p.here(detail)
	}
}

// complainHeaders notes that the record has too many headers.
func (p *jsonParser) complainHeaders() {
	if p.fault == nil {
		tm := TooManyHeaders()
		p.fault = p.place()
		p.fault.Code, p.fault.Detail, p.fault.status, p.fault.title = tm.Code, tm.Detail, tm.Status, tm.Title
	}
}

// here is an error about the token or value just read.
func (p *jsonParser) here(detail string) *ItemError {
	e := p.place()
	e.Code, e.Detail, e.status, e.title = codeMalformed, detail, http.StatusBadRequest, titleMalformed
	return e
}

// place is where the parser stands.
func (p *jsonParser) place() *ItemError {
	e := p.at(int(p.dec.InputOffset()))
	e.Pointer = clipPointer(p.dec.StackPointer())
	return e
}

// clipPointer bounds a pointer, which has the names of members as the request has
// them.
func clipPointer(ptr jsontext.Pointer) string { return clip(string(ptr), 256) }

// at is the place of a byte of the document.
func (p *jsonParser) at(offset int) *ItemError {
	pos := min(p.base+offset, len(p.body))
	at := int64(pos)
	e := &ItemError{Line: p.line(pos), Byte: &at}
	if p.current >= 0 {
		index := p.current
		e.Index = &index
	}
	return e
}

// line is the number of the line that a byte of the body stands in. A body may
// have an error in each of its records, so it is not counted anew for each.
func (p *jsonParser) line(pos int) int {
	if pos >= p.counted {
		p.feeds += bytes.Count(p.body[p.counted:pos], []byte{'\n'})
	} else {
		p.feeds -= bytes.Count(p.body[pos:p.counted], []byte{'\n'})
	}
	p.counted = pos
	return 1 + p.feeds
}

// syntaxError puts what the decoder found into words of the door.
func (p *jsonParser) syntaxError(err error) *ItemError {
	offset, pointer, detail := int(p.dec.InputOffset()), clipPointer(p.dec.StackPointer()), err.Error()
	if se, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset, pointer, detail = int(se.ByteOffset), clipPointer(se.JSONPointer), se.Err.Error()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		detail = "the JSON text ended early"
	}
	e := p.at(offset)
	e.Pointer = pointer
	e.Code, e.status, e.title = codeMalformed, http.StatusBadRequest, titleMalformed
	e.Detail = bounded(strings.TrimPrefix(detail, "jsontext: "))
	return e
}

// ParseObject reads one JSON object without unknown members into a struct. The
// error is a *Problem that says where it is wrong.
func ParseObject(body []byte, into any) error {
	if jsontext.Value(body).Kind() != '{' && jsontext.Value(body).IsValid() {
		return Malformed("want a JSON object")
	}
	err := json.Unmarshal(body, into, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	rs := &Records{}
	p := &jsonParser{rs: rs, body: body, current: -1}
	if se, ok := errors.AsType[*json.SemanticError](err); ok {
		// Its text names Go types; the place says enough.
		e := p.at(int(se.ByteOffset))
		e.Pointer = clipPointer(se.JSONPointer)
		e.Code, e.status, e.title = codeMalformed, http.StatusBadRequest, titleMalformed
		e.Detail = "wrong type or value out of range for " + strconv.Quote(e.Pointer)
		if errors.Is(err, json.ErrUnknownName) {
			e.Detail = "unknown member " + strconv.Quote(e.Pointer)
		}
		rs.note(e)
	} else {
		rs.note(p.syntaxError(err))
	}
	return rs.Finish()
}
