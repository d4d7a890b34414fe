package broker

import (
	"context"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage"
)

// producerIDBlock is how many producer ids are taken from the metadata at a
// time; a restart gives up what is left of a block.
const producerIDBlock = 1000

// producerIDs hands out producer ids, one caller at a time.
type producerIDs struct {
	turn       turn
	next, last int64 // [next, last) are free
}

// InitProducerID gives an idempotent producer an id that nobody else ever gets
// (KIP-98).
func (b *Broker) InitProducerID(ctx context.Context, p auth.Principal) (id int64, epoch int16, err error) {
	if err := b.allowedCluster(p, auth.IdempotentWrite); err != nil {
		return -1, -1, err
	}
	if err := b.take(ctx, b.ids.turn); err != nil {
		return -1, -1, err
	}
	defer b.ids.turn.give()
	if b.ids.next == b.ids.last {
		reply, err := b.proposer.Propose(ctx, &controller.AllocateProducerIDs{Count: producerIDBlock})
		if err == nil {
			err = reply.Errs[0]
		}
		if err != nil {
			return -1, -1, err
		}
		b.ids.next, b.ids.last = reply.First, reply.First+producerIDBlock
	}
	id = b.ids.next
	b.ids.next++
	return id, 0, nil
}

// Producer is what a partition knows of an idempotent producer.
type Producer = storage.Producer

// Producers returns the idempotent producers that a partition remembers, least
// recent write first. It needs auth.Read.
func (b *Broker) Producers(_ context.Context, p auth.Principal, topic string, partition int32) ([]Producer, error) {
	t, err := b.resolve(p, auth.Read, TopicRef{Name: topic})
	if err != nil {
		return nil, err
	}
	part, err := b.partition(t, partition)
	if err != nil {
		return nil, err
	}
	if err := part.err(); err != nil {
		return nil, err
	}
	return part.log.Producers(), nil
}
