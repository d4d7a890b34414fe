// Package disk is the seam between Leat and the file system: the one place
// where storage and storage/meta touch files. OS is the real thing; Mem is a
// file system in memory that can lose power, tear writes and fail on demand,
// so that every crash test of the log runs against the code that ships.
//
// It knows nothing of segments or batches and imports nothing of Leat's.
// storage, storage/meta and main may import it.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Errors that callers tell apart. The errors of the operating system
// (fs.ErrNotExist, syscall.ENOSPC …) come through unchanged and wrapped in a
// *fs.PathError, or *os.LinkError for two names, that says which path it was.
var (
	// ErrLocked says that another process holds the lock file.
	ErrLocked = errors.New("locked by another process")
	// ErrUnsupported says that this file system or kernel lacks the call;
	// the caller must have a second way.
	ErrUnsupported = errors.ErrUnsupported
)

// FS is a file system. All names are slash-separated paths as given to the
// operating system. An FS is safe for concurrent use.
type FS interface {
	// OpenFile opens name, a file, with the os.O_* flags; new files get mode
	// 0640. O_APPEND is refused (EINVAL): every write says where it goes.
	OpenFile(name string, flag int) (File, error)
	// MkdirAll makes dir and its parents; an existing dir is no error.
	MkdirAll(dir string) error
	// Remove unlinks a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes name and all below it; a missing name is no error.
	RemoveAll(name string) error
	// Rename replaces the file to by from. A directory is never replaced.
	Rename(from, to string) error
	// Link makes a hard link.
	Link(from, to string) error
	// List returns the sorted base names in dir.
	List(dir string) ([]string, error)
	// Stat describes name.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in dir durable (fsync of the directory).
	SyncDir(dir string) error
	// SyncAll makes every file, name and size of the file system that holds
	// dir durable (syncfs). ErrUnsupported where errors would be hidden
	// (kernels before 5.8).
	SyncAll(dir string) error
	// Lock takes an exclusive lock on name, creating it, until the Closer is
	// closed or the process ends. ErrLocked if another holder exists.
	Lock(name string) (io.Closer, error)
	// LockExisting takes the same lock on a file that exists without changing
	// anything, even where nothing can be written. fs.ErrNotExist if there is
	// no such file.
	LockExisting(name string) (io.Closer, error)
	// Usage reports the size and the free bytes of the file system of dir.
	Usage(dir string) (Usage, error)
}

// Usage is the room on a file system, in bytes.
type Usage struct {
	Total, Free uint64
}

// File is an open file. Offsets are explicit: there is no file position.
// ReadAt, WriteAt and WriteVec are safe for concurrent use on distinct ranges.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// WriteVec writes bufs one after the other at off in one call (pwritev).
	// A short write comes with an error.
	WriteVec(bufs [][]byte, off int64) (int, error)
	// Truncate sets the size, cutting or adding zeros.
	Truncate(size int64) error
	// Allocate reserves blocks for [off, off+n) and extends the size to
	// off+n if it was smaller; the new bytes read as zero. ErrUnsupported
	// where the file system cannot, or keeps its files in memory.
	Allocate(off, n int64) error
	// Sync makes data and metadata of the file durable (fsync). It does not
	// make its name durable: see FS.SyncDir.
	Sync() error
	// SyncData makes the data, and the size needed to read it, durable
	// (fdatasync).
	SyncData() error
	// Stat describes the file.
	Stat() (fs.FileInfo, error)
	// NextData is the first position at or behind off where the file may hold
	// anything but zeros; io.EOF if nothing follows but zeros or the end. It
	// reads nothing: where the file system cannot tell it is off itself.
	NextData(off int64) (int64, error)
	// Map maps the whole file read-only. An empty file maps to no bytes.
	Map() (Mapping, error)
	// OSFile is the file of the operating system for sendfile, or nil when
	// the bytes are not the operating system's. The File keeps ownership.
	OSFile() *os.File
}

// Mapping is a file mapped for reading. It is not reference-counted: the
// owner must not Unmap while a reader holds Bytes.
type Mapping interface {
	// Bytes is the mapped range; it must not be written.
	Bytes() []byte
	// Populate brings [off, off+n) into memory by a system call, so that a
	// slow disk never blocks a thread in a page fault and a file that was cut
	// short gives an error (EFAULT) instead of a signal. ErrUnsupported on
	// kernels before 5.14: then read with ReadAt.
	Populate(off, n int) error
	// Unmap ends the mapping.
	Unmap() error
}
