package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/replication/controller"
	"leat/storage"
)

// taking is one round of a take: partitions are reserved by the shard, read here,
// and leased by the shard.
type taking struct {
	broker    *Broker
	shard     *shard
	principal auth.Principal
	id        string
	req       *LeaseRequest
	topics    []*controller.Topic
	token     group.Token // set by the shard's goroutine
	acks      *acking
	// over says that there is no use in another round.
	over bool
}

// take returns leases, none if there was nothing; waiting ends the wait for
// something.
func (t *taking) take(ctx, waiting context.Context) ([]Lease, error) {
	a, err := t.reserve(waiting)
	if err != nil {
		over := errors.Is(err, ErrTimedOut) && ctx.Err() == nil && t.broker.done.Err() == nil
		trouble := t.cancel(ctx, over)
		if over {
			t.over = true
			return nil, trouble
		}
		return nil, err
	}
	reservations, _ := a.Value.([]group.Reservation)
	if a.Err != nil || len(reservations) == 0 {
		t.over = true
		if errors.Is(a.Err, ErrGroupGone) {
			return nil, nil // it was deleted, and is made again by the next take
		}
		return nil, leaseError(a.Err)
	}
	reads := t.read(ctx, reservations)
	leases, err := t.grant(ctx, reads)
	for i := range reads {
		reads[i].release()
	}
	return leases, err
}

// reserve asks for partitions, and waits for them.
func (t *taking) reserve(ctx context.Context) (group.Answer, error) {
	s := t.shard
	return s.ask(ctx, func(now time.Time, token group.Token) {
		t.token = token
		q := &group.LeaseTake{
			Request: t.request(), Acks: t.acks.due(), NoWait: t.req.Wait <= 0, Touch: min(touchLeases, s.broker.retention()/4),
		}
		if len(q.Acks) > 0 {
			s.acking[token] = t.acks
		}
		s.core.Take(now, token, t.id, q)
	})
}

// touchLeases is how long a group of leases may be older than it says.
const touchLeases = time.Hour

func (t *taking) request() *group.TakeRequest {
	r := &group.TakeRequest{MaxPartitions: min(t.req.MaxPartitions, t.req.MaxRecords), LeaseTerms: group.LeaseTerms{
		Duration: t.req.Lease, MaxDeliveries: int32(t.req.MaxDeliveries), DeadLetter: t.req.DeadLetter,
	}}
	for _, topic := range t.topics {
		in := group.TakeTopic{ID: topic.ID, Partitions: int32(topic.Partitions.Len())}
		if t.req.From == FromLatest {
			in.Ends = make([]int64, in.Partitions)
			for i := range in.Ends {
				if p := t.broker.served(storage.ID{Topic: topic.ID, Partition: int32(i)}); p != nil {
					in.Ends[i] = p.hw.Load()
				}
			}
		}
		r.Topics = append(r.Topics, in)
	}
	return r
}

// served finds a partition that this node serves, or returns nil.
func (b *Broker) served(id storage.ID) *partition {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.mu.parts[id]
}

// cancel tells the group that nobody waits any more, and with asked why partitions
// cannot be read.
func (t *taking) cancel(ctx context.Context, asked bool) error {
	s := t.shard
	op := func(now time.Time, token group.Token) {
		delete(s.waiting, t.token)
		delete(s.acking, t.token)
		topics := make([][16]byte, len(t.topics))
		for i := range topics {
			topics[i] = t.topics[i].ID
		}
		s.core.CancelTake(now, token, t.id, t.token, topics)
	}
	if !asked {
		_ = s.submit(context.WithoutCancel(ctx), func(now time.Time) { op(now, 0) })
		return nil
	}
	a, err := s.ask(ctx, op)
	return cmp.Or(err, a.Err)
}

// grant has leased what was read, and returns when that is committed.
func (t *taking) grant(ctx context.Context, reads []leaseRead) ([]Lease, error) {
	in := make([]group.Read, len(reads))
	for i := range reads {
		if reads[i].Next > reads[i].First {
			_, _ = rand.Read(reads[i].Nonce[:])
		}
		in[i] = reads[i].Read
	}
	s := t.shard
	a, err := s.ask(ctx, func(now time.Time, token group.Token) { s.core.Grant(now, token, t.id, t.token, in) })
	if err != nil {
		t.giveBack(ctx, in)
		return nil, err
	}
	infos, _ := a.Value.([]group.LeaseInfo)
	if a.Err != nil || len(infos) == 0 {
		return nil, a.Err
	}
	leases := make([]Lease, 0, len(infos))
	for i := range infos {
		leases = append(leases, t.lease(&infos[i], reads))
	}
	t.broker.metrics.leases.taken.Add(float64(len(leases)))
	return leases, nil
}

// giveBack undoes leases that nobody will be told of.
func (t *taking) giveBack(ctx context.Context, reads []group.Read) {
	_ = t.shard.submit(context.WithoutCancel(ctx), func(now time.Time) { t.shard.core.GiveBack(now, t.id, t.token, reads) })
}

// lease is a lease with the records that were read for it.
func (t *taking) lease(i *group.LeaseInfo, reads []leaseRead) Lease {
	l := Lease{
		ID: leaseID(i.At, i.Nonce), TopicID: i.At.Topic, Partition: i.At.Number,
		First: i.First, Next: i.Next, Deadline: i.Until, Duration: i.Duration, Deliveries: int(i.Deliveries),
	}
	for k := range reads {
		if r := &reads[k]; r.At == i.At {
			l.Topic, l.Gap, l.Section = r.part.topic.name, r.gap, r.section
			r.section = nil
			r.part.topic.counts.fetchedBytes.Add(l.Section.Len())
		}
	}
	return l
}
