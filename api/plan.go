package api

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"leat/broker"
	"leat/storage/record"
)

// planWindow is how much of a section is read at a time, at least. A section
// that fits is read once for both walks over it.
const planWindow = 1 << 20

// Walk reads a section batch by batch through one buffer.
type Walk struct {
	sec     record.Section
	damaged func(offset int64, err error) error
	hold    func(total int64) error
	// buf holds the section's bytes [from, from+len(buf)).
	buf  []byte
	from int64
	pos  int64
}

var windowPool = sync.Pool{New: func() any {
	p := make([]byte, 0, 64<<10)
	return &p
}}

// NewWalk walks over sec, which stays the caller's. The walk must be released.
// damaged is told of each batch that cannot be given out, and returns the error
// for the client; see broker.Broker.NoteDamage.
func NewWalk(sec record.Section, damaged func(offset int64, err error) error) *Walk {
	return &Walk{sec: sec, damaged: damaged, buf: *windowPool.Get().(*[]byte)}
}

// Bound has hold asked before the walk's buffers, for what is read and for a
// batch that is expanded, become total bytes. Its error, a Problem, ends the
// walk; the first 64 KiB of each are not asked for.
func (w *Walk) Bound(hold func(total int64) error) { w.hold = hold }

// reader makes a reader of the walk's batches.
func (w *Walk) reader() record.Reader {
	if w.hold == nil {
		return record.Reader{}
	}
	return record.Reader{Grow: func(size int64) error { return w.hold(int64(cap(w.buf)) + size) }}
}

// Release gives the buffer back.
func (w *Walk) Release() {
	if cap(w.buf) <= planWindow {
		p := w.buf[:0]
		windowPool.Put(&p)
	}
	w.buf = nil
}

// Next is the next batch, good until the next call; io.EOF after the last.
func (w *Walk) Next() (record.Batch, error) {
	left := w.sec.Len() - w.pos
	if left == 0 {
		return nil, io.EOF
	}
	head, err := w.view(min(left, record.HeaderSize))
	if err != nil {
		return nil, err
	}
	size := int64(-1)
	if len(head) == record.HeaderSize {
		size = int64(record.Batch(head).Size())
	}
	if size < record.HeaderSize || size > left {
		return nil, fmt.Errorf("%w: batch length %d with %d bytes left in the section", record.ErrCorrupt, size, left)
	}
	whole, err := w.view(size)
	if err != nil {
		return nil, err
	}
	w.pos += size
	return record.Batch(whole), nil
}

// view is the next n bytes, which are there.
func (w *Walk) view(n int64) ([]byte, error) {
	if w.pos < w.from || w.pos+n > w.from+int64(len(w.buf)) {
		window := min(max(n, planWindow), w.sec.Len()-w.pos)
		err := w.load(window)
		if err != nil && n < window {
			// What cannot be read may stand behind what is wanted.
			err = w.load(n)
		}
		if err != nil {
			return nil, err
		}
	}
	at := w.pos - w.from
	return w.buf[at : at+n : at+n], nil
}

func (w *Walk) load(n int64) error {
	if int64(cap(w.buf)) < n {
		if w.hold != nil {
			if err := w.hold(n); err != nil {
				return err
			}
		}
		w.buf = make([]byte, 0, n)
	}
	w.buf, w.from = w.buf[:n], w.pos
	got, err := w.sec.ReadAt(w.buf, w.pos)
	if int64(got) < n {
		w.buf = w.buf[:0]
		return fmt.Errorf("read %d bytes of a section: %w", n, err)
	}
	return nil
}

// Plan is which records of a section an answer has: the Records in [From, End).
type Plan struct {
	Partition int32
	From, End int64
	Records   int
	// Bytes is their size as Limits count it.
	Bytes int
	// Scanned is how many records a filter saw, Failed for how many of those it
	// had no answer.
	Scanned, Failed int

	// filtered says that only those of the Scanned are in the answer whose bit
	// is set in picked.
	filtered bool
	picked   []uint64
}

// pick notes whether the next record is in the answer.
func (pl *Plan) pick(yes bool) {
	word, bit := pl.Scanned/64, pl.Scanned%64
	if bit == 0 {
		// What a plan that was given up left behind is written over.
		pl.picked = append(pl.picked[:word], 0)
	}
	if yes {
		pl.picked[word] |= 1 << bit
	}
	pl.Scanned++
}

// has reports whether record n of those in [From, End) is in the answer.
func (pl *Plan) has(n int) bool { return !pl.filtered || pl.picked[n/64]&(1<<(n%64)) != 0 }

// Limits bound an answer. At least one record is taken all the same.
type Limits struct {
	Records int
	// Bytes counts keys, values and headers, or bytes of encoded text.
	Bytes int
	// Events takes CloudEvents only: the answer ends before another record, and
	// fails if that is the first.
	Events bool
}

// planner finds out where an answer ends, before its first byte is written,
// so that Next-Offset can stand in the header.
type planner struct {
	Plan
	left    Limits
	matcher *broker.Matcher
	reader  record.Reader
}

// PlanSection plans the answer to a fetch from the offset from. It ends before
// a batch that is damaged or cannot be read, and fails if that is the first
// that has records to give. A matcher, which has begun or is nil, leaves records
// out; the plan ends where its time is over, or before a record that takes it
// too long, and fails if that is the first.
func PlanSection(w *Walk, partition int32, from int64, most Limits, m *broker.Matcher) (Plan, error) {
	pl := &planner{Plan: Plan{Partition: partition, From: from, End: from, filtered: m != nil}, left: most, matcher: m, reader: w.reader()}
	defer pl.reader.Close()
	for {
		good := pl.Plan
		more, err := pl.step(w)
		switch {
		case err != nil && good.Records == 0 && good.Scanned == 0:
			return good, w.damagedAt(good.End, err)
		case err != nil:
			// The next fetch begins here and tells of it.
			return good, nil
		case !more:
			return pl.Plan, nil
		}
	}
}

// damagedAt says that the batch with the offset is damaged, unless err is of the
// file system, a filter, the form, or the memory that there is, and says nothing of the
// batch.
func (w *Walk) damagedAt(offset int64, err error) error {
	if _, ok := errors.AsType[*Problem](err); ok {
		return err
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok || errors.Is(err, broker.ErrFilterBudget) {
		return err
	}
	return w.damaged(offset, err)
}

// Each gives the records of the plan, which is of the same section, to do. A
// record is good during the call only. What is behind the plan may be damaged
// and is not looked at.
func (w *Walk) Each(pl Plan, do func(*record.Record)) error {
	reader := w.reader()
	defer reader.Close()
	var rec record.Record
	n := 0
	w.pos = 0 // the plan was made by a walk over it
	for at := pl.From; at < pl.End; {
		b, err := w.Next()
		if err != nil {
			return w.damagedAt(at, err)
		}
		at = max(at, b.NextOffset())
		if b.Control() || b.NextOffset() <= pl.From {
			continue
		}
		if err := reader.Reset(b, maxExpanded); err != nil {
			return w.damagedAt(b.BaseOffset(), err)
		}
		for {
			err := reader.Next(&rec)
			if errors.Is(err, io.EOF) || err == nil && rec.Offset >= pl.End {
				break
			}
			if err != nil {
				return w.damagedAt(b.BaseOffset(), err)
			}
			if rec.Offset < pl.From {
				continue
			}
			if pl.has(n) {
				do(&rec)
			}
			n++
		}
	}
	return nil
}

// step adds the next batch and reports whether to go on behind it.
func (pl *planner) step(w *Walk) (bool, error) {
	b, err := w.Next()
	if err == io.EOF { //nolint:errorlint // next's own signal is never wrapped
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// A Kafka client checks the sum itself; the reader of JSON cannot.
	if err := b.VerifyCRC(); err != nil {
		return false, err
	}
	return pl.take(b)
}

// take adds the batch and reports whether all of it was taken.
func (pl *planner) take(b record.Batch) (whole bool, err error) {
	count := int(b.Count())
	switch {
	case pl.Records > 0 && pl.left.Records < 1:
		return false, nil
	case b.Control() || b.NextOffset() <= pl.From:
		pl.End = max(pl.End, b.NextOffset())
		return true, nil
	case pl.matcher == nil && !pl.left.Events && b.Codec() == record.None && b.BaseOffset() >= pl.From && count <= pl.left.Records && b.Size() <= pl.left.Bytes:
		// All of it fits, whatever is in it.
		pl.left.Records -= count
		pl.left.Bytes -= b.Size()
		pl.Bytes += b.Size()
		pl.Records += count
		pl.End = b.NextOffset()
		return true, nil
	}
	if err := pl.reader.Reset(b, maxExpanded); err != nil {
		return false, err
	}
	var rec record.Record
	for {
		switch err := pl.reader.Next(&rec); {
		case err == io.EOF: //nolint:errorlint // Next's own signal is never wrapped
			pl.End = b.NextOffset()
			return true, nil
		case err != nil:
			return false, err
		case rec.Offset < pl.From:
			continue
		}
		if more, err := pl.add(&rec); err != nil || !more {
			return false, err
		}
	}
}

// add adds the record if the filter lets it through, and reports whether to go
// on behind it.
func (pl *planner) add(rec *record.Record) (more bool, err error) {
	if pl.Records > 0 && pl.left.Records < 1 {
		return false, nil
	}
	size := recordBytes(rec)
	full := pl.Records > 0 && pl.left.Bytes < size
	if pl.matcher != nil {
		if pl.matcher.Over() {
			return false, nil
		}
		verdict, err := pl.matcher.Match(pl.Partition, rec)
		switch {
		case err != nil && pl.Scanned > 0:
			// The next fetch begins here and tells of it.
			return false, nil
		case err != nil:
			return false, err
		case verdict == broker.Matched && full:
			return false, nil
		case verdict == broker.Matched && pl.left.Events && !IsEvent(rec):
			return pl.noEvent(rec)
		}
		if verdict == broker.Failed {
			pl.Failed++
		}
		pl.pick(verdict == broker.Matched)
		if verdict != broker.Matched {
			pl.End = rec.Offset + 1
			return true, nil
		}
	} else if full {
		return false, nil
	} else if pl.left.Events && !IsEvent(rec) {
		return pl.noEvent(rec)
	}
	pl.left.Records--
	pl.left.Bytes -= size
	pl.Bytes += size
	pl.Records++
	pl.End = rec.Offset + 1
	return true, nil
}

// noEvent ends the plan before a record that is no CloudEvent, or fails if it is
// the first.
func (pl *planner) noEvent(rec *record.Record) (more bool, err error) {
	if pl.Records > 0 || pl.Scanned > 0 {
		return false, nil
	}
	return false, NotEvent(rec.Offset)
}

// maxExpanded is how far a stored batch may expand to be shown as records. It
// is above what a topic lets in by default, because a topic may be configured
// to let in more.
const maxExpanded = 256 << 20

// recordBytes is the size of a record as max_bytes counts it.
func recordBytes(rec *record.Record) int {
	n := len(rec.Key) + len(rec.Value)
	for i := range rec.Headers {
		n += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return n
}
