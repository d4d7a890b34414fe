package api

import (
	"bytes"
	"container/list"
	"io"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/broker"
	"leat/storage/record"
)

const (
	defaultFeedBytes = 8 << 20
	// feedAge is how long a block stays that nobody reads.
	feedAge = 3 * time.Second
	// blockBytes is how much text a block gathers before the next begins, and
	// so about the most that a slow stream keeps from being freed.
	blockBytes = 128 << 10
	// aheadBytes is the most text that is made at a time beyond what was asked,
	// so that a batch is not expanded anew for every frame of its records.
	aheadBytes = 1 << 20
	// blockOverhead is what a block takes beside its text and records.
	blockOverhead = 256
)

// FeedOptions configure a Feed.
type FeedOptions struct {
	// MaxBytes bounds the text that is kept; what was not read for the longest
	// time goes first. 0 means 8 MiB. Runs that are in use are not counted:
	// each keeps about 128 KiB or one record at most.
	MaxBytes int
	// Registerer gets the metrics; nil keeps them to the Feed.
	Registerer prometheus.Registerer
}

// Feed writes records as JSON once for all streams that stand at the same
// place. It keeps what it wrote for a few seconds, within a bound, so nothing
// is kept of a topic that is idle. It holds no position: the tails do. It is
// safe for concurrent use.
//
// The text of a partition in one form stands in blocks. A block is appended to
// until it has blockBytes, and never changes otherwise, so a run is a slice of
// a block and outlives it.
type Feed struct {
	max int
	// slots bound the memory of making text, which many readers at many places
	// would ask for at once; the others wait.
	slots   chan struct{}
	shared  prometheus.Counter
	encoded prometheus.Counter
	mu      struct {
		sync.Mutex
		strands map[strandKey]*strand
		// recent lists the blocks, the last read first.
		recent list.List
		bytes  int
		making int // how many make text now, or wait for a slot
		// sweep is due while there are blocks.
		sweep *time.Timer
	}
}

type strandKey struct {
	topic     broker.TopicID
	partition int32
	form      Form
}

// strand is what there is of one partition in one form. It exists while it has
// a block or a flight.
type strand struct {
	key strandKey
	// blocks are ordered by from. Their ranges may overlap.
	blocks  []*block
	flights map[int64]chan struct{} // by the offset from which text is being made
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
	used    time.Time
	charged int
}

// Run is the text of a range of records of one partition. It is immutable and
// may be shared by many readers; it stays good for as long as it is held.
type Run struct {
	Partition int32
	// From is where the run was asked to begin; Next is where to read on, which
	// is more than From unless there was nothing.
	From, Next              int64
	HighWatermark, LogStart int64

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

// NewFeed makes a Feed. It starts nothing; there is nothing to close.
func NewFeed(o FeedOptions) *Feed {
	f := &Feed{max: o.MaxBytes}
	if f.max <= 0 {
		f.max = defaultFeedBytes
	}
	f.slots = make(chan struct{}, max(4, 2*runtime.GOMAXPROCS(0)))
	f.mu.strands = map[strandKey]*strand{}
	f.mu.recent.Init()
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_feed_reads_total", Help: "Reads of streams: of text that was there already (shared), or that was made for them (encoded).",
	}, []string{"source"})
	f.shared, f.encoded = reads.WithLabelValues("shared"), reads.WithLabelValues("encoded")
	if o.Registerer != nil {
		o.Registerer.MustRegister(reads, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "leat_feed_bytes", Help: "Bytes of JSON text kept for streams.",
		}, func() float64 { return float64(f.bytes()) }))
	}
	return f
}

func (f *Feed) bytes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bytes
}

// Read gives the records at the position of partition i of t, within most, but
// at least one if there is any. The bytes of most are of text. It does not move
// the tail: Seek to Run.Next does. A run may have no records and still a Next
// beyond From, where stored batches have none; with Next equal to From there
// was nothing to read. The errors are those of Tail.Read and, for a batch that
// cannot be shown as records, of kind broker.ErrDamaged.
func (f *Feed) Read(t *broker.Tail, i int, form Form, most Limits) (Run, error) {
	at := t.Position(i)
	key := strandKey{topic: t.ID(), partition: at.Partition, form: form}
	for waited := false; ; waited = true {
		run := Run{Partition: at.Partition, From: at.Offset, Next: at.Offset}
		hw, start, err := t.Watermark(i)
		if err != nil {
			return run, err
		}
		run.HighWatermark, run.LogStart = hw, start
		// Text of records that were deleted since may still be here, and must
		// not be given out.
		if at.Offset < start || at.Offset >= hw {
			return run, f.empty(t, i)
		}
		f.mu.Lock()
		s := f.strand(key)
		if b := s.find(at.Offset); b != nil {
			f.touch(b, time.Now())
			b.cut(&run, most)
			f.mu.Unlock()
			f.shared.Inc()
			return run, nil
		}
		// Whoever waited once makes text itself rather than wait again: what it
		// waited for failed, or was pushed out.
		flight := s.flights[at.Offset]
		if flight != nil && !waited {
			f.mu.Unlock()
			<-flight
			continue
		}
		if flight == nil {
			flight = make(chan struct{})
			s.flights[at.Offset] = flight
		} else {
			flight = nil
		}
		f.mu.making++
		target := f.target(most)
		f.mu.Unlock()
		return run, f.make(t, i, s, flight, &run, most, target)
	}
}

// empty is a read where there is no record: what it finds is only the error.
func (f *Feed) empty(t *broker.Tail, i int) error {
	res := t.Read(i, 0)
	if res.Section != nil {
		res.Section.Release()
	}
	return res.Err
}

func (f *Feed) strand(key strandKey) *strand {
	s := f.mu.strands[key]
	if s == nil {
		s = &strand{key: key, flights: map[int64]chan struct{}{}}
		f.mu.strands[key] = s
	}
	return s
}

// target is how much text to make: ahead, unless so many places are read at once
// that they would push each other out.
func (f *Feed) target(most Limits) int {
	share := f.max / (4 * f.mu.making)
	return max(min(share, aheadBytes), min(most.Bytes, aheadBytes), 1)
}

// make reads the log, fills in run, and keeps the text for others.
func (f *Feed) make(t *broker.Tail, i int, s *strand, flight chan struct{}, run *Run, most Limits, target int) error {
	f.slots <- struct{}{}
	blocks, err := encode(t, i, s.key.form, run, target)
	<-f.slots
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.making--
	if flight != nil {
		delete(s.flights, run.From)
		close(flight)
	} else {
		// Without a flight of its own s may have been forgotten.
		s = f.strand(s.key)
	}
	if err == nil && len(blocks) > 0 {
		f.encoded.Inc()
		now := time.Now()
		blocks[0].cut(run, most)
		for _, b := range blocks {
			f.keep(s, b, now)
		}
		f.evict(func(*block) bool { return f.mu.bytes > f.max })
	}
	f.drop(s)
	return err
}

// scratch is where text is made before its size is known.
type scratch struct {
	text    []byte
	offsets []int64
	ends    []int
}

// maxKeptScratchText is the largest text that is kept for the next time.
const maxKeptScratchText = 2 * aheadBytes

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// encode makes text from the position of partition i on, target bytes or a
// record more.
func encode(t *broker.Tail, i int, form Form, run *Run, target int) ([]*block, error) {
	res := t.Read(i, target)
	if res.Err != nil || res.Section == nil {
		return nil, res.Err
	}
	defer res.Section.Release()
	walk := NewWalk(res.Section)
	defer walk.Release()
	sc := scratches.Get().(*scratch)
	defer func() {
		if cap(sc.text) <= maxKeptScratchText {
			scratches.Put(sc)
		}
	}()
	sc.text, sc.offsets, sc.ends = sc.text[:0], sc.offsets[:0], sc.ends[:0]
	next, err := sc.fill(walk, run.Partition, run.From, form, target)
	if err != nil {
		return nil, err
	}
	return sc.blocks(run.From, next), nil
}

// fill appends the records from the offset from on, until there is target of
// text. It ends before a batch that is damaged, and fails if there is nothing
// before it, as PlanSection does.
func (sc *scratch) fill(walk *Walk, partition int32, from int64, form Form, target int) (next int64, err error) {
	next = from
	var reader record.Reader
	defer reader.Close()
	for len(sc.text) < target {
		texts, records := len(sc.text), len(sc.ends)
		end, err := sc.batch(walk, &reader, partition, from, form, target)
		switch {
		case err == io.EOF: //nolint:errorlint // Walk.Next's own signal is never wrapped
			return next, nil
		case err != nil && next == from:
			return next, damagedAt(next, err)
		case err != nil:
			// The next read begins here and tells of it.
			sc.text, sc.offsets, sc.ends = sc.text[:texts], sc.offsets[:records], sc.ends[:records]
			return next, nil
		}
		next = max(next, end)
	}
	return next, nil
}

// batch appends the records of the next batch that are not before from, and
// gives the offset behind what it took.
func (sc *scratch) batch(walk *Walk, reader *record.Reader, partition int32, from int64, form Form, target int) (int64, error) {
	b, err := walk.Next()
	if err != nil {
		return 0, err
	}
	if err := b.VerifyCRC(); err != nil {
		return 0, err
	}
	if b.Control() || b.NextOffset() <= from {
		return b.NextOffset(), nil
	}
	if err := reader.Reset(b, maxExpanded); err != nil {
		return 0, err
	}
	var rec record.Record
	for {
		switch err := reader.Next(&rec); {
		case err == io.EOF: //nolint:errorlint // Next's own signal is never wrapped
			return b.NextOffset(), nil
		case err != nil:
			return 0, err
		case rec.Offset < from:
			continue
		}
		if len(sc.text) > 0 {
			sc.text = append(sc.text, ',')
		}
		sc.text = AppendRecord(sc.text, partition, &rec, form)
		sc.offsets, sc.ends = append(sc.offsets, rec.Offset), append(sc.ends, len(sc.text))
		if len(sc.text) >= target {
			return rec.Offset + 1, nil
		}
	}
}

// blocks cuts what was made into blocks of their own memory that cover
// [from, next).
func (sc *scratch) blocks(from, next int64) []*block {
	if next == from {
		return nil
	}
	var out []*block
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
		if last > first {
			b.text = bytes.Clone(sc.text[begin:sc.ends[last-1]])
		}
		for i := range b.ends {
			b.ends[i] = sc.ends[first+i] - begin
		}
		out = append(out, b)
		if last == len(sc.ends) {
			return out
		}
		// What is between two blocks belongs to the first.
		b.next = sc.offsets[last]
		from, first = b.next, last
	}
}

// find is the block that has the offset, or nil.
func (s *strand) find(offset int64) *block {
	i := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].from > offset })
	if i == 0 || s.blocks[i-1].next <= offset {
		return nil
	}
	return s.blocks[i-1]
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
}

// keep adds a block to what is kept, by appending it to the one that it follows
// if that has room.
func (f *Feed) keep(s *strand, b *block, now time.Time) {
	i := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].from > b.from })
	if i > 0 {
		if before := s.blocks[i-1]; before.next == b.from && len(before.text)+len(b.text) < blockBytes {
			before.add(b)
			f.charge(before)
			f.touch(before, now)
			return
		}
	}
	b.strand = s
	s.blocks = slices.Insert(s.blocks, i, b)
	b.element = f.mu.recent.PushFront(b)
	b.used = now
	f.charge(b)
	if f.mu.sweep == nil {
		f.mu.sweep = time.AfterFunc(feedAge, f.sweep)
	}
}

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
	b.next = more.next
}

// charge counts the memory of a block.
func (f *Feed) charge(b *block) {
	size := cap(b.text) + 8*cap(b.offsets) + 8*cap(b.ends) + blockOverhead
	f.mu.bytes += size - b.charged
	b.charged = size
}

func (f *Feed) touch(b *block, now time.Time) {
	b.used = now
	f.mu.recent.MoveToFront(b.element)
}

// evict drops the blocks that were not read for the longest time, for as long
// as drop says so.
func (f *Feed) evict(drop func(oldest *block) bool) {
	for e := f.mu.recent.Back(); e != nil; e = f.mu.recent.Back() {
		b := e.Value.(*block)
		if !drop(b) {
			return
		}
		f.mu.recent.Remove(e)
		f.mu.bytes -= b.charged
		s := b.strand
		s.blocks = slices.DeleteFunc(s.blocks, func(other *block) bool { return other == b })
		f.drop(s)
	}
}

// drop forgets a strand that has nothing left.
func (f *Feed) drop(s *strand) {
	if len(s.blocks) == 0 && len(s.flights) == 0 && f.mu.strands[s.key] == s {
		delete(f.mu.strands, s.key)
	}
}

// sweep drops what was not read for feedAge, and comes again while there is
// more.
func (f *Feed) sweep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.evict(func(b *block) bool { return now.Sub(b.used) >= feedAge })
	f.mu.sweep = nil
	if f.mu.recent.Len() > 0 {
		f.mu.sweep = time.AfterFunc(feedAge, f.sweep)
	}
}
