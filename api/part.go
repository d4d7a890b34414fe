package api

import "bytes"

// ParsePart reads records from some whole lines of a stream, until the first
// that is bad: those before it are in the sink. With values each line is a
// value. Shift must come before Finish.
func ParsePart(rs *Records, text []byte, values bool) error {
	rs.firstOnly = true
	if !values {
		return ParseNDJSON(rs, text)
	}
	for len(text) > 0 && len(rs.errs) == 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		rs.line(line)
	}
	return nil
}

// Part is where a part of a stream begins: how many records, lines and bytes are
// before it.
type Part struct {
	Records, Lines int
	Bytes          int64
}

// Shift makes the places of the errors those in the stream that text is a part
// of. An error that knows only its line gets the byte where that begins.
func (rs *Records) Shift(by Part, text []byte) {
	// One of many, although the others are not in rs.
	rs.firstOnly = true
	for i := range rs.errs {
		e := &rs.errs[i]
		if e.Index != nil {
			index := *e.Index + by.Records
			e.Index = &index
		}
		if e.Byte == nil {
			at := int64(len(text) - len(FromLine(text, e.Line)))
			e.Byte = &at
		}
		at := *e.Byte + by.Bytes
		e.Byte = &at
		e.Line += by.Lines
	}
}

// FromLine is text from the line of that number on, counted from 1.
func FromLine(text []byte, line int) []byte {
	for range line - 1 {
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	return text
}
