package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/auth"
	"leat/broker/group"
)

// CommitOffset is an offset to commit.
type CommitOffset struct {
	Topic     string
	Partition int32
	Offset    int64
	// LeaderEpoch is that of the record before, -1 if it is not known.
	LeaderEpoch int32
	Metadata    string
}

// CommitOffsets commits offsets of a group: those of a member's partitions, or
// anybody's for a group without members; then Member is zero but for the
// generation -1. keep is for how long, -1 for the server's rules, in ms. It
// returns a result for each offset; the error is for all of them.
func (b *Broker) CommitOffsets(ctx context.Context, p auth.Principal, id string, m MemberRef, keep int64, offsets []CommitOffset) ([]error, error) {
	if err := b.allowedGroup(p, auth.Read, id); err != nil {
		return nil, err
	}
	errs, changes := b.planCommit(p, id, keep, offsets)
	if len(changes) == 0 {
		return errs, nil
	}
	total := 0
	for i := range changes {
		total += changes[i].size()
	}
	if total > maxOperation {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrCommitTooLarge, total, maxOperation)
	}
	s, err := b.shard(ctx, id, true)
	if err != nil {
		return nil, err
	}
	return act(ctx, s, id, how{create: true}, func(h *held, now time.Time) ([]error, error) {
		if err := h.MayCommit(now, m); err != nil {
			return nil, err
		}
		if h.state(now) != group.Empty && h.leases != nil {
			return nil, ErrGroupNotEmpty
		}
		for _, c := range changes {
			s.change(h, c)
			s.leaveLease(h, now, c.offset.topic, c.partition, c.offset.offset)
		}
		return errs, nil
	})
}

// planCommit checks each offset and makes changes of those that hold.
func (b *Broker) planCommit(p auth.Principal, id string, keep int64, offsets []CommitOffset) ([]error, []change) {
	now, longest := b.opts.Now().UnixMilli(), b.configs().number("offset.metadata.max.bytes")
	expires := int64(-1)
	if keep >= 0 {
		expires = now + keep
	}
	errs := make([]error, len(offsets))
	changes := make([]change, 0, len(offsets))
	for i := range offsets {
		o := &offsets[i]
		t, err := b.resolve(p, auth.Read, TopicRef{Name: o.Topic})
		switch {
		case err != nil:
			errs[i] = err
		case o.Partition < 0 || int(o.Partition) >= len(t.Partitions):
			errs[i] = fmt.Errorf("%w: topic %q has no partition %d, it has %d", ErrUnknownPartition, o.Topic, o.Partition, len(t.Partitions))
		case int64(len(o.Metadata)) > longest:
			errs[i] = fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrMetadataTooLarge, len(o.Metadata), longest)
		case o.Offset < 0:
			errs[i] = fmt.Errorf("%w: offset %d", ErrInvalidRequest, o.Offset)
		default:
			changes = append(changes, change{group: id, topic: o.Topic, partition: o.Partition, offset: &committed{
				topic: t.ID, offset: o.Offset, epoch: o.LeaderEpoch, metadata: o.Metadata, at: now, expires: expires,
			}})
		}
	}
	return errs, changes
}

// CommittedOffset is what a group has committed for a partition; Offset is -1
// for nothing.
type CommittedOffset struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	Err         error
}

// TopicPartitions names partitions of a topic.
type TopicPartitions struct {
	Topic      string
	Partitions []int32
}

// FetchOffsets returns what a group has committed for the partitions asked, in
// their order, or with nil for all that it has committed and that p may see.
func (b *Broker) FetchOffsets(ctx context.Context, p auth.Principal, id string, topics []TopicPartitions) ([]CommittedOffset, error) {
	if err := b.allowedGroup(p, auth.Describe, id); err != nil {
		return nil, err
	}
	s, err := b.shard(ctx, id, false)
	if err != nil {
		return nil, err
	}
	if s != nil {
		if err := s.ready(); err != nil {
			return nil, err
		}
	}
	if topics == nil {
		return b.allOffsets(p, s, id)
	}
	var out []CommittedOffset
	for _, q := range topics {
		t, err := b.resolve(p, auth.Describe, TopicRef{Name: q.Topic})
		if errors.Is(err, ErrUnknownTopic) || errors.Is(err, ErrInvalidTopic) {
			err = nil // nothing is committed for it
		}
		var found []*committed
		if s != nil && t != nil {
			if found, err = s.store.ofTopic(id, q.Topic, q.Partitions); err != nil {
				return nil, err
			}
		}
		for i, partition := range q.Partitions {
			c := CommittedOffset{Topic: q.Topic, Partition: partition, Offset: -1, LeaderEpoch: -1, Err: err}
			if found != nil && found[i] != nil && found[i].topic == t.ID {
				c.Offset, c.LeaderEpoch, c.Metadata = found[i].offset, found[i].epoch, found[i].metadata
			}
			out = append(out, c)
		}
	}
	return out, nil
}

func (b *Broker) allOffsets(p auth.Principal, s *shard, id string) ([]CommittedOffset, error) {
	if s == nil {
		return nil, nil
	}
	var out []CommittedOffset
	state := b.proposer.State()
	err := s.store.offsets(id, false, func(_, topic string, partition int32, o *committed) error {
		if t := state.TopicNamed(topic); t == nil || t.ID != o.topic || !b.allowed(p, auth.Describe, topic) {
			return nil
		}
		out = append(out, CommittedOffset{Topic: topic, Partition: partition, Offset: o.offset, LeaderEpoch: o.epoch, Metadata: o.metadata})
		return nil
	})
	slices.SortFunc(out, byPartition) // the store's order is that of bytes, almost
	return out, err
}

// ready is nil once the shard serves.
func (s *shard) ready() error {
	select {
	case <-s.loaded:
		return s.failed
	default:
		return ErrCoordinatorLoading
	}
}

// DeleteOffsets forgets what a group has committed for partitions that none of
// its members reads. It returns a result for each partition, in the order of
// the queries; the error is for all of them.
func (b *Broker) DeleteOffsets(ctx context.Context, p auth.Principal, id string, topics []TopicPartitions) ([]error, error) {
	if err := b.allowedGroup(p, auth.Delete, id); err != nil {
		return nil, err
	}
	s, err := b.existing(ctx, id)
	if err != nil {
		return nil, err
	}
	return act(ctx, s, id, b.existingGroup(id), func(h *held, now time.Time) (errs []error, err error) {
		if h.state(now) != group.Empty && h.ProtocolType() != group.ConsumerType {
			return nil, ErrGroupNotEmpty
		}
		for _, q := range topics {
			t, err := b.resolve(p, auth.Read, TopicRef{Name: q.Topic})
			if err == nil && h.Subscribes(q.Topic) {
				err = fmt.Errorf("%w: %q", ErrGroupSubscribed, q.Topic)
			}
			for _, partition := range q.Partitions {
				errs = append(errs, err)
				if err == nil {
					s.change(h, change{group: id, topic: q.Topic, partition: partition})
					s.leaveLease(h, now, t.ID, partition, -1)
				}
			}
		}
		return errs, nil
	})
}
