package storage

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"leat/storage/record"
)

// maxEpochs bounds the leader epochs that a log keeps in memory, the newest
// ones. Where an older one ends is looked up in the log each time.
const maxEpochs = 1024

// epochStart says where the first batch of an epoch begins.
type epochStart struct {
	epoch int32
	start int64
}

// epochs is what is known of the leader epochs of a log's batches, the newest
// ones without a gap: it grows with the appends, and backwards as far as somebody
// asks. So an open log has it for nothing.
type epochs struct {
	list []epochStart // both ascending. Never changed in place
	// open says that the first of list may begin before its start.
	open bool
}

// add accounts for a batch that was appended.
func (e *epochs) add(epoch int32, base int64) {
	switch n := len(e.list); {
	case n == 0:
		e.list, e.open = []epochStart{{epoch, base}}, true
	case epoch > e.list[n-1].epoch:
		e.list = append(e.list, epochStart{epoch, base})
		e.trim(len(e.list) - maxEpochs)
	}
}

// trim forgets the first n.
func (e *epochs) trim(n int) {
	if n > 0 {
		e.list, e.open = slices.Clone(e.list[n:]), false
	}
}

// raise forgets the epochs that end at or before the log's start.
func (e *epochs) raise(start int64) {
	e.trim(lastTrue(len(e.list), func(i int) bool { return e.list[i].start <= start }))
}

// cut forgets the epochs that begin at or past the log's new end.
func (e *epochs) cut(end int64) {
	n := lastTrue(len(e.list), func(i int) bool { return e.list[i].start < end }) + 1
	e.list = slices.Clone(e.list[:n])
}

// find answers EpochEnd for a log with those bounds; false if that is not known.
func (e *epochs) find(epoch int32, start, end int64) (found int32, until int64, ok bool) {
	i := lastTrue(len(e.list), func(i int) bool { return e.list[i].epoch <= epoch })
	if i+1 < len(e.list) {
		if i < 0 && e.open {
			return 0, 0, false
		}
		end = e.list[i+1].start
	}
	switch {
	case end <= start:
		return -1, start, true
	case i < 0:
		return 0, 0, false
	default:
		return e.list[i].epoch, end, true
	}
}

// EpochEnd finds the largest leader epoch in the log that is at most epoch,
// and the offset of the first batch with a larger one: where that epoch ended.
// end is the log's end if no batch has a larger epoch. If all have, found is -1
// and end the log's start.
//
// The newest 1,024 epochs are kept in memory once somebody has asked for one as
// old. The first time, and for older ones, the log is searched: the epochs of
// batches never fall, so it is three binary searches for each, the segment by
// its first batch, then the index entry, then from batch to batch.
func (l *Log) EpochEnd(epoch int32) (found int32, end int64, err error) {
	if !l.enter() {
		return -1, -1, ErrClosed
	}
	defer l.leave()
	for {
		cuts := l.cuts.Load()
		l.mu.RLock()
		known, start, last := l.mu.epochs, l.mu.start, l.mu.end
		l.mu.RUnlock()
		if found, end, ok := known.find(epoch, start, last); ok {
			return found, end, nil
		}
		full := len(known.list) >= maxEpochs
		found, end, err = l.searchEpoch(known.unknown(epoch))
		switch {
		case l.cuts.Load() != cuts || errors.Is(err, errRetired):
			// A segment has left the log meanwhile, or the log was cut.
		case err != nil || full || found < 0 && len(known.list) == 0: // nothing is left of a damaged log
			return found, end, err
		default:
			l.learnEpoch(&known, cuts, found, end)
		}
	}
}

// unknown is the epoch to search for, given that epoch cannot be found.
func (e *epochs) unknown(epoch int32) int32 {
	switch {
	case len(e.list) == 0:
		return math.MaxInt32 // which is the newest?
	case len(e.list) >= maxEpochs:
		return epoch
	default:
		return e.list[0].epoch - 1
	}
}

// learnEpoch puts in front of what was known that the epoch before it is found,
// -1 for none, and ends at an offset. If what is known has changed meanwhile,
// it does nothing.
func (l *Log) learnEpoch(known *epochs, cuts int64, found int32, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.mu.epochs
	if l.cuts.Load() != cuts || (len(e.list) == 0) != (len(known.list) == 0) || len(e.list) > 0 && e.list[0] != known.list[0] {
		return
	}
	var list []epochStart
	if found >= 0 {
		list = append(list, epochStart{found, end - 1})
	}
	list = append(list, e.list...)
	if n := len(e.list); n > 0 {
		list[len(list)-n].start = end
	}
	e.list, e.open = list, found >= 0
}

// searchEpoch is EpochEnd without what is known.
func (l *Log) searchEpoch(epoch int32) (found int32, end int64, err error) {
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
	if err == nil {
		err = v.verify(h, at, point{offset: w.next, pos: w.pos})
	}
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
