package meta

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"leat/storage/disk"
)

// pebbleFS shows a disk.FS to Pebble. The write categories are for metrics of
// Pebble's own file system and mean nothing here.
type pebbleFS struct {
	disk.FS // RemoveAll, Lock and List are the same

	full fullPolicy

	// While the store opens, the file that was read last is the one that an
	// error is about.
	opened   atomic.Bool
	lastRead atomic.Pointer[string]

	// A fresh store is made in Pebble's oldest format and upgraded version by
	// version, with a sync of the directory after each. Those are left out: a
	// store without a format is one whose making was cut short, Pebble makes
	// it again, and the directory is synced once more before Open returns.
	fresh    bool
	skipSync atomic.Bool
}

var _ vfs.FS = (*pebbleFS)(nil)

// Create makes a new file; one of that name is removed first, because another
// may still read it.
//
// The name of a new manifest is made durable before the marker that points to
// it exists. Pebble syncs the directory once for both, which is enough only
// where a power cut keeps the order of names.
func (p *pebbleFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(path.Base(name), "marker.manifest.") {
		if err := p.SyncDir(path.Dir(name)); err != nil {
			return nil, err
		}
	}
	p.skipSync.Store(p.fresh && !p.opened.Load() && strings.HasPrefix(path.Base(name), "marker.format-version."))
	for {
		f, err := p.openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if !errors.Is(err, fs.ErrExist) {
			return p.wrap(name, f, err)
		}
		if err := p.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// Remove removes a file. A marker goes only when its successor, which Pebble
// made just before, has its name durably: Pebble syncs the directory once for
// both, and a power cut that kept the going alone would leave a store that looks
// like none, to be made anew.
func (p *pebbleFS) Remove(name string) error {
	if isMarker(path.Base(name)) && !p.skipSync.Load() {
		if err := p.SyncDir(path.Dir(name)); err != nil {
			return err
		}
	}
	return p.FS.Remove(name)
}

func (p *pebbleFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.open(name, os.O_RDONLY, opts)
}

func (p *pebbleFS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.open(name, os.O_RDWR|os.O_CREATE, opts)
}

func (p *pebbleFS) open(name string, flag int, opts []vfs.OpenOption) (vfs.File, error) {
	f, err := p.openFile(name, flag)
	if err != nil {
		return nil, err
	}
	wrapped, _ := p.wrap(name, f, nil)
	for _, o := range opts {
		o.Apply(wrapped)
	}
	return wrapped, nil
}

// openFile is OpenFile of a disk that may be full.
func (p *pebbleFS) openFile(name string, flag int) (f disk.File, err error) {
	err = p.full.try(func() error {
		f, err = p.OpenFile(name, flag)
		return err
	})
	return f, err
}

// Rename implements vfs.FS.
func (p *pebbleFS) Rename(from, to string) error {
	return p.full.try(func() error { return p.FS.Rename(from, to) })
}

// Link implements vfs.FS.
func (p *pebbleFS) Link(from, to string) error {
	return p.full.try(func() error { return p.FS.Link(from, to) })
}

func (p *pebbleFS) OpenDir(name string) (vfs.File, error) {
	if _, err := p.FS.Stat(name); err != nil {
		return nil, err
	}
	return &pebbleDir{fs: p, name: name}, nil
}

func (p *pebbleFS) PathBase(name string) string    { return path.Base(name) }
func (p *pebbleFS) PathJoin(elem ...string) string { return path.Join(elem...) }
func (p *pebbleFS) PathDir(name string) string     { return path.Dir(name) }
func (p *pebbleFS) Unwrap() vfs.FS                 { return nil }

// ReuseForWrite gives an old WAL a new name and keeps its blocks, which makes
// a sync of it several times cheaper than of a growing file.
func (p *pebbleFS) ReuseForWrite(from, to string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	if err := p.Rename(from, to); err != nil {
		return nil, err
	}
	f, err := p.openFile(to, os.O_RDWR|os.O_CREATE)
	return p.wrap(to, f, err)
}

func (p *pebbleFS) MkdirAll(dir string, _ os.FileMode) error {
	return p.full.try(func() error { return p.FS.MkdirAll(dir) })
}

func (p *pebbleFS) Stat(name string) (vfs.FileInfo, error) { return wrapInfo(p.FS.Stat(name)) }

// GetDiskUsage is for pacing only: not to know it is no failure of the store.
func (p *pebbleFS) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	u, err := p.Usage(dir)
	if err != nil {
		return vfs.DiskUsage{}, vfs.ErrUnsupported
	}
	return vfs.DiskUsage{AvailBytes: u.Free, TotalBytes: u.Total, UsedBytes: u.Total - u.Free}, nil
}

// pebbleFile adds the file position that disk.File does without. Pebble
// writes and reads sequentially from one goroutine at a time.
type pebbleFile struct {
	disk.File
	fs               *pebbleFS
	name             string
	readPos, written int64
}

func (p *pebbleFS) wrap(name string, f disk.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &pebbleFile{File: f, fs: p, name: name}, nil
}

func (f *pebbleFile) ReadAt(b []byte, off int64) (int, error) {
	if !f.fs.opened.Load() {
		f.fs.lastRead.Store(&f.name)
	}
	return f.File.ReadAt(b, off)
}

func (f *pebbleFile) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.readPos)
	f.readPos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Write goes on behind what was written when the disk was full in between.
func (f *pebbleFile) Write(b []byte) (int, error) {
	done := 0
	err := f.fs.full.try(func() error {
		n, err := f.WriteAt(b[done:], f.written)
		f.written += int64(n)
		done += n
		return err
	})
	return done, err
}

// Preallocate is best effort, as Pebble expects.
func (f *pebbleFile) Preallocate(off, n int64) error {
	err := f.Allocate(off, n)
	if errors.Is(err, disk.ErrUnsupported) {
		return nil
	}
	return err
}

func (f *pebbleFile) Stat() (vfs.FileInfo, error) { return wrapInfo(f.File.Stat()) }
func (f *pebbleFile) SyncTo(int64) (bool, error)  { return false, nil }
func (f *pebbleFile) Prefetch(off, n int64) error { return nil }

func (f *pebbleFile) Fd() uintptr {
	if of := f.OSFile(); of != nil {
		return of.Fd()
	}
	return vfs.InvalidFd
}

// pebbleDir is an open directory: all that Pebble does with one is sync it.
type pebbleDir struct {
	vfs.File
	fs   *pebbleFS
	name string
}

func (d *pebbleDir) Sync() error {
	if d.fs.skipSync.Load() {
		return nil
	}
	return d.fs.SyncDir(d.name)
}

func (d *pebbleDir) SyncData() error { return d.Sync() }
func (d *pebbleDir) Close() error    { return nil }
func (d *pebbleDir) Fd() uintptr     { return vfs.InvalidFd }

// fileInfo has the zero device: Pebble compares devices only for failover.
type fileInfo struct{ fs.FileInfo }

func (fileInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func wrapInfo(info fs.FileInfo, err error) (vfs.FileInfo, error) {
	if err != nil {
		return nil, err
	}
	return fileInfo{info}, nil
}
