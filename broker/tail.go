package broker

import (
	"fmt"

	"leat/auth"
	"leat/replication/controller"
)

// TailStart is where a Tail begins in one partition.
type TailStart struct {
	Partition int32
	Offset    int64
}

// Tail follows partitions of one topic: it holds a position in each and no
// records, no goroutine and no timer, so that a stream that waits costs nothing
// but its memory. Its methods are for one goroutine at a time; the wake comes
// from any.
//
// A partition is parked while its reader has all there is, and only what was
// woken is parked again: a record that wakes a thousand tails costs each of
// them its own place and nothing for the other partitions.
type Tail struct {
	waiter
	broker *Broker
	topic  *topic
	who    auth.Principal
	// meta is the topic as of the last time that partitions were added.
	meta *controller.Topic
	all  bool
	// parts are the partitions by index. The pointers stay, because parked
	// places are in the lists of others.
	parts []*followed
	ready ring
}

// followed is one partition of a tail. It is queued, parked, or neither: then a
// read has failed and the caller was told.
type followed struct {
	place
	part   *partition
	err    error // why there is no part
	number int32
	// parked says that the place is in the partition's list or was told since.
	parked, queued, failed bool
	offset                 int64
}

// Tail starts to follow the partitions in starts. With all it follows every
// partition of the topic: those that starts does not name, and those that are
// added later, from offset 0. wake is called as Next says, and once when the
// topic ends, be it before Tail has returned. No lock is held; it must not block
// and must not call the Tail. The tail must be closed.
//
// It needs auth.Read. Errors: those of a fetch for the topic; ErrUnknownPartition;
// ErrInvalidRequest for a partition that is named twice.
func (b *Broker) Tail(p auth.Principal, ref TopicRef, starts []TailStart, all bool, wake func()) (*Tail, error) {
	meta, err := b.resolve(p, auth.Read, ref)
	if err != nil {
		return nil, err
	}
	t := &Tail{broker: b, all: all, who: p}
	t.wake = wake
	if t.topic = b.topic(meta.ID); t.topic == nil {
		return nil, deleted(meta.Name)
	}
	if err := t.topic.join(t); err != nil {
		return nil, err
	}
	// From here on the tail hears of new partitions and of the topic's end, so
	// both are looked at after.
	if now := b.proposer.State().Topic(meta.ID); now != nil {
		meta = now
	}
	err = t.begin(meta, starts)
	if b.done.Err() != nil {
		err = ErrShuttingDown
	}
	if err != nil {
		t.close()
		t.topic.leave(t)
		return nil, err
	}
	b.metrics.tails.Inc()
	return t, nil
}

func (t *Tail) begin(meta *controller.Topic, starts []TailStart) error {
	t.meta = meta
	named := make(map[int32]bool, len(starts))
	for _, s := range starts {
		if s.Partition < 0 || int(s.Partition) >= meta.Partitions.Len() {
			return fmt.Errorf("%w: topic %q has no partition %d, it has %d", ErrUnknownPartition, meta.Name, s.Partition, meta.Partitions.Len())
		}
		if named[s.Partition] {
			return fmt.Errorf("%w: partition %d is named twice", ErrInvalidRequest, s.Partition)
		}
		named[s.Partition] = true
		t.follow(s)
	}
	if t.all {
		for p := range int32(meta.Partitions.Len()) {
			if !named[p] {
				t.follow(TailStart{Partition: p})
			}
		}
	}
	return nil
}

// follow adds a partition. One that is not served tells why when it is read.
func (t *Tail) follow(s TailStart) {
	f := &followed{number: s.Partition, offset: s.Offset}
	f.part, f.err = t.broker.partition(t.meta, s.Partition)
	f.place = place{Waiter: &t.waiter, Index: int32(len(t.parts))}
	t.parts = append(t.parts, f)
	t.queue(f)
}

// queue puts a partition at the end of those that Next looks at.
func (t *Tail) queue(f *followed) {
	if !f.queued {
		f.queued = true
		t.ready.push(f.Index)
	}
}

// Principal is who follows.
func (t *Tail) Principal() auth.Principal { return t.who }

// ID is the topic's.
func (t *Tail) ID() TopicID { return t.topic.id }

// Topic describes the topic, also once it is gone.
func (t *Tail) Topic() Topic { return describe(t.meta) }

// Len is the number of partitions followed now. It grows in Next only.
func (t *Tail) Len() int { return len(t.parts) }

// Position is where the tail stands in the partition with index i, which is in
// [0, Len) and not the partition's number.
func (t *Tail) Position(i int) TailStart {
	return TailStart{Partition: t.parts[i].number, Offset: t.parts[i].offset}
}

// Next is the index of a partition to Read, each in its turn: its watermark is
// past the position, or the read will say what is wrong. A partition whose Read
// failed has no turn again until Seek. -1 means that there is none now; wake is
// called once when that may have changed, for whatever reason. Only a Seek by
// the caller does not wake it.
func (t *Tail) Next() int {
	for {
		t.collectTold()
		for range t.ready.n {
			f := t.parts[t.ready.pop()]
			f.queued = false
			if f.failed {
				continue
			}
			if f.due() {
				t.queue(f)
				return int(f.Index)
			}
			f.parked = true
			f.part.park(&f.place, f.offset+1)
		}
		if t.arm() {
			return -1
		}
	}
}

// due reports whether a read would give records or an error.
func (f *followed) due() bool {
	return f.part == nil || f.part.hw.Load() > f.offset || f.offset > f.part.log.Offsets().End || f.part.err() != nil
}

// collectTold queues the partitions that were woken and follows those that are
// new.
func (t *Tail) collectTold() {
	pl, news := t.collect()
	for pl != nil {
		next := pl.Next
		f := t.parts[pl.Index]
		f.parked = false
		t.queue(f)
		pl = next
	}
	if !news || !t.all {
		return
	}
	if meta := t.broker.proposer.State().Topic(t.topic.id); meta != nil {
		have := t.meta.Partitions.Len()
		t.meta = meta
		for p := have; p < meta.Partitions.Len(); p++ {
			t.follow(TailStart{Partition: int32(p)})
		}
	}
}

// Read reads whole batches from the position of partition i on, at most
// maxBytes but at least one batch. No Section and no Err means that nothing is
// there now. The caller must release the section, and Seek past it.
//
// Errors: *OffsetError where the log begins after the position or ends before
// it; *CorruptError; ErrUnknownTopic for a topic that was deleted; ErrShuttingDown.
// After an error the partition has no turn until Seek, which may name the same
// position to try again.
func (t *Tail) Read(i, maxBytes int) FetchResult {
	f, r := t.parts[i], FetchResult{Topic: t.topic.name}
	if r.Err = f.gone(); r.Err == nil {
		t.broker.read(f.part, f.offset, max(maxBytes, 0), &r)
	}
	if r.Err != nil {
		f.failed = true
		r.HighWatermark, r.LastStable, r.LogStart = -1, -1, -1
	}
	if r.Section != nil {
		f.part.topic.counts.fetchedBytes.Add(r.Section.Len())
	}
	return r
}

// NoteDamage is Broker.NoteDamage for partition i.
func (t *Tail) NoteDamage(i int, offset int64, err error) error {
	f := t.parts[i]
	if f.part == nil {
		return f.err
	}
	return t.broker.noteDamage(f.part, offset, err)
}

// gone is why the partition is not served, or nil.
func (f *followed) gone() error {
	if f.part == nil {
		return f.err
	}
	return f.part.err()
}

// Watermark is the high watermark and the log start of partition i, or why it
// is not served.
func (t *Tail) Watermark(i int) (hw, start int64, err error) {
	f := t.parts[i]
	if err := f.gone(); err != nil {
		return -1, -1, err
	}
	return f.part.hw.Load(), f.part.log.Offsets().Start, nil
}

// Seek moves the position in partition i and gives it its turn again. Next must
// be called after it.
func (t *Tail) Seek(i int, offset int64) {
	f := t.parts[i]
	f.offset, f.failed = offset, false
	if f.parked {
		if !f.part.unpark(&f.place) {
			return // it was told, and is queued when that is collected
		}
		f.parked = false
	}
	t.queue(f)
}

// Err is why the topic is gone, or nil. A tail that waits for nothing is woken
// too when its topic ends.
func (t *Tail) Err() error { return t.topic.err() }

// Close ends the following. Wake may still be running when it returns, and is
// not called after that. A second Close does nothing.
func (t *Tail) Close() {
	if !t.close() {
		return
	}
	t.topic.leave(t)
	for _, f := range t.parts {
		if f.parked {
			f.part.unpark(&f.place)
		}
	}
	t.broker.metrics.tails.Dec()
}

// ring is a queue of indices.
type ring struct {
	at      []int32
	head, n int
}

func (r *ring) push(i int32) {
	if r.n == len(r.at) {
		grown := make([]int32, max(1, 2*r.n))
		for k := range r.n {
			grown[k] = r.at[(r.head+k)%r.n]
		}
		r.at, r.head = grown, 0
	}
	r.at[(r.head+r.n)%len(r.at)] = i
	r.n++
}

func (r *ring) pop() int32 {
	i := r.at[r.head]
	r.head, r.n = (r.head+1)%len(r.at), r.n-1
	return i
}
