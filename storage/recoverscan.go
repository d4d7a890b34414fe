package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"

	"leat/storage/disk"
	"leat/storage/record"
)

// resume takes over what the checkpoint says of the segment's durable part.
// Without that it is scanned from its beginning.
func (r *recovery) resume(f *found) {
	s := f.seg
	if !r.inCheckpoint(f) {
		return
	}
	offsets := r.rec.recoveryOffset - s.base
	p, err := r.readEntries(offsetTable, s, r.rec.indexEntries, r.rec.indexCRC)
	q, errTimes := r.readEntries(timeTable, s, r.rec.timeIndexEntries, r.rec.timeIndexCRC)
	var entries []entry
	var times []timeEntry
	if err = errors.Join(err, errTimes); err == nil {
		entries, err = parseEntries(p, offsets, r.rec.recoveryPos)
		times, errTimes = parseTimes(q, offsets)
		err = errors.Join(err, errTimes)
	}
	if err != nil {
		r.dir.opts.Logger.Warn("index of the active segment is damaged and is rebuilt from the log",
			slog.String("path", s.stem+indexSuffix), slog.Any("err", err))
		r.rebuilt++
		return
	}
	s.entries, s.times = entries, times
	if len(entries) > 0 {
		s.lastEntry = int64(entries[len(entries)-1].pos)
	}
	s.next, s.size, s.maxTimestamp, s.crc = r.rec.recoveryOffset, r.rec.recoveryPos, r.rec.maxTimestamp, r.rec.logCRC
	s.firstAppend, s.lastAppend = r.rec.firstAppendMs(), r.rec.lastAppendMs
	s.written = writtenIndex{entries: len(entries), times: len(times), entriesCRC: r.rec.indexCRC, timesCRC: r.rec.timeIndexCRC}
}

// readEntries reads the first count entries of an index file that is not
// sealed and compares their checksum.
func (r *recovery) readEntries(kind tableKind, s *segment, count, crc uint32) ([]byte, error) {
	if count == 0 {
		return nil, nil
	}
	p, err := readFile(r.dir.opts.FS, kind.path(s), maxSegmentBytes)
	if err != nil {
		return nil, err
	}
	size := sealSize + int64(count)*entrySize
	if int64(len(p)) < size {
		return nil, errBadIndex
	}
	if p = p[sealSize:size]; crc32.Checksum(p, castagnoli) != crc {
		return nil, errBadIndex
	}
	return p, nil
}

// scanSegment reads the i-th segment from where it is not known to be durable
// and deals with what is behind its last whole batch.
func (r *recovery) scanSegment(i int, bound, next int64) error {
	f := &r.found[i]
	s := f.seg
	var accuser *witness
	if f.whole {
		accuser = findWitness(r.dir.opts.FS, s, &f.seal, f.size, r.start, next)
	}
	if accuser == nil {
		r.resume(f)
	}
	if f.torn || f.sealed {
		// What the files say of the segment is not so, and would stay if no
		// entry were added.
		s.written.stale = true
	}
	if s.size > 0 {
		s.unread.Store(newUnread(s.size)) // what the checkpoint speaks for
	}
	from, end := s.size, scanned{pos: s.size, next: s.next}
	var h *handle
	if from < f.size || end.next < bound { // else it is not even opened: most logs end where the checkpoint says
		var err error
		if h, err = r.dir.files.acquire(s); err != nil {
			return err
		}
		defer r.dir.files.release(h)
		r.scanning(s)
		if end, err = r.scanOver(f, h, accuser, bound, next); err != nil {
			return fmt.Errorf("scan %s: %w", s.logPath(), err)
		}
		r.read += end.pos - from
		if f.sealed && len(s.gaps) == 0 && s.size == f.seal.logBytes && s.next == f.seal.next && s.crc != f.seal.logCRC {
			if err := r.changed(h, s, end.point(), s.crc^f.seal.logCRC); err != nil {
				return err
			}
		}
	}
	if i+1 < len(r.found) && end.next > next && bound >= next {
		var err error
		if end, err = r.overlap(f, next); err != nil {
			return err
		}
	}
	s.allocated = f.size
	r.dir.slack.Add(s.allocated - s.size)
	if h != nil {
		if err := r.keepScanned(i, h, end.pos > from); err != nil {
			return err
		}
	}
	if i+1 < len(r.found) && end.next != next {
		return r.setLaterAside(i)
	}
	return nil
}

// keepScanned cuts what is behind the i-th segment's last batch and makes the
// segment durable; grown says that batches were found that may not be so yet.
func (r *recovery) keepScanned(i int, h *handle, grown bool) error {
	s := r.found[i].seg
	if grown {
		now := r.dir.opts.Now().UnixMilli()
		s.lastAppend = now
		switch {
		case s.firstAppend != 0:
		case r.known && s.base == r.rec.activeBase && r.rec.recoveryOffset > s.base:
			s.firstAppend = min(r.rec.firstAppendMs(), now)
		default:
			s.firstAppend = now
		}
	}
	cut, err := r.cutTail(&r.found[i], h, i+1 < len(r.found))
	if err != nil || !cut && (!grown || r.dir.synced) {
		return err
	}
	return r.synced(s.logPath(), h.SyncData())
}

// changed makes a gap of what has changed in front of a point of a segment, by a
// checksum that differs there.
func (r *recovery) changed(h *handle, s *segment, end point, difference uint32) error {
	c, err := changedPart(h, s, point{offset: s.base}, end, difference)
	if err != nil {
		return fmt.Errorf("scan %s: %w", s.logPath(), err)
	}
	s.gaps = []gap{c.gap}
	return nil
}

// scanOver reads the batches from the segment's end on. Where one does not hold
// that was durable, there is a gap, and it goes on behind it. What the checkpoint
// or a witness say against the .log has the last word.
func (r *recovery) scanOver(f *found, h *handle, accuser *witness, bound, next int64) (scanned, error) {
	s, interval, epoch := f.seg, r.log.config.Load().IndexInterval, r.scannedEpoch
	said := r.said(f)
	var seen summed
	use := func(b record.Batch) {
		s.extend(b, interval)
		r.scannedEpoch = max(r.scannedEpoch, b.LeaderEpoch())
		if s.size == said.pos {
			seen = s.summed()
		}
		if accuser != nil {
			accuser.see(b, s.size-int64(len(b)), s.crc)
		}
	}
	end, err := r.scanBatches(f, h, use, bound, next)
	if err != nil {
		return end, err
	}
	whole := len(s.gaps) == 0 && end.pos >= said.pos
	switch {
	case accuser != nil && accuser.against(len(s.gaps) > 0), whole && seen.point != said.point:
		r.scannedEpoch = epoch
		return r.disown(f, bound), nil
	case whole && seen.crc != said.crc:
		err = r.changed(h, s, said.point, seen.crc^said.crc)
	}
	return end, err
}

// overlap makes a gap of the batches of a segment from the one on that reaches past
// the place where the next one begins: which of the two is right is not known.
func (r *recovery) overlap(f *found, next int64) (scanned, error) {
	s, interval, over := f.seg, r.log.config.Load().IndexInterval, false
	h, err := r.dir.files.acquire(s)
	if err != nil {
		return scanned{}, err
	}
	defer r.dir.files.release(h)
	s.tail, s.gaps = newTail(s.base), nil
	end, err := scan(h, s, f.size, 0, s.base, -1, func(b record.Batch) {
		if over = over || b.NextOffset() > next; !over {
			s.extend(b, interval)
		}
	})
	if err != nil {
		return end, fmt.Errorf("scan %s: %w", s.logPath(), err)
	}
	to := point{offset: next, pos: f.size}
	s.gaps = []gap{{from: s.summed().point, to: to, why: fmt.Errorf("the segment ends at offset %d, the next one begins at %d", end.next, next)}}
	s.skip(to)
	return scanned{pos: to.pos, next: to.offset}, nil
}

// said is what the checkpoint has of a segment that is read again from its
// beginning; zero if that is nothing.
func (r *recovery) said(f *found) summed {
	if !r.inCheckpoint(f) || f.seg.size > 0 {
		return summed{}
	}
	return summed{point{r.rec.recoveryOffset, r.rec.recoveryPos}, r.rec.logCRC}
}

// inCheckpoint says whether the checkpoint has a position in the segment.
func (r *recovery) inCheckpoint(f *found) bool {
	return r.known && f.seg.base == r.rec.activeBase && f.seg.gen == r.rec.activeGen && 0 < r.rec.recoveryPos && r.rec.recoveryPos <= f.size
}

// scanBatches is scanOver without a witness.
func (r *recovery) scanBatches(f *found, h *handle, use func(record.Batch), bound, next int64) (scanned, error) {
	s := f.seg
	doctor := salvage{f: h, seg: s, size: f.size, end: point{offset: bound, pos: -1}}
	for {
		end, err := scan(h, s, f.size, s.size, s.next, next, use)
		// What is missing below the log's start was not to be kept.
		if err != nil || end.next >= bound || bound <= r.start {
			return end, err
		}
		if doctor.anchors == nil {
			doctor.anchors = r.anchors(f)
		}
		at := point{offset: end.next, pos: end.pos}
		to, err := doctor.resync(at)
		if err != nil {
			return end, err
		}
		s.gaps = append(s.gaps, gap{from: at, to: to, why: orElseErr(end.why, missing(at.offset, bound))})
		s.skip(to)
		if to.offset >= bound && to.pos >= f.size {
			return scanned{pos: to.pos, next: to.offset}, nil
		}
	}
}

// anchors are the places in a segment of which something else than its .log
// knows that a batch begins there.
func (r *recovery) anchors(f *found) []point {
	at := []point{}
	if f.sealed {
		entries, err := readSealedEntries(r.dir.opts.FS, f.seg, f.seal.next, f.seal.logBytes)
		if err == nil {
			for _, e := range entries {
				at = append(at, point{offset: f.seg.base + int64(e.rel), pos: int64(e.pos)})
			}
		}
		if f.seal.logBytes <= f.size {
			at = append(at, point{offset: f.seal.next, pos: f.seal.logBytes})
		}
	}
	if r.inCheckpoint(f) {
		at = append(at, point{offset: r.rec.recoveryOffset, pos: r.rec.recoveryPos})
	}
	return at
}

func (r *recovery) scanning(s *segment) {
	if r.scannedFrom < 0 {
		r.scannedFrom, r.segment = s.next, s.base
	}
}

// tailAction is what to do with the bytes behind the last whole batch.
type tailAction int

const (
	tailKeep tailAction = iota // it is as good as preallocated
	tailCut
	tailSave // keep a copy, then cut
)

// chooseTail decides about rest bytes behind the last whole batch of a
// segment; inner says that another segment follows.
func chooseTail(rest int64, zero, inner bool) tailAction {
	switch {
	case rest == 0:
		return tailKeep
	case !zero:
		return tailSave
	case inner || rest > maxPrealloc:
		return tailCut
	default:
		return tailKeep
	}
}

// cutTail deals with the bytes behind the last whole batch.
func (r *recovery) cutTail(f *found, h *handle, inner bool) (cut bool, err error) {
	s := f.seg
	zero, err := allZero(h, s.size, f.size)
	if err != nil {
		return false, fmt.Errorf("scan %s: %w", s.logPath(), err)
	}
	switch chooseTail(f.size-s.size, zero, inner) {
	case tailKeep:
		return false, nil
	case tailSave:
		if err := r.saveTail(f, h); err != nil {
			return false, err
		}
		r.cut += f.size - s.size
		r.dir.metrics.cutBytes.Add(float64(f.size - s.size))
	case tailCut:
	}
	r.read += f.size - s.size
	if err := h.Truncate(s.size); err != nil {
		return false, fmt.Errorf("cut %s: %w", s.logPath(), err)
	}
	r.dir.slack.Add(s.size - s.allocated)
	s.allocated = s.size
	return true, nil
}

// saveTail copies the beginning of a torn end into the quarantine. It is for
// people only, so it is not synced.
func (r *recovery) saveTail(f *found, h io.ReaderAt) error {
	p := make([]byte, min(f.size-f.seg.size, quarantineTail))
	if err := readFull(h, p, f.seg.size); err != nil {
		return err
	}
	name := fmt.Sprintf("%s.%s.%d", r.log.id.dirName(), filepath.Base(f.seg.logPath()), f.seg.size)
	err := withFile(r.dir.opts.FS, r.dir.path(quarantineDir, asideName(name, r.dir.opts.Now())), func(file disk.File) error {
		_, err := file.WriteAt(p, 0)
		return err
	})
	if noSpace(err) {
		return nil // a full disk must not keep the log from opening
	}
	return err
}

// setLaterAside moves the segments behind the i-th away: the i-th has a torn
// end, so nothing behind it was ever durable.
func (r *recovery) setLaterAside(i int) error {
	fsys := r.dir.opts.FS
	for _, f := range r.found[i+1:] {
		for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
			name := f.seg.stem + suffix
			var err error
			if suffix == logSuffix && f.size > 0 {
				to := asideName(r.log.id.dirName()+"."+filepath.Base(name), r.dir.opts.Now())
				err = fsys.Rename(name, r.dir.path(quarantineDir, to))
				r.quarantined++
			} else {
				err = fsys.Remove(name)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	for _, dir := range []string{r.dir.path(quarantineDir), r.log.path} {
		if err := r.synced(dir, fsys.SyncDir(dir)); err != nil {
			return err
		}
	}
	r.found = r.found[:i+1]
	return nil
}
