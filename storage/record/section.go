package record

import (
	"io"
	"os"
)

// Section is a range of whole batches in a segment file, handed from the log
// to a door. The bytes cannot change or vanish before Release. A Section is
// used by one goroutine at a time.
type Section interface {
	// ReaderAt reads with offsets relative to the section's start.
	io.ReaderAt
	// Len is the size in bytes, more than zero.
	Len() int64
	// File gives the operating system's file and the absolute position of
	// the first byte, for sendfile; f is nil where there is no such file.
	// The section keeps ownership of f. The file's own position is not used
	// and must not be moved.
	File() (f *os.File, pos int64)
	// NextOffset is the offset after the section's last record: where the next
	// read goes on.
	NextOffset() int64
	// Release gives the range back; the section must not be used after it.
	// Calling it twice is harmless.
	Release()
}
