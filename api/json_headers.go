package api

import "leat/storage/record"

// headersMember reads the headers of a record: an object of strings and nulls,
// or an ordered array of {name, value|value_b64}.
func (p *jsonParser) headersMember() error {
	switch p.dec.PeekKind() {
	case '{':
		return p.members(p.takeHeader)
	case '[':
		return p.headerArray()
	default:
		err := p.dec.SkipValue()
		p.complain("headers must be an object or an array")
		return err
	}
}

func (p *jsonParser) headerOfObject(name []byte) error {
	if len(p.headers) == MaxHeaders {
		p.complainHeaders()
	}
	if p.fault != nil {
		return p.dec.SkipValue()
	}
	for i := range p.headers {
		if p.headers[i].Key == string(name) {
			p.complain("a header is given more than once; an array of headers may repeat names")
		}
	}
	h := record.Header{Key: string(name)}
	raw, err := p.raw()
	if err != nil {
		return err
	}
	switch raw[0] {
	case 'n':
	case '"':
		h.Value = p.unquote(raw)
	default:
		p.complain("the value of a header must be a string or null")
	}
	p.headers = append(p.headers, h)
	return nil
}

func (p *jsonParser) headerArray() error {
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	for p.dec.PeekKind() != ']' {
		if err := p.headerOfArray(); err != nil {
			return err
		}
	}
	_, err := p.dec.ReadToken()
	return err
}

func (p *jsonParser) headerOfArray() error {
	if len(p.headers) == MaxHeaders {
		p.complainHeaders()
	}
	if p.fault != nil || p.dec.PeekKind() != '{' {
		err := p.dec.SkipValue()
		p.complain("a header must be an object")
		return err
	}
	var h record.Header
	// The members of a header share their names' bits with the record's, so
	// the record's are put aside.
	outer := p.seen
	p.seen = 0
	err := p.members(func(name []byte) (err error) {
		switch string(name) {
		case "name":
			p.once(memberName, "name")
			err = p.headerName(&h)
		case "value":
			h.Value, err = p.headerValue()
		case "value_b64":
			h.Value, err = p.base64Member(memberValue, "value")
		default:
			err = p.unknown(name)
		}
		return err
	})
	if err != nil {
		return err
	}
	if p.seen&memberName == 0 {
		p.complain("a header needs a name")
	}
	p.seen = outer
	p.headers = append(p.headers, h)
	return nil
}

func (p *jsonParser) headerName(h *record.Header) error {
	raw, err := p.raw()
	if err != nil {
		return err
	}
	if raw[0] != '"' {
		p.complain("the name of a header must be a string")
		return nil
	}
	h.Key = string(p.unquote(raw))
	return nil
}

func (p *jsonParser) headerValue() ([]byte, error) {
	p.once(memberValue, "value")
	raw, err := p.raw()
	if err != nil || raw[0] == 'n' {
		return nil, err
	}
	if raw[0] != '"' {
		p.complain("the value of a header must be a string or null")
		return nil, nil
	}
	return p.unquote(raw), nil
}
