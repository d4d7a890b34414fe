package storage

import (
	"errors"
	"fmt"

	"leat/storage/record"
)

// EpochEnd finds the largest leader epoch in the log that is at most epoch,
// and the offset of the first batch with a larger one: where that epoch ended.
// end is the log's end if no batch has a larger epoch. If all have, found is -1
// and end the log's start.
//
// The epochs of batches never fall, so it is three binary searches: the
// segment by its first batch, then the index entry, then from batch to batch.
func (l *Log) EpochEnd(epoch int32) (found int32, end int64, err error) {
	if !l.enter() {
		return -1, -1, ErrClosed
	}
	defer l.leave()
	for {
		found, end, err = l.epochEnd(epoch)
		if !errors.Is(err, errRetired) {
			return found, end, err
		}
		// A segment has left the log meanwhile: there is one less to look at.
	}
}

func (l *Log) epochEnd(epoch int32) (found int32, end int64, err error) {
	views, o := l.allViews()
	s := epochSearch{epoch: epoch}
	n := s.last(len(views), func(i int) (int32, error) { return views[i].firstEpoch(max(o.Start, views[i].seg.base)) })
	if s.err != nil {
		return -1, -1, s.err
	}
	if n < 0 {
		return -1, o.Start, nil
	}
	return views[n].epochEnd(epoch)
}

// allViews looks at all segments with batches at or past the start, and at the
// bounds of the same moment.
func (l *Log) allViews() ([]view, Offsets) {
	// What is appended or removed between the two cannot matter: the first
	// view may only begin later than the start, by records that are gone, and
	// no batch is past the end of the last view.
	o := l.Offsets()
	return l.views(o.End), o
}

// epochSearch finds the last of several batches whose epoch is at most epoch.
type epochSearch struct {
	epoch int32
	err   error // of a read; from then on no answer counts
}

// holds says whether an epoch that was read is at most the one searched for.
func (s *epochSearch) holds(of int32, err error) bool {
	if err != nil && s.err == nil {
		s.err = err
	}
	return s.err == nil && of <= s.epoch
}

// last is the last of n batches that holds, -1 if there is none.
func (s *epochSearch) last(n int, epochOf func(i int) (int32, error)) int {
	return lastTrue(n, func(i int) bool { return s.holds(epochOf(i)) })
}

// firstEpoch is the epoch of the batch that has the offset.
func (v *view) firstEpoch(offset int64) (int32, error) {
	h, err := v.log.dir.files.acquire(v.seg)
	if err != nil {
		return -1, err
	}
	defer v.log.dir.files.release(h)
	at, err := v.find(h, offset)
	if err != nil {
		return -1, err
	}
	return v.epochAt(h, at)
}

// epochAt is the epoch of the batch that begins at a point.
func (v *view) epochAt(h *handle, at point) (int32, error) {
	w := newWalk(h, v.seg, at.pos, at.offset, v.tail.size)
	defer w.close()
	b, err := w.header()
	if err != nil {
		return -1, fmt.Errorf("read the epoch at offset %d: %w", at.offset, err)
	}
	return b.LeaderEpoch(), nil
}

// epochEnd is the answer of a segment that has a batch of at most that epoch.
func (v *view) epochEnd(epoch int32) (found int32, end int64, err error) {
	h, err := v.log.dir.files.acquire(v.seg)
	if err != nil {
		return -1, -1, err
	}
	defer v.log.dir.files.release(h)
	from, err := v.lastEntryWithin(h, epoch)
	if err != nil {
		return -1, -1, err
	}
	found, end = -1, v.tail.next
	err = v.eachBatch(int64(from.rel), v.tail.next, func(_ *walk, b record.Batch) (bool, error) {
		if b.LeaderEpoch() > epoch {
			end = b.BaseOffset()
			return true, nil
		}
		found = b.LeaderEpoch()
		return false, nil
	})
	return found, end, err
}

// lastEntryWithin is the last index entry whose batch has at most that epoch.
func (v *view) lastEntryWithin(h *handle, epoch int32) (entry, error) {
	s := epochSearch{epoch: epoch}
	var within uint32 // of what was read already; entries are looked at twice
	ok := func(e entry) bool {
		if e.rel <= within {
			return true
		}
		holds := s.holds(v.epochAt(h, v.point(e)))
		if holds {
			within = e.rel
		}
		return holds
	}
	var e entry
	var err error
	if v.sealed {
		e, err = v.tables().entry(func(p []byte) bool { return ok(decodeEntry(p)) })
	} else {
		e = lastOf(v.tail.entries, entry{}, ok)
	}
	if s.err != nil {
		err = s.err
	}
	return e, err
}
