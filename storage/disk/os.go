package disk

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	fileMode = 0o640
	dirMode  = 0o750
)

// OS is the file system of the operating system (Linux).
var OS FS = &osFS{}

var errNotRegular = errors.New("not a regular file")

// osFS keeps one open directory for each file system that SyncAll was asked
// for. The kernel reports a write-back error once to every open description,
// so an error that somebody else's syncfs saw first still reaches the one that
// stays open here.
type osFS struct {
	mu struct {
		sync.Mutex
		syncDirs map[string]*os.File
	}
}

func (*osFS) OpenFile(name string, flag int) (File, error) {
	if flag&os.O_APPEND != 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EINVAL}
	}
	// A pipe in a file's place must be refused and not waited for. To a regular
	// file the flag means nothing.
	f, err := os.OpenFile(name, flag|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		_ = f.Close()
		return nil, cmp.Or(err, error(&fs.PathError{Op: "open", Path: name, Err: errNotRegular}))
	}
	conn, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &osFile{File: f, conn: conn}, nil
}

func (*osFS) MkdirAll(dir string) error             { return os.MkdirAll(dir, dirMode) }
func (*osFS) Remove(name string) error              { return os.Remove(name) }
func (*osFS) RemoveAll(name string) error           { return os.RemoveAll(name) }
func (*osFS) Rename(from, to string) error          { return os.Rename(from, to) }
func (*osFS) Link(from, to string) error            { return os.Link(from, to) }
func (*osFS) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// openDir opens a directory and nothing else, and waits for nothing.
func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
}

func (*osFS) List(dir string) ([]string, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

func (*osFS) SyncDir(dir string) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (o *osFS) SyncAll(dir string) error {
	if !syncfsReportsErrors() {
		return &fs.PathError{Op: "syncfs", Path: dir, Err: ErrUnsupported}
	}
	d, err := o.syncHandle(filepath.Clean(dir))
	if err != nil {
		return err
	}
	conn, err := d.SyscallConn()
	if err != nil {
		return &fs.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	return control(conn, "syncfs", dir, unix.Syncfs)
}

// syncHandle returns the open directory for dir, opening it again when the
// path leads elsewhere than it did.
func (o *osFS) syncHandle(dir string) (*os.File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if d := o.mu.syncDirs[dir]; d != nil {
		if was, err := d.Stat(); err == nil && os.SameFile(was, now) {
			return d, nil
		}
		delete(o.mu.syncDirs, dir)
		_ = d.Close() // a call in flight keeps its descriptor until it ends
	}
	d, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	if o.mu.syncDirs == nil {
		o.mu.syncDirs = make(map[string]*os.File)
	}
	o.mu.syncDirs[dir] = d
	return d, nil
}

func (*osFS) Lock(name string) (io.Closer, error) { return flock(name, os.O_RDWR|os.O_CREATE) }

func (*osFS) LockExisting(name string) (io.Closer, error) { return flock(name, os.O_RDONLY) }

func flock(name string, flag int) (io.Closer, error) {
	// A pipe in a file's place must be refused and not waited for. To a regular
	// file the flag means nothing.
	f, err := os.OpenFile(name, flag|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		_ = f.Close()
		return nil, cmp.Or(err, error(&fs.PathError{Op: "open", Path: name, Err: errNotRegular}))
	}
	conn, err := f.SyscallConn()
	if err == nil {
		err = control(conn, "flock", name, func(fd int) error {
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		})
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, &fs.PathError{Op: "flock", Path: name, Err: ErrLocked}
	}
	return nil, err
}

func (*osFS) Usage(dir string) (Usage, error) {
	var st unix.Statfs_t
	err := ignoringEINTR(func() error { return unix.Statfs(dir, &st) })
	if err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	size := uint64(st.Bsize)
	return Usage{Total: st.Blocks * size, Free: st.Bavail * size}, nil
}

// syncfsReportsErrors says whether the kernel is 5.8 or later. A release that
// cannot be read counts as old: then every file is synced by itself.
var syncfsReportsErrors = sync.OnceValue(func() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	return releaseAtLeast(unix.ByteSliceToString(u.Release[:]), 5, 8)
})

// releaseAtLeast compares a kernel release such as "5.15.0-91-generic".
func releaseAtLeast(release string, major, minor int) bool {
	var got [2]int
	i := 0
	for n := range got {
		start := i
		for i < len(release) && release[i] >= '0' && release[i] <= '9' && i-start < 6 {
			got[n] = got[n]*10 + int(release[i]-'0')
			i++
		}
		if i == start {
			return false
		}
		if n == 0 {
			if i == len(release) || release[i] != '.' {
				return false
			}
			i++
		}
	}
	return got[0] > major || got[0] == major && got[1] >= minor
}

// control runs a system call on conn's descriptor, which stays open until the
// call is over whatever Close does meanwhile.
func control(conn syscall.RawConn, op, path string, call func(fd int) error) error {
	var err error
	if conn.Control(func(fd uintptr) {
		err = ignoringEINTR(func() error { return call(int(fd)) })
	}) != nil {
		err = fs.ErrClosed
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
