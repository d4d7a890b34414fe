package storage

import (
	"slices"
	"sync"

	"leat/storage/record"
)

// maxSpans bounds what is remembered of one segment. A part that would make it
// more is verified again each time that it is read; who reads from one end to
// the other never makes it more.
const maxSpans = 64

// unread is what of a .log this process has neither written nor verified. It is
// read once in full before any of it is handed out.
type unread struct {
	mu    sync.Mutex
	spans []span // in order, apart from each other
}

// span is the bytes [from, to) of a .log.
type span struct{ from, to int64 }

// newUnread has nothing verified below size; nil if there is nothing.
func newUnread(size int64) *unread {
	if size == 0 {
		return nil
	}
	return &unread{spans: []span{{0, size}}}
}

// has reports whether any of [from, to) is to be verified.
func (u *unread) has(from, to int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.spans, func(s span) bool { return s.from < to && from < s.to })
}

// done says that [from, to) holds, and reports whether nothing is left.
func (u *unread) done(from, to int64) (all bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var rest []span
	for _, s := range u.spans {
		if s.to <= from || to <= s.from {
			rest = append(rest, s)
			continue
		}
		if s.from < from {
			rest = append(rest, span{s.from, from})
		}
		if to < s.to {
			rest = append(rest, span{to, s.to})
		}
	}
	if len(rest) <= maxSpans {
		u.spans = rest
	}
	return len(u.spans) == 0
}

// verify reads the batches between two points of the segment, unless this
// process has written or verified them before. It reads from the nearest place in
// front to the nearest one behind of which the index knows the checksum that the
// file has up to there, so that no byte can be another one, also of those that no
// batch's own checksum covers; and it looks that each batch holds. *CorruptError if
// something is not what was written.
func (v *view) verify(h *handle, start, end point) error {
	u := v.seg.unread.Load()
	if u == nil || !u.has(start.pos, end.pos) {
		return nil
	}
	from, to, err := v.around(start, end)
	if err != nil {
		return err
	}
	exact := !between(v.gaps, from.pos, to.pos)
	if !exact {
		from.point, to.point = start, end
	}
	order := epochOrder{newest: v.log.newestEpoch()}
	order.begin(from.point)
	crc := from.crc
	at, err := scan(h, v.seg, to.pos, from.pos, from.offset, -1, func(b record.Batch) {
		crc = extendCRC(crc, b)
		order.add(b)
	})
	if err != nil {
		return readFailed(v.seg, from.pos, err)
	}
	if at.why == nil && (at.pos != to.pos || at.next != to.offset) {
		at.why = errTorn
	}
	if bad := order.take(); at.why == nil && len(bad) > 0 {
		at.pos, at.why = bad[0].from.pos, bad[0].why
	}
	if at.why == nil && exact && crc != to.crc {
		at.pos, at.why = from.pos, errChanged
	}
	if at.why != nil {
		return &CorruptError{Path: v.seg.logPath(), Pos: at.pos, Err: at.why}
	}
	v.seg.confirm(u, from.pos, to.pos)
	return nil
}

// around are the nearest places in front of a part of the segment and behind it
// of which the checksum is known.
func (v *view) around(start, end point) (from, to summed, err error) {
	e, err := v.floorPos(uint32(start.pos))
	if err != nil {
		return summed{}, summed{}, err
	}
	from = v.summed(e)
	e, ok, err := v.ceilPos(uint32(end.pos))
	if ok {
		return from, v.summed(e), err
	}
	return from, v.tail.summed(), err
}

// confirm says that [from, to) of what u is about holds.
func (s *segment) confirm(u *unread, from, to int64) {
	if u.done(from, to) {
		s.unread.CompareAndSwap(u, nil)
	}
}

// newestEpoch is the leader epoch of the newest batch.
func (l *Log) newestEpoch() int32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.epoch
}
