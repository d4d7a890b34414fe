package storage

import (
	"errors"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"leat/storage/disk"
)

const (
	// A sixth of the process's descriptors may be segment files that nobody
	// uses at the moment; the rest is for connections, Pebble and segments in
	// use, which are not limited here.
	fileShare = 6
	minFiles  = 8
	maxFiles  = 65_536
)

// fileBudget is how many idle segment files may stay open when the process
// may open limit files.
func fileBudget(limit uint64) int {
	return int(min(max(limit/fileShare, minFiles), maxFiles))
}

// IdleFiles is how many segment files that nobody uses stay open in this
// process, and IdleMappings how many index files stay mapped.
func IdleFiles() int { return fileBudget(openFileLimit()) }

// IdleMappings is told at IdleFiles.
func IdleMappings() int { return maxMappings }

// openFileLimit is RLIMIT_NOFILE, which Go has raised to the hard limit.
func openFileLimit() uint64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxUint16
	}
	return r.Cur
}

// handle is the open .log of a segment. Whoever holds a reference may use the
// file; it stays open, whatever happens to its name, until the last reference
// is given back.
type handle struct {
	disk.File
	seg *segment
	// Guarded by files.mu: the references, and the neighbours in files.idle
	// while there are none.
	refs       int
	prev, next *handle
}

// handles is a ring of handles, least recently used first. It links them by
// their own fields, because a list that allocates would cost every read.
type handles struct{ root handle }

func (l *handles) init() { l.root.prev, l.root.next = &l.root, &l.root }

// first is the least recently used, or nil.
func (l *handles) first() *handle {
	if l.root.next == &l.root {
		return nil
	}
	return l.root.next
}

func (l *handles) push(h *handle) {
	h.prev, h.next = l.root.prev, &l.root
	h.prev.next, h.next.prev = h, h
}

func (l *handles) remove(h *handle) {
	h.prev.next, h.next.prev = h.next, h.prev
	h.prev, h.next = nil, nil
}

// files keeps the .log files of a directory open: those in use, and the least
// recently used of the others up to a budget.
type files struct {
	fs      disk.FS
	budget  int
	metrics *metrics

	mu struct {
		sync.Mutex
		open int
		idle handles
	}
}

func newFiles(fs disk.FS, budget int, m *metrics) *files {
	f := &files{fs: fs, budget: budget, metrics: m}
	f.mu.idle.init()
	m.maxFiles.Set(float64(budget))
	return f
}

// errRetired says that the segment has left its log.
var errRetired = errors.New("segment was removed")

// acquire gives a reference to the segment's file, opening it if need be.
// errRetired once the segment has left its log.
func (f *files) acquire(s *segment) (*handle, error) {
	f.mu.Lock()
	h, retired := f.retainLocked(s), s.retired
	f.mu.Unlock()
	switch {
	case h != nil:
		return h, nil
	case retired:
		return nil, errRetired
	}

	file, err := f.open(s)
	if err != nil {
		if f.retired(s) {
			err = errRetired // meanwhile, and its file is gone or on its way
		}
		return nil, err
	}
	f.mu.Lock()
	if h := f.retainLocked(s); h != nil || s.retired {
		f.mu.Unlock()
		_ = file.Close() // nothing was written through it
		if h == nil {
			return nil, errRetired
		}
		return h, nil
	}
	h = &handle{File: file, seg: s, refs: 1}
	s.handle = h
	f.mu.open++
	extra := f.evictLocked(f.budget)
	f.metrics.openFiles.Set(float64(f.mu.open))
	f.mu.Unlock()
	closeAll(extra)
	return h, nil
}

// acquireInTime is acquire for those who hold no lock: without a descriptor it
// tries again for a little more than a second, because those that appends hold
// are given back with the next flush, which is that far away at most.
func (f *files) acquireInTime(s *segment) (*handle, error) {
	for pause := minPause; ; pause *= 2 {
		h, err := f.acquire(s)
		if !noDescriptors(err) || pause > maxPause {
			return h, err
		}
		timer := time.NewTimer(pause)
		<-timer.C
	}
}

// open opens the segment's .log.
func (f *files) open(s *segment) (disk.File, error) {
	flag := os.O_RDWR
	if s.sealed.Load() {
		flag = os.O_RDONLY
	}
	var file disk.File
	err := f.sparing(func() (err error) {
		file, err = f.fs.OpenFile(s.logPath(), flag)
		return err
	})
	return file, err
}

// sparing calls fn, which opens something, and when the process is out of
// descriptors once more without the idle files.
func (f *files) sparing(fn func() error) error {
	err := fn()
	if !noDescriptors(err) {
		return err
	}
	f.mu.Lock()
	idle := f.evictLocked(0)
	f.metrics.openFiles.Set(float64(f.mu.open))
	f.mu.Unlock()
	closeAll(idle)
	return fn()
}

// noDescriptors says that the process or the system may open no more files:
// nothing is wrong with the disk, and nothing was done.
func noDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (f *files) retainLocked(s *segment) *handle {
	h := s.handle
	if h == nil {
		return nil
	}
	if h.refs == 0 {
		f.mu.idle.remove(h)
	}
	h.refs++
	return h
}

// release gives a reference back; nil is harmless.
func (f *files) release(h *handle) {
	if h == nil {
		return
	}
	f.mu.Lock()
	h.refs--
	var extra []*handle
	switch {
	case h.refs > 0:
	case h.seg.handle == h:
		f.mu.idle.push(h)
		extra = f.evictLocked(f.budget)
	default: // dropped while in use
		f.mu.open--
		extra = []*handle{h}
	}
	f.metrics.openFiles.Set(float64(f.mu.open))
	f.mu.Unlock()
	closeAll(extra)
}

// retire drops the segment's file and has nobody open it again: whoever tries
// gets errRetired.
func (f *files) retire(s *segment) {
	f.mu.Lock()
	s.retired = true
	f.mu.Unlock()
	f.drop(s)
}

// retired says whether the segment has left its log.
func (f *files) retired(s *segment) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.retired
}

// drop forgets the segment's file: it is closed now or with its last
// reference.
func (f *files) drop(s *segment) {
	f.mu.Lock()
	h := s.handle
	s.handle = nil
	if h == nil || h.refs > 0 {
		f.mu.Unlock()
		return
	}
	f.mu.idle.remove(h)
	f.mu.open--
	f.metrics.openFiles.Set(float64(f.mu.open))
	f.mu.Unlock()
	closeAll([]*handle{h})
}

// evictLocked takes idle handles away until at most budget are open.
func (f *files) evictLocked(budget int) (evicted []*handle) {
	for f.mu.open > budget {
		h := f.mu.idle.first()
		if h == nil {
			break
		}
		f.mu.idle.remove(h)
		h.seg.handle = nil
		f.mu.open--
		evicted = append(evicted, h)
	}
	return evicted
}

// closeAll closes files that have nothing to sync: a handle that was written
// through is pinned until it was synced.
func closeAll(handles []*handle) {
	for _, h := range handles {
		_ = h.Close()
	}
}
