package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/storage/disk"
)

// Options are what a data directory is opened with.
type Options struct {
	// FS is the file system; nil is the operating system's.
	FS disk.FS
	// Path is the directory; it is created if it does not exist.
	Path string
	// NodeID is the node id for a fresh directory; 0 is 1.
	NodeID int32
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
	// Logger must not be nil.
	Logger *slog.Logger
	// Registerer gets the metrics, named leat_storage_*; nil for none.
	Registerer prometheus.Registerer
	// ScrubRate is how many bytes a second are read to find damage in what was
	// written long ago; 0 is none. See SetScrubRate.
	ScrubRate int64
	// Before is called before anything of a directory that was there is changed;
	// its error is Open's. It may ask the Dir for FS, Identity, MetaPath and
	// HasRun, and not keep it. nil for none.
	Before func(*Dir) error
	// OnFlush is called after a log's durable end has moved, and calls for
	// different logs may come at the same time. It must not block, close the
	// log or the directory, raise the start or truncate.
	OnFlush func(*Log)
	// Ballast has space set aside that is given back when the disk is full.
	Ballast bool
	// OnRoom is called when the disk becomes nearly full or full, and when there
	// is room again: see Room. It must not block and must not call the directory.
	OnRoom func()
	// OnDamage is called once for each hole that is found in an open log. No
	// lock is held; it must not close the log or the directory.
	OnDamage func(*Log, Hole)
	// OnFailure is called once, when a sync has failed or a write could not
	// be undone: the directory refuses appends from then on, and the process
	// should end. It must not close the directory.
	OnFailure func(error)
}

// BusyError says that the process PID (0 if unknown) has the directory open.
type BusyError struct {
	Path string
	PID  int
}

// Error names the directory and the process.
func (e *BusyError) Error() string {
	return fmt.Sprintf("data directory %s is in use by process %d", e.Path, e.PID)
}

// Unwrap returns ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Dir is an open data directory. It is safe for concurrent use.
type Dir struct {
	opts     Options
	lock     io.Closer
	identity Identity
	fresh    bool // there was nothing
	clean    bool
	opened   time.Time
	// synced says that all files that the last run left are durable, names
	// included. It is set before any log is opened.
	synced bool
	// fate is what SetAside was told: which logs there must be.
	fate func(ID) Fate

	files   *files
	tables  *tables
	metrics *metrics
	flusher *flusher
	keeper  *keeper
	// scrubber finds damage in sealed segments.
	scrubber *scrubber

	failure    atomic.Pointer[error]
	closing    atomic.Bool
	unsure     atomic.Bool // the end of a log that is away is not known
	noPrealloc atomic.Bool
	slack      atomic.Int64 // bytes allocated beyond the logs' ends
	free       atomic.Int64 // on the file system, measured now and then
	lowWater   atomic.Int64 // of free: below it clients' appends are refused
	room       room
	stalls     stalls

	stop       context.CancelFunc
	loops      sync.WaitGroup // flusher, keeper, scrubber and the two that watch
	background sync.WaitGroup // removal of trash

	checkpointing sync.Mutex // held over the writing of a checkpoint
	// namedSlots says of which slots this process knows that their names are
	// durable. Guarded by checkpointing.
	namedSlots [2]bool
	wall       guardedClock

	mu struct {
		sync.Mutex
		logs       map[ID]*Log // nil for one that is being opened
		keyrings   map[TopicID]*keyring
		checkpoint checkpoint // the last one written, with newer records
		changed    bool       // checkpoint's records, since it was written
	}
}

// Open opens the data directory, a fresh one if there is nothing at its path.
// ctx bounds the opening only; Close ends what Open starts.
//
// Errors: *BusyError if another process has it; *DamagedError if it cannot be
// trusted or belongs to a newer version, in which case nothing was changed.
func Open(ctx context.Context, o Options) (*Dir, error) {
	if o.FS == nil {
		o.FS = disk.OS
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d := &Dir{opened: time.Now()}
	d.stalls.opened = d.opened
	o.FS = &watchedFS{FS: o.FS, stalls: &d.stalls}
	d.opts = o
	d.flusher, d.keeper, d.scrubber = newFlusher(d), newKeeper(d), newScrubber(d, o.ScrubRate)
	d.room.dir = d
	d.metrics = newMetrics(o.Registerer, func() float64 { return float64(d.flusher.lazyBytes.Load()) }, func() float64 { return d.Stalled().Seconds() })
	d.files = newFiles(o.FS, fileBudget(openFileLimit()), d.metrics)
	d.tables = newTables(o.FS, maxMappings, d.metrics, o.Logger)
	d.tables.fail = d.fail
	d.mu.logs, d.mu.keyrings = make(map[ID]*Log), make(map[TopicID]*keyring)
	if err := d.begin(); err != nil {
		return nil, err
	}
	// The loops outlive ctx: they end in Close.
	loop, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.loops.Go(func() { d.flusher.run(loop) })
	d.loops.Go(func() { d.keeper.run(loop) })
	d.loops.Go(func() { d.scrubber.run(loop) })
	d.loops.Go(func() { d.watchRoom(loop) })
	d.loops.Go(func() { d.watchStalls(loop) })
	return d, nil
}

// begin takes the lock and reads what the last run left.
func (d *Dir) begin() (err error) {
	fresh, err := d.makeRoot()
	if err != nil {
		return err
	}
	if err := d.takeLock(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = d.lock.Close()
		}
	}()
	if err := d.checkDirectories(); err != nil {
		return err
	}
	d.room.findBallast()
	d.room.measure()
	fsys := d.opts.FS
	// The subdirectories' names become durable with that of meta.json.
	for _, name := range []string{logsDir, trashDir, quarantineDir} {
		if !fresh {
			break
		}
		if err := fsys.MkdirAll(d.path(name)); err != nil {
			return err
		}
	}
	if d.identity, err = openIdentity(fsys, d.opts.Path, d.opts.NodeID, d.opts.Now()); err != nil {
		return err
	}
	if fresh {
		if err := fsys.SyncDir(filepath.Dir(filepath.Clean(d.opts.Path))); err != nil {
			return fmt.Errorf("create data directory: %w", err)
		}
	} else if d.opts.Before != nil {
		if err := d.opts.Before(d); err != nil {
			return err
		}
	}
	marker, marked, err := takeClean(fsys, d.opts.Path)
	if err != nil {
		return err
	}
	d.mu.checkpoint = readCheckpoint(fsys, d.opts.Path)
	if d.mu.checkpoint.records == nil {
		d.mu.checkpoint.records = make(map[ID]checkpointRecord)
	}
	d.wall.clockWatch = newClockWatch(d.mu.checkpoint.wallMs, d.opts.Now().UnixMilli(), d.clock())
	d.fresh = fresh
	d.clean = fresh || marked && marker.matches(d.mu.checkpoint)
	if !fresh {
		for _, name := range []string{logsDir, trashDir, quarantineDir} {
			if err := fsys.MkdirAll(d.path(name)); err != nil {
				return err
			}
		}
		if err := d.emptyTrash(); err != nil {
			return err
		}
	}
	if !d.clean {
		if err := d.syncLeft(); err != nil {
			return err
		}
	}
	return nil
}

// syncLeftLogs is from how many logs on one syncfs is sooner done than a sync
// of each log that has grown since the last checkpoint.
const syncLeftLogs = 32

// syncLeft makes durable what a run has left that did not end cleanly, in one
// go if there is much: what is read in a log may be in the page cache only. An
// error is final: the kernel tells it once.
func (d *Dir) syncLeft() error {
	names, err := d.opts.FS.List(d.path(logsDir))
	if err != nil || len(names) < syncLeftLogs {
		return err
	}
	err = d.opts.FS.SyncAll(d.opts.Path)
	if errors.Is(err, disk.ErrUnsupported) {
		return nil
	}
	d.synced = err == nil
	return syncFault(d.opts.Path, err)
}

// makeRoot makes the directory itself; fresh says that it was not there or
// empty. What is somebody else's is refused before anything is written.
func (d *Dir) makeRoot() (fresh bool, err error) {
	names, err := d.opts.FS.List(d.opts.Path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return false, &DamagedError{Path: d.opts.Path, Err: err}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err == nil && len(names) > 0 {
		if err := checkOwner(names); err != nil {
			return false, &DamagedError{Path: d.opts.Path, Err: fmt.Errorf("%w; name an empty one", err)}
		}
		return false, nil
	}
	return true, d.opts.FS.MkdirAll(d.opts.Path)
}

// takeLock locks the directory and leaves the process id for whom it keeps
// out.
func (d *Dir) takeLock() error {
	lock, err := d.opts.FS.Lock(d.path(lockFile))
	if errors.Is(err, disk.ErrLocked) {
		return d.busy()
	}
	if err != nil {
		return fmt.Errorf("lock data directory: %w", err)
	}
	d.lock = lock
	pid := []byte(strconv.Itoa(os.Getpid()) + "\n")
	err = withFile(d.opts.FS, d.path(lockFile), func(f disk.File) error {
		if _, err := f.WriteAt(pid, 0); err != nil {
			return err
		}
		return f.Truncate(int64(len(pid)))
	})
	if err != nil {
		_ = lock.Close()
	}
	return err
}

// busy says which process has the lock.
func (d *Dir) busy() *BusyError {
	busy := &BusyError{Path: d.opts.Path}
	if text, err := readFile(d.opts.FS, d.path(lockFile), 64); err == nil {
		busy.PID, _ = strconv.Atoi(strings.TrimSpace(string(text))) // 0 if it is not there yet
	}
	return busy
}

// Identity is who the directory belongs to.
func (d *Dir) Identity() Identity { return d.identity }

// MetaPath is the directory of the metadata store.
func (d *Dir) MetaPath() string { return d.path(metaDir) }

// Unclean says that the last run did not end with Close, so that logs may
// have lost what was not durable.
func (d *Dir) Unclean() bool { return !d.clean }

// Failed is nil, or the error of kind ErrFailed that ended all appends.
func (d *Dir) Failed() error {
	if err := d.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail ends all appends for good. No lock may be held.
func (d *Dir) fail(err error) {
	failed := fmt.Errorf("%w: %w", ErrFailed, err)
	if !d.failure.CompareAndSwap(nil, &failed) {
		return
	}
	d.opts.Logger.Error("data directory has failed", slog.String("path", d.opts.Path), slog.Any("err", err))
	if d.opts.OnFailure != nil {
		d.opts.OnFailure(failed)
	}
}

// clock is the time since Open in milliseconds, by the monotonic clock.
func (d *Dir) clock() int64 { return time.Since(d.opened).Milliseconds() }

// openLogs lists the logs that are open.
func (d *Dir) openLogs() []*Log {
	d.mu.Lock()
	defer d.mu.Unlock()
	logs := make([]*Log, 0, len(d.mu.logs))
	for _, l := range d.mu.logs {
		if l != nil {
			logs = append(logs, l)
		}
	}
	return logs
}

// record is what the next checkpoint says of a log.
func (d *Dir) record(id ID) (r checkpointRecord, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, known = d.mu.checkpoint.records[id]
	return r, known
}

func (d *Dir) setRecord(id ID, r checkpointRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.checkpoint.records[id] = r
	d.mu.checkpoint.maxAppendMs = max(d.mu.checkpoint.maxAppendMs, r.lastAppendMs)
	d.mu.changed = true
}

func (d *Dir) recordsChanged() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.changed
}

// writeCheckpoint writes the records as they are now to the older slot.
func (d *Dir) writeCheckpoint() error {
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	d.mu.Lock()
	next := d.mu.checkpoint
	next.records = maps.Clone(next.records)
	next.generation++
	next.wallMs = d.opts.Now().UnixMilli()
	next.partial = false
	d.mu.changed = false
	d.mu.Unlock()
	slot := next.generation % uint64(len(d.namedSlots))
	err := writeCheckpoint(d.opts.FS, d.opts.Path, next, d.namedSlots[slot])
	d.namedSlots[slot] = d.namedSlots[slot] || err == nil
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.mu.changed = true
		return err
	}
	d.mu.checkpoint.generation, d.mu.checkpoint.wallMs = next.generation, next.wallMs
	d.mu.checkpoint.partial = false
	return nil
}

// Usage is the size and the free room of the file system that holds the
// directory, in bytes.
func (d *Dir) Usage() (total, free int64, err error) {
	u, err := d.opts.FS.Usage(d.opts.Path)
	if err != nil {
		return 0, 0, err
	}
	return int64(min(u.Total, math.MaxInt64)), int64(min(u.Free, math.MaxInt64)), nil
}
