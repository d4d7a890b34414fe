package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"leat/auth"
	"leat/broker/group"
)

// What members ask, say of themselves and are answered is the state machine's
// own.
type (
	// JoinRequest is a member's wish to be in the next generation.
	JoinRequest = group.JoinRequest
	// JoinReply answers it.
	JoinReply = group.JoinReply
	// SyncRequest asks for a member's assignment.
	SyncRequest = group.SyncRequest
	// SyncReply answers it.
	SyncReply = group.SyncReply
	// GroupMember is what others may know of a member.
	GroupMember = group.Member
	// GroupProtocol is a way to assign that a member knows.
	GroupProtocol = group.Protocol
	// MemberRef says who a request is from.
	MemberRef = group.MemberRef
)

// Coordinator is the node that coordinates a group.
func (b *Broker) Coordinator(p auth.Principal, id string) (Node, error) {
	if err := b.allowedGroup(p, auth.Describe, id); err != nil {
		return Node{}, err
	}
	return b.Nodes()[0], nil
}

// member finds the shard for a request of a member.
func (b *Broker) member(ctx context.Context, p auth.Principal, id string, create bool) (*shard, error) {
	if id == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrInvalidGroupID)
	}
	if err := b.allowedGroup(p, auth.Read, id); err != nil {
		return nil, err
	}
	s, err := b.shard(ctx, id, create)
	if err == nil && s == nil {
		err = ErrUnknownMember
	}
	return s, err
}

// JoinGroup lets a member in and returns when the rebalance is over that this
// begins, or ctx ends. r is the group's from now on. The reply's Err is the
// group's answer.
func (b *Broker) JoinGroup(ctx context.Context, p auth.Principal, id string, r *JoinRequest) JoinReply {
	refused := func(err error) JoinReply { return JoinReply{Err: err, MemberID: r.ID, Generation: -1} }
	s, err := b.member(ctx, p, id, true)
	if err != nil {
		return refused(err)
	}
	var token group.Token
	known := r.ID
	reply, err := ask(ctx, s, func(now time.Time, done func(JoinReply)) {
		h, err := s.group(id, true, now)
		if err != nil {
			done(refused(err))
			return
		}
		s.tokens++
		token = s.tokens
		s.joins[token] = done
		s.take(h, h.Join(now, token, r))
		s.forget(h)
	})
	if err != nil {
		b.cancel(ctx, s, id, &token)
		return JoinReply{Err: err, MemberID: known, Generation: -1}
	}
	return reply
}

// cancel tells a group that a client does not wait any more. token is set by the
// shard's goroutine before this is looked at there.
func (b *Broker) cancel(ctx context.Context, s *shard, id string, token *group.Token) {
	_ = s.submit(context.WithoutCancel(ctx), func(now time.Time) {
		delete(s.joins, *token)
		delete(s.syncs, *token)
		if h := s.groups[id]; h != nil && *token != 0 {
			s.take(h, h.Cancel(now, *token))
			s.forget(h)
		}
	})
}

// SyncGroup returns a member's assignment once the leader has sent it.
func (b *Broker) SyncGroup(ctx context.Context, p auth.Principal, id string, r *SyncRequest) SyncReply {
	s, err := b.member(ctx, p, id, false)
	if err != nil {
		return SyncReply{Err: err}
	}
	var token group.Token
	reply, err := ask(ctx, s, func(now time.Time, done func(SyncReply)) {
		h, err := s.group(id, false, now)
		if err == nil && h == nil {
			err = ErrUnknownMember
		}
		if err != nil {
			done(SyncReply{Err: err})
			return
		}
		s.tokens++
		token = s.tokens
		s.syncs[token] = done
		s.take(h, h.Sync(now, token, r))
	})
	if err != nil {
		b.cancel(ctx, s, id, &token)
		return SyncReply{Err: err}
	}
	return reply
}

// how says how act finds the group.
type how struct {
	create  bool  // make it if it does not exist
	missing error // what is said otherwise
	quiet   bool  // wait until the store has all that there is
}

// act has the shard's goroutine do something to a group, and returns when what
// that changed is committed.
func act[T any](ctx context.Context, s *shard, id string, how how, fn func(h *held, now time.Time) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	out, err := ask(ctx, s, func(now time.Time, done func(outcome)) {
		do := func(now time.Time) {
			var out outcome
			h, err := s.group(id, how.create, now)
			if err == nil && h == nil {
				err = how.missing
			}
			if err == nil {
				out.value, err = fn(h, now)
			}
			if err != nil {
				done(outcome{err: err})
			} else {
				s.answer(h, func(err error) { out.err = err; done(out) })
			}
			if h != nil {
				s.schedule(h)
				s.forget(h)
			}
		}
		if how.quiet {
			s.whenQuiet(do)
		} else {
			do(now)
		}
	})
	if err != nil {
		var none T
		return none, err
	}
	return out.value, out.err
}

// Heartbeat takes note that a member lives. ErrRebalanceInProgress tells it to
// join again.
func (b *Broker) Heartbeat(ctx context.Context, p auth.Principal, id string, m MemberRef) error {
	s, err := b.member(ctx, p, id, false)
	if err != nil {
		return err
	}
	_, err = act(ctx, s, id, how{missing: ErrUnknownMember}, func(h *held, now time.Time) (struct{}, error) {
		return struct{}{}, h.Heartbeat(now, m)
	})
	return err
}

// LeaveGroup takes members out, each by itself; static ones by their instance id
// alone if no member id is given. The error is the group's.
func (b *Broker) LeaveGroup(ctx context.Context, p auth.Principal, id string, members []MemberRef) ([]error, error) {
	errs := make([]error, len(members))
	s, err := b.member(ctx, p, id, false)
	if err == nil {
		errs, err = act(ctx, s, id, how{missing: ErrUnknownMember}, func(h *held, now time.Time) ([]error, error) {
			for i, m := range members {
				var e group.Effects
				e, errs[i] = h.Leave(now, m)
				s.take(h, e)
			}
			return errs, nil
		})
	}
	if errors.Is(err, ErrUnknownMember) { // there is no such group, so it has none of them
		return slices.Repeat([]error{err}, len(members)), nil
	}
	return errs, err
}

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
		for _, c := range changes {
			s.change(h, c)
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
		for _, partition := range q.Partitions {
			c := CommittedOffset{Topic: q.Topic, Partition: partition, Offset: -1, LeaderEpoch: -1, Err: err}
			if s != nil && t != nil {
				o, err := s.store.offset(id, q.Topic, partition)
				switch {
				case err != nil:
					return nil, err
				case o != nil && o.topic == t.ID:
					c.Offset, c.LeaderEpoch, c.Metadata = o.offset, o.epoch, o.metadata
				}
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
	return act(ctx, s, id, b.existingGroup(id), func(h *held, _ time.Time) (errs []error, err error) {
		if state, _ := h.State(); state != group.Empty && h.ProtocolType() != group.ConsumerType {
			return nil, ErrGroupNotEmpty
		}
		for _, q := range topics {
			_, err := b.resolve(p, auth.Read, TopicRef{Name: q.Topic})
			if err == nil && h.Subscribes(q.Topic) {
				err = fmt.Errorf("%w: %q", ErrGroupSubscribed, q.Topic)
			}
			for _, partition := range q.Partitions {
				errs = append(errs, err)
				if err == nil {
					s.change(h, change{group: id, topic: q.Topic, partition: partition})
				}
			}
		}
		return errs, nil
	})
}

// DeleteGroups forgets groups without members, with their offsets.
func (b *Broker) DeleteGroups(ctx context.Context, p auth.Principal, ids []string) []error {
	errs := make([]error, len(ids))
	for i, id := range ids {
		if errs[i] = b.allowedGroup(p, auth.Delete, id); errs[i] == nil {
			errs[i] = b.deleteGroup(ctx, id)
		}
	}
	return errs
}

func (b *Broker) deleteGroup(ctx context.Context, id string) error {
	s, err := b.existing(ctx, id)
	if err != nil {
		return err
	}
	_, err = act(ctx, s, id, b.existingGroup(id), func(h *held, now time.Time) (none struct{}, err error) {
		if state, _ := h.State(); state != group.Empty {
			return none, ErrGroupNotEmpty
		}
		err = s.store.offsets(id, false, func(_, topic string, partition int32, _ *committed) error {
			s.change(h, change{group: id, topic: topic, partition: partition})
			return nil
		})
		if err == nil {
			s.change(h, change{group: id})
			s.take(h, h.Kill(now, ErrGroupGone))
		}
		return none, err
	})
	return err
}

// existing finds the shard of a group that must exist.
func (b *Broker) existing(ctx context.Context, id string) (*shard, error) {
	if id == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrInvalidGroupID)
	}
	s, err := b.shard(ctx, id, false)
	if err == nil && s == nil {
		err = unknownGroup(id)
	}
	return s, err
}

func unknownGroup(id string) error { return fmt.Errorf("%w: %q", ErrUnknownGroup, id) }

// existingGroup finds a group whose offsets are looked through.
func (b *Broker) existingGroup(id string) how { return how{missing: unknownGroup(id), quiet: true} }

// GroupDescription describes a group.
type GroupDescription struct {
	ID, State, ProtocolType, Protocol string
	Generation                        int32
	Members                           []GroupMember
	Err                               error
}

// DescribeGroups describes groups; one that does not exist has the state Dead
// and ErrUnknownGroup.
func (b *Broker) DescribeGroups(ctx context.Context, p auth.Principal, ids []string) []GroupDescription {
	out := make([]GroupDescription, len(ids))
	for i, id := range ids {
		out[i] = GroupDescription{ID: id, State: group.Dead.String()}
		if out[i].Err = b.allowedGroup(p, auth.Describe, id); out[i].Err != nil {
			continue
		}
		d, err := b.describeGroup(ctx, id)
		if err != nil {
			out[i].Err = err
			continue
		}
		out[i] = d
	}
	return out
}

func (b *Broker) describeGroup(ctx context.Context, id string) (GroupDescription, error) {
	s, err := b.existing(ctx, id)
	if err != nil {
		return GroupDescription{}, err
	}
	return act(ctx, s, id, how{missing: unknownGroup(id)}, func(h *held, _ time.Time) (GroupDescription, error) {
		state, _ := h.State()
		return GroupDescription{
			ID: id, State: state.String(), ProtocolType: h.ProtocolType(), Protocol: h.Protocol(), Generation: h.Generation(), Members: h.Members(),
		}, nil
	})
}

// GroupListing is a group in a list.
type GroupListing struct {
	ID, State, ProtocolType string
}

// ListGroups lists the groups that p may describe, by id; with states only those
// in one of them, whatever the case of its letters.
func (b *Broker) ListGroups(ctx context.Context, p auth.Principal, states []string) ([]GroupListing, error) {
	var out []GroupListing
	for _, s := range b.groups.all() {
		list, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		for _, g := range list {
			asked := len(states) == 0 || slices.ContainsFunc(states, func(state string) bool { return strings.EqualFold(state, g.State) })
			if asked && b.allowedGroup(p, auth.Describe, g.ID) == nil {
				out = append(out, g)
			}
		}
	}
	slices.SortFunc(out, func(x, y GroupListing) int { return cmp.Compare(x.ID, y.ID) })
	return out, nil
}

// list is the shard's groups: those in memory and those in the store.
func (s *shard) list(ctx context.Context) ([]GroupListing, error) {
	type outcome struct {
		list []GroupListing
		err  error
	}
	out, err := ask(ctx, s, func(now time.Time, done func(outcome)) {
		ids := slices.Collect(maps.Keys(s.groups))
		err := s.store.groups(func(id string) error {
			ids = append(ids, id)
			return nil
		})
		slices.Sort(ids)
		var list []GroupListing
		for _, id := range slices.Compact(ids) {
			h, failed := s.group(id, false, now)
			if err = errors.Join(err, failed); err != nil || h == nil {
				continue
			}
			state, _ := h.State()
			list = append(list, GroupListing{ID: id, State: state.String(), ProtocolType: h.ProtocolType()})
			s.forget(h)
		}
		done(outcome{list, err})
	})
	if err != nil {
		return nil, err
	}
	return out.list, out.err
}
