package api

import (
	"fmt"
	"strconv"
)

// eventMember is a set of the members of an event that are no attributes.
type eventMember uint8

const (
	memberData eventMember = 1 << iota
	memberDataBase64
)

// eventParser is the part of the parser that is for CloudEvents.
type eventParser struct {
	event Event
	has   eventMember
	// data is the text of the member data, or what data_base64 holds.
	data []byte
}

// ParseEvent reads one CloudEvent in the JSON format.
func ParseEvent(rs *Records, body []byte) error {
	p := takeParser(rs, body)
	defer p.give()
	p.begin(body, 0)
	err := p.cloudEvent()
	if err == nil {
		err = p.end()
	}
	return p.stop(err)
}

// ParseEvents reads an array of CloudEvents, the JSON batch format.
func ParseEvents(rs *Records, body []byte) error {
	p := takeParser(rs, body)
	defer p.give()
	p.begin(body, 0)
	if p.dec.PeekKind() != '[' {
		if _, err := p.dec.ReadValue(); err != nil {
			return p.stop(err)
		}
		return Malformed("want an array of CloudEvents")
	}
	err := p.arrayOf(p.cloudEvent)
	if err == nil {
		err = p.end()
	}
	return p.stop(err)
}

// cloudEvent reads one event. An error is as of record.
func (p *jsonParser) cloudEvent() error {
	p.current = p.rs.Count
	p.fault, p.scratch = nil, p.scratch[:0]
	p.ce.event.reset()
	p.ce.has, p.ce.data = 0, nil
	if p.rs.Count == MaxRecords {
		return tooManyRecords()
	}
	if p.dec.PeekKind() != '{' {
		if err := p.dec.SkipValue(); err != nil {
			return err
		}
		p.complain("a CloudEvent must be an object")
	} else if err := p.members(p.takeEventMember); err != nil {
		return err
	}
	data := p.eventData()
	if missing := p.ce.event.Missing(); missing != "" {
		p.complainEvent(missing)
	}
	if p.fault != nil {
		p.rs.note(p.fault)
		p.rs.Count++
		return nil
	}
	key, headers := p.ce.event.record()
	p.rs.add(p, p.rs.Route, -1, key, data, headers)
	return nil
}

// eventData is the data as the Kafka binding stores it: JSON as it stands, text
// as such, and null for no data.
func (p *jsonParser) eventData() []byte {
	e := &p.ce
	switch {
	case e.has == 0 || p.fault != nil:
		return nil
	case e.has == memberData|memberDataBase64:
		p.complainEvent("data and data_base64 are both given")
		return nil
	case e.has == memberDataBase64:
		return e.data
	case !isJSONType(e.event.media):
		if e.data[0] != '"' {
			p.complainEvent("data must be a string, because datacontenttype is not of JSON; data_base64 takes any bytes")
			return nil
		}
		return p.unquote(e.data)
	case tooDeep(e.data):
		p.complain(fmt.Sprintf("arrays and objects nest deeper than %d", maxDepth))
	case e.event.media == nil:
		// What the format implies is said where it would be lost.
		e.event.media = []byte("application/json")
	}
	return e.data
}

func (p *jsonParser) eventMember(name []byte) error {
	raw, err := p.raw()
	if err != nil {
		return err
	}
	if p.fault != nil {
		return nil
	}
	switch string(name) {
	case "data":
		p.onceOfEvent(memberData, "data")
		p.ce.data = raw
	case "data_base64":
		if raw[0] == 'n' {
			return nil
		}
		p.onceOfEvent(memberDataBase64, "data_base64")
		if text := p.stringOf(raw, "data_base64 must be a string"); text != nil {
			p.ce.data = p.decode64(text)
		}
	default:
		p.attribute(string(name), raw)
	}
	return nil
}

func (p *jsonParser) onceOfEvent(m eventMember, name string) {
	if p.ce.has&m != 0 {
		p.complainEvent(name + " is given more than once")
	}
	p.ce.has |= m
}

// attribute takes an attribute by its JSON value. Those of the specification are
// strings; extensions may also be booleans and whole numbers of 32 bits. null is
// as if it were not there.
func (p *jsonParser) attribute(name string, raw []byte) {
	value := raw
	switch raw[0] {
	case 'n':
		return
	case '"':
		value = p.unquote(raw)
	case '{', '[':
		p.complainEvent(name + " must be a string, a number or a boolean; only data may be an object or an array")
		return
	default:
		if !isExtension(name) {
			p.complainEvent(name + " must be a string")
			return
		}
		if _, err := strconv.ParseInt(string(raw), 10, 32); err != nil && raw[0] != 't' && raw[0] != 'f' {
			p.complainEvent(name + " must be a whole number from -2147483648 to 2147483647, without fraction and exponent")
			return
		}
	}
	if complaint := p.ce.event.Set(name, value); complaint != "" {
		p.complainEvent(complaint)
	} else if len(p.ce.event.headers) > MaxHeaders {
		p.complainHeaders()
	}
}

// isExtension reports whether an attribute is none of the specification's own.
func isExtension(name string) bool {
	switch name {
	case "specversion", "id", "source", "type", "subject", "time", "dataschema", attrContentType:
		return false
	}
	return true
}

// complainEvent notes that the event breaks a rule of CloudEvents.
func (p *jsonParser) complainEvent(detail string) {
	if p.fault == nil {
		p.fault = p.place()
		p.fault.Detail = detail
		asEventFault(p.fault)
	}
}
