package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"leat/storage/disk"
)

const (
	// swapFile is in a partition's directory while segments are rewritten.
	swapFile  = "COMPACT"
	tmpSuffix = ".tmp"
	swapMagic = "leat rewrite 1"
	// maxSwapBytes bounds the read of the file: some hundred thousand segments.
	maxSwapBytes = 16 << 20
)

var errBadSwap = errors.New("not a valid record of a rewriting")

// swapRecord is the content of COMPACT, lines of text with a checksum:
//
//	leat rewrite 1
//	generation 000002
//	done true
//	new <base>-<gen> <next offset> <bytes> <crc of the .log>
//	old <base>-<gen>
//	crc 1a2b3c4d
//
// Without done, files of the generation are no part of the log. With done, the
// old segments are none any more, and the new ones cover the same offsets. A
// record with done is written when the new ones are durable.
type swapRecord struct {
	gen   uint32
	done  bool
	fresh []*segment
	old   []*segment // name only
}

func (r *swapRecord) encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\ngeneration %0*x\ndone %t\n", swapMagic, genDigits, r.gen, r.done)
	for _, s := range r.fresh {
		fmt.Fprintf(&b, "new %s %d %d %08x\n", segmentName(s.base, s.gen), s.next, s.size, s.crc)
	}
	for _, s := range r.old {
		fmt.Fprintf(&b, "old %s\n", segmentName(s.base, s.gen))
	}
	fmt.Fprintf(&b, "crc %08x\n", crc32.Checksum([]byte(b.String()), castagnoli))
	return []byte(b.String())
}

// decodeSwap reads what encode wrote, and nothing else.
func decodeSwap(p []byte) (swapRecord, error) {
	var r swapRecord
	lines := strings.SplitAfter(string(p), "\n")
	if len(lines) < 5 || lines[len(lines)-1] != "" {
		return swapRecord{}, errBadSwap
	}
	for _, line := range lines[1 : len(lines)-2] {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var err error
		switch key {
		case "generation":
			_, err = fmt.Sscanf(value, "%x", &r.gen)
		case "done":
			_, err = fmt.Sscanf(value, "%t", &r.done)
		case "new", "old":
			err = r.segment(key, value)
		default:
			err = errBadSwap
		}
		if err != nil {
			return swapRecord{}, fmt.Errorf("%w: %q", errBadSwap, line)
		}
	}
	if string(r.encode()) != string(p) {
		return swapRecord{}, errBadSwap
	}
	return r, nil
}

func (r *swapRecord) segment(key, value string) error {
	name, rest, _ := strings.Cut(value, " ")
	base, gen, _, ok := parseSegmentName(name + logSuffix)
	if !ok {
		return errBadSwap
	}
	s := newSegment("", base, gen)
	if key == "old" {
		r.old = append(r.old, s)
		return nil
	}
	r.fresh = append(r.fresh, s)
	_, err := fmt.Sscanf(rest, "%d %d %x", &s.next, &s.size, &s.crc)
	return err
}

// readSwap reads COMPACT of the partition at dir; known is false if there is
// none.
func readSwap(fsys disk.FS, dir string) (r swapRecord, known bool, err error) {
	name := filepath.Join(dir, swapFile)
	p, err := readFile(fsys, name, maxSwapBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return swapRecord{}, false, nil
	}
	if err == nil {
		r, err = decodeSwap(p)
	}
	switch {
	case errors.Is(err, errBadSwap), errors.Is(err, errFileTooLarge):
		return swapRecord{}, true, &CorruptError{Path: name, Err: err}
	case err != nil:
		return swapRecord{}, true, err
	}
	return r, true, nil
}

// dead tells of the names in the directory of a partition that begins at start
// which segments are no part of the log by the record. Files of the new
// segments may be missing where all of the old ones are still there, or where
// the start is past them.
func (r *swapRecord) dead(fsys disk.FS, dir string, names []string, start int64) (func(base int64, gen uint32) bool, error) {
	whole := r.done
	var missing error
	for _, s := range r.fresh {
		path := filepath.Join(dir, segmentName(s.base, s.gen)+logSuffix)
		info, err := fsys.Stat(path)
		if err == nil && info.Size() == s.size || s.next <= start {
			continue
		}
		whole = false
		missing = &CorruptError{Path: path, Err: fmt.Errorf("it is not there with the %d bytes that %s says it has", s.size, swapFile)}
	}
	if whole {
		old := make(map[string]bool, len(r.old))
		for _, s := range r.old {
			old[segmentName(s.base, s.gen)] = true
		}
		return func(base int64, gen uint32) bool { return old[segmentName(base, gen)] }, nil
	}
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
	}
	for _, s := range r.old {
		if missing != nil && !there[segmentName(s.base, s.gen)+logSuffix] {
			return nil, missing
		}
	}
	return func(_ int64, gen uint32) bool { return gen == r.gen }, nil
}

func noneDead(int64, uint32) bool { return false }

// liveGenerations tells of the names in a partition's directory which segments
// the log has: of each base the lowest generation that has a .log and is not
// dead.
func liveGenerations(names []string, dead func(base int64, gen uint32) bool) map[int64]uint32 {
	live := make(map[int64]uint32)
	for _, name := range names {
		base, gen, suffix, ok := parseSegmentName(name)
		if !ok || suffix != logSuffix || dead(base, gen) {
			continue
		}
		if is, known := live[base]; !known || gen < is {
			live[base] = gen
		}
	}
	return live
}

// readSwap looks whether segments were being rewritten. A record that does not
// hold says nothing: then the log is what its files are.
func (r *recovery) readSwap(names []string) error {
	fsys := r.dir.opts.FS
	r.swapped = slices.Contains(names, swapFile+tmpSuffix)
	r.dead = noneDead
	if !slices.Contains(names, swapFile) {
		return nil
	}
	rec, known, err := readSwap(fsys, r.log.path)
	r.swapped = r.swapped || known
	if errors.Is(err, ErrCorrupt) {
		r.dir.opts.Logger.Error("the record of a rewriting does not hold and is not used", slog.Any("err", err))
		return nil
	}
	if known && err == nil {
		r.dead, err = rec.dead(fsys, r.log.path, names, r.start)
	}
	return err
}

// endSwap removes COMPACT, after the files that are dead by it, which must not
// come back without it.
func (r *recovery) endSwap() error {
	if !r.swapped {
		return nil
	}
	for _, name := range []string{swapFile + tmpSuffix, swapFile} {
		if err := r.dir.opts.FS.Remove(filepath.Join(r.log.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	r.swapped = false
	return r.synced(r.log.path, r.dir.opts.FS.SyncDir(r.log.path))
}
