package ws

import (
	"bytes"
	"errors"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// stringOf decodes a JSON string that is known to be valid.
func stringOf(raw []byte) (string, bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	return string(text), err == nil
}

// integerOf reads an integer within bounds.
func integerOf(raw []byte, low, high int64) (int64, bool) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil && n >= low && n <= high
}

// identOf takes a string or an integer as it stands.
func identOf(raw []byte) (ident, bool) {
	switch {
	case len(raw) == 0:
		return "", false
	case raw[0] == '"':
		return ident(raw), len(raw) > 2 && len(raw)-2 <= maxIdent
	}
	_, ok := integerOf(raw, math.MinInt64, math.MaxInt64)
	return ident(raw), ok
}

var errUnwanted = errors.New("unwanted element")

// elements gives each value of a valid JSON array to take, until it refuses one.
func elements(raw []byte, take func(v []byte) bool) error {
	d := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		if !take(v) {
			return errUnwanted
		}
	}
	return nil
}

// pairs gives each member of a valid JSON object to take, until it refuses one.
// A name that comes twice is refused.
func pairs(raw []byte, take func(name string, v []byte) bool) error {
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		text := name.String()
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		if !take(text, v) {
			return errUnwanted
		}
	}
	return nil
}

// isProduce reports whether a message whose beginning is head says, in its
// first member, that it is a produce. Only such a message may be large.
func isProduce(head []byte) bool {
	head = bytes.TrimLeft(head, " \t\r\n")
	for _, want := range []string{"{", `"type"`, ":", `"produce"`} {
		var ok bool
		if head, ok = bytes.CutPrefix(head, []byte(want)); !ok {
			return false
		}
		head = bytes.TrimLeft(head, " \t\r\n")
	}
	return true
}
