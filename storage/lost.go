package storage

import "slices"

// unknownTail is by how much the end of a log that is lost is put behind the
// last checkpoint if the last run did not end cleanly, so that no offset is
// given twice. It is more than may be appended between two checkpoints: 256 MiB,
// be it of batches of 1 MiB that expand to 64 MiB of the smallest records.
const unknownTail = 1 << 32

// broken reports whether records are missing that were durable.
func (r *recovery) broken() bool {
	next := r.start
	for _, f := range r.found {
		if f.seg.base > next || len(f.seg.gaps) > 0 {
			return true
		}
		next = max(next, f.seg.next)
	}
	return r.known && next < r.rec.recoveryOffset
}

// beyond is the end of a fenced log of which the last segment takes nothing: a
// segment without files. No bytes go into it; a repair makes a real one.
func (r *recovery) beyond(end int64) *segment {
	s := newSegment(r.log.path, end, 0)
	s.named = true
	return s
}

// newest is the leader epoch of the newest batch. The checkpoint knows nothing of
// what was sealed after it, which is not scanned.
func (r *recovery) newest() int32 {
	unread := func(f found) bool { return f.seg.sealed.Load() && f.seg.next > r.rec.recoveryOffset }
	switch {
	case r.known && !slices.ContainsFunc(r.found, unread):
		return max(r.rec.leaderEpoch, r.scannedEpoch)
	case r.scannedEpoch >= 0 && r.log.activeLocked().size > 0:
		return r.scannedEpoch
	default:
		return noEpochBound
	}
}

// lose makes a log of nothing but its bounds, because what is in its directory
// is none. Where there is nothing at all the checkpoint keeps what it knows, so
// that the log is whole when somebody brings its directory back; if its end is
// only a bound, the run does not end cleanly, so that the next one knows that.
func (r *recovery) lose(why error) {
	l, end := r.log, r.start
	if r.known {
		end = max(end, r.rec.recoveryOffset)
	}
	for _, f := range r.found {
		end = max(end, f.seg.base)
	}
	if r.dir.Unclean() && !r.rec.corrupt {
		end += unknownTail
		if len(r.found) == 0 {
			r.dir.unsure.Store(true)
		}
	}
	s := r.beyond(end)
	l.mu.segments = []*segment{s}
	l.mu.start, l.mu.end, l.mu.lost = r.start, end, why
	l.mu.epoch = r.newest()
	l.mu.changed = !r.rec.corrupt && len(r.found) > 0
	l.fenced.Store(true)
	l.mu.durable = l.markLocked()
	l.remember(l.newFold(end, nil).done())
	r.ended, r.below = nil, nil
}

// mustHave reports whether the metadata has the partition, so that its
// directory, which is made durable before, is missing if it is not there. After
// a clean stop the checkpoint knows better.
func (d *Dir) mustHave(id ID) bool {
	return d.Unclean() && d.fate != nil && d.fate(id) == Keep
}
