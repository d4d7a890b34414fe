package record

import (
	"errors"
	"fmt"
	"strconv"
)

// The kinds of error that this package tells apart; compare with errors.Is.
// The number is Kafka's error code for the kind.
var (
	// ErrCorrupt says that the bytes are not the batch that was sent:
	// checksum, length, or magic (2, which clients retry).
	ErrCorrupt = errors.New("corrupt batch")
	// ErrInvalid says that a batch, intact as it may be, breaks the rules of
	// the format (87).
	ErrInvalid = errors.New("invalid record")
	// ErrTooLarge says that a batch expands beyond the limit (10).
	ErrTooLarge = errors.New("batch expands beyond the limit")
	// ErrUnsupportedCodec says that the codec id is none of the five (76).
	ErrUnsupportedCodec = errors.New("unsupported compression type")
	// ErrTimestamp says that a timestamp, or its type, is not allowed (32).
	ErrTimestamp = errors.New("invalid timestamp")
)

// Error says what is wrong with a batch. Kind is one of the sentinels above,
// or io.ErrUnexpectedEOF for a batch that is cut.
type Error struct {
	Kind   error
	Record int // index in the batch, -1 for the batch as a whole
	Reason string
}

// Error is the kind, the record's index if there is one, and the reason.
func (e *Error) Error() string {
	if e.Record < 0 {
		return e.Kind.Error() + ": " + e.Reason
	}
	return e.Kind.Error() + ": record " + strconv.Itoa(e.Record) + ": " + e.Reason
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// fault makes an Error about the batch as a whole.
func fault(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Record: -1, Reason: fmt.Sprintf(format, args...)}
}

// at says which record e is about.
func (e *Error) at(record int) *Error {
	e.Record = record
	return e
}
