package storage

import (
	"io"
	"sync/atomic"
	"time"

	"leat/storage/disk"
)

// stallSlots is how many operations can be watched at the same time; more than
// that are as good as those: what hangs the disk hangs them all.
const stallSlots = 64

// stalls knows since when each running operation has been at the disk. It takes
// no lock and no memory, for every write goes through it.
type stalls struct {
	opened time.Time
	began  [stallSlots]atomic.Int64 // since opened; 0 is nobody
	hint   atomic.Uint32
}

// begin notes that an operation begins; the slot is for end. nil if all are taken.
func (s *stalls) begin() *atomic.Int64 {
	now := max(int64(time.Since(s.opened)), 1)
	at := s.hint.Add(1)
	for i := range uint32(stallSlots) {
		slot := &s.began[(at+i)%stallSlots]
		if slot.Load() == 0 && slot.CompareAndSwap(0, now) {
			return slot
		}
	}
	return nil
}

func end(slot *atomic.Int64) {
	if slot != nil {
		slot.Store(0)
	}
}

// longest is how long the one that began first has been running.
func (s *stalls) longest() time.Duration {
	var first int64
	for i := range s.began {
		if at := s.began[i].Load(); at > 0 && (first == 0 || at < first) {
			first = at
		}
	}
	if first == 0 {
		return 0
	}
	return max(time.Since(s.opened)-time.Duration(first), 0)
}

// Stalled is how long the disk has not answered a write, a sync or a change of
// names that is still waited for; of those that go well it is what they have
// taken so far. Reading goes on, and what is written waits.
func (d *Dir) Stalled() time.Duration { return d.stalls.longest() }

// FS is the directory's file system; what is done through it counts for Stalled.
func (d *Dir) FS() disk.FS { return d.opts.FS }

// watchedFS is a file system whose changes stalls knows of.
type watchedFS struct {
	disk.FS
	stalls *stalls
}

func (w *watchedFS) watch(op func() error) error {
	defer end(w.stalls.begin())
	return op()
}

func (w *watchedFS) OpenFile(name string, flag int) (disk.File, error) {
	slot := w.stalls.begin()
	f, err := w.FS.OpenFile(name, flag)
	end(slot)
	if err != nil {
		return nil, err
	}
	return &watchedFile{File: f, stalls: w.stalls}, nil
}

func (w *watchedFS) MkdirAll(dir string) error {
	return w.watch(func() error { return w.FS.MkdirAll(dir) })
}

func (w *watchedFS) Remove(name string) error {
	return w.watch(func() error { return w.FS.Remove(name) })
}

func (w *watchedFS) RemoveAll(name string) error {
	return w.watch(func() error { return w.FS.RemoveAll(name) })
}

func (w *watchedFS) Rename(from, to string) error {
	return w.watch(func() error { return w.FS.Rename(from, to) })
}

func (w *watchedFS) Link(from, to string) error {
	return w.watch(func() error { return w.FS.Link(from, to) })
}

func (w *watchedFS) SyncDir(dir string) error {
	return w.watch(func() error { return w.FS.SyncDir(dir) })
}

func (w *watchedFS) SyncAll(dir string) error {
	return w.watch(func() error { return w.FS.SyncAll(dir) })
}

func (w *watchedFS) Lock(name string) (io.Closer, error) {
	defer end(w.stalls.begin())
	return w.FS.Lock(name)
}

// watchedFile is a file of a watchedFS. Reads and mappings pass through.
type watchedFile struct {
	disk.File
	stalls *stalls
}

func (f *watchedFile) WriteAt(p []byte, off int64) (int, error) {
	slot := f.stalls.begin()
	n, err := f.File.WriteAt(p, off)
	end(slot)
	return n, err
}

func (f *watchedFile) WriteVec(bufs [][]byte, off int64) (int, error) {
	slot := f.stalls.begin()
	n, err := f.File.WriteVec(bufs, off)
	end(slot)
	return n, err
}

func (f *watchedFile) Truncate(size int64) error {
	defer end(f.stalls.begin())
	return f.File.Truncate(size)
}

func (f *watchedFile) Allocate(off, n int64) error {
	defer end(f.stalls.begin())
	return f.File.Allocate(off, n)
}

func (f *watchedFile) Sync() error {
	defer end(f.stalls.begin())
	return f.File.Sync()
}

func (f *watchedFile) SyncData() error {
	defer end(f.stalls.begin())
	return f.File.SyncData()
}
