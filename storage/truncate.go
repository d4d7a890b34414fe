package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"leat/storage/disk"
	"leat/storage/record"
)

// Truncate cuts off every batch that has records at or past offset, durable or
// not; a batch that offset is within goes as a whole. When it returns that is
// durable, and what is appended next begins where the log ends then. An offset
// at or past the end changes nothing.
//
// A crash on the way leaves a log that ends somewhere between offset and where
// it ended. Reads of what is cut off give *OffsetError, those of sections that
// were handed out before, too; but who sends such a section by its File may send
// bytes of other records, so those must not have been given to anybody. Producers
// and leader epochs are known as of the new end. Appends to the log, flushes of
// any, and the keeper wait until the end of it.
//
// It waits for a rewriting of the log's segments to end, until ctx does. The
// other errors: *OffsetError for an offset below the start, *CorruptError for
// what is damaged in the segment that gets shorter, ErrFull, ErrClosed, after all
// of which the log is as it was; ErrDamaged; ErrFailed.
func (l *Log) Truncate(ctx context.Context, offset int64) error {
	if !l.enter() {
		return ErrClosed
	}
	defer l.leave()
	if err := l.takeRewriting(ctx); err != nil {
		return err
	}
	defer l.giveRewriting()
	for {
		c, err := l.planCut(offset)
		if err == nil && c != nil {
			err = c.run()
		}
		if !errors.Is(err, errRetired) {
			return l.examined(err)
		}
		// The start was raised meanwhile.
	}
}

// TruncateToEpoch cuts the log to where it may agree with one of which is known
// that its largest epoch not above epoch ends at end (KIP-101, KIP-279): to end,
// or to where that of this log ends, if that is less. It returns the largest
// epoch of this log that is not above epoch, -1 for none, and the new end. If it
// is less than epoch, the other log is to be asked about it next. The errors are
// those of Truncate.
func (l *Log) TruncateToEpoch(ctx context.Context, epoch int32, end int64) (found int32, at int64, err error) {
	found, local, err := l.EpochEnd(epoch)
	if err != nil {
		return -1, -1, err
	}
	if err := l.Truncate(ctx, max(min(end, local), l.Offsets().Start)); err != nil {
		return -1, -1, err
	}
	return found, l.Offsets().End, nil
}

// truncation is one that is under way. It is planned without a lock: nothing of
// what is read for that changes while the turn of rewriting is held.
type truncation struct {
	log   *Log
	old   *segment // has the first batch that goes
	fresh *segment // takes its place, with the batches in front of that
	state idempotence
	epoch int32 // of the last batch that stays; 0 if there is none
	// anew says that no batch stays, because the start is within the first that
	// goes: the log begins anew at its start.
	anew bool

	gone []*segment // leave the log, old not among them unless the log begins anew
}

// planCut finds out what is to be done, nil if nothing.
func (l *Log) planCut(offset int64) (*truncation, error) {
	if err := l.dir.Failed(); err != nil {
		return nil, err
	}
	if l.fenced.Load() {
		return nil, ErrDamaged
	}
	o := l.Offsets()
	switch {
	case offset < o.Start:
		return nil, &OffsetError{Offset: offset, Start: o.Start, End: o.End}
	case offset >= o.End:
		return nil, nil
	}
	v, _, err := l.view(offset, o.End)
	if err != nil {
		return nil, err
	}
	h, err := l.dir.files.acquire(v.seg)
	if err != nil {
		return nil, err
	}
	defer l.dir.files.release(h)
	at, err := v.find(h, offset)
	if err != nil {
		return nil, err
	}
	c := &truncation{log: l, old: v.seg, fresh: newSegment(l.path, v.seg.base, v.seg.gen)}
	if at.offset < o.Start {
		c.anew, c.fresh = true, newSegment(l.path, o.Start, 0)
	} else if err := c.read(&v, h, at); err != nil {
		return nil, err
	}
	return c, c.fold(at)
}

// read makes the index of what stays of the segment, which is verified before:
// its new checksums call it right.
func (c *truncation) read(v *view, h *handle, at point) error {
	if err := v.verify(h, point{offset: c.fresh.base}, at); err != nil {
		return err
	}
	interval := c.log.config.Load().IndexInterval
	end, err := scan(h, c.fresh, at.pos, 0, c.fresh.base, -1, func(b record.Batch) {
		c.fresh.extend(b, interval)
		c.epoch = b.LeaderEpoch()
	})
	if err != nil {
		return fmt.Errorf("truncate %s: %w", c.fresh.logPath(), err)
	}
	if end.pos != at.pos {
		return &CorruptError{Path: c.fresh.logPath(), Pos: end.pos, Err: orElseErr(end.why, errTorn)}
	}
	return nil
}

// fold finds out what is known of producers as of the new end, and the epoch
// there if it is not known yet.
func (c *truncation) fold(at point) error {
	state, views, err := c.log.idempotenceAt(at)
	if err != nil {
		return err
	}
	c.state = state
	if c.fresh.size == 0 && at.offset > c.log.Offsets().Start {
		i := lastTrue(len(views), func(i int) bool { return views[i].tail.base < at.offset })
		if i >= 0 {
			epoch, err := views[i].firstEpoch(at.offset - 1)
			c.epoch = epoch
			return err
		}
	}
	return nil
}

// run does it. An error of kind ErrFailed is told to the directory.
func (c *truncation) run() error {
	l := c.log
	l.cutting.Lock()
	l.writing.Lock()
	trash, err, fatal := c.do()
	l.writing.Unlock()
	l.cutting.Unlock()
	if fatal != nil {
		l.dir.fail(fatal)
		return l.dir.Failed()
	}
	l.shed() // the durable mark may have left a segment that can go
	l.dir.discard(trash...)
	return err
}

// do prepares the disk, publishes the shorter log, and cuts the disk. What fails
// after the second cannot be undone.
func (c *truncation) do() (trash []string, err, fatal error) {
	l := c.log
	switch o := l.Offsets(); {
	case l.dir.Failed() != nil:
		return nil, l.dir.Failed(), nil
	case l.dir.closing.Load():
		return nil, ErrClosed, nil
	case l.fenced.Load():
		return nil, ErrDamaged, nil
	case c.end() < o.Start || c.anew && c.end() != o.Start:
		return nil, errRetired, nil // it was raised meanwhile
	}
	if err := c.prepare(); err != nil {
		if errors.Is(err, errSync) {
			return nil, nil, err
		}
		return nil, fmt.Errorf("truncate %s: %w", l.path, err), nil
	}
	c.publish()
	trash, err = c.apply()
	return trash, nil, err
}

// end is the offset that the log ends at.
func (c *truncation) end() int64 { return c.fresh.next }

// prepare makes durable what stays, removes what is known of producers past the
// end, and has the checkpoint say that no more is durable than what stays. A
// crash leaves the whole log then, or less.
func (c *truncation) prepare() error {
	l, d := c.log, c.log.dir
	l.mu.RLock()
	segments, from, start := l.mu.segments, l.mu.durable.seg, l.mu.start
	snapshots, newest := l.mu.snapshots, l.mu.epoch
	l.mu.RUnlock()
	for _, s := range segments[segmentIndex(segments, from.base):] {
		if s.base > c.end() || c.anew {
			break
		}
		h, err := d.files.acquire(s)
		if err != nil {
			return err
		}
		err = syncFault(s.logPath(), h.SyncData())
		d.files.release(h)
		if err != nil {
			return err
		}
	}
	for _, next := range snapshots {
		if next > c.end() {
			if err := l.removeSnapshot(next); err != nil {
				return err
			}
		}
	}
	if err := d.syncDir(l.path); err != nil {
		return err
	}
	was, known := d.record(l.id)
	d.setRecord(l.id, checkpointRecord{
		logStart: start, activeBase: c.fresh.base, activeGen: c.fresh.gen, recoveryOffset: c.end(),
		maxTimestamp: c.fresh.maxTimestamp, lastAppendMs: c.old.lastAppend,
		leaderEpoch: newest, // a crash may leave all of it
	})
	// Both slots: an older one would miss what is cut, or know other bytes, should
	// the newer one not hold.
	for range d.namedSlots {
		if err := d.patiently(d.writeCheckpoint); err != nil {
			if known {
				d.setRecord(l.id, was)
			}
			return err
		}
	}
	return nil
}

// publish makes the log end where it shall. Who reads what is gone is told from
// here on.
func (c *truncation) publish() {
	l, d, s := c.log, c.log.dir, c.fresh
	l.mu.Lock()
	i := slices.Index(l.mu.segments, c.old)
	was := l.mu.segments[i:]
	c.gone = was[1:]
	if c.anew {
		was, i = l.mu.segments, 0
		c.gone = was
	} else {
		s.firstAppend, s.lastAppend = c.old.firstAppend, c.old.lastAppend
	}
	if s.size == 0 {
		s.firstAppend = 0
	}
	s.named, s.allocated = true, s.size
	c.old.cutAt.Store(s.size + 1)
	var pins []*handle
	for _, o := range l.mu.segments { // no flush looks at those before the cut again: prepare has synced them
		pins = append(pins, o.pin)
		o.pin, o.named = nil, true
	}
	for _, o := range was {
		d.slack.Add(o.size - o.allocated)
		o.allocated = o.size
	}
	l.mu.segments = append(slices.Clone(l.mu.segments[:i]), s)
	l.mu.end, l.mu.epoch = s.next, c.epoch
	l.mu.epochs.cut(s.next)
	l.mu.recent.reset()
	l.mu.durable = l.markLocked()
	lazy := l.mu.lazy
	l.mu.lazy = backlog{}
	l.mu.changed = true
	l.mu.snapshots = slices.DeleteFunc(slices.Clone(l.mu.snapshots), func(next int64) bool { return next > s.next })
	l.cuts.Add(1)
	l.mu.Unlock()
	d.flusher.lazyBytes.Add(-lazy.bytes)
	d.metrics.held(was, -1)
	d.metrics.held([]*segment{s}, 1)
	expiration := l.writing.producers.expiration
	l.remember(c.state)
	l.writing.producers.setExpiration(expiration)
	for _, h := range pins {
		d.files.release(h)
	}
}

// apply removes the segments behind the new end, the last one first and each
// durably, so that a crash leaves no gap; makes the segment that gets shorter
// one without a seal; and cuts it, durably, so that nothing of it comes back
// behind what is appended next.
func (c *truncation) apply() (trash []string, err error) {
	l, d := c.log, c.log.dir
	for _, s := range slices.Backward(c.gone) {
		names, err := d.keeper.discardSegment(l, s)
		trash = append(trash, names...)
		if err == nil {
			err = d.syncDir(l.path)
		}
		if err != nil {
			return trash, err
		}
	}
	if c.anew {
		if err := d.files.sparing(func() error { return c.fresh.createFiles(d.opts.FS) }); err != nil {
			return trash, err
		}
		return trash, d.syncDir(l.path)
	}
	if err := c.unseal(); err != nil {
		return trash, err
	}
	h, err := d.files.acquire(c.fresh)
	if err != nil {
		return trash, err
	}
	defer d.files.release(h)
	if err := h.Truncate(c.fresh.size); err != nil {
		return trash, fmt.Errorf("truncate %s: %w", c.fresh.logPath(), err)
	}
	return trash, syncFault(c.fresh.logPath(), h.SyncData())
}

// unseal puts empty index files in the place of the segment's. They are other
// files, because the old ones may be mapped.
func (c *truncation) unseal() error {
	d := c.log.dir
	d.files.retire(c.old)
	d.tables.repair.Lock()
	defer d.tables.repair.Unlock()
	d.tables.drop(c.old)
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		name := c.old.stem + suffix
		if err := d.opts.FS.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err := d.files.sparing(func() error { return withFile(d.opts.FS, name, func(disk.File) error { return nil }) })
		if err != nil {
			return err
		}
	}
	return d.syncDir(c.log.path)
}

// since is err, or errRetired if the log was cut since then: what was looked at
// may have been another log's.
func (l *Log) since(cuts int64, err error) error {
	if l.cuts.Load() != cuts {
		return errRetired
	}
	return err
}
