package broker

import (
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
	h, err := t.reserve(waiting)
	if err != nil {
		over := errors.Is(err, ErrTimedOut) && ctx.Err() == nil && t.broker.done.Err() == nil
		trouble := t.cancel(ctx, over)
		if over {
			t.over = true
			return nil, trouble
		}
		return nil, err
	}
	if h.Err != nil || len(h.Reservations) == 0 {
		t.over = true
		if errors.Is(h.Err, ErrGroupGone) {
			return nil, nil // it was deleted, and is made again by the next take
		}
		return nil, leaseError(h.Err)
	}
	reads := t.read(ctx, h.Reservations)
	leases, err := t.grant(ctx, reads)
	for i := range reads {
		reads[i].release()
	}
	return leases, err
}

// reserve asks for partitions, and waits for them.
func (t *taking) reserve(ctx context.Context) (group.Handout, error) {
	return ask(ctx, t.shard, func(now time.Time, done func(group.Handout)) {
		s := t.shard
		h, err := s.group(t.id, true, now)
		if err == nil {
			if state, _ := h.State(); state != group.Empty {
				err = ErrGroupTypeConflict
			}
		}
		if err != nil {
			done(group.Handout{Err: err})
			return
		}
		s.withLeases(h, now, func(h *held, now time.Time, err error) {
			if err == nil {
				err = t.park(h, now, done)
			}
			if err != nil {
				done(group.Handout{Err: err})
			}
		})
	})
}

// touchLeases is how long a group of leases may be older than it says.
const touchLeases = time.Hour

// park has the take wait in its group.
func (t *taking) park(h *held, now time.Time, done func(group.Handout)) error {
	s := t.shard
	e, err := h.Lease(now, min(touchLeases, millis(s.retention())/4))
	if err != nil {
		return err
	}
	s.take(h, e)
	s.tokens++
	t.token = s.tokens
	r := t.request(h.leases)
	s.takes[t.token] = done
	s.lease(h, h.leases.Know(now, r))
	s.collect() // what is there is told at once
	results, taken := h.leases.AckAndTake(now, t.token, r, t.acks.due())
	if len(results) > 0 {
		t.acks.results = results
	}
	s.lease(h, taken)
	if s.takes[t.token] == nil || t.req.Wait > 0 {
		return nil
	}
	delete(s.takes, t.token)
	s.lease(h, h.leases.Cancel(now, t.token))
	trouble := h.leases.Trouble(r.Topics)
	s.answer(h, func(err error) {
		if err == nil {
			err = trouble
		}
		done(group.Handout{Err: err})
	})
	return nil
}

func (t *taking) request(l *group.Leases) *group.TakeRequest {
	r := &group.TakeRequest{MaxPartitions: min(t.req.MaxPartitions, t.req.MaxRecords), LeaseTerms: group.LeaseTerms{
		Duration: t.req.Lease, MaxDeliveries: int32(t.req.MaxDeliveries), DeadLetter: t.req.DeadLetter,
	}}
	for _, topic := range t.topics {
		in := group.TakeTopic{ID: topic.ID, Partitions: int32(len(topic.Partitions))}
		if t.req.From == FromLatest && !l.Knows(topic.ID) {
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

// cancel tells the group that nobody waits any more, and with ask why partitions
// cannot be read.
func (t *taking) cancel(ctx context.Context, asked bool) error {
	s := t.shard
	fn := func(now time.Time) (trouble error) {
		delete(s.takes, t.token)
		if h := s.groups[t.id]; h != nil && h.leases != nil && t.token != 0 {
			s.lease(h, h.leases.Cancel(now, t.token))
			for _, topic := range t.topics {
				if trouble == nil {
					trouble = h.leases.Trouble([]group.TakeTopic{{ID: topic.ID}})
				}
			}
			s.forget(h)
		}
		return trouble
	}
	if !asked {
		_ = s.submit(context.WithoutCancel(ctx), func(now time.Time) { _ = fn(now) })
		return nil
	}
	trouble, err := ask(ctx, s, func(now time.Time, done func(error)) { done(fn(now)) })
	if err != nil {
		return err
	}
	return trouble
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
	type granted struct {
		infos []group.LeaseInfo
		err   error
	}
	s := t.shard
	out, err := ask(ctx, s, func(now time.Time, done func(granted)) {
		h := s.groups[t.id]
		if h == nil || h.leases == nil {
			done(granted{})
			return
		}
		infos, e := h.leases.Grant(now, t.token, in)
		s.lease(h, e)
		s.answer(h, func(err error) { done(granted{infos, err}) })
	})
	if err != nil {
		t.giveBack(ctx, in)
		return nil, err
	}
	if out.err != nil || len(out.infos) == 0 {
		return nil, out.err
	}
	leases := make([]Lease, 0, len(out.infos))
	for i := range out.infos {
		leases = append(leases, t.lease(&out.infos[i], reads))
	}
	t.broker.metrics.leases.taken.Add(float64(len(leases)))
	return leases, nil
}

// giveBack undoes leases that nobody will be told of.
func (t *taking) giveBack(ctx context.Context, reads []group.Read) {
	s := t.shard
	_ = s.submit(context.WithoutCancel(ctx), func(now time.Time) {
		h := s.groups[t.id]
		if h == nil || h.leases == nil {
			return
		}
		s.lease(h, h.leases.Cancel(now, t.token))
		for i := range reads {
			s.lease(h, h.leases.Return(now, reads[i].At, reads[i].Nonce))
		}
		s.forget(h)
	})
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
