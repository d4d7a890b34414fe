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
// process has written or verified them before: checksum, chain of offsets, and
// order of epochs of each. *CorruptError if one does not hold.
func (v *view) verify(h *handle, start, end point) error {
	u := v.seg.unread.Load()
	if u == nil || !u.has(start.pos, end.pos) {
		return nil
	}
	order := epochOrder{newest: v.log.newestEpoch()}
	order.begin(start)
	at, err := scan(h, v.seg, end.pos, start.pos, start.offset, -1, order.add)
	if err != nil {
		return readFailed(v.seg, start.pos, err)
	}
	if at.why == nil && (at.pos != end.pos || at.next != end.offset) {
		at.why = errTorn
	}
	if at.why == nil {
		at.why = v.peek(h, end, &order)
	}
	if bad := order.take(); at.why == nil && len(bad) > 0 {
		at.pos, at.why = bad[0].from.pos, bad[0].why
	}
	if at.why != nil {
		return &CorruptError{Path: v.seg.logPath(), Pos: at.pos, Err: at.why}
	}
	v.seg.confirm(u, start.pos, end.pos)
	return nil
}

// peek holds the header behind what was verified against it: if its epoch is
// smaller, one of the two is damaged.
func (v *view) peek(h *handle, end point, order *epochOrder) error {
	if v.tail.size-end.pos < record.HeaderSize || slices.ContainsFunc(v.gaps, func(g gap) bool { return g.from.pos == end.pos }) {
		return nil
	}
	p := make(record.Batch, record.HeaderSize)
	if err := readFull(h, p, end.pos); err != nil {
		return readFailed(v.seg, end.pos, err)
	}
	// One that is damaged otherwise is found when it is read.
	if checkStoredHeader(p, v.seg, v.tail.size-end.pos, end.offset) == nil && order.have && p.LeaderEpoch() < order.last {
		order.add(p)
	}
	return nil
}

// confirm verifies the batch whose header a walk has returned last.
func (v *view) confirm(w *walk, b record.Batch) error {
	pos := w.pos - int64(b.Size())
	u := v.seg.unread.Load()
	if u == nil || !u.has(pos, w.pos) {
		return nil
	}
	if _, err := w.batch(b); err != nil {
		return err
	}
	v.seg.confirm(u, pos, w.pos)
	return nil
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
