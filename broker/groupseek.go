package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"leat/auth"
	"leat/broker/group"
)

// GroupSeek sets a group's offsets, from outside of it.
type GroupSeek struct {
	// If is asked about all that the group has committed, in the step that the
	// change is made in, so that nobody changes it in between; its error ends the
	// change. nil asks nothing.
	If func([]CommittedOffset) error
	// Offsets are set, each of another partition; the others stay.
	Offsets []CommitOffset
}

// SeekError says which of the offsets to set is wrong. It unwraps to why.
type SeekError struct {
	Index int
	Err   error
}

// Error is the reason in words.
func (e *SeekError) Error() string { return e.Err.Error() }

// Unwrap is the reason.
func (e *SeekError) Unwrap() error { return e.Err }

// SeekGroup sets offsets of a group that nobody works in, all or none, and makes
// the group if there is none. It returns all that the group has committed then, by
// topic and partition. An offset that cannot be set is a *SeekError; a group with
// members, or of which a lease lives, is ErrGroupNotEmpty.
func (b *Broker) SeekGroup(ctx context.Context, p auth.Principal, id string, seek *GroupSeek) ([]CommittedOffset, error) {
	if id == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrInvalidGroupID)
	}
	if err := b.allowedGroup(p, auth.Read, id); err != nil {
		return nil, err
	}
	errs, changes := b.planCommit(p, id, -1, seek.Offsets)
	total := 0
	for i := range changes {
		total += changes[i].Size()
	}
	for i, err := range errs {
		if err != nil {
			return nil, &SeekError{i, err}
		}
	}
	if total > maxOperation {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrCommitTooLarge, total, maxOperation)
	}
	if len(changes) == 0 {
		return b.seekNothing(ctx, p, id, seek.If)
	}
	s, err := b.shard(ctx, id, true)
	if err != nil {
		return nil, err
	}
	var all []CommittedOffset
	check := func() (err error) {
		if all, err = b.allOffsets(p, s, id); err == nil && seek.If != nil {
			err = seek.If(all)
		}
		return err
	}
	a, err := s.ask(ctx, func(now time.Time, t group.Token) { s.core.Seek(now, t, id, check, changes) })
	if err = cmp.Or(err, a.Err); err != nil {
		return nil, err
	}
	return withOffsets(all, seek.Offsets), nil
}

// seekNothing is a seek without offsets. It makes no group.
func (b *Broker) seekNothing(ctx context.Context, p auth.Principal, id string, ask func([]CommittedOffset) error) ([]CommittedOffset, error) {
	all, err := b.FetchOffsets(ctx, p, id, nil)
	if err == nil && ask != nil {
		err = ask(all)
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// withOffsets is what is committed once more is, by topic and partition.
func withOffsets(committed []CommittedOffset, more []CommitOffset) []CommittedOffset {
	for i := range more {
		o := &more[i]
		committed = append(committed, CommittedOffset{Topic: o.Topic, Partition: o.Partition, Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata})
	}
	slices.Reverse(committed) // the newest of a partition first
	slices.SortStableFunc(committed, byPartition)
	return slices.CompactFunc(committed, func(x, y CommittedOffset) bool { return byPartition(x, y) == 0 })
}

func byPartition(x, y CommittedOffset) int {
	return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
}
