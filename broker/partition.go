package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/record"
)

// partition is this node's replica of one partition: its log, what it decides
// as a replica, and who waits for more.
type partition struct {
	id    storage.ID
	topic *topic
	self  int32
	log   *storage.Log
	began time.Time // what the replica's clock counts from
	// hw mirrors mu.replica for readers without the lock.
	hw atomic.Int64
	// calm is the leader epoch in which what lies below hw is committed without
	// a closer look: this node leads, with no lease to run out and enough replicas
	// in sync. -1 if it must be looked at.
	calm atomic.Int64
	// unreadable are the batches that hold no records.
	unreadable unreadable
	// uncleanable says that compaction came upon damage and leaves the log alone.
	uncleanable atomic.Bool
	mu          struct {
		sync.Mutex
		settings settings
		replica  *replication.Replica
		lease    replication.Instant
		// timed says that the replica looks at the clock: it has peers or a lease.
		timed   bool
		waiters replication.Waiters[*waiter]
		// gone is why the partition serves no more, or nil.
		gone error
	}
}

// newPartition takes its part in a partition whose log is open. The error is of
// metadata that cannot be.
func newPartition(id storage.ID, topic *topic, self int32, l *storage.Log, meta controller.Partition, s settings) (*partition, error) {
	p := &partition{id: id, topic: topic, self: self, log: l, began: time.Now()}
	p.mu.settings = s
	p.mu.replica = replication.NewReplica(p.options(s), l, l.Offsets().Durable)
	// On a node that stands alone nobody else can have been elected.
	p.mu.lease = replication.Forever
	p.mu.replica.Lease(p.mu.lease)
	if _, err := p.mu.replica.Decide(meta, nil, 0); err != nil {
		return nil, err
	}
	p.publishLocked()
	return p, nil
}

// options are what the settings mean to the replica.
func (p *partition) options(s settings) replication.Options {
	return replication.Options{ID: p.id, Self: p.self, MinInSync: s.minISR, OwnMinInSync: s.ownISR, Durable: s.durable}
}

// nowLocked is the replica's clock. It is not read for one that does not care.
func (p *partition) nowLocked() replication.Instant {
	if !p.mu.timed {
		return 0
	}
	return time.Since(p.began)
}

// publishLocked shows what the replica says to those without the lock. It is
// due after everything that may change its role, its epoch or who is in sync.
func (p *partition) publishLocked() {
	p.hw.Store(p.mu.replica.HighWatermark())
	p.mu.timed = p.mu.lease != replication.Forever || len(p.mu.replica.Partition().Replicas) > 1
	calm := int64(-1)
	if epoch := p.mu.replica.LeaderEpoch(); p.mu.lease == replication.Forever && p.mu.replica.Committed(epoch, 0) == nil {
		calm = int64(epoch)
	}
	p.calm.Store(calm)
}

// append gives a batch its place in the log, patching its bytes. in.Epoch is
// the leader epoch that the caller knows, anyEpoch for what it is now: in another
// nothing is appended, and the error is ErrNotLeader. It returns the epoch. The
// bytes are in the page cache when it returns. A client's batch must fit into a
// segment; one that the server built has one to itself.
func (p *partition) append(in storage.Append, acks Acks) (a storage.Appended, epoch int32, err error) {
	p.mu.Lock()
	gone, epoch := p.mu.gone, p.mu.replica.LeaderEpoch()
	refused := p.mu.replica.CheckAppend(acks == AcksAll, p.nowLocked())
	cached, segment, largest := !p.mu.settings.durable, p.mu.settings.log.SegmentBytes, p.mu.settings.log.MaxBatchBytes
	p.mu.Unlock()
	switch size := len(in.Batch); {
	case gone != nil:
		return storage.Appended{}, epoch, gone
	case in.Epoch != anyEpoch && in.Epoch != epoch:
		return storage.Appended{}, epoch, fmt.Errorf("%w in epoch %d: it is at %d", ErrNotLeader, in.Epoch, epoch)
	case !in.Trusted && size >= record.HeaderSize && in.Batch.ProducerID() >= storage.FirstKeyID:
		return storage.Appended{}, epoch, fmt.Errorf("%w: producer id %d is none that was given out", ErrInvalidRecord, in.Batch.ProducerID())
	case !in.Trusted && size >= record.HeaderSize && in.Batch.Transactional():
		// A producer that is fenced is told that first, else it would go on
		// with a transaction (KAFKA-19690).
		return storage.Appended{}, epoch, cmp.Or(p.log.CheckProducer(in.Batch.ProducerID(), in.Batch.ProducerEpoch()), ErrTransactionState)
	case !in.Trusted && !in.Essential && int64(size) > segment && size <= largest:
		return storage.Appended{}, epoch, fmt.Errorf("%w: %d bytes, segment.bytes is %d", ErrExceedsSegment, size, segment)
	case refused != nil:
		return storage.Appended{}, epoch, refused
	}
	in.Epoch = epoch
	a, err = p.log.Append(in)
	if err == nil && cached {
		p.advance()
	}
	return a, epoch, err
}

// anyEpoch is the leader epoch of an append that goes to whatever epoch it is.
const anyEpoch int32 = -1

// answerable says whether an append of a leader epoch that is not to be
// committed first may be answered now.
func (p *partition) answerable(epoch int32) error {
	if p.calm.Load() == int64(epoch) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.replica.CheckAck(epoch, p.nowLocked())
}

// advance tells the replica that its log has moved, and wakes whom it concerns.
func (p *partition) advance() {
	p.mu.Lock()
	var reached replication.Reached[*waiter]
	if p.mu.replica.Advance(p.nowLocked()) {
		hw := p.mu.replica.HighWatermark()
		p.hw.Store(hw)
		reached = p.mu.waiters.Reached(hw)
	}
	p.mu.Unlock()
	reached.Each(tellPlace)
}

// park tells pl's waiter once when the watermark is at least target; it tells
// it at once if that is so already or the partition is gone.
func (p *partition) park(pl *place, target int64) {
	p.mu.Lock()
	parked := p.mu.gone == nil && p.hw.Load() < target
	if parked {
		p.mu.waiters.Add(pl, target)
	}
	p.mu.Unlock()
	if !parked {
		pl.Waiter.tell(pl)
	}
}

// unpark takes a place out, and reports whether it was there: if not, it was
// told or soon will be.
func (p *partition) unpark(pl *place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.waiters.Remove(pl)
}

// committed says whether an append of a leader epoch that ends at next may be
// answered as committed: nil, replication.ErrPending, or why nothing is known of
// it. While it is pending pl, if not nil, is parked until that may have changed.
func (p *partition) committed(epoch int32, next int64, pl *place) error {
	if p.plainly(epoch, next) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.mu.replica.Committed(epoch, next)
	switch {
	case !errors.Is(err, replication.ErrPending):
		return err
	case p.mu.gone != nil:
		return p.mu.gone
	case pl != nil:
		p.mu.waiters.Add(pl, next)
	}
	return err
}

// plainly says that such an append is committed, as far as that can be said
// without the lock. The epoch never falls: if it is still that of the append,
// the watermark that was read before is of it too.
func (p *partition) plainly(epoch int32, next int64) bool {
	return p.hw.Load() >= next && p.calm.Load() == int64(epoch)
}

// await returns when an append of a leader epoch that ends at next is committed
// or nothing is known of it any more, ctx ends, or the partition is gone.
func (p *partition) await(ctx context.Context, epoch int32, next int64) error {
	if p.plainly(epoch, next) {
		return nil
	}
	s := newSleeper()
	pl := &place{Waiter: &s.waiter}
	for {
		s.arm()
		if err := p.committed(epoch, next, pl); !errors.Is(err, replication.ErrPending) {
			return err
		}
		select {
		case <-s.woken:
			s.collect()
		case <-ctx.Done():
			p.unpark(pl)
			return context.Cause(ctx)
		}
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
	waiting := p.mu.waiters.Reached(math.MaxInt64)
	p.mu.Unlock()
	waiting.Each(tellPlace)
}

// configure puts new settings into force.
func (p *partition) configure(s settings) {
	p.log.SetConfig(s.log)
	p.mu.Lock()
	p.mu.settings = s
	// A topic that left fsync mode commits what is in the page cache at once.
	p.mu.replica.Configure(p.options(s), p.nowLocked())
	p.publishLocked()
	reached := p.mu.waiters.Reached(p.mu.replica.HighWatermark())
	p.mu.Unlock()
	reached.Each(tellPlace)
}

// readable says whether a consumer that knows a leader epoch may read here
// (KIP-320); -1 asks for no check of it.
func (p *partition) readable(epoch int32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	ours := p.mu.replica.LeaderEpoch()
	switch {
	case p.mu.gone != nil:
		return p.mu.gone
	case epoch >= 0 && epoch < ours:
		return fmt.Errorf("%w: %d, the leader is at %d", ErrFencedEpoch, epoch, ours)
	case epoch > ours:
		return fmt.Errorf("%w: %d, the leader is at %d", ErrUnknownEpoch, epoch, ours)
	default:
		return p.mu.replica.CheckRead(p.nowLocked())
	}
}

// latest is the offset behind the newest record that consumers may see.
func (p *partition) latest() (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.replica.Latest(p.nowLocked())
}

func (p *partition) leaderEpoch() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.replica.LeaderEpoch()
}

// office is the leader epoch, and whether this node leads in it.
func (p *partition) office() (epoch int32, leads bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.replica.LeaderEpoch(), p.mu.replica.Role() == replication.Leader
}
