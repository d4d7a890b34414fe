package api

import (
	"bytes"
	"container/list"
	"io"
	"slices"
	"sort"
	"sync"
	"time"

	"leat/broker"
	"leat/storage/record"
)

// Run is the text of a range of records of one partition. It is immutable and
// may be shared by many readers; it stays good for as long as it is held.
type Run struct {
	Partition int32
	// From is where the run was asked to begin; Next is where to read on, which
	// is more than From unless there was nothing.
	From, Next              int64
	HighWatermark, LogStart int64
	// Failed is for how many of the records in [From, Next) the filter had no
	// answer.
	Failed int

	text    []byte
	offsets []int64
	ends    []int
	base    int // where text begins, in the numbers of ends
}

// Count is the number of records.
func (r *Run) Count() int { return len(r.offsets) }

// Text is the records as JSON objects, joined by commas. The caller must not
// change it.
func (r *Run) Text() []byte { return r.text }

// Record is the offset and text of record i in [0, Count).
func (r *Run) Record(i int) (offset int64, text []byte) {
	begin := 0
	if i > 0 {
		begin = r.ends[i-1] - r.base + 1
	}
	end := r.ends[i] - r.base
	return r.offsets[i], r.text[begin:end:end]
}

// block is the text of the records in [from, next), joined by commas.
type block struct {
	strand     *strand
	element    *list.Element
	from, next int64
	text       []byte
	// offsets and ends have an entry for each record; an end is where its text
	// ends.
	offsets []int64
	ends    []int
	// failed are the offsets for which the filter had no answer.
	failed  []int64
	used    time.Time
	charged int
}

// cut makes run the part of the block that begins at run.From and is within
// most.
func (b *block) cut(run *Run, most Limits) {
	first, _ := slices.BinarySearch(b.offsets, run.From)
	if first > 0 {
		run.base = b.ends[first-1] + 1
	}
	last := min(len(b.ends), first+max(most.Records, 1))
	// The first record beyond the bytes, but not the first of all.
	over := sort.Search(last-first, func(i int) bool { return b.ends[first+i]-run.base > most.Bytes })
	last = min(last, first+max(over, 1))
	run.Next = b.next
	if last < len(b.ends) {
		run.Next = b.offsets[last-1] + 1
	}
	if last > first {
		end := b.ends[last-1]
		run.text = b.text[run.base:end:end]
		run.offsets, run.ends = b.offsets[first:last:last], b.ends[first:last:last]
	}
	begin, _ := slices.BinarySearch(b.failed, run.From)
	end, _ := slices.BinarySearch(b.failed, run.Next)
	run.Failed = end - begin
}

// size is what a block is filled by.
func (b *block) size() int { return len(b.text) + 8*len(b.failed) }

// add appends the records of more, which begins where b ends. Runs of b see
// nothing of it.
func (b *block) add(more *block) {
	base := 0
	if len(b.text) > 0 && len(more.text) > 0 {
		b.text = append(b.text, ',')
		base = len(b.text)
	}
	b.text = append(b.text, more.text...)
	b.offsets = append(b.offsets, more.offsets...)
	for _, end := range more.ends {
		b.ends = append(b.ends, base+end)
	}
	b.failed = append(b.failed, more.failed...)
	b.next = more.next
}

// scratch is where text is made before its size is known.
type scratch struct {
	text    []byte
	offsets []int64
	ends    []int
	failed  []int64
}

// maxKeptScratchText is the largest text that is kept for the next time.
const maxKeptScratchText = 2 * aheadBytes

// large reports whether the text is too large to be kept for the next time.
func (sc *scratch) large() bool { return cap(sc.text) > maxKeptScratchText }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// encode makes text from the position of partition i on, target bytes or a
// record more. m, which has begun or is nil, leaves records out; hold is asked for
// the memory, as Walk.Bound says.
func encode(t *broker.Tail, i int, form Form, m *broker.Matcher, run *Run, target int, hold func(int64) error) ([]*block, error) {
	stored := target
	if m != nil {
		stored = max(stored, aheadBytes)
	}
	res := t.Read(i, stored)
	if res.Err != nil || res.Section == nil {
		return nil, res.Err
	}
	defer res.Section.Release()
	walk := NewWalk(res.Section, func(offset int64, err error) error { return t.NoteDamage(i, offset, err) })
	defer walk.Release()
	walk.Bound(hold)
	sc := scratches.Get().(*scratch)
	defer func() {
		if !sc.large() {
			scratches.Put(sc)
		}
	}()
	sc.text, sc.offsets, sc.ends, sc.failed = sc.text[:0], sc.offsets[:0], sc.ends[:0], sc.failed[:0]
	f := filling{scratch: sc, walk: walk, reader: walk.reader(), matcher: m, partition: run.Partition, from: run.From, form: form, target: target}
	defer f.reader.Close()
	next, err := f.fill()
	if err != nil {
		return nil, err
	}
	return sc.blocks(run.From, next), nil
}

// filling is text under way.
type filling struct {
	*scratch
	walk      *Walk
	matcher   *broker.Matcher
	reader    record.Reader
	partition int32
	from      int64
	form      Form
	target    int
}

// fill appends the records from the offset from on, until there is target of
// text or the filter's time is over. It ends before a batch that is damaged or
// a record that takes the filter too long, and fails if there is nothing before
// it, as PlanSection does.
func (f *filling) fill() (int64, error) {
	next := f.from
	for whole := true; whole && len(f.text) < f.target; {
		texts, records, failed := len(f.text), len(f.ends), len(f.failed)
		end, all, err := f.batch()
		whole = all
		switch {
		case err == io.EOF: //nolint:errorlint // Walk.Next's own signal is never wrapped
			return next, nil
		case err != nil && next == f.from:
			return next, f.walk.damagedAt(next, err)
		case err != nil:
			// The next read begins here and tells of it.
			f.text, f.offsets, f.ends, f.failed = f.text[:texts], f.offsets[:records], f.ends[:records], f.failed[:failed]
			whole = false
		default:
			next = max(next, end)
		}
	}
	return next, nil
}

// batch appends the records of the next batch that are not before from, gives
// the offset behind what it took, and reports whether that was all.
func (f *filling) batch() (end int64, whole bool, err error) {
	b, err := f.walk.Next()
	if err != nil {
		return 0, false, err
	}
	if err := b.VerifyCRC(); err != nil {
		return 0, false, err
	}
	if b.Control() || b.NextOffset() <= f.from {
		return b.NextOffset(), true, nil
	}
	if err := f.reader.Reset(b, maxExpanded); err != nil {
		return 0, false, err
	}
	var rec record.Record
	for {
		switch err := f.reader.Next(&rec); {
		case err == io.EOF: //nolint:errorlint // Next's own signal is never wrapped
			return b.NextOffset(), true, nil
		case err != nil:
			return 0, false, err
		case rec.Offset < f.from:
			continue
		}
		if f.matcher != nil {
			if f.matcher.Over() {
				return rec.Offset, false, nil
			}
			verdict, err := f.matcher.Match(f.partition, &rec)
			if err != nil {
				if rec.Offset > f.from {
					err = nil // the next read begins here and tells of it
				}
				return rec.Offset, false, err
			}
			if verdict == broker.Failed {
				f.failed = append(f.failed, rec.Offset)
			}
			if verdict != broker.Matched {
				continue
			}
		}
		if !f.add(&rec) {
			if rec.Offset > f.from {
				return rec.Offset, false, nil // as above
			}
			return rec.Offset, false, NotEvent(rec.Offset)
		}
		if len(f.text) >= f.target {
			return rec.Offset + 1, false, nil
		}
	}
}

// add appends a record, or reports that it is not of the form.
func (f *filling) add(rec *record.Record) (ok bool) {
	text := f.text
	if len(text) > 0 {
		text = append(text, ',')
	}
	if f.form.Events == EventsOnly {
		if text, ok = f.form.appendEvent(text, rec); !ok {
			return false
		}
	} else {
		text = AppendRecord(text, f.partition, rec, f.form)
	}
	f.text = text
	f.offsets, f.ends = append(f.offsets, rec.Offset), append(f.ends, len(f.text))
	return true
}

// blocks cuts what was made into blocks of their own memory that cover
// [from, next).
func (sc *scratch) blocks(from, next int64) []*block {
	if next == from {
		return nil
	}
	var out []*block
	failed := sc.failed
	for first := 0; ; {
		begin := 0
		if first > 0 {
			begin = sc.ends[first-1] + 1
		}
		last := first // one behind the block's records
		for last < len(sc.ends) && (last == first || sc.ends[last]-begin <= blockBytes) {
			last++
		}
		b := &block{from: from, next: next, offsets: slices.Clone(sc.offsets[first:last]), ends: make([]int, last-first)}
		if last < len(sc.ends) {
			// What is between two blocks belongs to the first.
			b.next = sc.offsets[last]
		}
		switch whole := first == 0 && last == len(sc.ends); {
		case whole && sc.large():
			b.text = sc.text // nobody else will use it
		case last > first:
			b.text = bytes.Clone(sc.text[begin:sc.ends[last-1]])
		}
		for i := range b.ends {
			b.ends[i] = sc.ends[first+i] - begin
		}
		k, _ := slices.BinarySearch(failed, b.next)
		b.failed, failed = slices.Clone(failed[:k]), failed[k:]
		out = append(out, b)
		if last == len(sc.ends) {
			return out
		}
		from, first = b.next, last
	}
}
