package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// memTotal is the size that Usage reports when space is unlimited.
const memTotal = 1 << 40

// Mem is a file system in memory that behaves as Linux does, and beyond that
// can lose power (CrashClone), fail (SetFault), stall (Stall) and run full
// (SetCapacity, SetFree). Names are cleaned and rooted: "a/b" is "/a/b". It
// starts with the root alone.
//
// What is durable: the bytes and the size of a file after File.Sync or
// SyncData; the names in a directory after SyncDir of that directory; all of
// both after SyncAll. Syncing a file does not make its name durable, syncing
// a directory not the bytes of the files in it. Safe for concurrent use.
type Mem struct {
	fault atomic.Pointer[func(Op) error]
	stall atomic.Pointer[stall]

	mu    sync.RWMutex // guards all below, and the nodes
	root  *node
	locks map[string]bool
	space space
}

// space counts bytes taken by pages. limit < 0 is no limit.
type space struct{ limit, used int64 }

func (s *space) take(n int64) bool {
	if s.limit >= 0 && s.used+n > s.limit {
		return false
	}
	s.used += n
	return true
}

// NewMem makes an empty file system.
func NewMem() *Mem {
	return &Mem{root: newDir(), locks: map[string]bool{}, space: space{limit: -1}}
}

var _ FS = (*Mem)(nil)

// SetFree leaves room for that many more bytes, in pages of 4 KiB; writes and
// allocations beyond fail with ENOSPC. Negative: no limit.
func (m *Mem) SetFree(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes < 0 {
		m.space.limit = -1
	} else {
		m.space.limit = m.space.used + bytes
	}
}

// SetCapacity makes the file system one of that many bytes, in pages of 4 KiB,
// of which some are taken already; if it holds more there is no room until
// enough is removed. Negative: no limit.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.limit = max(bytes, -1)
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int) (File, error) {
	p := clean(name)
	if _, err := m.before(Op{Kind: OpOpen, Path: p}); err != nil {
		return nil, pathError("open", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(p, flag)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	n.handles++
	access := flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	return &memFile{mem: m, node: n, name: name, path: p, reads: access != os.O_WRONLY, writes: access != os.O_RDONLY}, nil
}

func (m *Mem) open(p string, flag int) (*node, error) {
	if flag&os.O_APPEND != 0 {
		return nil, syscall.EINVAL
	}
	n, err := m.lookup(p)
	switch {
	case err == nil && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, syscall.EEXIST
	case err == nil && n.dir != nil:
		return nil, syscall.EISDIR
	case err == nil:
		if flag&os.O_TRUNC != 0 {
			n.truncate(0, &m.space)
		}
		return n, nil
	case !errors.Is(err, syscall.ENOENT) || flag&os.O_CREATE == 0:
		return nil, err
	}
	dir, base, err := m.parent(p)
	if err != nil {
		return nil, err
	}
	n = &node{links: 1}
	change(false, namePart{dir, base, n})
	return n, nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(dir string) error {
	p := clean(dir)
	if _, err := m.before(Op{Kind: OpMkdir, Path: p}); err != nil {
		return pathError("mkdir", dir, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if name == "" {
			return nil
		}
		next := n.dir.names[name]
		if next == nil {
			next = newDir()
			change(true, namePart{n.dir, name, next})
		}
		if next.dir == nil {
			return pathError("mkdir", dir, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	p := clean(name)
	if _, err := m.before(Op{Kind: OpRemove, Path: p}); err != nil {
		return pathError("remove", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup(p)
	if err == nil && n.dir != nil && len(n.dir.names) > 0 {
		err = syscall.ENOTEMPTY
	}
	if err == nil {
		err = m.unlink(p, n)
	}
	return pathError("remove", name, err)
}

func (m *Mem) unlink(p string, n *node) error {
	dir, base, err := m.parent(p)
	if err != nil {
		return err
	}
	change(n.dir != nil, namePart{dir, base, nil})
	m.drop(n)
	return nil
}

// drop counts one name less; the last name and handle give the space back.
func (m *Mem) drop(n *node) {
	n.links--
	m.reclaim(n)
}

func (m *Mem) reclaim(n *node) {
	if n.links == 0 && n.handles == 0 {
		n.release(0, &m.space)
	}
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	p := clean(name)
	if _, err := m.before(Op{Kind: OpRemove, Path: p}); err != nil {
		return pathError("remove", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup(p)
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err == nil {
		err = m.removeTree(p, n)
	}
	return pathError("remove", name, err)
}

func (m *Mem) removeTree(p string, n *node) error {
	if n.dir != nil {
		for _, name := range sortedNames(n.dir.names) {
			if err := m.removeTree(path.Join(p, name), n.dir.names[name]); err != nil {
				return err
			}
		}
	}
	return m.unlink(p, n)
}

// Rename implements FS. As os.Rename it does not replace a directory.
func (m *Mem) Rename(from, to string) error {
	return m.twoNames(OpRename, from, to, func(n *node, src, dst namePart, old *node) error {
		if old == n && old.dir == nil {
			return nil // two names of one file: POSIX leaves both
		}
		if old != nil && old.dir != nil {
			return syscall.EEXIST
		}
		if old != nil && n.dir != nil {
			return syscall.ENOTDIR
		}
		if n.dir != nil && strings.HasPrefix(clean(to)+"/", clean(from)+"/") {
			return syscall.EINVAL
		}
		dst.node = n
		change(n.dir != nil, src, dst)
		if old != nil {
			m.drop(old)
		}
		return nil
	})
}

// Link implements FS.
func (m *Mem) Link(from, to string) error {
	return m.twoNames(OpLink, from, to, func(n *node, _, dst namePart, old *node) error {
		if old != nil {
			return syscall.EEXIST
		}
		if n.dir != nil {
			return syscall.EPERM
		}
		n.links++
		dst.node = n
		change(false, dst)
		return nil
	})
}

// twoNames finds what from names, both places, and what is at to now.
func (m *Mem) twoNames(kind OpKind, from, to string, do func(n *node, src, dst namePart, old *node) error) error {
	_, err := m.before(Op{Kind: kind, Path: clean(from), To: clean(to)})
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		err = m.resolveTwo(from, to, do)
	}
	if err != nil && !errors.Is(err, ErrSkip) {
		return &os.LinkError{Op: kind.String(), Old: from, New: to, Err: err}
	}
	return nil
}

func (m *Mem) resolveTwo(from, to string, do func(n *node, src, dst namePart, old *node) error) error {
	n, err := m.lookup(clean(from))
	if err != nil {
		return err
	}
	srcDir, srcName, err := m.parent(clean(from))
	if err != nil {
		return err
	}
	dstDir, dstName, err := m.parent(clean(to))
	if err != nil {
		return err
	}
	return do(n, namePart{srcDir, srcName, nil}, namePart{dstDir, dstName, nil}, dstDir.names[dstName])
}

// List implements FS.
func (m *Mem) List(dir string) ([]string, error) {
	p := clean(dir)
	if _, err := m.before(Op{Kind: OpList, Path: p}); err != nil {
		return nil, pathError("readdir", dir, err)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	d, err := m.directory(p)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	return sortedNames(d.names), nil
}

func (m *Mem) directory(p string) (*dirContent, error) {
	n, err := m.lookup(p)
	if err != nil {
		return nil, err
	}
	if n.dir == nil {
		return nil, syscall.ENOTDIR
	}
	return n.dir, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	p := clean(name)
	if _, err := m.before(Op{Kind: OpStat, Path: p}); err != nil {
		return nil, pathError("stat", name, err)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.lookup(p)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(p), nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	p := clean(dir)
	if _, err := m.before(Op{Kind: OpSyncDir, Path: p}); err != nil {
		return pathError("fsync", dir, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.directory(p)
	if err == nil {
		d.sync()
	}
	return pathError("fsync", dir, err)
}

// SyncAll implements FS.
func (m *Mem) SyncAll(dir string) error {
	p := clean(dir)
	_, fault := m.before(Op{Kind: OpSyncAll, Path: p})
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.lookup(p)
	switch {
	case errors.Is(fault, ErrSkip), errors.Is(fault, ErrUnsupported):
		err = fault // nothing was tried, so nothing is lost
	case fault != nil:
		err = fault
		m.root.walk(func(n *node) { n.syncFailed() })
	case err == nil:
		m.root.walk(func(n *node) {
			n.sync()
			if n.dir != nil {
				n.dir.sync()
			}
		})
	}
	return pathError("syncfs", dir, err)
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) { return m.lock(name, os.O_RDWR|os.O_CREATE) }

// LockExisting implements FS.
func (m *Mem) LockExisting(name string) (io.Closer, error) { return m.lock(name, os.O_RDONLY) }

func (m *Mem) lock(name string, flag int) (io.Closer, error) {
	p := clean(name)
	if _, err := m.before(Op{Kind: OpLock, Path: p}); err != nil {
		return nil, pathError("flock", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.open(p, flag); err != nil {
		return nil, pathError("open", name, err)
	}
	if m.locks[p] {
		return nil, pathError("flock", name, ErrLocked)
	}
	m.locks[p] = true
	return &memLock{mem: m, path: p}, nil
}

// Usage implements FS.
func (m *Mem) Usage(dir string) (Usage, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if _, err := m.lookup(clean(dir)); err != nil {
		return Usage{}, pathError("statfs", dir, err)
	}
	total := m.space.limit
	if total < 0 {
		total = memTotal
	}
	return Usage{Total: uint64(total), Free: uint64(max(total-m.space.used, 0))}, nil
}

// pathError is nil for a nil err and for ErrSkip.
func pathError(op, name string, err error) error {
	if err == nil || errors.Is(err, ErrSkip) {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
