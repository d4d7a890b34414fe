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
	a, err := s.ask(ctx, func(now time.Time, t group.Token) {
		token = t
		s.core.Join(now, t, id, r)
	})
	if err != nil {
		b.cancel(ctx, s, id, &token)
		return JoinReply{Err: err, MemberID: known, Generation: -1}
	}
	return a.Value.(JoinReply)
}

// cancel tells a group that a client does not wait any more. token is set by the
// shard's goroutine before this is looked at there.
func (b *Broker) cancel(ctx context.Context, s *shard, id string, token *group.Token) {
	_ = s.submit(context.WithoutCancel(ctx), func(now time.Time) {
		delete(s.waiting, *token)
		if *token != 0 {
			s.core.Cancel(now, id, *token)
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
	a, err := s.ask(ctx, func(now time.Time, t group.Token) {
		token = t
		s.core.Sync(now, t, id, r)
	})
	if err != nil {
		b.cancel(ctx, s, id, &token)
		return SyncReply{Err: err}
	}
	return a.Value.(SyncReply)
}

// Heartbeat takes note that a member lives. ErrRebalanceInProgress tells it to
// join again.
func (b *Broker) Heartbeat(ctx context.Context, p auth.Principal, id string, m MemberRef) error {
	s, err := b.member(ctx, p, id, false)
	if err != nil {
		return err
	}
	a, err := s.ask(ctx, func(now time.Time, t group.Token) { s.core.Heartbeat(now, t, id, m) })
	return cmp.Or(err, a.Err)
}

// LeaveGroup takes members out, each by itself; static ones by their instance id
// alone if no member id is given. The error is the group's.
func (b *Broker) LeaveGroup(ctx context.Context, p auth.Principal, id string, members []MemberRef) ([]error, error) {
	var errs []error
	s, err := b.member(ctx, p, id, false)
	if err == nil {
		errs, err = call[[]error](ctx, s, func(now time.Time, t group.Token) { s.core.Leave(now, t, id, members) })
	}
	if errors.Is(err, ErrUnknownMember) { // there is no such group, so it has none of them
		return slices.Repeat([]error{err}, len(members)), nil
	}
	return errs, err
}
