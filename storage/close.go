package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Close makes everything durable, closes the logs, and leaves the mark of a
// clean stop, unless the directory has failed. Sections in flight stay valid.
// The error says why the stop was not clean.
func (d *Dir) Close() error {
	if d.closing.Swap(true) {
		return ErrClosed
	}
	d.stop()
	d.loops.Wait()
	logs := d.openLogs()
	slices.SortFunc(logs, func(a, b *Log) int { return strings.Compare(a.path, b.path) })
	for _, l := range logs {
		l.writing.Lock()   // appends in progress end; later ones see closing
		l.writing.Unlock() //nolint:staticcheck // the critical section of others is what is waited for
	}
	err := d.Failed()
	if err == nil {
		err = d.settle(logs)
	}
	for _, l := range logs {
		l.close()
	}
	d.keeper.removeAll(d.keeper.takeRemovals()) // of closed logs: what they have open is closed
	d.background.Wait()
	if err == nil && !d.unsure.Load() {
		err = d.markClean()
	}
	return errors.Join(err, d.lock.Close())
}

// Refuse is for a start that ends before all logs are open: if the run before
// did not end cleanly, Close does not say that this one did, for what it left
// was not looked at; nor if there was none, for there may be no metadata.
func (d *Dir) Refuse() {
	if d.Unclean() || d.fresh {
		d.unsure.Store(true)
	}
}

// settle flushes the logs, gives back what they hold in reserve and writes
// the checkpoint.
func (d *Dir) settle(logs []*Log) error {
	if err := d.flusher.round(logs); err != nil {
		return err
	}
	d.keeper.sealAll()
	for _, l := range logs {
		if err := l.trim(); err != nil {
			return err
		}
	}
	if err := errors.Join(d.Failed(), d.keeper.checkpoint(), d.Failed()); err != nil {
		return err
	}
	for _, l := range logs {
		if err := l.snapshotAtStop(); err != nil {
			return err
		}
	}
	d.keeper.removeAll(d.keeper.takeRemovals())
	return d.Failed()
}

// trim cuts the preallocated zeros off. It needs no sync: should they come
// back, they are still zeros.
func (l *Log) trim() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.RLock()
	seg := l.activeLocked()
	l.mu.RUnlock()
	if seg.allocated <= seg.size {
		return nil
	}
	h, err := l.dir.files.acquire(seg)
	if err != nil {
		return err
	}
	defer l.dir.files.release(h)
	if err := h.Truncate(seg.size); err != nil {
		return fmt.Errorf("trim %s: %w", seg.logPath(), err)
	}
	l.dir.slack.Add(seg.size - seg.allocated)
	seg.allocated = seg.size
	return nil
}

func (d *Dir) markClean() error {
	d.mu.Lock()
	c := d.mu.checkpoint
	d.mu.Unlock()
	return writeClean(d.opts.FS, d.opts.Path, cleanMarker{
		generation: c.generation, partitions: uint32(len(c.records)), wallMs: d.opts.Now().UnixMilli(), bootID: readBootID(d.opts.FS),
	})
}
