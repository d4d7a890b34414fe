package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// SetStart raises the log's start to offset. What is below it cannot be read
// from here on; segments that are wholly below leave the log at once, or when
// they are sealed and durable, and their files go in the background. Sections
// in flight stay valid. The segment that grows is ended within about a second
// when all of it is below. A start that is not higher than the log's changes
// nothing.
//
// The caller has made the start durable before, and gives it to every OpenLog:
// files of removed segments may come back with a crash, and go again then.
//
// Errors: *OffsetError for an offset past the end; ErrDamaged; ErrClosed.
func (l *Log) SetStart(offset int64) error {
	if !l.enter() {
		return ErrClosed
	}
	defer l.leave()
	if l.fenced.Load() {
		return ErrDamaged
	}
	l.cutting.RLock()
	defer l.cutting.RUnlock()
	l.mu.Lock()
	start, end := l.mu.start, l.mu.end
	if offset > start && offset <= end {
		l.mu.start = offset
		l.mu.epochs.raise(offset)
		l.mu.changed = true
	}
	l.mu.Unlock()
	switch {
	case offset > end:
		return &OffsetError{Offset: offset, Start: start, End: end}
	case offset > start:
		l.dir.keeper.rolls.by(0)
		l.shed()
	}
	return nil
}

// shed takes the segments off the log that are wholly below its start and of
// which nobody writes anything any more: they are sealed, and what is durable
// is past them, so that neither the keeper nor a flush has them in hand. For
// the others it is called again when that is so.
func (l *Log) shed() {
	if l.fenced.Load() {
		return
	}
	l.mu.Lock()
	n, wait := 0, false
	if !l.mu.swapping {
		n, wait = shedding(l.mu.segments, l.mu.start, l.mu.durable.seg)
	}
	var gone []*segment
	if n > 0 {
		gone = l.mu.segments[:n]
		l.mu.segments = slices.Clone(l.mu.segments[n:])
		l.mu.leaving = slices.Concat(l.mu.leaving, gone)
	}
	l.mu.Unlock()
	if wait {
		// The durable mark stands at the end of a segment that could go; an
		// empty round moves it into the next one.
		l.dir.flusher.enqueue(l)
	}
	if n > 0 {
		l.dir.metrics.held(gone, -1)
		l.dir.keeper.remove(l, gone)
	}
}

// shedding is how many of the first segments may leave the log. wait says that
// one more may once the durable mark has left it.
func shedding(segments []*segment, start int64, durable *segment) (n int, wait bool) {
	for n < len(segments)-1 {
		s := segments[n]
		if s.next > start || !s.sealed.Load() {
			return n, false
		}
		if s == durable {
			return n, true
		}
		n++
	}
	return n, false
}

// removal is segments that have left a log and whose files are still there.
type removal struct {
	log  *Log
	segs []*segment
}

// remove asks for the files of segments to be removed that have left the log.
func (k *keeper) remove(l *Log, segs []*segment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.removals = append(k.mu.removals, removal{l, segs})
}

// removalsDue says that there are files to remove.
func (k *keeper) removalsDue() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.removals) > 0
}

// removeAll removes the files of the segments that had left their logs before
// the checkpoint was written that is the newest one: it says where the logs
// begin, so that no reader of the directory misses the records. A full disk is
// the exception: then room is what is needed, and the caller of SetStart knows
// the start, too.
func (k *keeper) removeAll(removals []removal) {
	var trash []string
	for i, r := range removals {
		names, err := k.removeOne(r)
		trash = append(trash, names...)
		if err != nil {
			k.mu.Lock()
			k.mu.removals = append(slices.Clone(removals[i:]), k.mu.removals...)
			k.mu.Unlock()
			k.complain("segments below the log's start were not removed", err)
			break
		}
	}
	if len(trash) > 0 {
		k.dir.background.Go(func() {
			for _, name := range trash {
				k.dir.discard(name)
			}
		})
	}
}

// takeRemovals is what removeAll may do after the next checkpoint.
func (k *keeper) takeRemovals() []removal {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := k.mu.removals
	k.mu.removals = nil
	return taken
}

// removeOne moves the segments' files into the trash and returns their names
// there. Nothing is synced: what comes back with a crash goes again.
func (k *keeper) removeOne(r removal) (trash []string, err error) {
	if !r.log.enter() {
		// The log was closed or removed, and its directory may be another
		// log's by now.
		for _, s := range r.segs {
			k.dir.files.retire(s)
			k.dir.tables.drop(s)
		}
		return nil, nil
	}
	defer r.log.leave()
	r.log.cutting.RLock()
	defer r.log.cutting.RUnlock()
	for _, s := range r.segs {
		names, err := k.discardSegment(r.log, s)
		trash = append(trash, names...)
		if err != nil {
			return trash, err
		}
		r.log.left(s)
	}
	return trash, nil
}

// left says that the files of a segment that has left the log are gone, too.
func (l *Log) left(s *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.leaving = slices.DeleteFunc(l.mu.leaving, func(o *segment) bool { return o == s })
}

// discardSegment moves one segment's files into the trash.
func (k *keeper) discardSegment(l *Log, s *segment) (trash []string, err error) {
	k.dir.files.retire(s) // from here on nobody opens it anew
	// A damaged index that is being rebuilt is there before it is moved.
	k.dir.tables.repair.Lock()
	defer k.dir.tables.repair.Unlock()
	defer k.dir.tables.drop(s)
	for _, suffix := range []string{indexSuffix, timeSuffix, logSuffix} {
		name := s.stem + suffix
		aside := k.dir.path(trashDir, asideName(l.id.dirName()+"."+filepath.Base(name), k.dir.opts.Now()))
		err := k.dir.opts.FS.Rename(name, aside)
		if noSpace(err) {
			// Not even a name fits: it goes at once.
			err = k.dir.opts.FS.Remove(name)
			aside = ""
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return trash, fmt.Errorf("remove %s: %w", name, err)
		}
		if aside != "" {
			trash = append(trash, aside)
		}
	}
	return trash, nil
}
