package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
)

// scrubIndex is the two indexes of a sealed segment, held against its batches
// one after the other. Its size is bounded by segment.index.bytes.
type scrubIndex struct {
	seg     *segment
	offsets []entry // all of them
	entries []entry // those that are left
	times   []timeEntry
	skipped bool      // batches are missing, so that times may be of those
	bad     *badIndex // the first that is wrong with them
}

// badIndex is an index file that must be made anew, and why.
type badIndex struct {
	path string
	err  error
}

// readIndexes reads both index files; what does not hold by itself is noted.
func (c *segmentScrub) readIndexes() (*scrubIndex, error) {
	x := &scrubIndex{seg: c.seg}
	p, err := c.readIndex(offsetTable)
	if err == nil {
		x.offsets, err = parseEntries(p, c.seg.next-c.seg.base, c.seg.size)
	}
	if x.note(offsetTable.path(c.seg), err); x.bad == nil && err != nil {
		return nil, err
	}
	x.entries = x.offsets
	p, err = c.readIndex(timeTable)
	if err == nil {
		x.times, err = parseTimes(p, c.seg.next-c.seg.base)
	}
	if x.note(timeTable.path(c.seg), err); x.bad == nil && err != nil {
		return nil, err
	}
	return x, nil
}

// readIndex reads the entries of one index file at the scrub's pace.
func (c *segmentScrub) readIndex(kind tableKind) ([]byte, error) {
	name := kind.path(c.seg)
	info, err := c.dir.opts.FS.Stat(name)
	if err != nil {
		return nil, err
	}
	if err := c.pace(int(min(info.Size(), maxSegmentBytes))); err != nil {
		return nil, err
	}
	p, err := readFile(c.dir.opts.FS, name, maxSegmentBytes)
	if err != nil {
		return nil, err
	}
	c.read += int64(len(p))
	c.dir.metrics.scrubBytes.Add(float64(len(p)))
	h, err := decodeSeal(p, kind.magic())
	if err != nil {
		return nil, err
	}
	want := c.seg.seal()
	if h.base != want.base || h.next != want.next || h.logBytes != want.logBytes || h.logCRC != want.logCRC ||
		h.maxTimestamp != want.maxTimestamp || int64(len(p)) != sealSize+int64(h.count)*entrySize ||
		crc32.Checksum(p[sealSize:], castagnoli) != h.entriesCRC {
		return nil, errBadIndex
	}
	return p[sealSize:], nil
}

// note keeps err if it says that the file at path must be made anew.
func (x *scrubIndex) note(path string, err error) {
	if x.bad == nil && (errors.Is(err, errBadIndex) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errFileTooLarge)) {
		x.bad = &badIndex{path, err}
	}
}

// batch holds the entries up to the batch at rel against it, given what is in
// front of it.
func (x *scrubIndex) batch(rel uint32, before *tail) {
	if len(x.entries) > 0 && x.entries[0].rel <= rel {
		if e := x.entries[0]; e.rel < rel || int64(e.pos) != before.size || e.crc != before.crc && !x.skipped {
			x.note(offsetTable.path(x.seg), errEntry)
		}
		x.entries = x.entries[1:]
	}
	if len(x.times) > 0 && x.times[0].rel <= rel {
		if e := x.times[0]; e.rel < rel || e.ts != before.maxTimestamp && !x.skipped {
			x.note(timeTable.path(x.seg), errEntry)
		}
		x.times = x.times[1:]
	}
}

// errEntry says that an entry of an index is not true of the log.
var errEntry = fmt.Errorf("%w: an entry does not match the log", errBadIndex)

// skip passes over the entries below rel, whose batches do not hold.
func (x *scrubIndex) skip(rel uint32) {
	x.skipped = true
	for len(x.entries) > 0 && x.entries[0].rel < rel {
		x.entries = x.entries[1:]
	}
	for len(x.times) > 0 && x.times[0].rel < rel {
		x.times = x.times[1:]
	}
}
