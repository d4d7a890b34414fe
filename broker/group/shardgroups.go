package group

import (
	"errors"
	"slices"
	"time"
)

// how says how act finds the group.
type how struct {
	create  bool  // make it if it does not exist
	missing error // what is said otherwise
	quiet   bool  // wait until the view has all that there is
}

// act does something to a group, and answers when what that changed is committed.
func (s *Shard) act(now time.Time, t Token, id string, how how, fn func(h *held, now time.Time) (any, error)) {
	if err := s.Serves(); err != nil {
		s.answerNow(Answer{Token: t, Err: err})
		return
	}
	do := func(now time.Time) {
		s.find(t, id, how.create, now, func(h *held, now time.Time, err error) {
			if err == nil && h == nil {
				err = how.missing
			}
			a := Answer{Token: t}
			if err == nil {
				a.Value, err = fn(h, now)
			}
			if a.Err = err; err != nil {
				s.answerNow(a)
			} else {
				s.answer(h, a)
			}
			if h != nil {
				s.schedule(h)
				s.forget(h, now)
			}
		})
	}
	if how.quiet {
		s.quiet = append(s.quiet, quiet{t, do})
	} else {
		do(now)
	}
}

// Join lets a member in: the Value is a JoinReply. r is the group's from now on.
func (s *Shard) Join(now time.Time, t Token, id string, r *JoinRequest) {
	h, err := s.group(id, true, now)
	if err != nil {
		s.answerNow(Answer{Token: t, Value: JoinReply{MemberID: r.ID}}.failed(err))
		return
	}
	s.take(h, h.Join(now, t, r))
	s.forget(h, now)
}

// Sync answers with a SyncReply: a member's assignment, once the leader has sent
// it.
func (s *Shard) Sync(now time.Time, t Token, id string, r *SyncRequest) {
	h, err := s.group(id, false, now)
	if err == nil && h == nil {
		err = ErrUnknownMember
	}
	if err != nil {
		s.answerNow(Answer{Token: t, Value: SyncReply{}}.failed(err))
		return
	}
	s.take(h, h.Sync(now, t, r))
}

// Cancel forgets a join or a sync whose client has gone.
func (s *Shard) Cancel(now time.Time, id string, t Token) {
	if h := s.groups[id]; h != nil {
		s.take(h, h.Cancel(now, t))
		s.forget(h, now)
	}
}

// Heartbeat takes note that a member lives. ErrRebalanceInProgress tells it to
// join again.
func (s *Shard) Heartbeat(now time.Time, t Token, id string, m MemberRef) {
	s.act(now, t, id, how{missing: ErrUnknownMember}, func(h *held, now time.Time) (any, error) {
		return nil, h.Heartbeat(now, m)
	})
}

// Leave takes members out, each by itself; the Value is an error for each.
func (s *Shard) Leave(now time.Time, t Token, id string, members []MemberRef) {
	s.act(now, t, id, how{missing: ErrUnknownMember}, func(h *held, now time.Time) (any, error) {
		errs := make([]error, len(members))
		for i, m := range members {
			var e Effects
			e, errs[i] = h.Leave(now, m)
			s.take(h, e)
		}
		return errs, nil
	})
}

// Commit commits offsets of the group: those of a member's partitions, or
// anybody's for a group without members. All are committed or none.
func (s *Shard) Commit(now time.Time, t Token, id string, m MemberRef, offsets []Change) {
	s.act(now, t, id, how{create: true}, func(h *held, now time.Time) (any, error) {
		if err := h.MayCommit(now, m); err != nil {
			return nil, err
		}
		if h.leases != nil && h.stateAt(now) != Empty {
			return nil, ErrNotEmpty
		}
		s.commit(h, now, offsets)
		return nil, nil
	})
}

func (s *Shard) commit(h *held, now time.Time, offsets []Change) {
	for _, c := range offsets {
		s.change(h, c)
		s.leaveLease(h, now, Partition{c.Offset.Topic, c.Partition}, c.Offset.Offset)
	}
}

// Seek sets offsets of a group that nobody works in. check is asked in the same
// step, when the view has all that there is; its error ends the operation.
func (s *Shard) Seek(now time.Time, t Token, id string, check func() error, offsets []Change) {
	s.act(now, t, id, how{create: true, quiet: true}, func(h *held, now time.Time) (any, error) {
		if h.stateAt(now) != Empty {
			return nil, ErrNotEmpty
		}
		if err := h.MayCommit(now, MemberRef{Generation: -1}); err != nil {
			return nil, err
		}
		if err := check(); err != nil {
			return nil, err
		}
		s.commit(h, now, offsets)
		return nil, nil
	})
}

// Fetch answers at once with what the group has committed for partitions of a
// topic, a []*Offset in their order, nil for nothing. Only what is committed in
// the log is told.
func (s *Shard) Fetch(_ time.Time, t Token, id, topic string, partitions []int32) {
	a := Answer{Token: t, Err: s.Serves()}
	out := make([]*Offset, len(partitions))
	for i, p := range partitions {
		if a.Err == nil {
			out[i], a.Err = s.view.Offset(id, topic, p)
		}
	}
	if a.Err == nil {
		a.Value = out
	}
	s.answerNow(a)
}

// Settled answers when what the group has changed until now is committed.
func (s *Shard) Settled(now time.Time, t Token, id string) {
	s.act(now, t, id, how{}, func(*held, time.Time) (any, error) { return nil, nil })
}

// Description describes a group.
type Description struct {
	ID, State, ProtocolType, Protocol string
	Generation                        int32
	Members                           []Member
}

// Describe answers with a Description, or with missing if there is no such group.
func (s *Shard) Describe(now time.Time, t Token, id string, missing error) {
	s.act(now, t, id, how{missing: missing}, func(h *held, now time.Time) (any, error) {
		return Description{
			ID: id, State: h.stateAt(now).String(), ProtocolType: h.ProtocolType(), Protocol: h.Protocol(), Generation: h.Generation(), Members: h.Members(),
		}, nil
	})
}

// Listing is a group in a list.
type Listing struct {
	ID, State, ProtocolType string
}

// List answers at once with a Listing of each group, by name.
func (s *Shard) List(now time.Time, t Token) {
	list, err := s.list(now)
	s.answerNow(Answer{t, err, list})
}

func (s *Shard) list(now time.Time) ([]Listing, error) {
	if err := s.Serves(); err != nil {
		return nil, err
	}
	var ids []string
	for id := range s.groups { // sorted below
		ids = append(ids, id)
	}
	err := s.view.EachGroup(func(id string) error {
		ids = append(ids, id)
		return nil
	})
	slices.Sort(ids)
	var list []Listing
	for _, id := range slices.Compact(ids) {
		h, failed := s.group(id, false, now)
		if err = errors.Join(err, failed); err != nil || h == nil {
			continue
		}
		state := h.stateAt(now)
		if h.ProtocolType() == LeaseType && h.leases == nil {
			live, failed := s.liveInView(id, now)
			err = errors.Join(err, failed)
			if live {
				state = Stable
			}
		}
		list = append(list, Listing{ID: id, State: state.String(), ProtocolType: h.ProtocolType()})
		s.forget(h, now)
	}
	return list, err
}
