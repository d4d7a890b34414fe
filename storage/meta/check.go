package meta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"leat/storage/disk"
)

// Damage is something in the store that is not as it was written.
type Damage struct {
	// Path is the file, or the directory where no file can be named, and Pos
	// the byte in it, -1 where no place is known.
	Path string
	Pos  int64
	Err  error
	// Harmless says that nothing is lost by it: the next start does without.
	Harmless bool
}

// Check reads everything in the store in o.Dir, which no server has open, and
// changes nothing. It lists what does not hold: every damaged WAL, manifest and
// options file with the place, and the first of the tables. use, if it is not
// nil, gets the store to read if it opens; its error is Check's. Other errors
// are ctx's, and those of the operating system (disk.ErrLocked when a process
// has the store).
func Check(ctx context.Context, o Options, use func(*DB) error) ([]Damage, error) {
	names, err := o.FS.List(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check metadata store: %w", err)
	}
	exists, err := find(o.Dir, names)
	if err != nil {
		return addDamage(nil, err)
	}
	if !exists {
		return nil, nil // its making was cut short, or there is none
	}
	db, fsys := readOnly(o)
	damages, err := checkFiles(ctx, o, names)
	if err != nil {
		return nil, err
	}
	if err := db.look(func() error { return db.open(fsys, true) }); err != nil {
		return addDamage(damages, openError(o.Dir, fsys, err))
	}
	if err := db.look(func() error { return db.verify(ctx) }); err != nil {
		if ctx.Err() == nil {
			damages, err = addDamage(damages, openError(o.Dir, fsys, err))
		}
		_ = db.look(db.pebble.Close) // only read; it fails for the damage that was found
		return damages, err
	}
	if use != nil {
		err = use(db)
	}
	return damages, errors.Join(err, db.look(db.pebble.Close))
}

// readOnly is a store that is still to be opened, to read it only.
func readOnly(o Options) (*DB, *pebbleFS) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &DB{dir: o.Dir, logger: o.Logger, failed: make(chan struct{})}, &pebbleFS{FS: readOnlyFS{o.FS}}
}

// Peek has use read the store in o.Dir, which no process has open, reads
// everything in it, and changes nothing: an Open replays the WAL and writes other
// files before it meets damage of a table, and takes a bit that has changed in the
// last block of the WAL for its torn end. Without a whole store use is not called.
// Damage is a *CorruptError. Whether a store that does not open here opens
// otherwise, only Open can tell: then opened is false. The other errors are ctx's
// and use's.
func Peek(ctx context.Context, o Options, use func(*DB) error) (opened bool, err error) {
	names, err := o.FS.List(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the metadata store: %w", err)
	}
	if there, err := find(o.Dir, names); !there {
		return false, err
	}
	damages, err := checkFiles(ctx, o, names)
	if err != nil {
		return false, err
	}
	for _, d := range damages {
		if !d.Harmless {
			return false, &CorruptError{Path: d.Path, Err: fmt.Errorf("at byte %d: %w", d.Pos, d.Err)}
		}
	}
	db, fsys := readOnly(o)
	if err := db.look(func() error { return db.open(fsys, true) }); err != nil {
		o.Logger.Debug("metadata store cannot be looked at", slog.Any("err", err))
		return false, nil
	}
	if err = use(db); err == nil {
		err = db.look(func() error { return db.readAll(ctx) })
		if err != nil && ctx.Err() == nil {
			err = openError(o.Dir, fsys, err)
		}
	}
	if closing := db.look(db.pebble.Close); err == nil {
		err = closing // else it only says so again
	}
	return true, err
}

// addDamage adds the damage that Pebble has met, unless something worse than
// harmless is known of its file. Another error is returned.
func addDamage(damages []Damage, err error) ([]Damage, error) {
	damaged, ok := errors.AsType[*CorruptError](err)
	if !ok {
		return damages, err
	}
	if slices.ContainsFunc(damages, func(d Damage) bool { return d.Path == damaged.Path && !d.Harmless }) {
		return damages, nil
	}
	return append(damages, Damage{Path: damaged.Path, Pos: -1, Err: damaged.Err}), nil
}

// checkFiles looks at the files that Pebble reads less strictly than a check
// must. The error is ctx's.
func checkFiles(ctx context.Context, o Options, names []string) (damages []Damage, err error) {
	for _, name := range names {
		c := &chunkCheck{path: path.Join(o.Dir, name)}
		number, isLog := strings.CutSuffix(name, ".log")
		n, err := strconv.ParseUint(number, 10, 64)
		switch {
		case strings.HasPrefix(name, "MANIFEST-"):
			c.manifest = true
			err = c.run(ctx, o.FS)
		case isLog && err == nil:
			c.number = uint32(n)
			err = c.run(ctx, o.FS)
		case strings.HasPrefix(name, "OPTIONS-"):
			err = c.options(o.FS)
		default:
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			c.found(-1, false, err)
		}
		damages = append(damages, c.damages...)
	}
	return damages, nil
}

// maxOptionsBytes bounds the read of the file with Pebble's options.
const maxOptionsBytes = 1 << 20

// options compares the options file, which has no checksum, with what this
// version writes.
func (c *chunkCheck) options(fsys disk.FS) error {
	f, err := fsys.OpenFile(c.path, os.O_RDONLY)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxOptionsBytes))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	o := (&DB{}).options(&pebbleFS{FS: fsys}, nil, true)
	o.EnsureDefaults()
	want := o.String()
	if got := string(b); got != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		c.found(int64(at), true, errOptions)
	}
	return nil
}

var errOptions = errors.New("it is not what this version writes: changed, or of another version; the next start writes it anew")

// verify reads every key and value, and then the tables once more as they lie
// in their levels.
func (db *DB) verify(ctx context.Context) error {
	if err := db.readAll(ctx); err != nil {
		return err
	}
	return db.pebble.CheckLevels(nil)
}

// readAll reads every key and value.
func (db *DB) readAll(ctx context.Context) error {
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
	return errors.Join(it.Close(), ctx.Err())
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
