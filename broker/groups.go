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
			s.find(id, how.create, now, func(h *held, now time.Time, err error) {
				var out outcome
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
			})
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
