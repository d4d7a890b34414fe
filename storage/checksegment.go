package storage

import (
	"bufio"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"leat/storage/record"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// countedReader reads a .log for a check: it counts for Progress, and ends the
// reading with ctx.
type countedReader struct {
	ctx context.Context // of the one call of Check
	zeroReader
	*checker
	size    int64 // of the file
	counted int64 // how far was counted
}

// ReadAt reads at off.
func (r *countedReader) ReadAt(p []byte, off int64) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.zeroReader.ReadAt(p, off)
	r.count(off + int64(n))
	return n, err
}

// NextData looks for the first byte that may not be zero.
func (r *countedReader) NextData(off int64) (int64, error) {
	next, err := r.zeroReader.NextData(off)
	switch {
	case errors.Is(err, io.EOF):
		r.count(r.size)
	case err == nil:
		r.count(next)
	}
	return next, err
}

// count counts the bytes up to pos.
func (r *countedReader) count(pos int64) {
	if more := pos - r.counted; more > 0 {
		r.counted += more
		r.progress(more)
	}
}

// check reads the whole .log, compares it with the indexes and the checkpoint,
// and tells of what does not hold. i is its place among the segments.
func (s *segmentCheck) check(i int) {
	until := s.nextBase(i)
	s.end = max(s.seg.base, until)
	path := s.seg.logPath()
	file, err := s.fs.OpenFile(path, os.O_RDONLY)
	if err != nil {
		s.damage(path, -1, "it cannot be read: %v", err)
		return
	}
	defer func() { _ = file.Close() }() // only read
	later := slices.ContainsFunc(s.segs[i+1:], func(n *segmentCheck) bool { return n.sealed })
	w := &batchCheck{
		segmentCheck: s, file: &countedReader{ctx: s.ctx, zeroReader: file, checker: s.checker, size: s.size}, limit: s.size, until: until,
		bound: durableUntil(s.seg.base, until, s.sealed, s.seal, later, s.rec, s.known),
	}
	for _, kind := range []tableKind{offsetTable, timeTable} {
		e, done := s.entries(kind)
		defer done()
		w.entries[kind] = e
	}
	if s.agree {
		w.accuser = findWitness(s.fs, s.seg, &s.seal, s.size, s.start, until)
	}
	s.epochs.begin()
	w.run()
	s.progress(max(s.size-w.file.counted, 0))
	s.end, s.torn = w.at.next, w.torn
	if w.accuser != nil && w.accuser.against(w.broken) {
		s.end, s.torn = w.bound, false
		s.damage(path, 0, "%v: %s are lost; by the seals the segment ends at offset %d and byte %d, it ends at offset %d and byte %d",
			errNotWritten, records(s.seg.base, w.bound), s.seal.next, s.seal.logBytes, w.at.next, w.at.pos)
	} else if w.broken {
		s.end = max(w.at.next, until) // what is missing was told
	} else {
		w.seals()
	}
	for _, e := range w.entries {
		e.finish(w.broken, w.epochs.found)
	}
	s.epochs.tell(s.logCheck)
}

// batchCheck goes through the batches of a segment.
type batchCheck struct {
	*segmentCheck
	file   *countedReader
	limit  int64 // of the file
	until  int64 // where the next segment begins, -1 if none is known
	bound  int64 // offset up to which everything was durable
	at     scanned
	broken bool // a batch does not hold, or the file cannot be read
	// marked says that the checkpoint's position was passed.
	marked  bool
	entries [2]*entryCheck
	// accuser is nil unless both seals agree and the file has another size.
	accuser *witness
}

// run reads from batch to batch, and goes on behind those that do not hold.
func (w *batchCheck) run() {
	w.at = scanned{next: w.seg.base}
	path := w.seg.logPath()
	for {
		w.mark()
		at, err := scan(w.file, w.seg, w.limit, w.at.pos, w.at.next, w.until, w.batch)
		w.at = at
		if err != nil {
			w.unreadableAt(err)
			return
		}
		rest := w.limit - at.pos
		switch {
		case at.next >= w.bound || w.bound <= w.start:
			w.tail(rest)
			return
		case at.why == nil:
			w.broken = true
			w.damage(path, at.pos, "%s are missing", records(max(at.next, w.start), w.bound))
			return
		}
		w.broken = true
		to, ok, err := resync(w.file, w.seg, w.limit, w.at, w.until)
		if err != nil {
			w.unreadableAt(err)
			return
		}
		if !ok {
			w.damage(path, at.pos, "the batch at offset %d does not hold: %v; no batch behind it does, %s are lost",
				at.next, at.why, records(at.next, w.bound))
			return
		}
		w.damage(path, at.pos, "the batch at offset %d does not hold: %v; %s are lost, it goes on at byte %d",
			at.next, at.why, records(at.next, to.offset), to.pos)
		for _, e := range w.entries {
			e.skip(uint32(to.offset - w.seg.base))
		}
		w.at = scanned{pos: to.pos, next: to.offset}
	}
}

// unreadableAt ends the segment with an error of reading behind w.at.
func (w *batchCheck) unreadableAt(err error) {
	w.broken = true
	if w.ctx.Err() == nil {
		w.damage(w.seg.logPath(), w.at.pos, "the file cannot be read: %v", err)
	}
}

// batch looks at a batch that holds.
func (w *batchCheck) batch(b record.Batch) {
	rel, pos := uint32(b.BaseOffset()-w.seg.base), w.at.pos
	for _, e := range w.entries {
		e.batch(rel, uint32(pos), &w.seg.tail, w.broken)
	}
	w.epochs.batch(w.seg.logPath(), pos, b)
	if w.o.Records {
		if _, err := record.CheckStored(b, maxStoredExpanded); err != nil {
			w.damage(w.seg.logPath(), pos, "the records of the batch at offset %d cannot be read: %v", b.BaseOffset(), err)
		}
	}
	w.seg.extend(b, maxSegmentBytes)
	if w.accuser != nil {
		w.accuser.see(b, pos, w.seg.crc)
	}
	w.at.pos += int64(len(b))
	w.at.next = b.NextOffset()
	w.report.Batches++
	w.report.Records += int64(b.Count())
	w.report.Bytes += int64(len(b))
	w.mark()
}

// mark compares what the checkpoint says of its position.
func (w *batchCheck) mark() {
	if !w.known || w.rec.activeBase != w.seg.base || w.rec.activeGen != w.seg.gen || w.rec.recoveryPos == 0 || w.marked || w.at.pos < w.rec.recoveryPos {
		return
	}
	w.marked = true
	switch path := w.seg.logPath(); {
	case w.broken:
	case w.at.pos > w.rec.recoveryPos || w.at.next != w.rec.recoveryOffset:
		w.damage(path, w.rec.recoveryPos, "the checkpoint has offset %d here, the log has offset %d at byte %d",
			w.rec.recoveryOffset, w.at.next, w.at.pos)
	case w.seg.crc != w.rec.logCRC:
		w.changed(w.at.pos, w.seg.crc^w.rec.logCRC, "the checkpoint")
	}
}

// changed tells that the first size bytes, of which every batch holds, do not
// match the checksum that from has of them, and where they have changed if it is
// one bit.
func (w *batchCheck) changed(size int64, difference uint32, from string) {
	if w.epochs.found {
		return // it was told by another checksum
	}
	w.epochs.found = true
	path := w.seg.logPath()
	f, ok, err := findFlip(w.file, w.seg, point{offset: w.seg.base}, size, difference)
	switch {
	case err != nil:
		w.unreadableAt(err)
	case ok:
		w.damage(path, f.pos, "the leader epoch of the batch at offset %d is not what was written, by the checksum of the file in %s", f.offset, from)
	default:
		w.damage(path, 0, "the first %d bytes do not match their checksum in %s: something has changed that the batches' own checksums do not cover", size, from)
	}
}

// tail judges the bytes behind the last whole batch, rest of them below the
// limit.
func (w *batchCheck) tail(rest int64) {
	path := w.seg.logPath()
	rest += w.size - w.limit
	w.torn = w.until >= 0 && w.at.next != w.until
	if rest == 0 {
		return
	}
	zero, err := allZero(w.file, w.at.pos, w.size)
	switch {
	case err != nil:
		w.unreadableAt(err)
	case !zero:
		w.found(Warning, path, w.at.pos, "%d bytes behind the last batch are none of the log's; the next start keeps a copy of them and cuts them", rest)
	case w.sealed:
		w.found(Warning, path, w.at.pos, "%d zeros behind the last batch", rest)
	}
}

// seals holds the finished segment against its seals.
func (w *batchCheck) seals() {
	for kind := range w.state {
		h := &w.heads[kind]
		if w.state[kind] != indexSealed {
			continue
		}
		name := tableKind(kind).path(w.seg)
		switch {
		case h.next != w.at.next || h.logBytes != w.at.pos:
			w.found(Warning, name, 16, "the seal says that the segment ends at offset %d and byte %d, it ends at offset %d and byte %d",
				h.next, h.logBytes, w.at.next, w.at.pos)
		case h.logCRC != w.seg.crc:
			w.changed(w.at.pos, w.seg.crc^h.logCRC, name)
		case h.maxTimestamp != w.seg.maxTimestamp || h.flags&producersFlag != 0 != w.seg.producers:
			w.found(Warning, name, 0, "the seal does not describe what is in the log")
		}
	}
}

// entryCheck holds the entries of an index file against the batches, in one
// pass with them.
type entryCheck struct {
	*segmentCheck
	kind   tableKind
	in     *bufio.Reader
	left   uint32 // entries
	number int
	want   uint32 // their checksum
	crc    uint32
	have   bool // rel, pos and ts are an entry
	rel    uint32
	pos    uint32
	sum    uint32 // of the .log
	ts     int64
	wrong  bool // told already
	// other is the number of the first entry with another checksum than the log
	// has in front of the offset otherAt; 0 for none.
	other   int
	otherAt int64
}

// entries begins with the entries of an index that are to be trusted: those of
// a sealed one, or those that the checkpoint counts.
func (s *segmentCheck) entries(kind tableKind) (e *entryCheck, done func()) {
	e = &entryCheck{segmentCheck: s, kind: kind}
	exact := false
	switch h := &s.heads[kind]; {
	case s.state[kind] == indexSealed:
		e.left, e.want, exact = h.count, h.entriesCRC, true
	case s.sealed || !s.known || s.rec.activeBase != s.seg.base || s.rec.activeGen != s.seg.gen:
		return e, func() {}
	case kind == offsetTable:
		e.left, e.want = s.rec.indexEntries, s.rec.indexCRC
	default:
		e.left, e.want = s.rec.timeIndexEntries, s.rec.timeIndexCRC
	}
	if e.left == 0 && !exact {
		return e, func() {}
	}
	f, err := s.fs.OpenFile(kind.path(s.seg), os.O_RDONLY)
	if err != nil {
		e.tell("%v", err)
		return e, func() {}
	}
	size := int64(e.left) * entrySize
	if info, err := f.Stat(); err != nil || info.Size() < sealSize+size || exact && info.Size() != sealSize+size {
		e.tell("the file has not the size of its %d entries", e.left)
	}
	e.in = bufio.NewReader(io.NewSectionReader(f, sealSize, size))
	e.next()
	return e, func() { _ = f.Close() } // only read
}

// tell says what is wrong with the index, once.
func (e *entryCheck) tell(format string, args ...any) {
	if !e.wrong {
		e.wrong = true
		pos := int64(sealSize) + int64(max(e.number-1, 0))*entrySize
		what := "the index is damaged and can be rebuilt: "
		if e.agree && e.size != e.seal.logBytes {
			what = "the index is damaged, or the log, which has not the size in the seals: "
		}
		e.found(Warning, e.kind.path(e.seg), pos, what+format, args...)
	}
}

// next reads the next entry.
func (e *entryCheck) next() {
	e.have = false
	if e.left == 0 || e.in == nil {
		return
	}
	p := make([]byte, entrySize)
	if _, err := io.ReadFull(e.in, p); err != nil {
		e.tell("%v", err)
		e.left, e.in = 0, nil
		return
	}
	e.left--
	e.number++
	e.crc = crc32.Update(e.crc, castagnoli, p)
	e.have = true
	if e.kind == timeTable {
		t := decodeTimeEntry(p)
		e.rel, e.ts = t.rel, t.ts
		return
	}
	x := decodeEntry(p)
	e.rel, e.pos, e.sum = x.rel, x.pos, x.crc
}

// skip passes over the entries before a batch where others are lost.
func (e *entryCheck) skip(rel uint32) {
	for e.have && e.rel < rel {
		e.next()
	}
}

// batch holds the entries up to a batch against it, given what is in front of it;
// broken says that some of that is lost.
func (e *entryCheck) batch(rel, pos uint32, before *tail, broken bool) {
	for e.have && e.rel < rel {
		e.tell("entry %d is of offset %d, where no batch begins", e.number, e.seg.base+int64(e.rel))
		e.next()
	}
	if !e.have || e.rel != rel {
		return
	}
	switch {
	case e.kind == offsetTable && e.pos != pos:
		e.tell("entry %d has offset %d at byte %d, it is at byte %d", e.number, e.seg.base+int64(rel), e.pos, pos)
	case e.kind == timeTable && !broken && e.ts != before.maxTimestamp:
		e.tell("entry %d has timestamp %d before offset %d, it is %d", e.number, e.ts, e.seg.base+int64(rel), before.maxTimestamp)
	case e.kind == offsetTable && !broken && e.sum != before.crc && e.other == 0:
		e.other, e.otherAt = e.number, e.seg.base+int64(rel)
	}
	e.next()
}

// finish tells of entries that are left and compares the checksum. Where
// batches are lost some may be left; changed says that the log is known not to be
// what was written.
func (e *entryCheck) finish(broken, changed bool) {
	if broken {
		e.skip(math.MaxUint32)
	}
	for e.have {
		e.tell("entry %d is of offset %d, where no batch begins", e.number, e.seg.base+int64(e.rel))
		e.next()
	}
	holds := e.in == nil || e.crc == e.want
	switch {
	case e.other > 0 && (!holds || !broken && !changed):
		e.number = e.other
		e.tell("entry %d has another checksum than the log in front of offset %d", e.other, e.otherAt)
	case !holds:
		e.tell("the entries do not match their checksum")
	}
}
