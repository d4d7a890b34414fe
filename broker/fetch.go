package broker

import (
	"context"
	"time"

	"leat/auth"
	"leat/storage/record"
)

// FetchRequest asks for whole batches of partitions.
type FetchRequest struct {
	// MaxWait bounds the wait for MinBytes; 0 or less does not wait.
	MaxWait time.Duration
	// MinBytes is how much must be there to answer before MaxWait; MaxBytes is
	// enough in any case.
	MinBytes int
	// MaxBytes bounds the whole answer. The first batch comes even if it is
	// larger, so that a reader always gets on (KIP-74).
	MaxBytes int
	// ReadCommitted asks for committed transactions only. There are none yet,
	// so the last stable offset is the high watermark.
	ReadCommitted bool
	// Partitions are served in this order until MaxBytes is reached.
	Partitions []FetchPartition
}

// FetchPartition is one partition to read, its topic named by TopicID or, if
// that is zero, by Topic.
type FetchPartition struct {
	Topic     string
	TopicID   TopicID
	Partition int32
	// Offset is the first record wanted; the batch that holds it comes whole.
	Offset int64
	// Epoch is the leader epoch that the reader knows, -1 for any.
	Epoch int32
	// MaxBytes bounds this partition's part.
	MaxBytes int
}

// FetchResult is one partition's part of an answer. The offsets are -1 if it
// failed.
type FetchResult struct {
	// Topic is the name, also when the request gave an id.
	Topic                               string
	HighWatermark, LastStable, LogStart int64
	// Section holds the batches, nil if there are none. The caller must
	// Release it.
	Section record.Section
	Err     error
}

// Fetch reads the partitions; result i belongs to partition i. It returns at
// once if something failed or enough is there; else it waits for more until
// MaxWait is over, ctx ends or the broker closes, and returns what is there.
func (b *Broker) Fetch(ctx context.Context, p auth.Principal, req *FetchRequest) []FetchResult {
	f := &fetch{broker: b, req: req, parts: make([]*partition, len(req.Partitions)), results: make([]FetchResult, len(req.Partitions))}
	f.resolve(p)
	enough := len(req.Partitions) == 0
	for i := range f.results {
		enough = f.read(i) || enough
	}
	if !enough && req.MaxWait > 0 {
		ctx, cancel := b.bound(ctx, req.MaxWait, ErrTimedOut)
		defer cancel()
		f.wait(ctx)
	}
	for i, p := range f.parts {
		if s := f.results[i].Section; s != nil {
			p.topic.counts.fetchedBytes.Add(s.Len())
		}
	}
	return f.results
}

// fetch is a Fetch under way.
type fetch struct {
	broker  *Broker
	req     *FetchRequest
	parts   []*partition
	results []FetchResult
	// got is the bytes of all sections.
	got int
}

func (f *fetch) resolve(p auth.Principal) {
	for i := range f.req.Partitions {
		in := &f.req.Partitions[i]
		t, err := f.broker.resolve(p, auth.Read, TopicRef{Name: in.Topic, ID: in.TopicID})
		if err == nil {
			f.results[i].Topic = t.Name
			f.parts[i], err = f.broker.partition(t, in.Partition)
		} else {
			f.results[i].Topic = in.Topic
		}
		f.results[i].Err = err
	}
}

// read reads partition i anew and reports whether the answer may go. What an
// earlier read found is given back: it can only have become more.
func (f *fetch) read(i int) bool {
	r := &f.results[i]
	if r.Section != nil {
		f.got -= int(r.Section.Len())
		r.Section.Release()
		r.Section = nil
	}
	full := false
	if f.parts[i] != nil {
		full = f.readPartition(&f.req.Partitions[i], f.parts[i], r)
	}
	if r.Err != nil {
		r.HighWatermark, r.LastStable, r.LogStart = -1, -1, -1
	}
	if r.Section != nil {
		f.got += int(r.Section.Len())
	}
	return full || r.Err != nil || f.got >= min(f.req.MinBytes, f.req.MaxBytes)
}

// readPartition fills in r. full says that there is more, which does not fit
// beside what the other partitions gave.
func (f *fetch) readPartition(in *FetchPartition, p *partition, r *FetchResult) (full bool) {
	if r.Err = p.readable(in.Epoch); r.Err != nil {
		return false
	}
	limit := max(0, min(in.MaxBytes, f.req.MaxBytes-f.got))
	if f.got > 0 && limit == 0 {
		f.broker.read(p, in.Offset, -1, r)
		return r.HighWatermark > in.Offset
	}
	f.broker.read(p, in.Offset, limit, r)
	// Only the first part of an answer may be larger than its limits.
	if s := r.Section; s != nil && f.got > 0 && s.Len() > int64(limit) {
		s.Release()
		r.Section = nil
		return true
	}
	return false
}

// read fills in r with whole batches from offset on, at least one if any is
// there; with a negative maxBytes it looks at the offsets only.
func (b *Broker) read(p *partition, offset int64, maxBytes int, r *FetchResult) {
	hw := p.hw.Load()
	o := p.log.Offsets()
	r.HighWatermark, r.LastStable, r.LogStart = hw, hw, o.Start
	switch {
	case offset < o.Start || offset > o.End:
		r.Err = &OffsetError{Offset: offset, Start: o.Start, End: o.End}
	case offset < hw && maxBytes >= 0:
		r.Section, r.Err = p.log.Read(offset, maxBytes, hw)
		r.Err = b.readError(p, r.Err)
	}
}

// wait parks on all partitions and reads those again that have more, until
// there is enough or ctx ends.
func (f *fetch) wait(ctx context.Context) {
	f.broker.metrics.waiting.Inc()
	defer f.broker.metrics.waiting.Dec()
	s := newSleeper()
	places := make([]place, len(f.parts))
	defer func() {
		for i, p := range f.parts {
			p.unpark(&places[i])
		}
	}()
	park := func(i int) {
		// The next record to come is the first beyond both what the reader has
		// and what the last read saw.
		f.parts[i].park(&places[i], max(f.results[i].HighWatermark, f.req.Partitions[i].Offset)+1)
	}
	for i := range places {
		places[i].Waiter, places[i].Index = &s.waiter, int32(i)
		park(i)
	}
	for enough := false; !enough; {
		pl, _ := s.collect()
		if pl == nil && s.arm() {
			select {
			case <-s.woken:
			case <-ctx.Done():
				return
			}
		}
		for pl != nil {
			i, next := int(pl.Index), pl.Next
			if f.read(i) {
				enough = true
			} else {
				park(i)
			}
			pl = next
		}
	}
}

// OffsetLatest and its kin are the timestamps that stand for an offset, with
// Kafka's numbers (KIP-79, KIP-734, KIP-405).
const (
	OffsetLatest        int64 = -1
	OffsetEarliest      int64 = -2
	OffsetMaxTimestamp  int64 = -3
	OffsetEarliestLocal int64 = -4
	OffsetLatestTiered  int64 = -5
)

// OffsetQuery asks for the offset of a time in a partition.
type OffsetQuery struct {
	Topic     string
	Partition int32
	// Timestamp is a time in ms, or one of the constants.
	Timestamp int64
	// Epoch is the leader epoch that the reader knows, -1 for any.
	Epoch int32
}

// OffsetResult is an offset and the time of its record. Both are -1 if there
// is no such record; the time also where the query named a place and no time.
type OffsetResult struct {
	Offset, Timestamp int64
	Epoch             int32
	Err               error
}

// ListOffsets answers each query. A time gives the first record that is not
// older; only what is committed counts.
func (b *Broker) ListOffsets(_ context.Context, p auth.Principal, queries []OffsetQuery) []OffsetResult {
	out := make([]OffsetResult, len(queries))
	for i := range queries {
		r, err := b.listOffset(p, &queries[i])
		if err != nil {
			r = OffsetResult{Offset: -1, Timestamp: -1, Epoch: -1, Err: err}
		}
		out[i] = r
	}
	return out
}

func (b *Broker) listOffset(pr auth.Principal, q *OffsetQuery) (OffsetResult, error) {
	t, err := b.resolve(pr, auth.Describe, TopicRef{Name: q.Topic})
	if err != nil {
		return OffsetResult{}, err
	}
	p, err := b.partition(t, q.Partition)
	if err != nil {
		return OffsetResult{}, err
	}
	if err := p.readable(q.Epoch); err != nil {
		return OffsetResult{}, err
	}
	hw, r := p.hw.Load(), OffsetResult{Timestamp: -1, Epoch: p.leaderEpoch()}
	switch {
	case q.Timestamp == OffsetLatest:
		r.Offset, err = p.latest()
	case q.Timestamp == OffsetEarliest, q.Timestamp == OffsetEarliestLocal:
		r.Offset = p.log.Offsets().Start
	case q.Timestamp == OffsetMaxTimestamp:
		r.Offset, r.Timestamp, err = p.log.FindMaxTime(hw)
	case q.Timestamp == OffsetLatestTiered:
		r.Offset = -1
	case q.Timestamp < 0:
		err = ErrUnsupportedForTimestamp
	default:
		r.Offset, r.Timestamp, err = p.log.FindTime(q.Timestamp, hw)
	}
	if r.Offset < 0 {
		r.Epoch = -1
	}
	return r, b.readError(p, err)
}
