package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"leat/storage/disk"
	"leat/storage/record"
)

// writeSealed writes both index files of a segment with the header that says
// that they are complete, and syncs them. The .log must be durable.
func writeSealed(fs disk.FS, stem string, head seal, entries []entry, times []timeEntry) error {
	err := writeIndexFile(fs, stem+indexSuffix, indexMagic, head, len(entries), appendEntries(nil, entries))
	if err != nil {
		return err
	}
	return writeIndexFile(fs, stem+timeSuffix, timeMagic, head, len(times), appendTimes(nil, times))
}

func writeIndexFile(fs disk.FS, name string, magic [4]byte, head seal, count int, body []byte) error {
	head.count, head.entriesCRC = uint32(count), crc32.Checksum(body, castagnoli)
	return withFile(fs, name, func(f disk.File) error {
		content := append(head.encode(magic), body...)
		if _, err := f.WriteAt(content, 0); err != nil {
			return err
		}
		if err := f.Truncate(int64(len(content))); err != nil {
			return err
		}
		return syncFault(name, f.Sync())
	})
}

// writePending adds the entries up to the mark that the index files of a
// segment do not have yet, or writes them anew if they are stale. The header says how far they reach and whether
// idempotent producers wrote that part; it is not sealed.
func writePending(fs disk.FS, s *segment, m *mark, entries []entry, times []timeEntry) error {
	w := s.written
	if w.stale {
		w = writtenIndex{}
	}
	newEntries, newTimes := entries[w.entries:], times[w.times:]
	if len(newEntries) == 0 && len(newTimes) == 0 && !s.written.stale {
		return nil
	}
	head := seal{base: s.base, next: m.offset, logBytes: m.pos, maxTimestamp: m.maxTimestamp, lastAppend: m.lastAppend}
	if m.producers {
		head.flags = producersFlag
	}
	write := func(name string, magic [4]byte, off int, body []byte) error {
		return withFile(fs, name, func(f disk.File) error {
			if _, err := f.WriteAt(body, int64(sealSize+off)); err != nil {
				return err
			}
			_, err := f.WriteAt(head.encode(magic), 0)
			return err
		})
	}
	body := appendEntries(nil, newEntries)
	if err := write(s.stem+indexSuffix, indexMagic, w.entries*entrySize, body); err != nil {
		return err
	}
	timeBody := appendTimes(nil, newTimes)
	if err := write(s.stem+timeSuffix, timeMagic, w.times*entrySize, timeBody); err != nil {
		return err
	}
	s.written = writtenIndex{
		entries: len(entries), entriesCRC: crc32.Update(w.entriesCRC, castagnoli, body),
		times: len(times), timesCRC: crc32.Update(w.timesCRC, castagnoli, timeBody),
	}
	return nil
}

// withFile opens or creates the file for fn.
func withFile(fs disk.FS, name string, fn func(disk.File) error) error {
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	if err = errors.Join(fn(f), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// rebuildSealed writes the index files of a sealed segment anew from its .log,
// of which every byte is verified on the way, also against the checksum of the
// whole. The damaged files are replaced
// and not overwritten, because they may be mapped.
func rebuildSealed(t *tables, f *files, s *segment, interval int) error {
	h, err := f.acquire(s)
	if err != nil {
		return err
	}
	defer f.release(h)
	rebuilt := newTail(s.base)
	end, err := scan(h, s, s.size, 0, s.base, -1, func(b record.Batch) { rebuilt.extend(b, interval) })
	if err != nil {
		return fmt.Errorf("rebuild the index of %s: %w", s.logPath(), err)
	}
	if end.why != nil || end.next != s.next || end.pos != s.size {
		return &CorruptError{Path: s.logPath(), Pos: end.pos, Err: orElseErr(end.why, errTorn)}
	}
	if rebuilt.crc != s.crc {
		// New indexes would call it right.
		c, err := changedPart(h, s, point{offset: s.base}, end.point(), rebuilt.crc^s.crc)
		if err != nil {
			return err
		}
		return &CorruptError{Path: s.logPath(), Pos: c.pos, Err: errChanged, From: c.from.offset, To: c.to.offset}
	}
	head := s.seal()
	for _, name := range []string{s.stem + indexSuffix, s.stem + timeSuffix} {
		if err := t.fs.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := writeSealed(t.fs, s.stem, head, rebuilt.entries, rebuilt.times); err != nil {
		return err
	}
	t.drop(s)
	t.metrics.rebuilt.Inc()
	return syncFault(s.stem, t.fs.SyncDir(filepath.Dir(s.stem)))
}

func orElseErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
