package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"leat/storage/disk"
)

// taken is a snapshot that waits for the batches that it tells of to be
// durable: of those that a crash takes away it must not tell.
type taken struct {
	next int64
	data []byte
}

// idempotence is what a log knows of its idempotent producers.
type idempotence struct {
	producers *producers
	// found are the keyed requests that a fold has come upon. Those of a log are
	// in its keys.
	found *keys
	// unsaved counts the bytes of their batches since the last snapshot was
	// taken; with none there is nothing to take one of.
	unsaved int64
	taken   *taken // at most one waits
}

// takeSnapshot keeps what is known of the producers at the log's end, for the
// keeper to write once all before is durable. writing must be held. It takes
// some 10 ms for as many producers as a log can have.
func (l *Log) takeSnapshot(next int64) {
	w := &l.writing
	if w.unsaved == 0 || w.taken != nil {
		return
	}
	w.taken = &taken{next: next, data: encodeSnapshot(w.producers, l.keys, next, l.dir.opts.Now())}
	w.unsaved = 0
	l.dir.keeper.snapshot(l)
}

// snapshot asks for the log's snapshot to be written when it may be.
func (k *keeper) snapshot(l *Log) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.snapshots = append(k.mu.snapshots, l)
}

// snapshotAll writes the snapshots of which all is durable. One that cannot be
// written for want of room is given up: a start reads more then.
func (k *keeper) snapshotAll() {
	k.mu.Lock()
	logs := k.mu.snapshots
	k.mu.snapshots = nil
	k.mu.Unlock()
	var again []*Log
	for _, l := range logs {
		done, err := k.snapshotOne(l)
		if err != nil {
			k.complain("what is known of idempotent producers was not written", err)
		}
		if !done && k.dir.Failed() == nil {
			again = append(again, l)
		}
	}
	k.mu.Lock()
	k.mu.snapshots = append(again, k.mu.snapshots...)
	k.mu.Unlock()
}

// covered are the removals that may be done: behind the segments there is a
// snapshot, if the log has any producers, for what is in the segments is known
// from nowhere else then. The others wait. For want of room it does without.
func (k *keeper) covered(removals []removal) (ready []removal) {
	var wait []removal
	for _, r := range removals {
		if k.cover(r.log, r.segs[len(r.segs)-1].next) {
			ready = append(ready, r)
		} else {
			wait = append(wait, r)
		}
	}
	k.mu.Lock()
	k.mu.removals = append(wait, k.mu.removals...)
	k.mu.Unlock()
	return ready
}

// cover sees to it that there is a snapshot at or past offset; false if that
// must wait.
func (k *keeper) cover(l *Log, offset int64) bool {
	if !l.enter() {
		return true
	}
	defer l.leave()
	for {
		l.writing.Lock()
		l.mu.RLock()
		has := len(l.writing.producers.byID) == 0 && l.keys.empty() || len(l.mu.snapshots) > 0 && l.mu.snapshots[len(l.mu.snapshots)-1] >= offset
		end := l.mu.end
		l.mu.RUnlock()
		if !has {
			l.writing.unsaved++ // whatever was counted, it is wanted
			l.takeSnapshot(end)
		}
		l.writing.Unlock()
		if has {
			return true
		}
		done, err := k.snapshotOne(l)
		if err != nil {
			k.complain("what is known of idempotent producers was not written", err)
			return true
		}
		if !done {
			return false
		}
	}
}

// snapshotOne writes the log's snapshot, with its name, unless it must still
// wait.
func (k *keeper) snapshotOne(l *Log) (done bool, err error) {
	if !l.enter() {
		return true, nil
	}
	defer l.leave()
	l.cutting.RLock()
	defer l.cutting.RUnlock()
	l.writing.Lock()
	t := l.writing.taken
	l.writing.Unlock()
	if t == nil {
		return true, nil // it was of batches that were cut off
	}
	if l.Offsets().Durable < t.next {
		return false, nil
	}
	err = l.saveSnapshot(t, true)
	l.writing.Lock()
	l.writing.taken = nil
	if err != nil {
		l.writing.unsaved++
	}
	l.writing.Unlock()
	return true, err
}

// saveSnapshot writes a snapshot and removes all but the newest two. Without
// sync a power cut may tear it, which its checksum tells.
func (l *Log) saveSnapshot(t *taken, sync bool) error {
	fsys, name := l.dir.opts.FS, filepath.Join(l.path, snapshotName(t.next))
	err := l.dir.files.sparing(func() error {
		return withFile(fsys, name, func(f disk.File) error {
			if _, err := f.WriteAt(t.data, 0); err != nil {
				return err
			}
			if err := f.Truncate(int64(len(t.data))); err != nil || !sync {
				return err
			}
			return syncFault(name, f.Sync())
		})
	})
	if err == nil && sync {
		err = syncFault(l.path, l.dir.files.sparing(func() error { return fsys.SyncDir(l.path) }))
	}
	if err != nil {
		_ = fsys.Remove(name) // what stays is known by its checksum
		return err
	}
	l.mu.Lock()
	if !slices.Contains(l.mu.snapshots, t.next) {
		l.mu.snapshots = append(slices.Clip(l.mu.snapshots), t.next)
	}
	old := l.mu.snapshots[:max(len(l.mu.snapshots)-snapshotsKept, 0)]
	l.mu.snapshots = l.mu.snapshots[len(old):]
	l.mu.Unlock()
	for _, next := range old {
		if err := l.removeSnapshot(next); err != nil {
			return err
		}
	}
	return nil
}

// removeSnapshot removes a snapshot's file; one that is not there is fine.
func (l *Log) removeSnapshot(next int64) error {
	err := l.dir.opts.FS.Remove(filepath.Join(l.path, snapshotName(next)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// snapshotAtStop writes what is known of the producers when all is durable and
// nothing is appended any more. It is not synced: a machine that loses power
// right after the stop reads more at the start.
func (l *Log) snapshotAtStop() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.writing.unsaved == 0 && l.writing.taken == nil {
		return nil
	}
	next := l.Offsets().End
	err := l.saveSnapshot(&taken{next: next, data: encodeSnapshot(l.writing.producers, l.keys, next, l.dir.opts.Now())}, false)
	if err != nil && (noSpace(err) || noDescriptors(err)) {
		l.dir.opts.Logger.Warn("what is known of idempotent producers was not written", slog.Any("err", err))
		return nil
	}
	return err
}

// readSnapshot reads one of the log's snapshots.
func (l *Log) readSnapshot(next int64) (snapshot, error) {
	name := filepath.Join(l.path, snapshotName(next))
	b, err := readFile(l.dir.opts.FS, name, maxSnapshotBytes)
	if errors.Is(err, errFileTooLarge) {
		return snapshot{}, fmt.Errorf("%s: %w: it is too large", name, errBadSnapshot)
	}
	if err != nil {
		return snapshot{}, err
	}
	s, err := decodeSnapshot(b, next)
	if err != nil {
		return snapshot{}, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}
