package api

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Pointer is a JSON pointer (RFC 6901) that finds the key of a record in its
// value.
type Pointer struct{ tokens []string }

// maxPointer is how long a pointer may be, in bytes.
const maxPointer = 1024

var errNotPointer = errors.New("want a JSON pointer (RFC 6901), as /user/id, of at most 1024 bytes")

// ParsePointer reads a JSON pointer. "" is the whole value.
func ParsePointer(text string) (*Pointer, error) {
	if text == "" {
		return &Pointer{}, nil
	}
	if text[0] != '/' || len(text) > maxPointer {
		return nil, errNotPointer
	}
	tokens := strings.Split(text[1:], "/")
	for i, token := range tokens {
		for at := 0; at < len(token); at++ {
			if token[at] == '~' && (at+1 == len(token) || token[at+1] != '0' && token[at+1] != '1') {
				return nil, errNotPointer
			}
		}
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return &Pointer{tokens}, nil
}

// Key is what the pointer finds in a line: of a string its text, of another
// value its JSON text as it stands, and nil of null and where there is nothing.
// Of members of the same name it takes the first. It fails if the line is not
// one JSON value.
func (p *Pointer) Key(line []byte) ([]byte, error) {
	if err := oneValue(line); err != nil {
		return nil, err
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(line), parserOptions...)
	for _, token := range p.tokens {
		found, err := descend(dec, token)
		if err != nil || !found {
			return nil, err
		}
	}
	raw, err := dec.ReadValue()
	switch {
	case err != nil:
		return nil, err
	case raw[0] == 'n':
		return nil, nil
	case raw[0] == '"':
		return jsontext.AppendUnquote([]byte{}, raw)
	}
	return slices.Clone(raw), nil
}

// oneValue fails unless the line is one JSON value.
func oneValue(line []byte) error {
	if len(line) > 0 && jsontext.Value(line).IsValid(valueOptions...) {
		return nil
	}
	return errNotJSONLine
}

var errNotJSONLine = errors.New("the line is not one JSON value, so key_pointer can find no key in it")

// descend goes into the value that comes next, to its member of that name or its
// element of that number.
func descend(dec *jsontext.Decoder, token string) (found bool, err error) {
	object := false
	switch dec.PeekKind() {
	case '{':
		object = true
	case '[':
	default:
		return false, nil
	}
	if _, err := dec.ReadToken(); err != nil {
		return false, err
	}
	for i := uint64(0); dec.PeekKind() != '}' && dec.PeekKind() != ']'; i++ {
		here := !object && strconv.FormatUint(i, 10) == token
		if object {
			name, err := dec.ReadToken()
			if err != nil {
				return false, err
			}
			here = name.String() == token
		}
		if here {
			return true, nil
		}
		if err := dec.SkipValue(); err != nil {
			return false, err
		}
	}
	return false, nil
}
