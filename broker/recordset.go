package broker

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage/record"
)

// RecordSet turns the records of one request into batches: for the doors whose
// clients send records and not batches. Records with a key go where the Java
// client would send them; those without, all to one partition, and those of
// the next set to another. Nothing is appended before Produce or Append, so a
// request whose last record is bad leaves no trace. It is used by one goroutine and
// must be closed.
type RecordSet struct {
	broker   *Broker
	topic    *controller.Topic
	settings settings
	now      int64
	batches  []building
	// open is, for each partition, the index of the batch that takes more
	// records, or -1.
	open []int32
	// keyless is the partition of records without a key, -1 until the first.
	keyless   int32
	placement []int32
	// origin is whose records these are; nil is nobody's.
	origin *origin
	// trial says that records are checked and not kept.
	trial bool
}

// building is a batch under way, or one that an earlier try has written.
type building struct {
	partition int32
	b         *record.Builder
	was       *earlier
}

// LineError says which line of a body was refused, counted from 0.
type LineError struct {
	Line int
	Err  error
}

// Error names the line and the reason.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap is the reason.
func (e *LineError) Unwrap() error { return e.Err }

// PartitionResult is what became of one batch of a set.
type PartitionResult struct {
	Partition int32
	// Base is the offset of the batch's first record, -1 if it failed.
	Base int64
	// Count is the number of its records.
	Count int
	// Timestamp is the server's in ms, or -1 if each record's own stands.
	Timestamp int64
	// Duplicate says that an earlier try had written the batch; the offsets are
	// those of then.
	Duplicate bool
	// Untimed says that it is not known any more when that was, and so not which
	// time the records have that came without one.
	Untimed bool
	Err     error
}

// maxKeptBuilder is the largest buffer that is kept for the next set.
const maxKeptBuilder = 4 << 20

var builders = sync.Pool{New: func() any { return new(record.Builder) }}

// NewRecordSet starts a set for a topic, which is made if it is missing and
// auto.create.topics.enable is true.
func (b *Broker) NewRecordSet(ctx context.Context, p auth.Principal, topic string) (*RecordSet, error) {
	t, err := b.ensure(ctx, p, auth.Write, topic)
	if err != nil {
		return nil, err
	}
	return b.setFor(t), nil
}

func (b *Broker) setFor(t *controller.Topic) *RecordSet {
	s := &RecordSet{
		broker: b, topic: t, settings: b.configs().settings(t.Configs),
		now: b.opts.Now().UnixMilli(), open: make([]int32, t.Partitions.Len()), keyless: -1,
	}
	for i := range s.open {
		s.open[i] = -1
	}
	return s
}

// Add takes a record. partition -1 lets the set choose; ts is in ms, -1 for
// now. Everything is copied. An error is about this record alone and leaves the
// set as it was.
func (s *RecordSet) Add(partition int32, ts int64, key, value []byte, headers []record.Header) error {
	if s.origin != nil {
		var written bool
		if partition, written = s.trace(partition, ts, key, value, headers); written {
			return nil
		}
	}
	if ts == s.Now() {
		ts = -1 // it is the server's, however long ago an earlier try was
	}
	if err := s.check(partition, ts, key); err != nil {
		return err
	}
	if ts < 0 {
		ts = s.Now()
	}
	// The delta to the first record is at most ten bytes long; count the most.
	size := record.RecordSize(maxCount, -1<<62, key, value, headers)
	if size > s.limit()-record.HeaderSize {
		return s.tooLarge(size)
	}
	if s.trial {
		s.placement = append(s.placement, -1)
		return nil
	}
	switch {
	case partition >= 0:
	case key != nil:
		partition = record.PartitionForKey(key, int32(len(s.open)))
	default:
		partition = s.keylessPartition()
	}
	i := s.batchFor(partition, size)
	s.batches[i].b.Add(ts, key, value, headers)
	s.placement = append(s.placement, i)
	if s.origin != nil {
		s.origin.advance(partition)
	}
	return nil
}

// maxCount stands for the largest offset delta when sizes are estimated.
const maxCount = 1 << 30

func (s *RecordSet) check(partition int32, ts int64, key []byte) error {
	if partition < -1 || int(partition) >= len(s.open) {
		return fmt.Errorf("%w: topic %q has no partition %d, it has %d", ErrUnknownPartition, s.topic.Name, partition, len(s.open))
	}
	if key == nil && s.settings.log.RequireKeys {
		return fmt.Errorf("%w: topic %q is compacted, so a record needs a key", ErrInvalidRecord, s.topic.Name)
	}
	if ts < 0 || s.settings.log.LogAppendTime {
		return nil
	}
	if ahead := s.settings.log.TimestampAfter.Milliseconds(); ts > s.now && ts-s.now > ahead {
		return fmt.Errorf("%w: %d is more than message.timestamp.after.max.ms (%d) ahead of the server's clock", ErrTimestamp, ts, ahead)
	}
	if behind := s.settings.log.TimestampBefore.Milliseconds(); ts < s.now && s.now-ts > behind {
		return fmt.Errorf("%w: %d is more than message.timestamp.before.max.ms (%d) behind the server's clock", ErrTimestamp, ts, behind)
	}
	return nil
}

// limit is the size up to which a batch is filled. A codec may make bytes that
// do not compress a little larger.
func (s *RecordSet) limit() int {
	limit := s.settings.log.MaxBatchBytes
	if s.settings.codec != record.None {
		limit -= limit/64 + 64
	}
	return limit
}

func (s *RecordSet) tooLarge(size int) error {
	return fmt.Errorf("%w: the record takes %d bytes with its batch, max.message.bytes is %d",
		ErrBatchTooLarge, size+record.HeaderSize, s.settings.log.MaxBatchBytes)
}

func (s *RecordSet) keylessPartition() int32 {
	if s.keyless < 0 && s.origin != nil {
		s.keyless = s.origin.keyless()
	}
	if s.keyless < 0 {
		turn := uint32(0)
		if t := s.broker.topic(s.topic.ID); t != nil {
			turn = t.turn.Add(1) - 1
		}
		s.keyless = int32(turn % uint32(len(s.open)))
	}
	return s.keyless
}

// batchFor is the index of a batch of the partition that has room for size
// more bytes.
func (s *RecordSet) batchFor(partition int32, size int) int32 {
	i := s.open[partition]
	if i < 0 || s.batches[i].b.Size()+size > s.limit() {
		b := builders.Get().(*record.Builder)
		options := record.Options{Codec: s.settings.codec}
		if s.origin != nil {
			s.origin.mark(&options, partition)
		}
		b.Reset(options)
		s.batches = append(s.batches, building{partition: partition, b: b})
		i = int32(len(s.batches) - 1)
		s.open[partition] = i
	}
	return i
}

// lineOverhead is the most that a line takes in a batch beside its bytes.
var lineOverhead = record.RecordSize(maxCount, 0, nil, make([]byte, 1<<20), nil) - 1<<20

// AddLines takes every line of body as the value of a record without a key. A
// line ends at LF, which is not part of it; CR is; an empty line is an empty
// value; a last line without LF counts. The error is a *LineError; the set is
// then good only for Close.
func (s *RecordSet) AddLines(body []byte) error {
	if s.origin != nil || s.trial {
		return s.addEachLine(body)
	}
	if err := s.check(-1, -1, nil); err != nil {
		return &LineError{Line: len(s.placement), Err: err}
	}
	partition := s.keylessPartition()
	limit := s.limit()
	var b *record.Builder
	var i int32
	for len(body) > 0 {
		line := body
		if end := bytes.IndexByte(body, '\n'); end >= 0 {
			line, body = body[:end], body[end+1:]
		} else {
			body = nil
		}
		size := len(line) + lineOverhead
		if b == nil || b.Size()+size > limit {
			if size > limit-record.HeaderSize {
				return &LineError{Line: len(s.placement), Err: s.tooLarge(size)}
			}
			i = s.batchFor(partition, size)
			b = s.batches[i].b
		}
		b.AddValue(s.now, line)
		s.placement = append(s.placement, i)
	}
	return nil
}

// addEachLine is AddLines for who has to look at each line.
func (s *RecordSet) addEachLine(body []byte) error {
	for len(body) > 0 {
		var line []byte
		line, body, _ = bytes.Cut(body, []byte{'\n'})
		if err := s.Add(-1, -1, nil, line, nil); err != nil {
			return &LineError{Line: len(s.placement), Err: err}
		}
	}
	return nil
}

// Now is the time in ms that records without one of their own have.
func (s *RecordSet) Now() int64 {
	if s.origin != nil && s.origin.stamp >= 0 {
		return s.origin.stamp
	}
	return s.now
}

// Partitions is how many partitions the topic has.
func (s *RecordSet) Partitions() int { return len(s.open) }

// Len is the number of records taken.
func (s *RecordSet) Len() int { return len(s.placement) }

// Placement says for each record, in the order taken, which result of Produce
// is its batch's. Records of a batch keep their order, so their offsets count
// up from the batch's Base. It is valid until Close.
func (s *RecordSet) Placement() []int32 { return s.placement }

// Produce appends the batches and waits as acks ask. The results stand in the
// order in which the batches were begun. It may be called once.
func (s *RecordSet) Produce(ctx context.Context, acks Acks, timeout time.Duration) ([]PartitionResult, error) {
	// Before the answer: who has it may send the request again.
	defer s.release()
	pending, err := s.Append(ctx, acks)
	if err != nil {
		return nil, err
	}
	return pending.Wait(ctx, timeout), nil
}

// Append appends the batches and returns without waiting for any sync. It may
// be called once, and takes the place of Produce. The set may be closed while
// the appends are pending.
func (s *RecordSet) Append(_ context.Context, acks Acks) (*Pending, error) {
	if err := acks.check(); err != nil {
		return nil, err
	}
	if s.origin != nil {
		if err := s.sound(); err != nil {
			return nil, err
		}
	}
	built := make([]record.Batch, len(s.batches))
	for i := range s.batches {
		if s.batches[i].was != nil {
			continue
		}
		var err error
		if built[i], err = s.batches[i].b.Finish(); err != nil {
			return nil, err
		}
	}
	pending := &Pending{produced: s.broker.produced(acks, 0, len(built)), results: make([]PartitionResult, len(built))}
	for i, batch := range built {
		of := &s.batches[i]
		pending.results[i] = PartitionResult{Partition: of.partition, Count: of.count()}
		part, err := s.broker.partition(s.topic, of.partition)
		if err == nil && of.was == nil && s.origin != nil {
			err = s.origin.failed[of.partition]
		}
		switch {
		case err != nil:
			pending.produced.results[i] = failed(err)
		case of.was != nil:
			pending.produced.recall(i, part, of.was)
		default:
			pending.produced.append(i, part, batch, true)
		}
		if s.origin != nil {
			// Another try may have come in between.
			pending.results[i].Untimed = pending.produced.results[i].Duplicate && (of.was == nil || s.origin.stamp < 0)
			s.origin.note(of.partition, pending.produced.results[i].Err)
		}
	}
	return pending, nil
}

// count is the number of records.
func (b *building) count() int {
	if b.was != nil {
		return b.was.Count()
	}
	return b.b.Count()
}

// Pending is a set whose batches are appended and may wait to be committed. It
// is used by one goroutine, which need not be that of the set.
type Pending struct {
	produced *Produced
	results  []PartitionResult
}

// Committed reports whether Wait would return at once.
func (p *Pending) Committed() bool { return p.produced.Committed() }

// Wait waits as the acks ask, for acks=all at most timeout, and returns a
// result for each batch in the order in which they were begun.
func (p *Pending) Wait(ctx context.Context, timeout time.Duration) []PartitionResult {
	p.produced.timeout = timeout
	for i, r := range p.produced.Wait(ctx) {
		p.results[i].Base, p.results[i].Timestamp, p.results[i].Duplicate, p.results[i].Err = r.Base, r.Timestamp, r.Duplicate, r.Err
	}
	return p.results
}

// Close gives the set's memory back. The set must not be used after it.
func (s *RecordSet) Close() {
	s.release()
	for _, building := range s.batches {
		if building.b != nil && building.b.Size() <= maxKeptBuilder {
			builders.Put(building.b)
		}
	}
	s.batches, s.placement = nil, nil
}
