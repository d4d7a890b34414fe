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
		if h.state(now) != group.Empty {
			return none, ErrGroupNotEmpty
		}
		s.lapse(h, ErrGroupGone)
		err = s.store.leases(id, false, func(_ string, topic TopicID, partition int32, _ []byte) error {
			s.change(h, change{group: id, leased: topic, partition: partition})
			return nil
		})
		if err != nil {
			return none, err
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
	return act(ctx, s, id, how{missing: unknownGroup(id)}, func(h *held, now time.Time) (GroupDescription, error) {
		return GroupDescription{
			ID: id, State: h.state(now).String(), ProtocolType: h.ProtocolType(), Protocol: h.Protocol(), Generation: h.Generation(), Members: h.Members(),
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
			state := h.state(now)
			if h.ProtocolType() == group.LeaseType && h.leases == nil {
				var live bool
				live, failed = s.liveInStore(id, now)
				err = errors.Join(err, failed)
				if live {
					state = group.Stable
				}
			}
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
