package meta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"

	"leat/storage/disk"
)

// Check reads everything in the store in o.Dir, which no server has open, and
// changes nothing. It is nil for a store that holds and for none, *CorruptError
// with the file for the first damage, ctx's error, or one of the operating
// system (disk.ErrLocked when a process has the store).
func Check(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	names, err := o.FS.List(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check metadata store: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	db := &DB{dir: o.Dir, logger: o.Logger, failed: make(chan struct{})}
	fsys := &pebbleFS{FS: readOnlyFS{o.FS}}
	if !slices.ContainsFunc(names, isMarker) && !slices.ContainsFunc(names, isTable) {
		return nil // its making was cut short
	}
	if err := db.unlessFailed(func() error { return db.open(fsys, true) }); err != nil {
		return openError(o.Dir, fsys, err)
	}
	err = db.unlessFailed(func() error { return errors.Join(db.verify(ctx), db.pebble.Close()) })
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return openError(o.Dir, fsys, err)
}

func isMarker(name string) bool { return strings.HasPrefix(name, "marker.") }
func isTable(name string) bool  { return strings.HasSuffix(name, ".sst") }

// verify reads every key and value, and then the tables once more as they lie
// in their levels.
func (db *DB) verify(ctx context.Context) error {
	it, err := db.pebble.NewIter(nil)
	if err != nil {
		return err
	}
	n := 0
	for ok := it.First(); ok && (n%1024 != 0 || ctx.Err() == nil); ok = it.Next() {
		n++
		if _, err := it.ValueAndErr(); err != nil {
			return errors.Join(err, it.Close())
		}
	}
	if err := errors.Join(it.Close(), ctx.Err()); err != nil {
		return err
	}
	return db.pebble.CheckLevels(nil)
}

// readOnlyFS refuses everything that would change something.
type readOnlyFS struct{ disk.FS }

func refuse(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: syscall.EROFS} }

func (r readOnlyFS) OpenFile(name string, flag int) (disk.File, error) {
	if flag != os.O_RDONLY {
		return nil, refuse("open", name)
	}
	return r.FS.OpenFile(name, flag)
}

func (r readOnlyFS) MkdirAll(dir string) error   { return refuse("mkdir", dir) }
func (r readOnlyFS) Remove(name string) error    { return refuse("remove", name) }
func (r readOnlyFS) RemoveAll(name string) error { return refuse("remove", name) }
func (r readOnlyFS) Rename(from, _ string) error { return refuse("rename", from) }
func (r readOnlyFS) Link(from, _ string) error   { return refuse("link", from) }
func (r readOnlyFS) SyncDir(dir string) error    { return refuse("fsync", dir) }
func (r readOnlyFS) SyncAll(dir string) error    { return refuse("syncfs", dir) }

// Lock takes the lock if there is a file for it: without one nobody has had the
// store open since it was put there.
func (r readOnlyFS) Lock(name string) (io.Closer, error) {
	l, err := r.LockExisting(name)
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	return l, err
}
