package storage

import (
	"errors"
	"fmt"
)

// The errors that callers tell apart; compare with errors.Is. Errors about a
// batch's content are record's; ErrOutOfOrderSequence and ErrProducerEpoch
// stand beside the producer state.
var (
	// ErrBusy says that another process has the data directory open.
	ErrBusy = errors.New("data directory is in use")
	// ErrClosed says that the log or the directory was closed or removed.
	ErrClosed = errors.New("log is closed")
	// ErrFailed says that the data directory has failed for good: a sync
	// failed, or a write that could not be undone. Only a restart helps.
	ErrFailed = errors.New("data directory has failed")
	// ErrFull says that there was no room to append. Nothing was appended; a
	// later append may work.
	ErrFull = errors.New("no space left in the data directory")
	// ErrWrite says that the operating system refused a write for another
	// reason than room. Nothing was appended.
	ErrWrite = errors.New("append was refused by the file system")
	// ErrTooLarge is the kind of *TooLargeError.
	ErrTooLarge = errors.New("batch is too large")
	// ErrOffsetOutOfRange is the kind of *OffsetError.
	ErrOffsetOutOfRange = errors.New("offset is out of range")
	// ErrCorrupt is the kind of *CorruptError.
	ErrCorrupt = errors.New("log is damaged")
	// ErrDamaged says that the log has holes and takes nothing until it is
	// repaired.
	ErrDamaged = errors.New("partition is damaged")
)

// errSync is the kind of a failed sync. The kernel reports the error once and
// may have dropped the data, so a sync is never tried again.
var errSync = errors.New("sync failed")

// syncFault marks the error of a sync as such; nil stays nil.
func syncFault(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", errSync, path, err)
}

// TooLargeError says that a batch exceeds max.message.bytes. Both are bytes.
type TooLargeError struct {
	Size, Max int
}

// Error names the size and the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("batch of %d bytes is larger than the %d bytes allowed", e.Size, e.Max)
}

// Unwrap returns ErrTooLarge.
func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

// OffsetError says that a read asked for an offset outside [Start, End].
type OffsetError struct {
	Offset, Start, End int64
}

// Error names the offset and the range.
func (e *OffsetError) Error() string {
	return fmt.Sprintf("offset %d is outside of [%d, %d]", e.Offset, e.Start, e.End)
}

// Unwrap returns ErrOffsetOutOfRange.
func (e *OffsetError) Unwrap() error { return ErrOffsetOutOfRange }

// CorruptError says that stored records are damaged: the file, the position
// of the damage in it, and what is wrong there. From a read it has the offsets
// [From, To) that are lost, both 0 if that is not known. It is also the kind
// ErrCorrupt.
type CorruptError struct {
	Path     string
	Pos      int64
	Err      error
	From, To int64
}

// Error names the place and the reason.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %v", e.Path, e.Pos, e.Err)
}

// Unwrap returns ErrCorrupt and the reason.
func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }
