package storage

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"leat/storage/disk"
	"leat/storage/record"
)

// readSeals looks for the seal in both index files.
func (f *found) readSeals(files disk.FS) {
	read := func(kind tableKind) (s seal, ok bool) {
		path := kind.path(f.seg)
		if info, err := files.Stat(path); err == nil && info.Size() == 0 {
			f.grows = true // it has begun
			return seal{}, false
		}
		p, err := readHead(files, path)
		if errors.Is(err, fs.ErrNotExist) {
			return seal{}, false
		}
		if err == nil {
			if s, err = decodeHeader(p, kind.magic()); err == nil && s.base == f.seg.base {
				ok = s.flags&sealedFlag != 0
				f.grows = f.grows || !ok
				return s, ok
			}
		}
		f.torn = true
		return seal{}, false
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

// outer finds which of the segments, in the order of their bases, begin within
// one that is sealed and as long as its seal says, and within which: nil for all
// others. The log never had them, unless the others took their place. One of which
// the seals are damaged or missing is read instead: it has those in it if its
// batches reach to the place where a later one begins. The error is of reading.
func outer(files disk.FS, segs []found) ([]*segment, error) {
	within := make([]*segment, len(segs))
	var last *segment
	end := int64(-1) // of last
	for i := range segs {
		f := &segs[i]
		switch {
		case f.seg.base < end:
			within[i] = last
		case f.sealed && f.size == f.seal.logBytes:
			last, end = f.seg, f.seal.next
		case !f.sealed && !f.grows && f.odd == nil && i+2 < len(segs):
			reach, err := f.reach(files)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(segs[i+2:], func(f found) bool { return f.seg.base == reach }) {
				last, end = f.seg, reach
			}
		}
	}
	return within, nil
}

// reach is the offset behind the last batch of the .log, one behind the other.
func (f *found) reach(files disk.FS) (int64, error) {
	file, err := files.OpenFile(f.seg.logPath(), os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	at, err := scan(file, f.seg, f.size, 0, f.seg.base, -1, func(record.Batch) {})
	return at.next, errors.Join(err, file.Close())
}

// leaveInner makes orphans of the segments that begin within another one.
func (r *recovery) leaveInner(names []string) error {
	within, err := outer(r.dir.opts.FS, r.found)
	if err != nil {
		return err
	}
	kept := r.found[:0]
	for i, f := range r.found {
		if within[i] == nil {
			kept = append(kept, f)
			continue
		}
		for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
			if name := segmentName(f.seg.base, f.seg.gen) + suffix; slices.Contains(names, name) {
				r.orphans = append(r.orphans, name)
			}
		}
	}
	r.found = kept
	return nil
}

// inner tells of the segments that begin within another one.
func (l *logCheck) inner() {
	segs := make([]found, len(l.segs))
	for i, s := range l.segs {
		segs[i] = found{seg: s.seg, size: s.size}
		segs[i].readSeals(l.fs)
	}
	within, err := outer(l.fs, segs)
	if err != nil {
		return // it is met again when the segments are read
	}
	kept := l.segs[:0]
	for i, s := range l.segs {
		if within[i] == nil {
			kept = append(kept, s)
			continue
		}
		l.found(Warning, s.seg.logPath(), -1, "it begins within the segment at offset %d and is no part of the log, the next start sets it aside", within[i].base)
		l.progress(s.size)
	}
	l.segs = kept
}
