package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"leat/storage/disk"
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
	torn   bool // an index file has something in it, but not its header
	grows  bool // an index file is of a segment that has not ended, or is new
	// odd is why what has the name of the .log is none; nil if it may be.
	odd error
}

// recovery opens one partition's log.
type recovery struct {
	dir   *Dir
	log   *Log
	rec   checkpointRecord
	known bool // rec is the partition's
	// start is the log's first offset: what the caller or the checkpoint says.
	start int64
	found []found
	// below are segments in front of the one that has start. They were
	// removed, or were about to be, and nothing of them is read.
	below   []found
	vouched bool       // the checkpoint has start
	gone    bool       // there is no directory
	ended   []*segment // that are not sealed yet
	// orphans are index files without a .log, and files of a segment that is not
	// part of the log: a rewritten one, or one that begins within another.
	orphans []string
	// swapped says that there is a COMPACT, and dead which segments are no part
	// of the log by it.
	swapped bool
	dead    func(base int64, gen uint32) bool
	// snapshots are the offsets of those of the producers.
	snapshots []int64
	// scannedEpoch is that of the last batch that was scanned, -1 for none.
	scannedEpoch int32
	// begun says that the log begins anew.
	begun bool
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

// recoverLog opens the partition's log from what is on disk; handOver has the keeper
// do the rest.
func (d *Dir) recoverLog(ctx context.Context, n LogName, cfg Config, keys *keys, start int64, rec checkpointRecord, known bool) (*recovery, error) {
	began := time.Now()
	l := &Log{dir: d, id: n.ID, name: n.Topic, path: d.logPath(n.ID), rewriting: make(chan struct{}, 1), keys: keys}
	l.config.Store(&cfg)
	r := &recovery{dir: d, log: l, rec: rec, known: known, start: start, scannedEpoch: -1, report: report{scannedFrom: -1}}
	if known {
		r.start = max(start, rec.logStart)
	}
	err := r.open(ctx, n)
	if isDamage(err) {
		r.lose(err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	d.metrics.held(l.mu.segments, 1)
	r.tell(ctx, time.Since(began))
	return r, nil
}

// open finds the segments and loads them. A *CorruptError says that they make no
// log.
func (r *recovery) open(ctx context.Context, n LogName) error {
	if err := r.list(); err != nil {
		return err
	}
	if err := r.checkOwner(); err != nil {
		return err
	}
	if len(r.found) == 0 {
		if err := r.createEmpty(n); err != nil {
			return err
		}
	}
	r.split()
	for _, f := range r.found {
		if f.odd != nil {
			return f.odd
		}
	}
	if err := r.vouchBelow(); err != nil {
		return err
	}
	if err := r.load(ctx); err != nil {
		r.dropFiles()
		return err
	}
	return nil
}

// handOver gives the keeper what is left to do for the log. The directory's mu
// must be held until the log is one of its own: seals come before those that the
// keeper asks for itself, and the checkpoint that comes before the removal of
// files must have the log in it.
func (r *recovery) handOver() {
	r.dir.keeper.rolls.by(0)
	for _, s := range r.ended {
		r.dir.keeper.seal(r.log, s)
	}
	if len(r.below) > 0 && !r.log.fenced.Load() {
		segs := make([]*segment, len(r.below))
		for i, f := range r.below {
			segs[i] = f.seg
		}
		r.log.mu.Lock()
		r.log.mu.leaving = slices.Clone(segs)
		r.log.mu.Unlock()
		r.dir.keeper.remove(r.log, segs)
	}
}

// split puts the segments aside of which another one's beginning says that
// they are wholly below the start. Gaps among them mean nothing: they come
// back from a crash one by one.
func (r *recovery) split() {
	n := max(lastTrue(len(r.found), func(i int) bool { return r.found[i].seg.base <= r.start }), 0)
	r.below, r.found = r.found[:n:n], r.found[n:]
}

// vouch has the checkpoint say where the log begins, before files change of
// which it knows: whoever looks at the directory without the metadata must not
// miss records that were deleted. On a full disk it does without.
func (r *recovery) vouch() error {
	if r.vouched || r.start == 0 || r.known && r.rec.logStart >= r.start {
		return nil
	}
	r.vouched = true
	rec := r.rec
	rec.logStart = r.start
	if !r.known {
		rec.maxTimestamp = -1
	}
	r.dir.setRecord(r.log.id, rec)
	err := r.dir.patiently(r.dir.writeCheckpoint)
	if noSpace(err) && !errors.Is(err, errSync) {
		return nil
	}
	if err != nil && errors.Is(err, errSync) {
		r.dir.fail(err)
	}
	return err
}

// vouchBelow is vouch for segments below the start that may never have been
// durable: once a later one is, they would seem to be damaged.
func (r *recovery) vouchBelow() error {
	for _, f := range r.below {
		if !f.sealed || f.size != f.seal.logBytes {
			return r.vouch()
		}
	}
	return nil
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
	if last.next < r.start && r.known && r.start < r.rec.recoveryOffset {
		return &CorruptError{Path: last.logPath(), Pos: last.size, Err: missing(r.start, r.rec.recoveryOffset)}
	}
	if last.next < r.start {
		if err := r.startOver(last.next); err != nil {
			return err
		}
	}
	if r.broken() {
		r.log.fenced.Store(true)
	} else if err := r.removeOrphans(); err != nil {
		return err
	}
	if err := r.finish(); err != nil {
		return err
	}
	if err := r.replayProducers(ctx); err != nil {
		return err
	}
	// The mark says whether producers wrote, which is known only now.
	r.log.mu.durable = r.log.markLocked()
	for _, s := range r.log.mu.segments[:len(r.log.mu.segments)-1] {
		if !s.sealed.Load() && !r.log.fenced.Load() {
			r.ended = append(r.ended, s)
		}
	}
	return nil
}

// missing says that the records in [from, to) were durable and are not there.
func missing(from, to int64) error {
	return fmt.Errorf("the records from offset %d to %d are missing", from, to-1)
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
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return &CorruptError{Path: r.log.path, Err: err}
	case errors.Is(err, fs.ErrNotExist):
		r.gone = true
	case err != nil:
		return err
	}
	if err := r.readSwap(names); err != nil {
		return err
	}
	live := liveGenerations(names, r.dead)
	for base, gen := range live {
		s := newSegment(r.log.path, base, gen)
		f, err := findSegment(r.dir.opts.FS, s)
		if err != nil {
			return err
		}
		r.found = append(r.found, f)
	}
	for _, name := range names {
		if next, ok := parseSnapshotName(name); ok {
			r.snapshots = append(r.snapshots, next)
		}
		base, gen, _, ok := parseSegmentName(name)
		if ok && !isLive(live, base, gen) {
			r.orphans = append(r.orphans, name)
		}
	}
	slices.SortFunc(r.found, func(a, b found) int { return cmp.Compare(a.seg.base, b.seg.base) })
	return r.leaveInner(names)
}

// removeOrphans removes index files that have no .log, once it is sure that no
// records are missing, of which they would be a trace. The removal is synced,
// because a new segment may take their names: should they come back then, they
// would seem to be its seal.
func (r *recovery) removeOrphans() error {
	if len(r.orphans) > 0 {
		for _, name := range r.orphans {
			if err := r.removeOrphan(name); err != nil {
				return err
			}
		}
		r.orphans = nil
		if err := r.synced(r.log.path, r.dir.opts.FS.SyncDir(r.log.path)); err != nil {
			return err
		}
	}
	return r.endSwap()
}

// removeOrphan removes one. A .log that has something in it and of which
// nothing says that it may go is set aside for people to look at.
func (r *recovery) removeOrphan(name string) error {
	path := filepath.Join(r.log.path, name)
	base, gen, suffix, _ := parseSegmentName(name)
	if r.dead(base, gen) {
		return r.dir.opts.FS.Remove(path)
	}
	if base >= r.start {
		r.dir.opts.Logger.Warn("file that is no part of the log was removed", slog.String("path", path))
	}
	if info, err := r.dir.opts.FS.Stat(path); err == nil && suffix == logSuffix && info.Size() > 0 {
		return r.dir.opts.FS.Rename(path, r.dir.path(quarantineDir, asideName(r.log.id.dirName()+"."+name, r.dir.opts.Now())))
	}
	return r.dir.opts.FS.Remove(path)
}

// createEmpty makes the first segment of a partition whose directory has
// none, unless it once had records that are not below its start.
func (r *recovery) createEmpty(n LogName) error {
	if r.known && r.rec.recoveryOffset > r.start {
		return &CorruptError{Path: r.log.path, Err: fmt.Errorf("all segments are missing, the log was durable up to offset %d", r.rec.recoveryOffset)}
	}
	if r.gone && r.dir.mustHave(n.ID) {
		return &CorruptError{Path: r.log.path, Err: errors.New("the directory is missing")}
	}
	fsys := r.dir.opts.FS
	if err := fsys.MkdirAll(r.log.path); err != nil {
		return err
	}
	if err := errors.Join(r.removeOrphans(), r.dir.describe(n)); err != nil {
		return err
	}
	err := withFile(fsys, filepath.Join(r.log.path, partitionFile), func(f disk.File) error { return r.synced(r.log.path, f.Sync()) })
	if err != nil {
		return err
	}
	if err := errors.Join(r.vouch(), r.begin()); err != nil {
		return err
	}
	dir := r.dir.path(logsDir)
	return r.synced(dir, fsys.SyncDir(dir))
}

// begin makes the first segment of a log that has none, at its start.
func (r *recovery) begin() error {
	s := newSegment(r.log.path, r.start, 0)
	if err := s.createFiles(r.dir.opts.FS); err != nil {
		return err
	}
	if err := r.synced(r.log.path, r.dir.opts.FS.SyncDir(r.log.path)); err != nil {
		return err
	}
	s.named = true
	r.begun = true
	r.found = []found{{seg: s}}
	return nil
}

// startOver begins a log anew that ends, at end, below its start: what was
// behind that was not durable when the power failed, or the files are older
// than the metadata. They are kept for a person to look at.
func (r *recovery) startOver(end int64) error {
	r.dir.opts.Logger.Error("log ended before its start and begins anew there; its files were put into quarantine",
		slog.String("topic", r.log.name), slog.Int("partition", int(r.log.id.Partition)),
		slog.Int64("end_offset", end), slog.Int64("log_start_offset", r.start))
	if err := r.vouch(); err != nil {
		return err
	}
	r.dropFiles()
	r.found, r.below = append(r.below, r.found...), nil
	if err := r.setLaterAside(-1); err != nil {
		return err
	}
	return r.begin()
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
		active := rec.recoveryOffset
		if nextBase >= 0 {
			active = min(active, nextBase) // it was divided when it was compacted
		}
		bound = max(bound, active)
	}
	return bound
}

// loadSegment trusts the i-th segment by its seal, or scans it.
func (r *recovery) loadSegment(i int) error {
	f := &r.found[i]
	next := r.nextBase(i)
	later := slices.ContainsFunc(r.found[i+1:], func(f found) bool { return f.sealed })
	bound := durableUntil(f.seg.base, next, f.sealed, f.seal, later, r.rec, r.known)
	if !f.sealed || f.size != f.seal.logBytes || next >= 0 && next < f.seal.next {
		return r.scanSegment(i, bound, next)
	}
	if !f.whole {
		if rebuilt, err := r.rebuild(f); err != nil {
			return err
		} else if !rebuilt {
			return r.scanSegment(i, bound, next)
		}
	}
	f.seg.adopt(f.seal)
	if i+1 < len(r.found) && f.seal.next < next && bound < next {
		return r.setLaterAside(i)
	}
	return nil
}

// rebuild makes the indexes of a sealed segment anew; false if the .log is
// damaged, too.
func (r *recovery) rebuild(f *found) (bool, error) {
	sealed := newSegment(r.log.path, f.seg.base, f.seg.gen)
	sealed.adopt(f.seal)
	defer r.dir.files.drop(sealed)
	r.dir.opts.Logger.Warn("index file is missing or damaged and is rebuilt from the log", slog.String("path", f.seg.stem+indexSuffix))
	r.rebuilt++
	err := rebuildSealed(r.dir.tables, r.dir.files, sealed, r.log.config.Load().IndexInterval)
	if isDamage(err) {
		return false, nil
	}
	return err == nil, err
}

// finish makes the log of the segments.
func (r *recovery) finish() error {
	l := r.log
	for _, f := range r.found {
		l.mu.segments = append(l.mu.segments, f.seg)
	}
	last := l.activeLocked()
	if l.fenced.Load() && (last.sealed.Load() || len(last.gaps) > 0 || r.known && last.next < r.rec.recoveryOffset) {
		last = r.beyond(max(last.next, r.rec.recoveryOffset))
		l.mu.segments = append(l.mu.segments, last)
	} else if last.sealed.Load() {
		// The crash came after the seal and before the next segment's name
		// was durable.
		next := newSegment(l.path, last.next, 0)
		if err := next.createFiles(r.dir.opts.FS); err != nil {
			return err
		}
		l.mu.segments = append(l.mu.segments, next)
		last = next
	} else if r.known && r.rec.activeBase == last.base {
		// The checkpoint names no segment before its name is durable.
		last.named = true
	}
	if r.dir.synced {
		for _, f := range r.found {
			f.seg.named = true
		}
	}
	// Whatever has batches counts as durable from here on, so its name must be.
	if slices.ContainsFunc(l.mu.segments, func(s *segment) bool { return !s.named && s.size > 0 }) {
		if err := r.synced(l.path, r.dir.opts.FS.SyncDir(l.path)); err != nil {
			return err
		}
		for _, s := range l.mu.segments {
			s.named = true
		}
	}
	l.mu.start = r.start
	l.mu.end = last.next
	l.mu.epoch = r.newest()
	if r.rec.corrupt {
		l.fenced.Store(true)
	}
	// An index that was rebuilt, or is stale, is written with the next
	// checkpoint.
	l.mu.changed = !r.known || r.rec.activeBase != last.base || r.rec.recoveryPos != last.size || r.rec.logStart != r.start ||
		r.rebuilt > 0 || last.written.stale || r.rec.corrupt != l.fenced.Load()
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
