package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"leat/storage/disk"
	"leat/storage/record"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// quarantineTail is how much of a torn end that is not zeros is kept for
// people to look at.
const quarantineTail = 1 << 20

// found is a segment as it lies in the directory.
type found struct {
	seg    *segment
	size   int64 // of the .log
	seal   seal  // from whichever index file has a valid one
	sealed bool
	whole  bool // both index files have it
}

// recovery opens one partition's log.
type recovery struct {
	dir   *Dir
	log   *Log
	rec   checkpointRecord
	known bool // rec is the partition's
	found []found
	// orphans are index files without a .log.
	orphans []string
	report
}

// report is what recovery tells in its log line.
type report struct {
	scannedFrom int64 // offset; -1 if nothing was scanned
	segment     int64 // base of the first segment that was scanned
	read, cut   int64 // bytes
	rebuilt     int   // indexes
	quarantined int
}

// recoverLog opens the partition's log from what is on disk.
func (d *Dir) recoverLog(ctx context.Context, n LogName, cfg Config, rec checkpointRecord, known bool) (*Log, error) {
	began := time.Now()
	l := &Log{dir: d, id: n.ID, name: n.Topic, path: d.logPath(n.ID)}
	l.config.Store(&cfg)
	l.writing.producers = newProducers(cfg.ProducerExpiration, 0)
	r := &recovery{dir: d, log: l, rec: rec, known: known, report: report{scannedFrom: -1}}
	if err := r.list(); err != nil {
		return nil, err
	}
	if len(r.found) == 0 {
		if err := r.createEmpty(n); err != nil {
			return nil, err
		}
	}
	if known && rec.logStart < r.found[0].seg.base {
		return nil, r.corrupt(r.found[0].seg, missing(rec.logStart, r.found[0].seg.base))
	}
	if err := r.load(ctx); err != nil {
		r.dropFiles()
		return nil, err
	}
	r.tell(ctx, time.Since(began))
	return l, nil
}

// load reads the segments that were found and makes the log of them.
func (r *recovery) load(ctx context.Context) error {
	for i := 0; i < len(r.found); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.loadSegment(i); err != nil {
			return err
		}
	}
	last := r.found[len(r.found)-1].seg
	if r.known && last.next < r.rec.recoveryOffset {
		return r.corrupt(last, missing(last.next, r.rec.recoveryOffset))
	}
	if err := r.finish(); err != nil {
		return err
	}
	if err := r.replayProducers(ctx); err != nil {
		return err
	}
	if err := r.removeOrphans(); err != nil {
		return err
	}
	// The mark says whether producers wrote, which is known only now.
	r.log.mu.durable = r.log.markLocked()
	for _, s := range r.log.mu.segments[:len(r.log.mu.segments)-1] {
		if !s.sealed.Load() {
			r.dir.keeper.seal(r.log, s)
		}
	}
	return nil
}

// missing says that the records in [from, to) were durable and are not there.
func missing(from, to int64) error {
	return fmt.Errorf("the records from offset %d to %d are missing", from, to-1)
}

func (r *recovery) corrupt(s *segment, err error) error {
	return &CorruptError{Path: s.logPath(), Pos: s.size, Err: err}
}

// synced passes the result of a sync on; an error fails the directory.
func (r *recovery) synced(path string, err error) error {
	if err = syncFault(path, err); err != nil {
		r.dir.fail(err)
	}
	return err
}

// list finds the partition's segments and what is known of each without
// reading its .log.
func (r *recovery) list() error {
	names, err := r.dir.opts.FS.List(r.log.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	logs := make(map[int64]bool)
	for _, name := range names {
		base, gen, suffix, ok := parseSegmentName(name)
		if !ok || suffix != logSuffix || gen != 0 {
			continue
		}
		logs[base] = true
		s := newSegment(r.log.path, base, gen)
		info, err := r.dir.opts.FS.Stat(s.logPath())
		if err != nil {
			return err
		}
		f := found{seg: s, size: info.Size()}
		if f.size > maxSegmentBytes {
			return &CorruptError{Path: s.logPath(), Pos: maxSegmentBytes, Err: fmt.Errorf("the file has %d bytes", f.size)}
		}
		r.readSeals(&f)
		r.found = append(r.found, f)
	}
	for _, name := range names {
		if base, _, suffix, ok := parseSegmentName(name); ok && suffix != logSuffix && !logs[base] {
			r.orphans = append(r.orphans, name)
		}
	}
	slices.SortFunc(r.found, func(a, b found) int { return cmp.Compare(a.seg.base, b.seg.base) })
	return nil
}

// removeOrphans removes index files that have no .log. It is done last, when
// it is sure that no records are missing, for then they are a trace of those.
func (r *recovery) removeOrphans() error {
	for _, name := range r.orphans {
		r.dir.opts.Logger.Warn("index file without a log was removed", slog.String("path", filepath.Join(r.log.path, name)))
		if err := r.dir.opts.FS.Remove(filepath.Join(r.log.path, name)); err != nil {
			return err
		}
	}
	return nil
}

// readSeals looks for the seal in both index files.
func (r *recovery) readSeals(f *found) {
	read := func(kind tableKind) (s seal, ok bool) {
		file, err := r.dir.opts.FS.OpenFile(kind.path(f.seg), os.O_RDONLY)
		if err != nil {
			return seal{}, false
		}
		s, err = readSeal(file, kind.magic())
		_ = file.Close() // only read
		return s, err == nil && s.base == f.seg.base
	}
	a, okA := read(offsetTable)
	b, okB := read(timeTable)
	f.sealed = okA || okB
	f.whole = okA && okB && a.sameSegment(&b)
	f.seal = a
	if !okA {
		f.seal = b
	}
}

// createEmpty makes the first segment of a partition whose directory has
// none, unless it once had records.
func (r *recovery) createEmpty(n LogName) error {
	if r.known && r.rec.recoveryOffset > 0 {
		return &CorruptError{Path: r.log.path, Err: fmt.Errorf("all segments are missing, the log was durable up to offset %d", r.rec.recoveryOffset)}
	}
	fsys := r.dir.opts.FS
	if err := fsys.MkdirAll(r.log.path); err != nil {
		return err
	}
	if err := r.dir.describe(n); err != nil {
		return err
	}
	s := newSegment(r.log.path, 0, 0)
	if err := s.createFiles(fsys); err != nil {
		return err
	}
	for _, dir := range []string{r.log.path, r.dir.path(logsDir)} {
		if err := r.synced(dir, fsys.SyncDir(dir)); err != nil {
			return err
		}
	}
	s.named = true
	r.found = []found{{seg: s}}
	return nil
}

// nextBase is where the segment after the i-th begins, -1 if none is known.
func (r *recovery) nextBase(i int) int64 {
	switch {
	case i+1 < len(r.found):
		return r.found[i+1].seg.base
	case r.known && r.rec.activeBase > r.found[i].seg.base:
		return r.rec.activeBase
	default:
		return -1
	}
}

// durableUntil is the offset up to which the segment was durable: up to there
// a batch that does not hold is damage, behind it the torn end of a crash.
// nextBase is where the next segment begins (-1 none), later says that one
// behind it is sealed, which happens in order.
func durableUntil(base, nextBase int64, sealed bool, s seal, later bool, rec checkpointRecord, known bool) int64 {
	bound := base
	if sealed {
		bound = max(bound, s.next)
	}
	if nextBase >= 0 && (later || known && base < rec.activeBase) {
		bound = max(bound, nextBase)
	}
	if known && base == rec.activeBase {
		bound = max(bound, rec.recoveryOffset)
	}
	return bound
}

// loadSegment trusts the i-th segment by its seal, or scans it.
func (r *recovery) loadSegment(i int) error {
	f := &r.found[i]
	if i > 0 {
		if before := r.found[i-1].seg; before.next != f.seg.base {
			return &CorruptError{Path: before.logPath(), Pos: before.size, Err: fmt.Errorf(
				"the segment ends at offset %d, the next one begins at %d", before.next, f.seg.base)}
		}
	}
	next := r.nextBase(i)
	if f.sealed && f.size == f.seal.logBytes && (next < 0 || next == f.seal.next) {
		f.seg.adopt(f.seal)
		if f.whole {
			return nil
		}
		r.dir.opts.Logger.Warn("index file is missing or damaged and is rebuilt from the log", slog.String("path", f.seg.stem+indexSuffix))
		r.rebuilt++
		return rebuildSealed(r.dir.tables, r.dir.files, f.seg, r.log.config.Load().IndexInterval)
	}
	later := slices.ContainsFunc(r.found[i+1:], func(f found) bool { return f.sealed })
	bound := durableUntil(f.seg.base, next, f.sealed, f.seal, later, r.rec, r.known)
	return r.scanSegment(i, bound, next)
}

// resume takes over what the checkpoint says of the segment's durable part.
// Without that it is scanned from its beginning.
func (r *recovery) resume(f *found) {
	s := f.seg
	if !r.known || s.base != r.rec.activeBase || s.gen != r.rec.activeGen || r.rec.recoveryPos > f.size || r.rec.recoveryPos == 0 {
		return
	}
	load := func(kind tableKind, count, crc uint32) ([]byte, bool) {
		if count == 0 {
			return nil, true
		}
		p := make([]byte, 0)
		err := func() error {
			file, err := r.dir.opts.FS.OpenFile(kind.path(s), os.O_RDONLY)
			if err != nil {
				return err
			}
			defer file.Close()
			info, err := file.Stat()
			size := int64(count) * int64(kind.width())
			if err != nil || info.Size() < sealSize+size {
				return errors.Join(err, errBadIndex)
			}
			p = make([]byte, size)
			return readFull(file, p, sealSize)
		}()
		return p, err == nil && crc32.Checksum(p, castagnoli) == crc
	}
	p, ok := load(offsetTable, r.rec.indexEntries, r.rec.indexCRC)
	q, okTimes := load(timeTable, r.rec.timeIndexEntries, r.rec.timeIndexCRC)
	offsets := r.rec.recoveryOffset - s.base
	entries, err := parseEntries(p, offsets, r.rec.recoveryPos)
	times, errTimes := parseTimes(q, offsets)
	if !ok || !okTimes || err != nil || errTimes != nil {
		r.dir.opts.Logger.Warn("index of the active segment is damaged and is rebuilt from the log", slog.String("path", s.stem+indexSuffix))
		r.rebuilt++
		return
	}
	s.entries, s.times = entries, times
	if len(entries) > 0 {
		s.lastEntry = int64(entries[len(entries)-1].pos)
	}
	s.next, s.size, s.maxTimestamp, s.crc = r.rec.recoveryOffset, r.rec.recoveryPos, r.rec.maxTimestamp, r.rec.logCRC
	s.firstAppend, s.lastAppend = r.rec.lastAppendMs, r.rec.lastAppendMs
	s.written = writtenIndex{len(entries), len(times), r.rec.indexCRC, r.rec.timeIndexCRC}
}

// scanSegment reads the i-th segment from where it is not known to be durable
// and deals with what is behind its last whole batch.
func (r *recovery) scanSegment(i int, bound, next int64) error {
	f := &r.found[i]
	s := f.seg
	r.resume(f)
	h, err := r.dir.files.acquire(s)
	if err != nil {
		return err
	}
	defer r.dir.files.release(h)
	from, interval := s.size, r.log.config.Load().IndexInterval
	if from < f.size {
		r.scanning(s)
	}
	end, err := scan(h, f.size, s.size, s.next, next, s.base, func(b record.Batch) { s.extend(b, interval) })
	if err != nil {
		return fmt.Errorf("scan %s: %w", s.logPath(), err)
	}
	r.read += f.size - from
	if end.next < bound {
		return &CorruptError{Path: s.logPath(), Pos: end.pos, Err: orElseErr(end.why, missing(end.next, bound))}
	}
	if end.pos > from {
		now := r.dir.opts.Now().UnixMilli()
		s.lastAppend = now
		if s.firstAppend == 0 {
			s.firstAppend = now
		}
	}
	s.allocated = f.size
	r.dir.slack.Add(s.allocated - s.size)
	cut, err := r.cutTail(f, h, i+1 < len(r.found))
	if err != nil {
		return err
	}
	if end.pos > from || cut {
		if err := r.synced(s.logPath(), h.SyncData()); err != nil {
			return err
		}
	}
	if i+1 < len(r.found) && end.next != next {
		return r.setLaterAside(i)
	}
	return nil
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

// finish makes the log of the segments.
func (r *recovery) finish() error {
	l := r.log
	for _, f := range r.found {
		l.mu.segments = append(l.mu.segments, f.seg)
	}
	last := l.activeLocked()
	if last.sealed.Load() {
		// The crash came after the seal and before the next segment's name
		// was durable.
		next := newSegment(l.path, last.next, 0)
		if err := next.createFiles(r.dir.opts.FS); err != nil {
			return err
		}
		l.mu.segments = append(l.mu.segments, next)
		last = next
	}
	if r.known && r.rec.activeBase == last.base {
		last.named = true
	}
	if !last.named && last.size > 0 {
		if err := r.synced(l.path, r.dir.opts.FS.SyncDir(l.path)); err != nil {
			return err
		}
		last.named = true
	}
	l.mu.start = l.mu.segments[0].base
	l.mu.end = last.next
	l.mu.epoch = r.rec.leaderEpoch
	l.mu.changed = !r.known || r.rec.activeBase != last.base || r.rec.recoveryPos != last.size
	return nil
}

// dropFiles closes what a recovery that failed has opened.
func (r *recovery) dropFiles() {
	for _, f := range r.found {
		r.dir.files.drop(f.seg)
		r.dir.tables.drop(f.seg)
		r.dir.slack.Add(f.seg.size - f.seg.allocated)
	}
}

// tell writes the one line about a log that was not closed cleanly.
func (r *recovery) tell(ctx context.Context, took time.Duration) {
	if r.scannedFrom < 0 && r.rebuilt == 0 && r.quarantined == 0 {
		return
	}
	r.dir.metrics.recoveries.Inc()
	level := slog.LevelInfo
	if r.cut > 0 || r.quarantined > 0 {
		level = slog.LevelWarn
	}
	r.dir.opts.Logger.Log(ctx, level, "log was recovered",
		slog.String("topic", r.log.name), slog.Int("partition", int(r.log.id.Partition)),
		slog.Int64("segment", r.segment), slog.Int64("start_offset", r.scannedFrom), slog.Int64("end_offset", r.log.mu.end),
		slog.Int64("bytes_read", r.read), slog.Int("indexes_rebuilt", r.rebuilt), slog.Int64("bytes_cut", r.cut),
		slog.Int("segments_quarantined", r.quarantined), slog.Duration("took", took))
}

// replayProducers rebuilds the state of idempotent producers from the batch
// headers. Segments in which none wrote are skipped, and so are those that
// ended longer ago than a producer is remembered.
func (r *recovery) replayProducers(ctx context.Context) error {
	l, now := r.log, r.dir.opts.Now()
	oldest := now.Add(-l.config.Load().ProducerExpiration).UnixMilli()
	for i, s := range l.mu.segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		pos, next := int64(0), s.base
		if s.sealed.Load() {
			if !s.producers || s.lastAppend < oldest {
				continue
			}
		} else if i == len(l.mu.segments)-1 {
			pos, next = r.withoutProducers(s)
		}
		if err := r.replaySegment(s, pos, next, now); err != nil {
			return err
		}
	}
	return nil
}

// withoutProducers is how far into the segment the header of its index says
// that no idempotent producer wrote.
func (r *recovery) withoutProducers(s *segment) (pos, next int64) {
	f, err := r.dir.opts.FS.OpenFile(s.stem+indexSuffix, os.O_RDONLY)
	if err != nil {
		return 0, s.base
	}
	defer f.Close()
	var p [sealSize]byte
	if readFull(f, p[:], 0) != nil {
		return 0, s.base
	}
	h, err := decodeHeader(p[:], indexMagic)
	if err != nil || h.flags != 0 || h.base != s.base || h.logBytes > s.size || h.next > s.next {
		return 0, s.base
	}
	return h.logBytes, h.next
}

func (r *recovery) replaySegment(s *segment, pos, next int64, now time.Time) error {
	h, err := r.dir.files.acquire(s)
	if err != nil {
		return err
	}
	defer r.dir.files.release(h)
	w := newWalk(h, s.logPath(), s.base, pos, next, s.size)
	defer w.close()
	for {
		b, err := w.header()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if b.ProducerID() < 0 {
			continue
		}
		s.producers = true
		stamp := int64(-1)
		if b.LogAppendTime() {
			stamp = b.MaxTimestamp()
		}
		r.log.writing.producers.replay(sequence{
			pid: b.ProducerID(), epoch: b.ProducerEpoch(), first: b.BaseSequence(), last: b.LastSequence(),
			base: b.BaseOffset(), lastOffset: b.LastOffset(), timestamp: stamp,
		}, now)
	}
}
