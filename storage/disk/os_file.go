package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxVec is IOV_MAX: more buffers than that in one pwritev are an error.
const maxVec = 1024

// osFile is *os.File (ReadAt, WriteAt, Truncate, Sync, Stat, Close) with the
// calls that package os lacks.
type osFile struct {
	*os.File
	conn syscall.RawConn
}

func (f *osFile) OSFile() *os.File { return f.File }

func (f *osFile) WriteVec(bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return f.WriteAt(bufs[0], off)
	}
	total := 0
	err := control(f.conn, "pwritev", f.Name(), func(fd int) error {
		for len(bufs) > 0 {
			n, err := unix.Pwritev(fd, bufs[:min(len(bufs), maxVec)], off+int64(total))
			if n > 0 {
				total += n
			}
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			rest := skip(bufs, n)
			if n == 0 && len(rest) == len(bufs) && !allEmpty(rest) {
				return io.ErrShortWrite
			}
			bufs = rest
		}
		return nil
	})
	return total, err
}

// skip returns bufs without their first n bytes and without leading empty
// buffers. The caller's slice stays as it is: only the copy is cut.
func skip(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n == 0 {
		return bufs
	}
	cut := append([][]byte{bufs[0][n:]}, bufs[1:]...)
	return cut
}

func allEmpty(bufs [][]byte) bool {
	for _, b := range bufs {
		if len(b) > 0 {
			return false
		}
	}
	return true
}

func (f *osFile) Allocate(off, n int64) error {
	return control(f.conn, "fallocate", f.Name(), func(fd int) error {
		// In memory there is nothing to gain, and room that somebody else needs.
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
			return ErrUnsupported
		}
		err := unix.Fallocate(fd, 0, off, n)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return ErrUnsupported
		}
		return err
	})
}

func (f *osFile) NextData(off int64) (int64, error) {
	next := off
	err := control(f.conn, "lseek", f.Name(), func(fd int) error {
		pos, err := unix.Seek(fd, off, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO) && off >= 0:
			return io.EOF
		case errors.Is(err, unix.EINVAL) && off >= 0, errors.Is(err, unix.EOPNOTSUPP):
			return nil
		case err == nil:
			next = pos
		}
		return err
	})
	if errors.Is(err, io.EOF) {
		return 0, io.EOF
	}
	return next, err
}

func (f *osFile) SyncData() error {
	return control(f.conn, "fdatasync", f.Name(), unix.Fdatasync)
}

func (f *osFile) Map() (Mapping, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m := &osMapping{name: f.Name()}
	if info.Size() == 0 {
		return m, nil
	}
	if int64(int(info.Size())) != info.Size() {
		return nil, &fs.PathError{Op: "mmap", Path: f.Name(), Err: unix.EFBIG}
	}
	err = control(f.conn, "mmap", f.Name(), func(fd int) (err error) {
		m.data, err = unix.Mmap(fd, 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

type osMapping struct {
	name string
	data []byte
	once sync.Once
}

func (m *osMapping) Bytes() []byte { return m.data }

func (m *osMapping) Populate(off, n int) error {
	if off < 0 || n < 0 || off > len(m.data)-n {
		return &fs.PathError{Op: "madvise", Path: m.name, Err: unix.ERANGE}
	}
	if n == 0 {
		return nil
	}
	// The address must lie on a page boundary; the kernel rounds the length up.
	start := off &^ (os.Getpagesize() - 1)
	err := ignoringEINTR(func() error {
		return unix.Madvise(m.data[start:off+n], unix.MADV_POPULATE_READ)
	})
	if errors.Is(err, unix.EINVAL) {
		err = ErrUnsupported
	}
	if err != nil {
		return &fs.PathError{Op: "madvise", Path: m.name, Err: err}
	}
	return nil
}

func (m *osMapping) Unmap() error {
	var err error
	m.once.Do(func() {
		if m.data != nil {
			err = unix.Munmap(m.data)
			m.data = nil
		}
	})
	if err != nil {
		return &fs.PathError{Op: "munmap", Path: m.name, Err: err}
	}
	return nil
}
