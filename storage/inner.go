package storage

import (
	"errors"
	"io/fs"
	"slices"

	"leat/storage/disk"
)

// readSeals looks for the seal in both index files.
func (f *found) readSeals(files disk.FS) {
	read := func(kind tableKind) (s seal, ok bool) {
		path := kind.path(f.seg)
		if info, err := files.Stat(path); err == nil && info.Size() == 0 {
			return seal{}, false // of a segment that has begun
		}
		p, err := readHead(files, path)
		if errors.Is(err, fs.ErrNotExist) {
			return seal{}, false
		}
		if err == nil {
			if s, err = decodeHeader(p, kind.magic()); err == nil && s.base == f.seg.base {
				return s, s.flags&sealedFlag != 0
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
// others. The log never had them, unless the others took their place.
func outer(segs []found) []*segment {
	within := make([]*segment, len(segs))
	var last *found
	for i := range segs {
		f := &segs[i]
		switch {
		case last != nil && f.seg.base < last.seal.next:
			within[i] = last.seg
		case f.sealed && f.size == f.seal.logBytes:
			last = f
		}
	}
	return within
}

// leaveInner makes orphans of the segments that begin within another one.
func (r *recovery) leaveInner(names []string) {
	within := outer(r.found)
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
}

// inner tells of the segments that begin within another one.
func (l *logCheck) inner() {
	segs := make([]found, len(l.segs))
	for i, s := range l.segs {
		segs[i] = found{seg: s.seg, size: s.size}
		segs[i].readSeals(l.fs)
	}
	within := outer(segs)
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
