package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

const blockSize = 256 << 10 // bytes read from stdin at once

// lineError is a line of the input that cannot be a record, or a record of a load generator.
type lineError struct {
	What string // "line", "record"
	Line int64  // from 1
	Err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("%s %d: %v", e.What, e.Line, e.Err) }
func (e *lineError) Unwrap() error { return e.Err }

// splitter cuts blocks of input into lines. A line ends at LF; CR is part of the line; the last line needs no LF.
// Pure: it does no I/O.
type splitter struct {
	limit limit  // of a line without its LF
	rest  []byte // the beginning of a line whose LF has not come yet
	line  int64  // lines given out so far
}

// long is the error of the line with this number.
func (s *splitter) long(line int64) error {
	return &lineError{What: "line", Line: line, Err: s.limit.exceeded()}
}

// feed gives every line that ends in block to each, with its number. Lines are parts of block, or copies, and stay
// valid for as long as the caller leaves block alone.
func (s *splitter) feed(block []byte, each func(line int64, text []byte) error) error {
	for {
		end := bytes.IndexByte(block, '\n')
		if end < 0 {
			if len(s.rest)+len(block) > s.limit.bytes {
				return s.long(s.line + 1)
			}
			s.rest = append(s.rest, block...)
			return nil
		}
		text := block[:end:end]
		if len(s.rest) > 0 {
			text = append(s.rest, text...)
			s.rest = nil // text belongs to the record now
		}
		s.line++
		if len(text) > s.limit.bytes {
			return s.long(s.line)
		}
		if err := each(s.line, text); err != nil {
			return &lineError{What: "line", Line: s.line, Err: err}
		}
		block = block[end+1:]
	}
}

// finish gives out the last line if it had no LF.
func (s *splitter) finish(each func(line int64, text []byte) error) error {
	if len(s.rest) == 0 {
		return nil
	}
	text := s.rest
	s.rest = nil
	s.line++
	if err := each(s.line, text); err != nil {
		return &lineError{What: "line", Line: s.line, Err: err}
	}
	return nil
}

// block is one read of the input. Err is io.EOF after the last one.
type block struct {
	data []byte
	err  error
}

// readBlocks reads in until it fails or done is closed and sends every block, fresh memory each. It owns in: a read that
// blocks (a terminal) cannot be interrupted, so after Ctrl-C it may outlive its caller until the process ends.
func readBlocks(in io.Reader, blocks chan<- block, done <-chan struct{}) {
	buf := make([]byte, blockSize)
	for {
		n, err := in.Read(buf)
		data := buf[:n:n]
		if n < blockSize/4 { // a terminal or a slow pipe: do not hold a whole block for a few lines
			data = bytes.Clone(data)
		} else {
			buf = make([]byte, blockSize)
		}
		select {
		case blocks <- block{data: data, err: err}:
		case <-done:
			return
		}
		if err != nil {
			return
		}
	}
}

var errNoSeparator = errors.New("no key separator (with --tombstone such a line is a key whose value is null)")

// lineFormat says how a line becomes the key and value of a record.
type lineFormat struct {
	separator []byte // empty: the line is the value
	tombstone bool   // a line without separator is a key with a null value
}

// parse returns slices of text. A nil slice is null, an empty one is empty.
func (f lineFormat) parse(text []byte) (key, value []byte, err error) {
	if len(f.separator) > 0 {
		if at := bytes.Index(text, f.separator); at >= 0 {
			return text[:at:at], text[at+len(f.separator):], nil
		}
		if !f.tombstone {
			return nil, nil, errNoSeparator
		}
	}
	if text == nil {
		text = []byte{}
	}
	if f.tombstone {
		return text, nil, nil
	}
	return nil, text, nil
}
