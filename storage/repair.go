package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// Repaired says what a repair accepted as lost, and the bounds of the log after
// it.
type Repaired struct {
	Holes      []Hole
	Start, End int64
}

// Repair accepts the holes of a fenced log for good: where records are missing
// an empty batch has their offsets, so that readers pass over it, and the log
// takes records again. The damaged files stay in the quarantine. A log that is
// lost begins anew at its end; the caller makes that start durable. All is
// durable when Repair returns; a crash leaves the log fenced or repaired. A log
// that is not fenced stays as it is. ErrDamaged says that another hole was found
// meanwhile, which the next Repair accepts.
func (l *Log) Repair(ctx context.Context) (Repaired, error) {
	if !l.enter() {
		return Repaired{}, ErrClosed
	}
	defer l.leave()
	if err := l.takeRewriting(ctx); err != nil {
		return Repaired{}, err
	}
	defer l.giveRewriting()
	if !l.Fenced() {
		o := l.Offsets()
		return Repaired{Start: o.Start, End: o.End}, nil
	}
	if err := l.verifyAll(ctx); err != nil {
		return Repaired{}, err
	}
	out := Repaired{Holes: l.Holes()}
	err := l.repair(ctx)
	if err == nil {
		err = l.unfence()
	}
	o := l.Offsets()
	out.Start, out.End = o.Start, o.End
	if err != nil {
		return out, fmt.Errorf("repair %s: %w", l.path, err)
	}
	return out, nil
}

// verifyAll looks for what is damaged and was not read since the start, so that
// one repair is enough.
func (l *Log) verifyAll(ctx context.Context) error {
	l.mu.RLock()
	segments := l.mu.segments
	l.mu.RUnlock()
	for _, s := range segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.unread.Load() == nil {
			continue
		}
		l.mu.RLock()
		known := len(s.gaps)
		l.mu.RUnlock()
		if err := l.examine(s, known); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) repair(ctx context.Context) error {
	l.mu.RLock()
	lost := l.mu.lost
	l.mu.RUnlock()
	if lost != nil {
		return l.beginAnew()
	}
	if err := l.freshActive(); err != nil {
		return err
	}
	if err := l.settled(ctx); err != nil {
		return err
	}
	for {
		r, found := l.nextWound()
		if !found {
			return nil
		}
		if err := r.run(ctx); err != nil {
			return err
		}
	}
}

// freshActive sees to it that the last segment is one that can grow.
func (l *Log) freshActive() error {
	l.mu.RLock()
	last, end := l.activeLocked(), l.mu.end
	whole := len(last.gaps) == 0 && !last.sealed.Load()
	l.mu.RUnlock()
	fsys := l.dir.opts.FS
	if whole {
		if _, err := fsys.Stat(last.logPath()); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else {
		last = newSegment(l.path, end, 0)
	}
	if err := last.createFiles(fsys); err != nil {
		return err
	}
	if err := l.dir.syncedDir(l.path); err != nil {
		return err
	}
	last.named = true
	if whole {
		return nil
	}
	l.mu.Lock()
	l.mu.segments = append(slices.Clip(l.mu.segments), last)
	l.mu.recent.reset()
	l.mu.changed = true
	l.mu.Unlock()
	l.dir.metrics.segments.Inc()
	return nil
}

// settled waits until the durable mark has left the segments that are repaired.
func (l *Log) settled(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		l.mu.RLock()
		there := l.mu.durable.seg == l.activeLocked()
		l.mu.RUnlock()
		if err := l.dir.Failed(); there || err != nil {
			return err
		}
		l.dir.flusher.enqueue(l)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// beginAnew makes an empty log at the end of one that is lost.
func (l *Log) beginAnew() error {
	d, fsys := l.dir, l.dir.opts.FS
	l.mu.RLock()
	s := l.activeLocked()
	rec := checkpointRecord{corrupt: true, logStart: s.base, activeBase: s.base, recoveryOffset: s.base, maxTimestamp: -1, leaderEpoch: l.mu.epoch}
	l.mu.RUnlock()
	d.setRecord(l.id, rec)
	if err := l.checkpointed(); err != nil {
		return err
	}
	aside := d.path(quarantineDir, asideName(l.id.dirName(), d.opts.Now()))
	if err := fsys.Rename(l.path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.MkdirAll(l.path); err != nil {
		return err
	}
	if err := errors.Join(d.describe(LogName{ID: l.id, Topic: l.name}), s.createFiles(fsys)); err != nil {
		return err
	}
	for _, dir := range []string{d.path(quarantineDir), l.path, d.path(logsDir)} {
		if err := l.dir.syncedDir(dir); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.mu.start, l.mu.lost = s.base, nil
	l.mu.changed = true
	l.mu.Unlock()
	return nil
}

// checkpointed writes a checkpoint; a failed sync fails the directory.
func (l *Log) checkpointed() error {
	err := l.dir.patiently(l.dir.writeCheckpoint)
	if errors.Is(err, errSync) {
		l.dir.fail(err)
	}
	return err
}

// unfence opens the log for records again. ErrDamaged if another hole was found
// meanwhile: the log stays fenced, and another repair is needed.
func (l *Log) unfence() error {
	l.mu.Lock()
	if len(l.holesLocked()) > 0 {
		l.mu.Unlock()
		return ErrDamaged
	}
	l.fenced.Store(false)
	l.mu.epochs = epochs{}
	l.mu.changed = true
	segments := l.mu.segments
	l.mu.Unlock()
	l.dir.keeper.rolls.by(0)
	for _, s := range segments[:len(segments)-1] {
		if !s.sealed.Load() {
			l.dir.keeper.seal(l, s)
		}
	}
	if rec, known := l.dir.record(l.id); known && rec.corrupt {
		rec.corrupt = false
		l.dir.setRecord(l.id, rec)
	}
	if err := l.checkpointed(); err != nil {
		l.mu.Lock()
		l.fenced.Store(true)
		l.mu.Unlock()
		return err
	}
	l.shed()
	return nil
}
