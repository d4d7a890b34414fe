package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/replication/controller"
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
		total += changes[i].Size()
	}
	if total > maxOperation {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrCommitTooLarge, total, maxOperation)
	}
	s, err := b.shard(ctx, id, true)
	if err != nil {
		return nil, err
	}
	a, err := s.ask(ctx, func(now time.Time, t group.Token) { s.core.Commit(now, t, id, m, changes) })
	if err = cmp.Or(err, a.Err); err != nil {
		return nil, err
	}
	return errs, nil
}

// planCommit checks each offset and makes changes of those that hold.
func (b *Broker) planCommit(p auth.Principal, id string, keep int64, offsets []CommitOffset) ([]error, []group.Change) {
	now, longest := b.opts.Now().UnixMilli(), b.configs().number("offset.metadata.max.bytes")
	expires := int64(-1)
	if keep >= 0 {
		expires = now + keep
	}
	errs := make([]error, len(offsets))
	changes := make([]group.Change, 0, len(offsets))
	for i := range offsets {
		o := &offsets[i]
		t, err := b.resolve(p, auth.Read, TopicRef{Name: o.Topic})
		switch {
		case err != nil:
			errs[i] = err
		case o.Partition < 0 || int(o.Partition) >= t.Partitions.Len():
			errs[i] = fmt.Errorf("%w: topic %q has no partition %d, it has %d", ErrUnknownPartition, o.Topic, o.Partition, t.Partitions.Len())
		case int64(len(o.Metadata)) > longest:
			errs[i] = fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrMetadataTooLarge, len(o.Metadata), longest)
		case o.Offset < 0:
			errs[i] = fmt.Errorf("%w: offset %d", ErrInvalidRequest, o.Offset)
		default:
			changes = append(changes, group.Change{Group: id, Topic: o.Topic, Partition: o.Partition, Offset: &group.Offset{
				Topic: t.ID, Offset: o.Offset, Epoch: o.LeaderEpoch, Metadata: o.Metadata, At: now, Expires: expires,
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
		var found []*group.Offset
		if s != nil && t != nil {
			if found, err = s.store.ofTopic(id, q.Topic, q.Partitions); err != nil {
				return nil, err
			}
		}
		for i, partition := range q.Partitions {
			c := CommittedOffset{Topic: q.Topic, Partition: partition, Offset: -1, LeaderEpoch: -1, Err: err}
			if found != nil && found[i] != nil && found[i].Topic == t.ID {
				c.Offset, c.LeaderEpoch, c.Metadata = found[i].Offset, found[i].Epoch, found[i].Metadata
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
	err := s.store.EachOffset(id, func(topic string, partition int32, o *group.Offset) error {
		if t := state.TopicNamed(topic); t == nil || t.ID != o.Topic || !b.allowed(p, auth.Describe, topic) {
			return nil
		}
		out = append(out, CommittedOffset{Topic: topic, Partition: partition, Offset: o.Offset, LeaderEpoch: o.Epoch, Metadata: o.Metadata})
		return nil
	})
	slices.SortFunc(out, byPartition) // the store's order is that of bytes, almost
	return out, err
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
	of := make([]group.TopicOffsets, len(topics))
	for i, q := range topics {
		of[i] = group.TopicOffsets{Name: q.Topic, Partitions: q.Partitions}
		var t *controller.Topic
		if t, of[i].Err = b.resolve(p, auth.Read, TopicRef{Name: q.Topic}); t != nil {
			of[i].ID = t.ID
		}
	}
	return call[[]error](ctx, s, func(now time.Time, t group.Token) { s.core.DeleteOffsets(now, t, id, unknownGroup(id), of) })
}
