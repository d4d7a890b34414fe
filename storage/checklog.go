package storage

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// logCheck is the check of one partition.
type logCheck struct {
	*checker
	id    ID
	dir   string
	rec   checkpointRecord
	known bool // rec is the partition's
	// start is the log's first offset as far as the checkpoint knows.
	start int64
	segs  []*segmentCheck
	// damaged says that records of the log are known to be lost or damaged.
	damaged bool
	epochs  epochCheck
}

// log looks at one partition's directory.
func (c *checker) log(id ID) {
	l := &logCheck{checker: c, id: id, dir: c.root.logPath(id)}
	l.rec, l.known = c.checkpoint.records[id]
	if l.known {
		l.start = l.rec.logStart
	}
	if m, ok := c.metadata.Logs[id]; ok {
		l.start = max(l.start, m.Start)
		l.epochs.limit, l.epochs.limited = m.LeaderEpoch, true
	}
	if !l.list() {
		return
	}
	l.inner()
	l.bounds()
	l.segments()
}

// damage tells of damage to records.
func (l *logCheck) damage(path string, pos int64, format string, args ...any) {
	l.damaged = true
	l.found(Damage, path, pos, format, args...)
}

// list finds the segments, and tells of what else lies there.
func (l *logCheck) list() bool {
	names, err := l.fs.List(l.dir)
	if err != nil {
		l.unreadable(l.dir, err)
		return false
	}
	described := false
	dead := l.swap(names)
	live := liveGenerations(names, dead)
	for _, name := range names {
		path := filepath.Join(l.dir, name)
		base, gen, suffix, ok := parseSegmentName(name)
		switch {
		case name == partitionFile:
			described = true
			l.description(path)
		case name == swapFile || name == swapFile+tmpSuffix: // told already
		case strings.HasSuffix(name, snapshotSuffix):
			l.snapshot(path, name)
		case !ok:
			l.found(Warning, path, -1, "it is nothing of Leat's")
		case dead(base, gen): // goes with COMPACT
		case !isLive(live, base, gen) && suffix == logSuffix:
			l.found(Warning, path, -1, "it is a rewritten segment that is no part of the log, the next start sets it aside")
		case !isLive(live, base, gen):
			l.found(Warning, path, -1, "it is an index without a log, the next start removes it")
		case suffix == logSuffix:
			l.addSegment(path, base, gen)
		}
	}
	if !described {
		l.found(Warning, filepath.Join(l.dir, partitionFile), -1, "it is missing; it says which partition this is")
	}
	slices.SortFunc(l.segs, func(a, b *segmentCheck) int { return cmp.Compare(a.seg.base, b.seg.base) })
	return true
}

// swap tells of a rewriting that was cut short, and which segments are no part
// of the log by it.
func (l *logCheck) swap(names []string) (dead func(base int64, gen uint32) bool) {
	path := filepath.Join(l.dir, swapFile)
	r, known, err := readSwap(l.fs, l.dir)
	if known && err == nil {
		dead, err = r.dead(l.fs, l.dir, names, l.start)
	}
	switch {
	case errors.Is(err, ErrCorrupt):
		l.damage(path, 0, "%v", err)
	case err != nil:
		l.unreadable(path, err)
	case known:
		l.found(Warning, path, -1, "segments were being rewritten, the next start ends that")
	case slices.Contains(names, swapFile+tmpSuffix):
		l.found(Warning, path+tmpSuffix, -1, "it was left over by a write that was cut short")
	}
	if dead == nil {
		dead = noneDead
	}
	return dead
}

// snapshot reads one of what is known of idempotent producers.
func (l *logCheck) snapshot(path, name string) {
	next, ok := parseSnapshotName(name)
	if !ok {
		l.found(Warning, path, -1, "it is nothing of Leat's")
		return
	}
	b, err := readFile(l.fs, path, maxSnapshotBytes)
	if err == nil {
		_, err = decodeSnapshot(b, next)
	}
	switch {
	case errors.Is(err, errFileTooLarge), errors.Is(err, errBadSnapshot):
		l.found(Warning, path, 0, "what was known of idempotent producers does not hold, the next start reads the log instead: %v", err)
	case err != nil:
		l.unreadable(path, err)
	}
}

func isLive(live map[int64]uint32, base int64, gen uint32) bool {
	is, ok := live[base]
	return ok && is == gen
}

func (l *logCheck) addSegment(path string, base int64, gen uint32) {
	info, err := l.fs.Stat(path)
	if err != nil {
		l.unreadable(path, err)
		return
	}
	if info.Size() > maxSegmentBytes {
		l.damage(path, maxSegmentBytes, "the file has %d bytes, more than a segment can have", info.Size())
		return
	}
	l.report.Segments++
	l.segs = append(l.segs, &segmentCheck{logCheck: l, seg: newSegment(l.dir, base, gen), size: info.Size()})
}

// description compares the file that says which partition this is
// with the directory's name.
func (l *logCheck) description(path string) {
	b, err := readFile(l.fs, path, maxPartitionText)
	switch {
	case errors.Is(err, errFileTooLarge):
	case err != nil:
		l.unreadable(path, err)
		return
	}
	said, missing := partitionText(b), false
	for _, is := range [][2]string{{topicIDKey, l.id.Topic.String()}, {partitionKey, itoa(int64(l.id.Partition))}} {
		key, want := is[0], is[1]
		value, ok := said[key]
		if ok && value != want {
			l.found(Damage, path, -1, "it says %q, the directory's name %q", key+": "+value, key+": "+want)
		}
		missing = missing || !ok
	}
	if has, holds, pos := partitionSum.verify(b); !has {
		l.found(Warning, path, pos, "it has no checksum")
	} else if !holds {
		l.found(Damage, path, pos, "it does not match its checksum; a start does without it")
	}
	if missing {
		l.found(Warning, path, -1, "it does not say which partition this is")
	}
}

// bounds puts segments that are below the log's start aside and looks for
// records that are missing at either end.
func (l *logCheck) bounds() {
	below := max(lastTrue(len(l.segs), func(i int) bool { return l.segs[i].seg.base <= l.start }), 0)
	for _, s := range l.segs[:below] {
		l.found(Warning, s.seg.logPath(), -1, "it is below the log's start, the next start removes it")
		l.progress(s.size)
	}
	l.segs = l.segs[below:]
	switch {
	case len(l.segs) == 0:
		if l.known && l.rec.recoveryOffset > l.start {
			l.damage(l.dir, -1, "all segments are missing; it had %s", records(l.start, l.rec.recoveryOffset))
		}
	case l.segs[0].seg.base > l.start && l.known:
		l.damage(l.segs[0].seg.logPath(), 0, "%s before it are missing", records(l.start, l.segs[0].seg.base))
	case l.segs[0].seg.base > l.start:
		l.found(Warning, l.segs[0].seg.logPath(), 0, "%s before it are missing, unless they were deleted: no checkpoint says where the log begins",
			records(l.start, l.segs[0].seg.base))
	}
}

// segments looks at each segment in turn.
func (l *logCheck) segments() {
	for _, s := range l.segs {
		s.indexes()
	}
	for i, s := range l.segs {
		if i > 0 {
			before := l.segs[i-1]
			switch {
			case before.end == s.seg.base:
			case !before.torn:
				l.damage(s.seg.logPath(), 0, "the segment begins at offset %d, the one before ends at %d", s.seg.base, before.end)
			default:
				l.aside(l.segs[i:])
				return
			}
		}
		if !s.sealed && l.report.Clean && i < len(l.segs)-1 {
			l.found(Warning, s.seg.logPath(), -1, "a clean stop has sealed it, but its indexes do not say so")
		}
		s.check(i)
	}
	if len(l.segs) == 0 {
		return
	}
	last := l.segs[len(l.segs)-1]
	from := max(last.end, l.start)
	switch {
	case l.known && from < l.rec.recoveryOffset:
		if !l.damaged {
			l.damage(last.seg.logPath(), last.size, "%s are missing", records(from, l.rec.recoveryOffset))
		}
	case last.end < l.start && l.report.Clean:
		l.damage(last.seg.logPath(), last.size, "the log ends at offset %d, below its start %d", last.end, l.start)
	case last.end < l.start:
		l.found(Warning, last.seg.logPath(), last.size, "the log ends at offset %d, below its start %d; the next start begins it anew there", last.end, l.start)
	case l.report.Clean && l.known && last.end > l.rec.recoveryOffset:
		l.found(Warning, last.seg.logPath(), -1, "the log ends at offset %d; the clean stop left it at %d", last.end, l.rec.recoveryOffset)
	}
}

// aside tells of segments behind a torn end.
func (l *logCheck) aside(segs []*segmentCheck) {
	for _, s := range segs {
		l.found(Warning, s.seg.logPath(), -1, "it is behind a torn end and was never durable, the next start puts it into quarantine")
		l.progress(s.size)
	}
}

// nextBase is where the segment after the i-th begins, -1 if none is known.
func (l *logCheck) nextBase(i int) int64 {
	switch {
	case i+1 < len(l.segs):
		return l.segs[i+1].seg.base
	case l.known && l.rec.activeBase > l.segs[i].seg.base:
		return l.rec.activeBase
	default:
		return -1
	}
}

// segmentCheck is the check of one segment. What it learns of the log's batches
// is in seg's tail, as recovery would have it.
type segmentCheck struct {
	*logCheck
	seg    *segment
	size   int64
	heads  [2]seal // of the index files, by tableKind, as far as they hold
	state  [2]indexState
	seal   seal // the one that holds
	sealed bool
	agree  bool // both index files have it

	end  int64 // offset behind the last batch
	torn bool  // the end is torn, and nothing that was durable is missing
}

// indexState is what an index file is by its header.
type indexState int8

const (
	indexBad indexState = iota // not to be trusted, which was told
	indexMissing
	indexEmpty
	indexPending
	indexSealed
)

// indexes reads the headers of both index files.
func (s *segmentCheck) indexes() {
	for _, kind := range []tableKind{offsetTable, timeTable} {
		s.state[kind] = s.header(kind)
	}
	a, b := &s.heads[offsetTable], &s.heads[timeTable]
	okA, okB := s.state[offsetTable] == indexSealed, s.state[timeTable] == indexSealed
	switch {
	case okA && okB && !a.sameSegment(b):
		s.found(Warning, timeTable.path(s.seg), 0, "it does not describe the same segment as %s", filepath.Base(offsetTable.path(s.seg)))
	case okA && !okB:
		s.half(timeTable)
	case okB && !okA:
		s.half(offsetTable)
	}
	s.sealed, s.agree = okA || okB, okA && okB && a.sameSegment(b)
	s.seal = *a
	if !okA {
		s.seal = *b
	}
}

// half tells of an index that is not sealed, but the other one is.
func (s *segmentCheck) half(kind tableKind) {
	switch path := kind.path(s.seg); s.state[kind] {
	case indexMissing:
		s.found(Warning, path, -1, "the index is missing, the next start rebuilds it")
	case indexEmpty, indexPending:
		s.found(Warning, path, 0, "the index is not sealed as the other one is, the next start rebuilds it")
	default: // it was told already
	}
}

func (s *segmentCheck) header(kind tableKind) indexState {
	path := kind.path(s.seg)
	info, err := s.fs.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return indexMissing
	}
	if err == nil && info.Size() == 0 {
		return indexEmpty // the segment is new
	}
	var p []byte
	if err == nil {
		p, err = readHead(s.fs, path)
	}
	if err != nil {
		s.found(Warning, path, 0, "the index cannot be read: %v", err)
		return indexBad
	}
	h, err := decodeHeader(p, kind.magic())
	switch {
	case err != nil:
		s.found(Warning, path, 0, "the header of the index does not hold")
		return indexBad
	case h.base != s.seg.base:
		s.found(Warning, path, 8, "the index is of the segment at offset %d", h.base)
		return indexBad
	}
	s.heads[kind] = h
	if h.flags&sealedFlag == 0 {
		return indexPending
	}
	return indexSealed
}

// records names the records in [from, to).
func records(from, to int64) string {
	return "the records from offset " + itoa(from) + " to " + itoa(to-1)
}
