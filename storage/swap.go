package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"leat/storage/disk"
	"leat/storage/record"
)

// maxGeneration is the largest that a file name has digits for.
const maxGeneration = 1<<(4*genDigits) - 1

// errGivenUp says that segments which were being rewritten have left the log
// meanwhile, so that nothing is to be put in their place.
var errGivenUp = errors.New("segments left the log while they were rewritten")

// takeRewriting waits for the turn to put segments in the place of others. It is
// held over all that is done to find out what they are. It ends with ctx.
func (l *Log) takeRewriting(ctx context.Context) error {
	select {
	case l.rewriting <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Log) giveRewriting() { <-l.rewriting }

// rewrite puts segments of one new generation in the place of others. Whatever
// the process dies of on the way, the log is the old or the new one:
//
//	begin    COMPACT says that files of this generation are to be removed
//	create   the new segments are written, sealed and durable
//	swap     COMPACT says that the new ones are the log; then the old ones go
//
// The turn of rewriting must be held, and the log entered.
type rewrite struct {
	log     *Log
	gen     uint32
	fresh   []*segmentWriter
	swapped bool
}

// beginRewrite notes durably that a generation is being written which no
// segment of the log has, nor one that has left it and waits for its removal.
func (l *Log) beginRewrite() (*rewrite, error) {
	rw := &rewrite{log: l}
	if len(l.replaced) > 0 {
		if err := rw.finish(l.replaced); err != nil {
			return nil, err
		}
	}
	rw.gen = l.freeGeneration()
	if err := rw.note(swapRecord{gen: rw.gen}); err != nil {
		_ = l.dir.opts.FS.Remove(filepath.Join(l.path, swapFile+tmpSuffix)) // the next start does it otherwise
		return nil, err
	}
	// An earlier one may not have been able to remove what it had created.
	names, err := l.dir.opts.FS.List(l.path)
	for _, name := range names {
		if _, gen, _, ok := parseSegmentName(name); ok && gen == rw.gen && err == nil {
			err = l.dir.opts.FS.Remove(filepath.Join(l.path, name))
		}
	}
	return rw, err
}

// freeGeneration is one of which no file is there but of a rewriting that failed.
func (l *Log) freeGeneration() uint32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	used := make(map[uint32]bool, len(l.mu.segments))
	var gen uint32
	for _, s := range slices.Concat(l.mu.segments, l.mu.leaving) {
		used[s.gen] = true
		gen = max(gen, s.gen)
	}
	for gen++; used[gen] || gen > maxGeneration; gen++ {
		if gen >= maxGeneration {
			gen = 0 // all were used once; most of them are free again
		}
	}
	return gen
}

// note writes COMPACT and returns when it is durable.
func (rw *rewrite) note(r swapRecord) error {
	l := rw.log
	err := replaceFile(l.dir.opts.FS, filepath.Join(l.path, swapFile), r.encode())
	if err != nil && (errors.Is(err, errSync) || !noSpace(err) && !noDescriptors(err)) {
		l.dir.fail(err)
	}
	return err
}

// create begins a new segment, to which batches are added until it is sealed.
// buf, of at least rewriteBuffer, is the writer's until then.
func (rw *rewrite) create(base int64, buf []byte) (*segmentWriter, error) {
	l := rw.log
	w := &segmentWriter{
		dir: l.dir, seg: newSegment(l.path, base, rw.gen), interval: l.config.Load().IndexInterval, buf: buf[:0],
	}
	rw.fresh = append(rw.fresh, w)
	err := l.dir.files.sparing(func() (err error) {
		if err = w.seg.createFiles(l.dir.opts.FS); err == nil {
			w.file, err = l.dir.opts.FS.OpenFile(w.seg.logPath(), os.O_RDWR)
		}
		return err
	})
	if err != nil {
		return nil, writeError(w.seg, err)
	}
	return w, nil
}

// swap puts what was created, which must all be sealed, in the place of old:
// neighbours in the log that cover the same offsets, none of them active or
// with the durable mark. Reads of the old ones that are under way end in peace.
// errGivenUp if they have left the log, after which only abandon may follow, as
// after any error that left the directory in order.
func (rw *rewrite) swap(old []*segment) error {
	l := rw.log
	fresh := make([]*segment, len(rw.fresh))
	for i, w := range rw.fresh {
		fresh[i] = w.seg
	}
	if err := l.dir.syncedDir(l.path); err != nil {
		return err
	}
	// From here on no segment leaves the log by retention.
	l.mu.Lock()
	_, found := l.findLocked(old)
	l.mu.swapping = found
	l.mu.Unlock()
	if !found {
		return errGivenUp
	}
	err := rw.note(swapRecord{gen: rw.gen, done: true, fresh: fresh, old: old})
	l.mu.Lock()
	if err == nil {
		i, _ := l.findLocked(old)
		l.mu.segments = slices.Replace(slices.Clone(l.mu.segments), i, i+len(old), fresh...)
	}
	l.mu.swapping = false
	l.mu.Unlock()
	defer l.shed() // what it left alone meanwhile
	if err != nil {
		return err
	}
	rw.swapped = true
	l.dir.metrics.held(old, -1)
	l.dir.metrics.held(fresh, 1)
	l.replaced = old
	return rw.finish(old)
}

// findLocked says where the segments are in the log, one behind the other.
func (l *Log) findLocked(segs []*segment) (i int, found bool) {
	i = slices.Index(l.mu.segments, segs[0])
	last := len(l.mu.segments) - 1
	if i < 0 || i+len(segs) > last {
		return 0, false
	}
	in := l.mu.segments[i : i+len(segs)]
	return i, slices.Equal(in, segs) && !slices.Contains(in, l.mu.durable.seg)
}

// finish removes the old segments' files and then the word of it. If it cannot,
// the next rewriting or the next start does.
func (rw *rewrite) finish(old []*segment) error {
	l := rw.log
	var trash []string
	var failed error
	for _, s := range old {
		names, err := l.dir.keeper.discardSegment(l, s)
		trash, failed = append(trash, names...), errors.Join(failed, err)
	}
	if failed == nil {
		failed = rw.forget()
	}
	if failed == nil {
		l.replaced = nil
	}
	l.dir.discard(trash...)
	return failed
}

// forget removes COMPACT after a swap. It is sure to be gone before any of what
// it says the log has is removed, and the old segments before it.
func (rw *rewrite) forget() error {
	l := rw.log
	if err := l.dir.syncedDir(l.path); err != nil {
		return err
	}
	if err := rw.unlink(); err != nil {
		return err
	}
	return l.dir.syncedDir(l.path)
}

func (rw *rewrite) unlink() error {
	err := rw.log.dir.opts.FS.Remove(filepath.Join(rw.log.path, swapFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end the rewriting of segments: %w", err)
	}
	return nil
}

// abandon ends a rewriting that was not swapped and removes what it has
// created; it does nothing after a swap.
func (rw *rewrite) abandon() {
	if rw.swapped {
		return
	}
	fsys, failed := rw.log.dir.opts.FS, rw.log.dir.Failed() != nil
	for _, w := range rw.fresh {
		w.close()
		for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
			if err := fsys.Remove(w.seg.stem + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = true
			}
		}
	}
	// While COMPACT is there the next start removes what is left.
	if !failed {
		_ = rw.unlink()
	}
}

// segmentWriter writes one segment of a rewriting, with its own buffer.
type segmentWriter struct {
	dir      *Dir
	seg      *segment
	file     disk.File // nil when closed
	interval int
	buf      []byte
	written  int64 // bytes in the file
	synced   int64 // of those
}

const (
	// rewriteBuffer is how much is written to a new segment at a time, and
	// rewriteSync how much of it waits to be made durable, so that no sync
	// takes long.
	rewriteBuffer = 1 << 20
	rewriteSync   = 64 << 20
)

// add appends a batch.
func (w *segmentWriter) add(b record.Batch) error {
	if len(w.buf)+len(b) > rewriteBuffer {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.seg.extend(b, w.interval)
	if len(b) > rewriteBuffer {
		return w.write(b)
	}
	w.buf = append(w.buf, b...)
	return nil
}

func (w *segmentWriter) flush() error {
	p := w.buf
	w.buf = w.buf[:0]
	return w.write(p)
}

func (w *segmentWriter) write(p []byte) error {
	if _, err := w.file.WriteAt(p, w.written); err != nil {
		return writeError(w.seg, err)
	}
	if w.written += int64(len(p)); w.written-w.synced >= rewriteSync {
		return w.sync()
	}
	return nil
}

func (w *segmentWriter) sync() error {
	w.synced = w.written
	err := syncFault(w.seg.logPath(), w.file.SyncData())
	if err != nil {
		w.dir.fail(err)
	}
	return err
}

// seal makes the segment durable, with its indexes. lastAppend is the wall
// clock of the newest append that is in it.
func (w *segmentWriter) seal(lastAppend int64) error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.sync(); err != nil {
		return err
	}
	w.close()
	s := w.seg
	s.lastAppend = lastAppend
	head := s.seal()
	err := w.dir.files.sparing(func() error { return writeSealed(w.dir.opts.FS, s.stem, head, s.entries, s.times) })
	if errors.Is(err, errSync) {
		w.dir.fail(err)
	}
	if err != nil {
		return err
	}
	s.adopt(head)
	s.unread.Store(nil) // it was written here
	return nil
}

// close closes the file. What was written and not synced is nothing that
// anybody relies on.
func (w *segmentWriter) close() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}
