package broker

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"leat/auth"
	"leat/storage"
	"leat/storage/record"
)

// ProducerSequence is an idempotent producer and the sequence number of the first
// record of a set.
type ProducerSequence struct {
	ID    int64
	Epoch int16
	First int32
}

// origin says whose records a set holds, so that what was tried before is not
// written twice. The partition's logs tell it what they have of it; what they do
// not have is written behind that, and each record keeps its place.
type origin struct {
	producer int64
	epoch    int16
	keyed    bool
	// named says that the key alone is the request: records of a retry may differ.
	named bool
	// stamp is the time of the first try in ms: the base timestamp of all batches
	// and the time of records that have none.
	stamp int64
	// partitions are how many the topic had at the first try: records are spread
	// over these.
	partitions int32
	// growths is that of the topic as the first try began, -1 if this is another.
	growths int64
	// next is the sequence number of the next record, by partition.
	next map[int32]int32
	// written are what earlier tries have written, by partition.
	written map[int32][]*earlier
	// failed is why a partition takes no more of the set: what came behind a
	// batch that failed would take its place.
	failed map[int32]error
	// running has the key to itself until it is set to nil.
	running *topic
}

// earlier is a batch that an earlier try has written.
type earlier struct {
	storage.Written
	index   int32 // of the set's batch, -1 until a record of it has come
	records int   // that have come
	// came sums up the records that have come; nil if they are not held against
	// those that are stored.
	came *likeness
}

func asEarlier(batches []storage.Written) []*earlier {
	out := make([]*earlier, len(batches))
	for i, w := range batches {
		out[i] = &earlier{Written: w, index: -1}
	}
	return out
}

// Identify makes the set one of an idempotent producer, all of it for one
// partition and at most five batches, before the first record is added. Batches
// that are in the log are not written again: their results are duplicates. An
// error of Append or Produce may be ErrTooManyBatches; those of results may be
// ErrOutOfOrderSequence and ErrProducerEpoch.
func (s *RecordSet) Identify(p ProducerSequence, partition int32) error {
	if p.ID < 0 || p.ID >= storage.FirstKeyID || p.Epoch < 0 || p.First < 0 {
		return fmt.Errorf("%w: producer id %d, epoch %d, sequence %d: want an id that was given out, and no negative number",
			ErrInvalidRequest, p.ID, p.Epoch, p.First)
	}
	part, err := s.broker.partition(s.topic, partition)
	if err != nil {
		return err
	}
	o := &origin{
		producer: p.ID, epoch: p.Epoch, stamp: s.now, partitions: int32(len(s.open)), growths: -1,
		next: map[int32]int32{partition: p.First}, written: map[int32][]*earlier{}, failed: map[int32]error{},
	}
	batches, stamps := part.log.ProducerBatches(p.ID, p.Epoch)
	o.written[partition] = asEarlier(batches)
	for i, w := range batches {
		if w.Holds(p.First) {
			o.stamp = stamps[i]
		}
	}
	s.origin = o
	return nil
}

// keyHash is the producer id that stands for a key.
func keyHash(p auth.Principal, topic, key string) int64 {
	h := sha256.New()
	for _, part := range []string{p.String(), topic, key} {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		_, _ = h.Write([]byte(part))
	}
	return storage.FirstKeyID + int64(binary.BigEndian.Uint64(h.Sum(nil))>>3)
}

// Key makes the set that of a request with an idempotency key, which is the
// principal's and the topic's, before the first record is added. request is a
// digest of all that decides about the records. What an earlier try has written
// is not written again: its results are duplicates, and records without a time
// have that of the first try.
//
// Of a request that was tried before the log knows 15 bits of the digest. One that
// has the same ones is told by its records, which are held against those that are
// stored, as long as they are: what retention, compaction or damage has taken is
// told by the 15 bits alone.
//
// The key is the set's until Produce returns or the set is closed. Errors:
// ErrKeyInProgress if another set has it, or the topic is getting more
// partitions; ErrKeyReused if it was used for another request, which may also be that of Append
// or Produce.
func (s *RecordSet) Key(p auth.Principal, key string, request [sha256.Size]byte) error {
	t := s.broker.topic(s.topic.ID)
	if t == nil {
		return deleted(s.topic.Name)
	}
	o := &origin{
		producer: keyHash(p, s.topic.Name, key), epoch: int16(binary.BigEndian.Uint16(request[:]) & 0x7fff), keyed: true,
		growths: t.growths.Load(), next: map[int32]int32{}, written: map[int32][]*earlier{}, failed: map[int32]error{},
	}
	if !t.begin(o.producer) {
		return ErrKeyInProgress
	}
	o.running = t
	s.origin = o
	// The topic as it is now that growths was read.
	now, err := s.broker.resolve(p, auth.Write, TopicRef{ID: s.topic.ID})
	if err != nil {
		return err
	}
	if now.Partitions.Len() != len(s.open) {
		s.topic = now
		s.open = slices.Repeat([]int32{-1}, now.Partitions.Len())
	}
	return s.recallKey()
}

// recallKey asks all partitions what they have of the request.
func (s *RecordSet) recallKey() error {
	o, tried := s.origin, false
	parts := make([]*partition, len(s.open))
	for i := range parts {
		part, err := s.broker.partition(s.topic, int32(i))
		if err != nil {
			return err
		}
		parts[i] = part
		known, ok := part.log.KeyedRequest(o.producer)
		if !ok {
			continue
		}
		if known.Epoch != o.epoch {
			return ErrKeyReused
		}
		if !tried || known.Stamp >= 0 {
			o.stamp = known.Stamp
		}
		tried = true
		o.written[int32(i)] = asEarlier(known.Written)
	}
	o.partitions = int32(len(parts))
	if tried {
		o.growths = -1
		for ; o.partitions > 1; o.partitions-- {
			made := parts[o.partitions-1].log.Created()
			if o.stamp < 0 || made.UnixMilli() < o.stamp || len(o.written[o.partitions-1]) > 0 {
				break
			}
		}
		return nil
	}
	if o.growths%2 != 0 {
		return fmt.Errorf("%w: the topic is getting more partitions", ErrKeyInProgress)
	}
	// Later than all partitions there are, so that a retry finds the same number.
	o.stamp = s.now
	for _, part := range parts {
		o.stamp = max(o.stamp, part.log.Created().UnixMilli()+1)
	}
	return nil
}

// begin takes a key for one request; false if another one has it.
func (t *topic) begin(key int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.mu.running[key]; taken {
		return false
	}
	if t.mu.running == nil {
		t.mu.running = map[int64]struct{}{}
	}
	t.mu.running[key] = struct{}{}
	return true
}

// release lets go of the key.
func (s *RecordSet) release() {
	if s.origin == nil || s.origin.running == nil {
		return
	}
	t := s.origin.running
	s.origin.running = nil
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.running, s.origin.producer)
}

// keyless is the partition of a keyed request's records without a key, or -1.
func (o *origin) keyless() int32 {
	if !o.keyed {
		return -1
	}
	return int32((o.producer - storage.FirstKeyID) % int64(o.partitions))
}

// trace finds the partition of a record, and notes it if an earlier try has
// written it.
func (s *RecordSet) trace(partition int32, ts int64, key, value []byte, headers []record.Header) (to int32, written bool) {
	o := s.origin
	switch {
	case partition >= 0:
	case key != nil:
		partition = record.PartitionForKey(key, o.partitions)
	default:
		partition = s.keylessPartition()
	}
	seq := o.next[partition]
	for _, w := range o.written[partition] {
		if !w.Holds(seq) {
			continue
		}
		if w.index < 0 {
			w.index = int32(len(s.batches))
			s.batches = append(s.batches, building{partition: partition, was: w})
			s.open[partition] = -1
			if o.keyed && !o.named {
				w.came = newLikeness()
			}
		}
		w.records++
		if w.came != nil {
			since := int64(0)
			if ts >= 0 {
				since = ts - s.Now()
			}
			w.came.add(since, key, value, headers)
		}
		s.placement = append(s.placement, w.index)
		o.advance(partition)
		return partition, true
	}
	return partition, false
}

// advance counts a record of the partition.
func (o *origin) advance(partition int32) {
	o.next[partition] = (o.next[partition] + 1) & (1<<31 - 1)
}

// mark makes the next batch of the partition one of the origin.
func (o *origin) mark(options *record.Options, partition int32) {
	options.BaseTimestamp = max(o.stamp, 0)
	options.Sequence = &record.Sequence{Producer: o.producer, Epoch: o.epoch, First: o.next[partition]}
}

// note keeps the first error of a partition.
func (o *origin) note(partition int32, err error) {
	if err != nil && o.failed[partition] == nil {
		o.failed[partition] = err
	}
}

// maxSequencedBatches is how many batches of a producer a partition remembers.
const maxSequencedBatches = 5

// sound says whether the set may be appended: it covers what earlier tries have
// written, and a retry of it will be known.
func (s *RecordSet) sound() error {
	o := s.origin
	if o.growths >= 0 && o.running != nil && o.running.growths.Load() != o.growths {
		return fmt.Errorf("%w: the topic is getting more partitions", ErrKeyInProgress)
	}
	for partition, batches := range o.written {
		for _, w := range batches {
			switch {
			case w.records == w.Count():
				if w.came == nil {
					break
				}
				if alike, err := s.alike(partition, w); err != nil {
					return err
				} else if !alike {
					return ErrKeyReused
				}
			case o.keyed:
				return ErrKeyReused
			case w.records > 0:
				return fmt.Errorf("%w: the records from %d to %d were written together and come in part",
					ErrOutOfOrderSequence, w.First, w.Last)
			}
		}
	}
	if !o.keyed && len(s.batches) > maxSequencedBatches {
		return fmt.Errorf("%w: it needs %d batches of max.message.bytes, a partition remembers %d of a producer",
			ErrTooManyBatches, len(s.batches), maxSequencedBatches)
	}
	return nil
}
