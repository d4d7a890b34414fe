package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"leat/storage/disk"
)

// segment is one .log with its two indexes. While it grows, and until it is
// sealed, its index is in memory; from then on nothing of it changes and the
// indexes are mapped when they are needed.
type segment struct {
	stem string // path without suffix
	base int64
	gen  uint32

	// sealed says that both index files are complete and durable. It is set
	// once; tail's entries are given up then.
	sealed atomic.Bool

	// unread is what is to be verified before it is handed out; nil for nothing.
	unread atomic.Pointer[unread]

	// The rest is guarded by the log's mu. Of a sealed segment only the
	// numbers in tail hold.
	tail
	gaps        []gap // in order; copied on write
	indexed     bool  // entries hold although it is sealed, because the files do not
	firstAppend int64 // wall clock, Unix ms; 0 while empty
	lastAppend  int64
	clean       bool    // compaction has applied its keys to all before
	named       bool    // the files' names are durable
	pin         *handle // keeps the file open from a write to its sync

	// allocated is the size of the file, at least tail.size. Guarded by the
	// log's writing lock while the segment is active, then by the keeper.
	allocated int64
	rate      rate // guarded by the writing lock
	// written is how far the index files were written for the checkpoint.
	// Only the keeper uses it.
	written writtenIndex

	// cutAt is one more than the size to which a truncation has cut the .log,
	// which is another segment's since; 0 until then.
	cutAt atomic.Int64

	// Guarded by files.mu: the open file, and that it is not to be opened
	// again because the segment has left its log.
	handle  *handle
	retired bool
}

// writtenIndex counts the entries that are in the files of an index that is
// not sealed yet, with the checksums of those.
type writtenIndex struct {
	entries, times       int
	entriesCRC, timesCRC uint32
	// stale says that the files hold something else, and are to be written
	// from their beginning.
	stale bool
}

func newSegment(dir string, base int64, gen uint32) *segment {
	return &segment{
		stem: filepath.Join(dir, segmentName(base, gen)),
		base: base, gen: gen, tail: newTail(base),
	}
}

// indexOnDisk says that lookups go to the index files. mu must be held.
func (s *segment) indexOnDisk() bool { return s.sealed.Load() && !s.indexed }

func (s *segment) logPath() string { return s.stem + logSuffix }

// createFiles makes the segment's three empty files. The names are not
// durable yet. An empty leftover of an earlier attempt is taken over; a
// leftover with content is an error, for it may be somebody's records.
func (s *segment) createFiles(fs disk.FS) error {
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
		name := s.stem + suffix
		f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		if info.Size() > 0 {
			return fmt.Errorf("create %s: %w", name, os.ErrExist)
		}
	}
	return nil
}

// removeFiles undoes createFiles after it failed midway.
func (s *segment) removeFiles(fs disk.FS) {
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
		if info, err := fs.Stat(s.stem + suffix); err == nil && info.Size() == 0 {
			_ = fs.Remove(s.stem + suffix) // an empty file that stays is taken over later
		}
	}
}

// seal describes the segment for the headers of its index files.
func (s *segment) seal() seal {
	h := seal{
		flags: sealedFlag, base: s.base, next: s.next, logBytes: s.size,
		maxTimestamp: s.maxTimestamp, lastAppend: s.lastAppend, logCRC: s.crc,
	}
	if s.producers {
		h.flags |= producersFlag
	}
	if s.gen > 0 {
		h.flags |= compactedFlag
	}
	if s.clean {
		h.flags |= cleanFlag
	}
	return h
}

// adopt takes over what the header of a sealed segment says.
func (s *segment) adopt(h seal) {
	s.tail = newTail(s.base)
	s.next, s.size, s.maxTimestamp, s.crc = h.next, h.logBytes, h.maxTimestamp, h.logCRC
	s.producers = h.flags&producersFlag != 0
	s.clean = h.flags&cleanFlag != 0
	s.lastAppend, s.firstAppend = h.lastAppend, h.lastAppend
	s.allocated = h.logBytes
	s.named = true
	s.unread.Store(newUnread(s.size))
	s.sealed.Store(true)
}
