package meta

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"regexp"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"leat/storage/disk"
)

var (
	// ErrNotFound says that the key has no value.
	ErrNotFound = errors.New("key not found")
	// ErrFailed says that an earlier write or sync failed. It is final: what
	// is on the disk is known again only after a restart.
	ErrFailed = errors.New("metadata store has failed")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("metadata store is closed")
)

// CorruptError says that a file of the store is damaged or missing. Nothing
// is repaired and nothing removed.
type CorruptError struct {
	Path string // the file, or the directory where no file can be named
	Err  error
}

func (e *CorruptError) Error() string { return "damaged " + e.Path + ": " + e.Err.Error() }

// Unwrap returns Pebble's error.
func (e *CorruptError) Unwrap() error { return e.Err }

const (
	cacheBytes    = 8 << 20
	memTableBytes = 4 << 20
	maxOpenFiles  = 64
	// formatVersion is on the disk and only ever goes up, in a release that
	// says so. From FormatWALSyncChunks on the WAL says what was synced, so
	// that damage is told from a torn tail; but Pebble looks for that only in
	// the 32 KiB blocks after the damaged one. In the last block of the newest
	// WAL damage still counts as the tail.
	formatVersion = pebble.FormatTableFormatV6
)

// Options says where the store is and who hears of its failure.
type Options struct {
	FS  disk.FS
	Dir string // made if missing; its parent must exist durably
	// Logger gets Pebble's own lines at debug level, failures at error level.
	Logger *slog.Logger
	// OnFatal is called once, when a write or sync has failed or damage was
	// found while running: the process should stop with exit code 74. It may
	// run in a goroutine of Pebble's with Pebble's locks held: it must not
	// block and not call the DB. nil: nobody is told, but Commit still fails.
	OnFatal func(error)
	// Room is asked before each commit whether the disk has room for so many
	// bytes, and for what the store writes besides; its error refuses the commit
	// and nothing else. nil: every commit is tried.
	Room func(bytes int64) error
	// OnFull is called when a write meets a full disk: it makes room and says
	// whether it did; then the write is tried again.
	OnFull func() bool
	// Patience is how long such a write waits for room that somebody else makes,
	// before it fails and the store with it. Whoever waits for the write, waits.
	Patience time.Duration
}

// DB is the store. Its methods are safe for concurrent use, except that
// nothing may be in flight when Close is called.
type DB struct {
	pebble  *pebble.DB
	dir     string
	logger  *slog.Logger
	onFatal func(error)
	room    func(int64) error
	failure atomic.Pointer[error]
	failed  chan struct{} // closed after failure is set
	closed  atomic.Bool
}

// Open opens the store in o.Dir or makes an empty one. Damage, and what is left
// of a store that cannot be found any more, is a *CorruptError; errors of the
// operating system come through as they are (disk.ErrLocked when another process
// has it).
func Open(o Options) (*DB, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	db := &DB{dir: o.Dir, logger: o.Logger, onFatal: o.OnFatal, room: o.Room, failed: make(chan struct{})}
	fsys := &pebbleFS{FS: o.FS, full: fullPolicy{onFull: o.OnFull, patience: o.Patience, logger: o.Logger}}
	if err := o.FS.MkdirAll(o.Dir); err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	if err := o.FS.SyncDir(path.Dir(o.Dir)); err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	exists, err := find(o.Dir, names)
	if err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	fsys.fresh = !exists
	if err := db.unlessFailed(func() error { return db.open(fsys, false) }); err != nil {
		return nil, openError(o.Dir, fsys, err)
	}
	fsys.opened.Store(true)
	return db, nil
}

// unlessFailed runs fn, which calls into Pebble, and returns early with the
// failure of the store: Pebble then may never come back, for it waits for a
// flush that cannot succeed or for a commit before this one. The goroutine
// left behind waits as long as the process lives, which is not long.
func (db *DB) unlessFailed(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- panicError(r)
			}
		}()
		done <- fn()
	}()
	select {
	case err := <-done:
		return err
	case <-db.failed:
		return db.err()
	}
}

// look runs fn, which only reads, to its end, so that the store may be closed
// after it: nothing that is read waits for a flush or a commit. What the store
// says has failed names more than what fn returns.
func (db *DB) look(fn func() error) (err error) {
	ended := make(chan struct{})
	go func() { // Pebble may end the goroutine
		defer close(ended)
		defer func() {
			if r := recover(); r != nil {
				err = panicError(r)
			}
		}()
		err = fn()
	}()
	<-ended
	select {
	case <-db.failed:
		return db.err()
	default:
		return err
	}
}

func (db *DB) open(fsys *pebbleFS, readOnly bool) (err error) {
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	db.pebble, err = pebble.Open(db.dir, db.options(fsys, cache, readOnly))
	return err
}

// options are how Pebble is used.
func (db *DB) options(fsys *pebbleFS, cache *pebble.Cache, readOnly bool) *pebble.Options {
	o := &pebble.Options{
		FS:                 fsys,
		ReadOnly:           readOnly,
		DisableTableStats:  readOnly, // they are for compactions
		Cache:              cache,
		MemTableSize:       memTableBytes,
		MaxOpenFiles:       maxOpenFiles,
		FormatMajorVersion: formatVersion,
		Logger:             pebbleLogger{db},
		EventListener: &pebble.EventListener{
			// Pebble would try the flush or compaction again at once, for
			// ever. What failed to be written is not written again: the
			// goroutine, which is Pebble's own, ends here.
			BackgroundError: func(err error) {
				db.fail(err)
				if !readOnly {
					runtime.Goexit()
				}
			},
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				db.fail(&CorruptError{Path: info.Path, Err: info.Details})
			},
		},
	}
	o.Experimental.FileCacheShards = 1
	return o
}

// panicError is a panic of Pebble's as an error: it panics when it cannot
// make a new WAL.
func panicError(r any) error {
	if err, ok := r.(error); ok {
		return fmt.Errorf("pebble: %w", err)
	}
	return fmt.Errorf("pebble: %v", r)
}

// How Pebble's messages name a file.
var (
	storeFile  = regexp.MustCompile(`\b(?:MANIFEST-\d{6,}|OPTIONS-\d{6,}|\d{6,}\.(?:sst|log|blob))\b`)
	storeTable = regexp.MustCompile(`\bfile (\d{6,}) \(type sstable\)`)
)

// openError tells damage from the errors of the operating system.
func openError(dir string, fsys *pebbleFS, err error) error {
	_, path1 := errors.AsType[*fs.PathError](err)
	_, path2 := errors.AsType[*os.LinkError](err)
	if (path1 || path2) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open metadata store: %w", err)
	}
	name := dir
	if base := storeFile.FindString(err.Error()); base != "" {
		name = path.Join(dir, base)
	} else if table := storeTable.FindStringSubmatch(err.Error()); table != nil {
		name = path.Join(dir, table[1]+".sst")
	} else if last := fsys.lastRead.Load(); last != nil {
		name = *last
	}
	return &CorruptError{Path: name, Err: err}
}

// fail notes the first failure and tells the owner. The order matters: when
// OnFatal runs, no later Commit can succeed, and the commits in flight return
// after it.
func (db *DB) fail(err error) {
	err = fmt.Errorf("%w: %w", ErrFailed, err)
	if !db.failure.CompareAndSwap(nil, &err) {
		return
	}
	db.logger.Error("metadata store failed", slog.String("dir", db.dir), slog.Any("err", err))
	if db.onFatal != nil {
		db.onFatal(err)
	}
	close(db.failed)
}

// err is why the store cannot be used.
func (db *DB) err() error {
	if err := db.failure.Load(); err != nil {
		return *err
	}
	if db.closed.Load() {
		return ErrClosed
	}
	return nil
}

// Get returns a copy of key's value, or ErrNotFound.
func (db *DB) Get(key []byte) ([]byte, error) {
	if err := db.err(); err != nil {
		return nil, err
	}
	v, closer, err := db.pebble.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, db.readError("get", err)
	}
	value := append(make([]byte, 0, len(v)), v...)
	return value, closer.Close()
}

// Scan calls fn for each key with the prefix, in order, as of the moment of
// the call. The slices are valid in the call only. An error of fn ends the
// scan and is returned.
func (db *DB) Scan(prefix []byte, fn func(key, value []byte) error) error {
	return db.ScanRange(prefix, prefixEnd(prefix), fn)
}

// ScanRange is Scan for the keys in [from, to).
func (db *DB) ScanRange(from, to []byte, fn func(key, value []byte) error) error {
	if err := db.err(); err != nil {
		return err
	}
	it, err := db.pebble.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return db.readError("scan", err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = fn(it.Key(), v)
		}
		if err != nil {
			return errors.Join(err, it.Close())
		}
	}
	// Close gives the error that ended the loop, if any.
	if err := it.Close(); err != nil {
		return db.readError("scan", err)
	}
	return nil
}

// readError is err, or the failure that it has led to: for damage that one
// names the file.
func (db *DB) readError(op string, err error) error {
	if failure := db.failure.Load(); failure != nil {
		err = *failure
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Batch collects changes for one Commit. It is used by one goroutine at a
// time, and not again after Commit. Keys and values are copied.
type Batch struct {
	pebble *pebble.Batch
}

// NewBatch makes an empty batch.
func (db *DB) NewBatch() *Batch { return &Batch{pebble: db.pebble.NewBatch()} }

// Set gives key a value. The errors of these calls are those of a batch that
// was committed already, which Commit reports.
func (b *Batch) Set(key, value []byte) { _ = b.pebble.Set(key, value, nil) }

// Delete removes key if it is there.
func (b *Batch) Delete(key []byte) { _ = b.pebble.Delete(key, nil) }

// DeleteRange removes the keys in [from, to).
func (b *Batch) DeleteRange(from, to []byte) { _ = b.pebble.DeleteRange(from, to, nil) }

// Commit applies b atomically and returns when it is durable. Concurrent
// commits share a sync. ErrFailed is final for the whole store: whether b is
// on the disk is not known before a restart. The error of Options.Room changed
// nothing, and b can be committed later.
func (db *DB) Commit(b *Batch) error {
	if err := db.admit(b); err != nil {
		return err
	}
	return db.commit(b, pebble.Sync)
}

// Close writes what is in the WAL into a table, so that the next Open has
// nothing to replay and every byte has a checksum that is always checked (see
// formatVersion), and releases the directory. Without room for the table the WAL
// stays as it is and is replayed. After a failure it leaves
// everything as it is and returns the failure: Pebble may hold locks for ever
// then, and the process is about to end.
func (db *DB) Close() error {
	if db.closed.Swap(true) {
		return ErrClosed
	}
	if failure := db.failure.Load(); failure != nil {
		return *failure
	}
	return db.unlessFailed(func() error {
		var err error
		if db.room == nil || db.room(memTableBytes) == nil {
			err = db.pebble.Flush()
		}
		return errors.Join(err, db.pebble.Close())
	})
}

// pebbleLogger is Pebble's logger.
type pebbleLogger struct{ db *DB }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.db.logger.Debug("pebble", slog.String("text", fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.db.logger.Error("pebble", slog.String("text", fmt.Sprintf(format, args...)))
}

// Fatalf ends the process in Pebble's own logger. Here it returns, after which
// no commit succeeds.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := &fatalError{text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err.cause = cause
		}
	}
	l.db.fail(err)
}

// fatalError is a line for Fatalf with the error that was printed in it.
type fatalError struct {
	text  string
	cause error
}

func (e *fatalError) Error() string { return e.text }
func (e *fatalError) Unwrap() error { return e.cause }
