package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"leat/auth"
	"leat/broker/group"
)

// LeaseAck is what became of the ack of a lease that came with a take.
type LeaseAck struct {
	ID    string
	State LeaseState
	// Err is as that of AckLease.
	Err error
}

// AckAndTakeLeases is TakeLeases after the acks of whole leases, at most
// MaxLeases: a worker's loop is one call for each batch, and one commit if there
// is work at once. A lease that is lost does not keep the take from its work, and
// a take that waits does not keep the acks from being committed. The acks are in
// the order of their ids.
//
// Errors are those of TakeLeases. Only if it is that of ctx is it known then what
// became of the acks; they may be repeated.
func (b *Broker) AckAndTakeLeases(ctx context.Context, p auth.Principal, id string, r *LeaseRequest, done []string) ([]Lease, []LeaseAck, error) {
	if len(done) > MaxLeases {
		return nil, nil, fmt.Errorf("%w: %d acks, at most %d are allowed", ErrInvalidRequest, len(done), MaxLeases)
	}
	req := *r
	if err := b.checkTake(ctx, p, id, &req); err != nil {
		return nil, nil, err
	}
	waiting := ctx
	if req.Wait > 0 {
		var cancel func()
		waiting, cancel = b.bound(ctx, req.Wait, ErrTimedOut)
		defer cancel()
	}
	a := &acking{broker: b, acks: make([]LeaseAck, len(done))}
	a.find(p, done)
	for {
		topics, err := b.leasedTopics(p, req.Topics)
		if err != nil {
			return nil, nil, err
		}
		s, err := b.shard(ctx, id, true)
		if err != nil {
			return nil, nil, err
		}
		t := &taking{broker: b, shard: s, principal: p, id: id, req: &req, topics: topics, acks: a}
		leases, err := t.take(ctx, waiting)
		switch {
		case len(leases) > 0:
			a.tell()
			return leases, a.acks, nil
		case ctx.Err() != nil || err == nil && (waiting.Err() != nil || t.over):
			acks, failed := a.finish(context.WithoutCancel(ctx), p, s, id)
			return nil, acks, errors.Join(err, ctx.Err(), failed)
		case err != nil:
			return nil, nil, err
		}
	}
}

// acking is the acks that came with a take.
type acking struct {
	broker *Broker
	acks   []LeaseAck
	valid  []group.Acked
	index  []int // of the valid ones among acks
	topics []string
	// results is what became of the valid ones, once a round of the shard had them.
	results []group.AckResult
}

// find sorts out the ids that are none.
func (a *acking) find(p auth.Principal, done []string) {
	for i, id := range done {
		a.acks[i].ID = id
		at, nonce, topic, err := a.broker.leaseOf(p, id)
		if err != nil {
			a.acks[i].Err = err
			continue
		}
		a.valid, a.index, a.topics = append(a.valid, group.Acked{At: at, Nonce: nonce}), append(a.index, i), append(a.topics, topic.Name)
	}
}

// due are the acks to do: all, once.
func (a *acking) due() []group.Acked {
	if a.results != nil {
		return nil
	}
	return a.valid
}

// tell notes what became of each that a round has had.
func (a *acking) tell() {
	for k := range a.results {
		ack := &a.acks[a.index[k]]
		r := &a.results[k]
		ack.State, ack.Err = leaseState(a.topics[k], &r.Info), leaseError(r.Err)
		switch m := a.broker.metrics.leases; {
		case errors.Is(ack.Err, ErrLeaseLost):
			m.lost.Inc()
		case ack.Err == nil && !ack.State.AlreadyCommitted:
			m.acked.Inc()
		}
	}
}

// finish returns the acks of a take that got nothing, once what they have changed
// is committed. Those that no round has had are done now.
func (a *acking) finish(ctx context.Context, p auth.Principal, s *shard, id string) ([]LeaseAck, error) {
	if len(a.valid) == 0 {
		return a.acks, nil
	}
	// What the shard was asked for before is done before this.
	asked, err := s.ask(ctx, func(now time.Time, t group.Token) { s.core.Settled(now, t, id) })
	if err = cmp.Or(err, asked.Err); err != nil {
		return nil, err
	}
	if a.tell(); a.results != nil {
		return a.acks, nil
	}
	for _, i := range a.index {
		ack := &a.acks[i]
		ack.State, ack.Err = a.broker.AckLease(ctx, p, id, ack.ID, -1)
	}
	return a.acks, nil
}
