package storage

import (
	"errors"

	"leat/storage/disk"
	"leat/storage/record"
)

// errNotWritten says that a .log is not the one that was sealed.
var errNotWritten = errors.New("it is not the file that was sealed: both seals agree and say otherwise")

// witness holds a .log against the two seals of its segment, which agree. They
// are written after it, and the checksums of their own hold, so where the .log
// has sound batches but others, it is the one that was changed or replaced.
type witness struct {
	seal seal
	// entries are those of the sealed index that were not passed.
	entries []entry
	base    int64
	// sound says that the batches up to the place where the segment ends by its
	// seals are what was written.
	sound bool
	// denied says that an entry knows of another batch.
	denied bool
}

// findWitness is who speaks for a segment of which the seals agree if they and
// the size of the .log do not go together, nil otherwise. start is the log's, next
// where the next segment begins: if that is within this one, neither is believed.
// An index of which the entries do not hold says nothing.
func findWitness(fsys disk.FS, s *segment, by *seal, size, start, next int64) *witness {
	if size == by.logBytes || by.next <= start || next >= 0 && next < by.next {
		return nil
	}
	w := &witness{seal: *by, base: s.base, sound: by.next == s.base}
	if entries, err := readSealedEntries(fsys, s, by.next, by.logBytes); err == nil {
		w.entries = entries
	}
	return w
}

// see is told of each batch, at which byte it begins, and of the checksum of all
// up to its end.
func (w *witness) see(b record.Batch, pos int64, crc uint32) {
	w.pass(b.BaseOffset()) // they are of a gap
	for ; len(w.entries) > 0 && w.base+int64(w.entries[0].rel) < b.NextOffset(); w.entries = w.entries[1:] {
		e := w.entries[0]
		w.denied = w.denied || w.base+int64(e.rel) != b.BaseOffset() || int64(e.pos) != pos
	}
	w.sound = w.sound || b.NextOffset() == w.seal.next && pos+int64(len(b)) == w.seal.logBytes && crc == w.seal.logCRC
}

// pass leaves the entries below an offset out.
func (w *witness) pass(offset int64) {
	w.entries = w.entries[lastTrue(len(w.entries), func(i int) bool { return w.base+int64(w.entries[i].rel) < offset })+1:]
}

// against says whether the .log is not what was written, of which all was read;
// gaps says that not all of it is sound.
func (w *witness) against(gaps bool) bool {
	return w.denied || !gaps && !w.sound
}

// disown makes one gap of a segment, up to an offset, because its .log is not its
// own. Nothing that was read of it counts.
func (r *recovery) disown(f *found, until int64) scanned {
	s, to := f.seg, point{offset: until, pos: f.size}
	s.tail = newTail(s.base)
	s.gaps = []gap{{from: point{offset: s.base}, to: to, why: errNotWritten}}
	s.skip(to)
	return scanned{pos: to.pos, next: to.offset}
}
