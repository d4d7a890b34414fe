package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// memFile is an open file of a Mem. It stays valid when its name is removed
// or renamed.
type memFile struct {
	mem           *Mem
	node          *node
	name, path    string
	reads, writes bool
	closed        atomic.Bool
}

func (f *memFile) OSFile() *os.File { return nil }

func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	f.node.handles--
	f.mem.reclaim(f.node)
	return nil
}

// begin checks the handle and asks the fault function.
func (f *memFile) begin(kind OpKind, off int64, n int) (short int, err error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	return f.mem.before(Op{Kind: kind, Path: f.path, Off: off, Len: n})
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	_, err := f.begin(OpRead, off, len(b))
	switch {
	case err != nil:
	case !f.reads:
		err = syscall.EBADF
	case off < 0:
		err = syscall.EINVAL
	}
	if err != nil {
		return 0, pathError("read", f.name, err)
	}
	f.mem.mu.RLock()
	defer f.mem.mu.RUnlock()
	n := f.node.read(b, off)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	return f.WriteVec([][]byte{b}, off)
}

func (f *memFile) WriteVec(bufs [][]byte, off int64) (int, error) {
	size := 0
	for _, b := range bufs {
		size += len(b)
	}
	short, fault := f.begin(OpWrite, off, size)
	n, err := 0, fault
	switch {
	case errors.Is(fault, ErrSkip):
		n = size
	case fault != nil && short == 0:
	case !f.writes:
		err = syscall.EBADF
	case off < 0:
		err = syscall.EINVAL
	default:
		if fault != nil {
			size = short
		}
		n, err = f.write(bufs, off, size)
		if err == nil {
			err = fault
		}
	}
	return n, pathError("write", f.name, err)
}

// write stores the first size bytes of bufs.
func (f *memFile) write(bufs [][]byte, off int64, size int) (int, error) {
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	total := 0
	for _, b := range bufs {
		n, err := f.node.write(b[:min(len(b), size-total)], off+int64(total), &f.mem.space)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (f *memFile) Truncate(size int64) error {
	_, err := f.begin(OpTruncate, size, 0)
	if err == nil && (size < 0 || !f.writes) {
		err = syscall.EINVAL
	}
	if err == nil {
		f.mem.mu.Lock()
		f.node.truncate(size, &f.mem.space)
		f.mem.mu.Unlock()
	}
	return pathError("truncate", f.name, err)
}

func (f *memFile) Allocate(off, n int64) error {
	_, err := f.begin(OpAllocate, off, int(n))
	switch {
	case err != nil:
	case !f.writes:
		err = syscall.EBADF
	case off < 0 || n <= 0:
		err = syscall.EINVAL
	default:
		f.mem.mu.Lock()
		err = f.node.allocate(off, n, &f.mem.space)
		f.mem.mu.Unlock()
	}
	return pathError("fallocate", f.name, err)
}

func (f *memFile) NextData(off int64) (int64, error) {
	_, err := f.begin(OpRead, off, 0)
	if err == nil && off < 0 {
		err = syscall.ENXIO
	}
	if err != nil {
		return 0, pathError("lseek", f.name, err)
	}
	f.mem.mu.RLock()
	defer f.mem.mu.RUnlock()
	next, ok := f.node.nextData(off)
	if !ok {
		return 0, io.EOF
	}
	return next, nil
}

func (f *memFile) Sync() error     { return f.sync(OpSync, "fsync") }
func (f *memFile) SyncData() error { return f.sync(OpSyncData, "fdatasync") }

func (f *memFile) sync(kind OpKind, op string) error {
	if f.closed.Load() {
		return pathError(op, f.name, fs.ErrClosed)
	}
	_, err := f.begin(kind, 0, 0)
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	switch {
	case err == nil:
		f.node.sync()
	case !errors.Is(err, ErrSkip):
		f.node.syncFailed()
	}
	return pathError(op, f.name, err)
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	if f.closed.Load() {
		return nil, pathError("stat", f.name, fs.ErrClosed)
	}
	f.mem.mu.RLock()
	defer f.mem.mu.RUnlock()
	return f.node.info(f.path), nil
}

func (f *memFile) Map() (Mapping, error) {
	_, err := f.begin(OpMap, 0, 0)
	if err == nil && !f.reads {
		err = syscall.EACCES
	}
	if err != nil {
		return nil, pathError("mmap", f.name, err)
	}
	f.mem.mu.RLock()
	defer f.mem.mu.RUnlock()
	m := &memMapping{file: f, data: make([]byte, f.node.size)}
	f.node.read(m.data, 0)
	return m, nil
}

// memMapping is a copy of the bytes at the time of Map. Populate still tells
// when the file was cut short since, as the kernel does.
type memMapping struct {
	file *memFile
	data []byte
}

func (m *memMapping) Bytes() []byte { return m.data }

func (m *memMapping) Populate(off, n int) error {
	_, err := m.file.mem.before(Op{Kind: OpPopulate, Path: m.file.path, Off: int64(off), Len: n})
	switch {
	case err != nil:
	case off < 0 || n < 0 || off > len(m.data)-n:
		err = syscall.ERANGE
	case n > 0:
		m.file.mem.mu.RLock()
		size := m.file.node.size
		m.file.mem.mu.RUnlock()
		// The kernel knows pages only: the last one is there to its end.
		if int64(off+n) > (size+pageSize-1)/pageSize*pageSize {
			err = syscall.EFAULT
		}
	}
	return pathError("madvise", m.file.name, err)
}

func (m *memMapping) Unmap() error {
	m.data = nil
	return nil
}

// memLock is a lock held; see Mem.Lock.
type memLock struct {
	mem  *Mem
	path string
	once sync.Once
}

// Close implements io.Closer.
func (l *memLock) Close() error {
	err := fs.ErrClosed
	l.once.Do(func() {
		l.mem.mu.Lock()
		defer l.mem.mu.Unlock()
		delete(l.mem.locks, l.path)
		err = nil
	})
	return err
}
