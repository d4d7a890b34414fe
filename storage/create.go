package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"leat/storage/disk"
)

// LogName is a partition with the name of its topic, which is written down
// for people who look at the directory without its metadata.
type LogName struct {
	ID
	Topic string
}

// Create makes the directories and empty files of new logs and returns when
// they are durable, all together: 10,000 partitions cost one sync. After an
// error none of them exists, or they are empty and SetAside removes them.
func (d *Dir) Create(logs []LogName) error {
	if err := d.Failed(); err != nil {
		return err
	}
	if err := d.room.admitPartitions(len(logs)); err != nil {
		return fmt.Errorf("create partitions: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	made := make([]bool, len(logs))
	for i, n := range logs {
		g.Go(func() error {
			return d.files.sparing(func() (err error) {
				made[i], err = d.createOne(n, made[i])
				return err
			})
		})
	}
	err := g.Wait()
	if err == nil {
		err = d.files.sparing(func() error { return d.syncCreated(logs) })
		if err != nil && !noDescriptors(err) {
			d.fail(err)
		}
	}
	if err == nil {
		return nil
	}
	for i, n := range logs {
		if made[i] {
			// What stays is empty, and SetAside knows what to do with it.
			_ = d.opts.FS.RemoveAll(d.logPath(n.ID))
		}
	}
	return fmt.Errorf("create partitions: %w", err)
}

// createOne makes one log's directory and files; made says that the directory
// is new, and begun that an earlier try has made it.
func (d *Dir) createOne(n LogName, begun bool) (made bool, err error) {
	dir := d.logPath(n.ID)
	if _, err := d.opts.FS.Stat(dir); err == nil && !begun {
		return false, fmt.Errorf("%s: %w", dir, fs.ErrExist)
	}
	if err := d.opts.FS.MkdirAll(dir); err != nil {
		return false, err
	}
	if err := d.describe(n); err != nil {
		return true, err
	}
	return true, newSegment(dir, 0, 0).createFiles(d.opts.FS)
}

// What the text in a partition's directory has of its id.
const (
	topicIDKey   = "topic_id"
	partitionKey = "partition"
	createdKey   = "created"

	createdLayout = "2006-01-02T15:04:05.000Z"
)

// describe writes the text that says which partition this is.
func (d *Dir) describe(n LogName) error {
	text := partitionSum.seal(fmt.Appendf(nil, "%s: %s\ntopic: %q\n%s: %d\n%s: %s\n",
		topicIDKey, n.ID.Topic, n.Topic, partitionKey, n.Partition, createdKey, d.opts.Now().UTC().Format(createdLayout)))
	return withFile(d.opts.FS, filepath.Join(d.logPath(n.ID), partitionFile), func(f disk.File) error {
		_, err := f.WriteAt(text, 0)
		return err
	})
}

// syncCreated makes new logs durable: by one syncfs, or where that may take
// long or hide errors by syncing their files and directories.
func (d *Dir) syncCreated(logs []LogName) error {
	if d.flusher.lazyBytes.Load() <= syncAllBacklog {
		err := d.opts.FS.SyncAll(d.opts.Path)
		if !errors.Is(err, disk.ErrUnsupported) {
			return err
		}
	}
	for _, n := range logs {
		dir := d.logPath(n.ID)
		err := withFile(d.opts.FS, filepath.Join(dir, partitionFile), disk.File.Sync)
		if err != nil {
			return err
		}
		if err := d.opts.FS.SyncDir(dir); err != nil {
			return err
		}
	}
	return d.opts.FS.SyncDir(d.path(logsDir))
}

func (d *Dir) logPath(id ID) string { return d.path(logsDir, id.dirName()) }

// Fate is what the owner of the metadata knows about a log's directory.
type Fate int

// The fates: the partition exists, was deleted for good, or was never heard of.
const (
	Keep Fate = iota
	Trash
	Unknown
)

// SetAside moves away every log that does not exist by fate: into the trash if
// it was deleted or has no records, else into the quarantine, where it stays
// until a person looks. Metadata that is wrong never deletes records. It must
// be called before any log is opened. After a crash a log that is to be kept and
// has no directory is lost.
func (d *Dir) SetAside(fate func(ID) Fate) error {
	names, err := d.opts.FS.List(d.path(logsDir))
	if err != nil {
		return err
	}
	touched := make(map[string]bool)
	for _, name := range names {
		is := Unknown
		if id, ok := parseDirName(name); ok {
			is = fate(id)
		}
		to := trashDir
		switch {
		case is == Keep:
			continue
		case is == Unknown && d.holdsRecords(name):
			to = quarantineDir
			d.opts.Logger.Error("unknown partition with records was put into quarantine", slog.String("directory", name))
		default:
			d.opts.Logger.Info("deleted or empty partition was removed", slog.String("directory", name))
		}
		if err := d.opts.FS.Rename(d.path(logsDir, name), d.path(to, asideName(name, d.opts.Now()))); err != nil {
			return fmt.Errorf("set aside %s: %w", name, err)
		}
		touched[to] = true
	}
	if len(touched) > 0 {
		touched[logsDir] = true
	}
	for _, name := range []string{trashDir, quarantineDir, logsDir} {
		if touched[name] {
			if err := d.opts.FS.SyncDir(d.path(name)); err != nil {
				return fmt.Errorf("set aside: %w", err)
			}
		}
	}
	d.fate = fate
	d.mu.Lock()
	for id := range d.mu.checkpoint.records {
		if fate(id) != Keep {
			delete(d.mu.checkpoint.records, id)
			d.mu.changed = true
		}
	}
	d.mu.Unlock()
	return d.emptyTrash()
}

// HasRun names something in the directory that only a run with metadata can have
// left; empty if there is nothing.
func (d *Dir) HasRun() (what string, err error) {
	names, err := d.opts.FS.List(d.path(logsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if len(names) > 0 {
		return logsDir + "/" + names[0], nil
	}
	return ranHere(d.opts.FS, d.opts.Path)
}

// ranHere names a file at the top of a data directory that is written by a run
// that has metadata; empty if there is none.
func ranHere(files disk.FS, dir string) (what string, err error) {
	names, err := files.List(dir)
	for _, name := range []string{cleanName, checkpointSlot("", 0), checkpointSlot("", 1)} {
		if err == nil && slices.Contains(names, name) {
			return name, nil
		}
	}
	return "", err
}

// holdsRecords says whether anything under logs/name may be somebody's data;
// when in doubt it is.
func (d *Dir) holdsRecords(name string) bool {
	files, err := d.opts.FS.List(d.path(logsDir, name))
	if err != nil {
		return true
	}
	for _, f := range files {
		_, _, suffix, ok := parseSegmentName(f)
		_, state := parseSnapshotName(f)
		switch {
		case f == partitionFile || state:
		case ok && suffix != logSuffix: // without a .log it means nothing
		default:
			if info, err := d.opts.FS.Stat(d.path(logsDir, name, f)); err != nil || info.IsDir() || info.Size() > 0 {
				return true
			}
		}
	}
	return false
}

// Remove deletes logs: they are gone when Remove returns, their files are
// removed in the background. Sections in flight stay valid. One that cannot be
// removed, such as one that is closed (ErrClosed), leaves the others gone; the
// error is that of the first.
func (d *Dir) Remove(logs ...*Log) error {
	var failed error
	var asides []string
	for _, l := range logs {
		aside, err := d.trash(l)
		if err == nil {
			asides = append(asides, aside)
		} else if failed == nil {
			failed = err
		}
	}
	if len(asides) == 0 {
		return failed
	}
	// Once for all: the more partitions there are, the slower each sync is.
	for _, name := range []string{trashDir, logsDir} {
		err := syncFault(d.path(name), d.files.sparing(func() error { return d.opts.FS.SyncDir(d.path(name)) }))
		if err != nil {
			// Without descriptors the logs are gone but may come back by a
			// crash, for the next start to remove.
			if !noDescriptors(err) {
				d.fail(err)
			}
			return err
		}
	}
	d.background.Go(func() { d.discard(asides...) })
	return failed
}

// trash closes a log and moves it to the trash, and says where it is there.
func (d *Dir) trash(l *Log) (aside string, err error) {
	if !l.close() {
		return "", ErrClosed
	}
	d.mu.Lock()
	delete(d.mu.logs, l.id)
	delete(d.mu.checkpoint.records, l.id)
	d.mu.changed = true
	d.mu.Unlock()
	aside = d.path(trashDir, asideName(l.id.dirName(), d.opts.Now()))
	err = d.opts.FS.Rename(l.path, aside)
	if noSpace(err) {
		// Not even a name fits in the trash: it is removed where it is.
		return l.path, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("remove %s: %w", l.path, err)
	}
	return aside, nil
}

// emptyTrash removes in the background what is in the trash.
func (d *Dir) emptyTrash() error {
	names, err := d.opts.FS.List(d.path(trashDir))
	if err != nil || len(names) == 0 {
		return err
	}
	for i, name := range names {
		names[i] = d.path(trashDir, name)
	}
	d.background.Go(func() { d.discard(names...) })
	return nil
}

func (d *Dir) discard(paths ...string) {
	for _, path := range paths {
		if err := d.opts.FS.RemoveAll(path); err != nil {
			d.opts.Logger.Warn("trash was not removed; the next start tries again", slog.String("path", path), slog.Any("err", err))
		}
	}
}

// OpenLog opens the log of a partition. After a crash it reads what may not
// be durable, cuts a torn end off, and says so in one line of the log. It is
// safe for concurrent use with different ids; a log is open once at most.
//
// start is the log's start as the caller has it durable, 0 if it was never
// raised; see SetStart. Files that are wholly below it are removed. A log that
// ends below it begins anew there, empty, and its files go into quarantine.
//
// If records are damaged or missing that had been durable, the log opens fenced:
// see Log.Holes.
func (d *Dir) OpenLog(ctx context.Context, id ID, name string, cfg Config, start int64) (*Log, error) {
	if err := d.Failed(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	_, open := d.mu.logs[id]
	if open || d.closing.Load() {
		d.mu.Unlock()
		if open {
			return nil, fmt.Errorf("open log %s: %w", id, os.ErrExist)
		}
		return nil, ErrClosed
	}
	d.mu.logs[id] = nil
	rec, known := d.mu.checkpoint.records[id]
	cfg = cfg.withDefaults()
	keys := newKeys(d.keyringFor(id.Topic, &cfg))
	d.mu.Unlock()

	r, err := d.recoverLog(ctx, LogName{ID: id, Topic: name}, cfg, keys, start, rec, known)

	d.mu.Lock()
	if err != nil {
		delete(d.mu.logs, id)
		d.leaveKeyring(id.Topic)
	} else {
		r.handOver()
		d.mu.logs[id] = r.log
	}
	d.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("open log %s-%d: %w", name, id.Partition, err)
	}
	r.log.shed()
	return r.log, nil
}
