package api

import (
	"container/list"
	"context"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/broker"
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
	// filterTurn is how long a filter is evaluated at a time.
	filterTurn = 20 * time.Millisecond
	// blockOverhead is what a block takes beside its text and records.
	blockOverhead = 256
)

// FeedOptions configure a Feed.
type FeedOptions struct {
	// MaxBytes bounds the text that is kept; what was not read for the longest
	// time goes first. 0 means 8 MiB. Runs that are in use are not counted:
	// each keeps about 128 KiB or one record at most.
	MaxBytes int
	// Answers is counted in for what batches are read into and expanded to while
	// text is made of them; share it with the answers that are no streams. nil
	// makes one of the usual size.
	Answers *Budget
	// Registerer gets the metrics; nil keeps them to the Feed.
	Registerer prometheus.Registerer
}

// Feed writes records as JSON once for all streams that stand at the same
// place. It keeps what it wrote for a few seconds, within a bound, so nothing
// is kept of a topic that is idle. It holds no position: the tails do. It is
// safe for concurrent use.
//
// The text of a partition in one form, of what one filter lets through, stands
// in blocks. A block is appended to
// until it has blockBytes, and never changes otherwise, so a run is a slice of
// a block and outlives it.
type Feed struct {
	max     int
	answers *Budget
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
	filter    *broker.Filter
}

// strand is what there is of one partition in one form, with one filter or
// without. It exists while it has
// a block or a flight.
type strand struct {
	key strandKey
	// blocks are ordered by from. Their ranges may overlap.
	blocks  []*block
	flights map[int64]chan struct{} // by the offset from which text is being made
}

// NewFeed makes a Feed. It starts nothing; there is nothing to close.
func NewFeed(o FeedOptions) *Feed {
	f := &Feed{max: o.MaxBytes, answers: o.Answers}
	if f.answers == nil {
		f.answers = NewBudget(0, 0)
	}
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
// beyond From, where stored batches have none or the filter, which may be nil,
// lets none through; with Next equal to From there was nothing to read. With a
// filter it waits for its turn among the filters, until ctx ends. The errors are
// those of Tail.Read; for a batch that cannot be shown as records, of kind
// broker.ErrCorruptRecord; broker.ErrFilterBudget; ErrNoRoom; ctx's.
func (f *Feed) Read(ctx context.Context, t *broker.Tail, i int, form Form, filter *broker.Filter, most Limits) (Run, error) {
	at := t.Position(i)
	key := strandKey{topic: t.ID(), partition: at.Partition, form: form, filter: filter}
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
			select {
			case <-flight:
				continue
			case <-ctx.Done():
				return run, context.Cause(ctx)
			}
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
		return run, f.make(ctx, t, i, s, flight, &run, most, target)
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
func (f *Feed) make(ctx context.Context, t *broker.Tail, i int, s *strand, flight chan struct{}, run *Run, most Limits, target int) error {
	var blocks []*block
	// Even after a panic: others wait for the flight, and for the slot.
	defer func() { f.land(s, flight, run, most, blocks) }()
	m := t.Matcher(s.key.filter)
	if m != nil {
		// Before the slot, which those without a filter want too.
		if err := m.Begin(ctx, filterTurn); err != nil {
			return err
		}
		defer m.End()
	}
	f.slots <- struct{}{}
	defer func() { <-f.slots }()
	room := claim{budget: f.answers, who: t.Principal()}
	defer room.release()
	var err error
	blocks, err = encode(t, i, s.key.form, m, run, target, room.hold)
	return err
}

// land ends a flight with the blocks that it made, if any.
func (f *Feed) land(s *strand, flight chan struct{}, run *Run, most Limits, blocks []*block) {
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
	if len(blocks) > 0 {
		f.encoded.Inc()
		now := time.Now()
		blocks[0].cut(run, most)
		for _, b := range blocks {
			f.keep(s, b, now)
		}
		f.evict(func(*block) bool { return f.mu.bytes > f.max })
	}
	f.drop(s)
}

// find is the block that has the offset, or nil.
func (s *strand) find(offset int64) *block {
	i := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].from > offset })
	if i == 0 || s.blocks[i-1].next <= offset {
		return nil
	}
	return s.blocks[i-1]
}

// keep adds a block to what is kept, by appending it to the one that it follows
// if that has room.
func (f *Feed) keep(s *strand, b *block, now time.Time) {
	i := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].from > b.from })
	if i > 0 {
		if before := s.blocks[i-1]; before.next == b.from && before.size()+b.size() < blockBytes {
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

// charge counts the memory of a block.
func (f *Feed) charge(b *block) {
	size := cap(b.text) + 8*(cap(b.offsets)+cap(b.ends)+cap(b.failed)) + blockOverhead
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
