package storage

import (
	"errors"
	"hash/crc32"
	"slices"
	"sort"

	"leat/storage/record"
)

// entrySize is the bytes of an entry in either index file.
const entrySize = 12

// entry says that the batch whose base offset is the segment's base plus rel
// begins at byte pos of the .log, and that all in front of it has the checksum
// crc.
type entry struct {
	rel, pos uint32
	crc      uint32
}

// timeEntry says that every record before the segment's base plus rel has a
// timestamp of at most ts.
type timeEntry struct {
	ts  int64
	rel uint32
}

// tail is what is known of a segment that still grows: how far its whole
// batches reach, and its index. It is plain data: append and recovery feed it
// batch by batch, and a copy is a consistent view, because entries are only
// ever added behind those that the copy covers.
type tail struct {
	base         int64
	next         int64 // offset after the last batch
	size         int64 // bytes of whole batches
	maxTimestamp int64 // -1 none
	crc          uint32
	producers    bool // some batch has a producer id
	lastEntry    int64
	entries      []entry
	times        []timeEntry
}

func newTail(base int64) tail {
	return tail{base: base, next: base, maxTimestamp: -1}
}

// extend accounts for b, a whole batch that is now the last of the segment.
func (t *tail) extend(b record.Batch, interval int) {
	if t.size > 0 && t.size-t.lastEntry >= int64(interval) {
		rel := uint32(b.BaseOffset() - t.base)
		t.entries = append(t.entries, entry{rel: rel, pos: uint32(t.size), crc: t.crc})
		if t.maxTimestamp >= 0 {
			t.times = append(t.times, timeEntry{ts: t.maxTimestamp, rel: rel})
		}
		t.lastEntry = t.size
	}
	t.crc = extendCRC(t.crc, b)
	t.size += int64(len(b))
	t.next = b.NextOffset()
	t.maxTimestamp = max(t.maxTimestamp, newestIn(b))
	t.producers = t.producers || b.ProducerID() >= 0
}

// newestIn is the greatest timestamp of the batch's records, -1 if it has none
// any more.
func newestIn(b record.Batch) int64 {
	if b.Count() == 0 {
		return -1
	}
	return b.MaxTimestamp()
}

// skip goes on behind a gap. What is there has no part in the checksum.
func (t *tail) skip(to point) { t.next, t.size = to.offset, to.pos }

// noTime is the time entry that stands for none.
var noTime = timeEntry{ts: -1}

// The lookups of a tail answer from its two indexes; view has the same for
// sealed segments. The zero entry stands for the beginning of the segment.

// floorOffset is the greatest entry with entry.rel <= rel.
func (t *tail) floorOffset(rel uint32) entry {
	return lastOf(t.entries, entry{}, func(e entry) bool { return e.rel <= rel })
}

// floorPos is the greatest entry with entry.pos <= pos.
func (t *tail) floorPos(pos uint32) entry {
	return lastOf(t.entries, entry{}, func(e entry) bool { return e.pos <= pos })
}

// ceilPos is the smallest entry with entry.pos >= pos; false if there is none.
func (t *tail) ceilPos(pos uint32) (entry, bool) {
	i := lastTrue(len(t.entries), func(i int) bool { return t.entries[i].pos < pos }) + 1
	if i == len(t.entries) {
		return entry{}, false
	}
	return t.entries[i], true
}

// beforeTime is the greatest entry whose ts is less than ts: all records before
// it are older.
func (t *tail) beforeTime(ts int64) timeEntry {
	return lastOf(t.times, noTime, func(e timeEntry) bool { return e.ts < ts })
}

// floorTime is the greatest time entry with rel at most rel, and ts -1 if there
// is none.
func (t *tail) floorTime(rel uint32) timeEntry {
	return lastOf(t.times, noTime, func(e timeEntry) bool { return e.rel <= rel })
}

// lastOf is the last element that satisfies ok, which holds for a prefix of
// s, or otherwise if there is none.
func lastOf[E any](s []E, otherwise E, ok func(E) bool) E {
	if i := lastTrue(len(s), func(i int) bool { return ok(s[i]) }); i >= 0 {
		return s[i]
	}
	return otherwise
}

// lastTrue is the last of 0..n-1 for which ok holds, -1 if there is none; ok
// must hold for a prefix.
func lastTrue(n int, ok func(int) bool) int {
	return sort.Search(n, func(i int) bool { return !ok(i) }) - 1
}

func appendEntries(dst []byte, es []entry) []byte {
	dst = slices.Grow(dst, len(es)*entrySize)
	for _, e := range es {
		dst = le.AppendUint32(dst, e.rel)
		dst = le.AppendUint32(dst, e.pos)
		dst = le.AppendUint32(dst, e.crc)
	}
	return dst
}

func appendTimes(dst []byte, es []timeEntry) []byte {
	dst = slices.Grow(dst, len(es)*entrySize)
	for _, e := range es {
		dst = le.AppendUint64(dst, uint64(e.ts))
		dst = le.AppendUint32(dst, e.rel)
	}
	return dst
}

func decodeEntry(p []byte) entry {
	return entry{rel: le.Uint32(p), pos: le.Uint32(p[4:]), crc: le.Uint32(p[8:])}
}

func decodeTimeEntry(p []byte) timeEntry {
	return timeEntry{ts: int64(le.Uint64(p)), rel: le.Uint32(p[8:])}
}

var errBadIndex = errors.New("index is damaged")

// parseEntries decodes the entries of an .index and checks that they can be
// true of a .log of size bytes with offsets below base+offsets.
func parseEntries(p []byte, offsets, size int64) ([]entry, error) {
	if len(p)%entrySize != 0 {
		return nil, errBadIndex
	}
	es := make([]entry, 0, len(p)/entrySize)
	var last entry
	for ; len(p) > 0; p = p[entrySize:] {
		e := decodeEntry(p)
		if e.rel <= last.rel || e.pos <= last.pos || int64(e.rel) >= offsets || int64(e.pos) >= size {
			return nil, errBadIndex
		}
		es, last = append(es, e), e
	}
	return es, nil
}

// parseTimes decodes the entries of a .timeindex likewise.
func parseTimes(p []byte, offsets int64) ([]timeEntry, error) {
	if len(p)%entrySize != 0 {
		return nil, errBadIndex
	}
	es := make([]timeEntry, 0, len(p)/entrySize)
	var last timeEntry
	for ; len(p) > 0; p = p[entrySize:] {
		e := decodeTimeEntry(p)
		if e.ts < last.ts || e.rel <= last.rel || int64(e.rel) >= offsets {
			return nil, errBadIndex
		}
		es, last = append(es, e), e
	}
	return es, nil
}

const (
	sealSize    = 64
	sealVersion = 2 // 1 had entries without a checksum; such an index is made anew

	sealedFlag    = 1 // the header's other fields hold
	compactedFlag = 2 // the segment was rewritten
	producersFlag = 4 // some batch has a producer id
	cleanFlag     = 8 // compaction has applied its keys to all before
)

var (
	indexMagic = [4]byte{'L', 'T', 'I', 'X'}
	timeMagic  = [4]byte{'L', 'T', 'T', 'X'}
)

// seal is the header of an index file; the drawing is in the package comment.
// The first fields describe the segment and are the same in both files.
type seal struct {
	flags        uint16
	base         int64
	next         int64
	logBytes     int64
	maxTimestamp int64
	lastAppend   int64
	logCRC       uint32

	count      uint32
	entriesCRC uint32
}

func (s *seal) encode(magic [4]byte) []byte {
	p := make([]byte, 0, sealSize)
	p = append(p, magic[:]...)
	p = le.AppendUint16(p, sealVersion)
	p = le.AppendUint16(p, s.flags)
	for _, v := range []int64{s.base, s.next, s.logBytes, s.maxTimestamp, s.lastAppend} {
		p = le.AppendUint64(p, uint64(v))
	}
	p = le.AppendUint32(p, s.count)
	p = le.AppendUint32(p, s.logCRC)
	p = le.AppendUint32(p, s.entriesCRC)
	return le.AppendUint32(p, crc32.Checksum(p, castagnoli))
}

// decodeSeal reads a header that must be sealed.
func decodeSeal(p []byte, magic [4]byte) (seal, error) {
	s, err := decodeHeader(p, magic)
	if err == nil && s.flags&sealedFlag == 0 {
		err = errBadIndex
	}
	return s, err
}

// decodeHeader reads a header, sealed or not.
func decodeHeader(p []byte, magic [4]byte) (seal, error) {
	if len(p) < sealSize || [4]byte(p) != magic ||
		crc32.Checksum(p[:sealSize-4], castagnoli) != le.Uint32(p[sealSize-4:]) || le.Uint16(p[4:]) != sealVersion {
		return seal{}, errBadIndex
	}
	s := seal{flags: le.Uint16(p[6:])}
	for i, v := range []*int64{&s.base, &s.next, &s.logBytes, &s.maxTimestamp, &s.lastAppend} {
		*v = int64(le.Uint64(p[8+8*i:]))
	}
	s.count, s.logCRC, s.entriesCRC = le.Uint32(p[48:]), le.Uint32(p[52:]), le.Uint32(p[56:])
	if s.next < s.base || s.logBytes < 0 || s.logBytes > maxSegmentBytes {
		return seal{}, errBadIndex
	}
	return s, nil
}

// sameSegment says whether both headers describe the same segment.
func (s *seal) sameSegment(o *seal) bool {
	a, b := *s, *o
	a.count, a.entriesCRC, b.count, b.entriesCRC = 0, 0, 0, 0
	return a == b
}
