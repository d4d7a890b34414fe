package broker

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/record"
)

// partition is this node's replica of one partition: its log, how far it is
// committed, and who waits for more.
type partition struct {
	id    storage.ID
	topic *topic
	self  int32
	log   *storage.Log
	// hw mirrors mu.progress for readers without the lock.
	hw atomic.Int64
	// unreadable are the batches that hold no records.
	unreadable unreadable
	// uncleanable says that compaction came upon damage and leaves the log alone.
	uncleanable atomic.Bool
	mu          struct {
		sync.Mutex
		meta     controller.Partition
		settings settings
		progress *replication.Progress
		waiters  waiters
		// gone is why the partition serves no more, or nil.
		gone error
	}
}

// newPartition starts to lead an opened log. What the log held when it opened
// is committed: on a node that stands alone its durable end is the watermark.
func newPartition(id storage.ID, topic *topic, self int32, l *storage.Log, meta controller.Partition, s settings) *partition {
	p := &partition{id: id, topic: topic, self: self, log: l}
	p.mu.meta, p.mu.settings = meta, s
	p.mu.progress = replication.NewProgress(meta.ISR, l.Offsets().Durable)
	p.hw.Store(p.mu.progress.HighWatermark())
	return p
}

// append gives a batch its place in the log, patching its bytes; the epoch is
// the partition's. The bytes are in the page cache when it returns. A client's
// batch must fit into a segment; one that the server built has one to itself.
func (p *partition) append(in storage.Append, acks Acks) (storage.Appended, error) {
	p.mu.Lock()
	gone := p.mu.gone
	in.Epoch = p.mu.meta.LeaderEpoch
	inSync, required := p.mu.progress.InSync(), p.mu.settings.minInSync(len(p.mu.meta.Replicas))
	cached, segment, largest := !p.mu.settings.durable, p.mu.settings.log.SegmentBytes, p.mu.settings.log.MaxBatchBytes
	p.mu.Unlock()
	switch size := len(in.Batch); {
	case gone != nil:
		return storage.Appended{}, gone
	case !in.Trusted && size >= record.HeaderSize && in.Batch.ProducerID() >= storage.FirstKeyID:
		return storage.Appended{}, fmt.Errorf("%w: producer id %d is none that was given out", ErrInvalidRecord, in.Batch.ProducerID())
	case !in.Trusted && size >= record.HeaderSize && in.Batch.Transactional():
		// A producer that is fenced is told that first, else it would go on
		// with a transaction (KAFKA-19690).
		return storage.Appended{}, cmp.Or(p.log.CheckProducer(in.Batch.ProducerID(), in.Batch.ProducerEpoch()), ErrTransactionState)
	case !in.Trusted && !in.Essential && int64(size) > segment && size <= largest:
		return storage.Appended{}, fmt.Errorf("%w: %d bytes, segment.bytes is %d", ErrExceedsSegment, size, segment)
	case acks == AcksAll && inSync < required:
		return storage.Appended{}, fmt.Errorf("%w: %d in sync, min.insync.replicas is %d", ErrNotEnoughReplicas, inSync, required)
	}
	a, err := p.log.Append(in)
	if err == nil && cached {
		p.advance()
	}
	return a, err
}

// advance acknowledges what this replica's log holds and wakes whom it
// concerns.
func (p *partition) advance() {
	o := p.log.Offsets()
	p.mu.Lock()
	end := o.Durable
	if !p.mu.settings.durable {
		end = o.End
	}
	var reached *level
	if p.mu.progress.Ack(p.self, end) {
		hw := p.mu.progress.HighWatermark()
		p.hw.Store(hw)
		reached = p.mu.waiters.reached(hw)
	}
	p.mu.Unlock()
	tellAll(reached)
}

// park tells pl's waiter once when the watermark is at least target; it tells
// it at once if that is so already or the partition is gone.
func (p *partition) park(pl *place, target int64) {
	p.mu.Lock()
	parked := p.mu.gone == nil && p.hw.Load() < target
	if parked {
		p.mu.waiters.add(pl, target)
	}
	p.mu.Unlock()
	if !parked {
		pl.w.tell(pl)
	}
}

// unpark takes a place out, and reports whether it was there: if not, it was
// told or soon will be.
func (p *partition) unpark(pl *place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.waiters.remove(pl)
}

// await returns when the watermark is at least target, ctx ends, or the
// partition is gone. The error is ctx's cause or why it is gone.
func (p *partition) await(ctx context.Context, target int64) error {
	if p.hw.Load() >= target {
		return nil
	}
	s := newSleeper()
	s.arm()
	pl := &place{w: &s.waiter}
	p.park(pl, target)
	select {
	case <-s.woken:
		if p.hw.Load() >= target {
			return nil
		}
		return p.err()
	case <-ctx.Done():
		p.unpark(pl)
		return context.Cause(ctx)
	}
}

// err is why the partition serves no more, or nil.
func (p *partition) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.gone
}

// end stops the partition, for the first reason given, and wakes all who wait
// for it. The log is the caller's to close or remove.
func (p *partition) end(why error) {
	p.mu.Lock()
	if p.mu.gone == nil {
		p.mu.gone = why
	}
	waiting := p.mu.waiters.reached(math.MaxInt64)
	p.mu.Unlock()
	tellAll(waiting)
}

// configure puts new settings into force.
func (p *partition) configure(s settings) {
	p.mu.Lock()
	p.mu.settings = s
	p.mu.Unlock()
	p.log.SetConfig(s.log)
	// A topic that left fsync mode commits what is in the page cache at once.
	p.advance()
}

// epochCheck compares the leader epoch that a client knows with ours (KIP-320);
// -1 asks for no check.
func (p *partition) epochCheck(epoch int32) error {
	p.mu.Lock()
	ours, gone := p.mu.meta.LeaderEpoch, p.mu.gone
	p.mu.Unlock()
	switch {
	case gone != nil:
		return gone
	case epoch < 0 || epoch == ours:
		return nil
	case epoch < ours:
		return fmt.Errorf("%w: %d, the leader is at %d", ErrFencedEpoch, epoch, ours)
	default:
		return fmt.Errorf("%w: %d, the leader is at %d", ErrUnknownEpoch, epoch, ours)
	}
}

func (p *partition) leaderEpoch() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.meta.LeaderEpoch
}
