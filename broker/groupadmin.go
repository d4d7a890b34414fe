package broker

import (
	"cmp"
	"context"
	"fmt"
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
	a, err := s.ask(ctx, func(now time.Time, t group.Token) { s.core.Delete(now, t, id, unknownGroup(id)) })
	return cmp.Or(err, a.Err)
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
	d, err := call[group.Description](ctx, s, func(now time.Time, t group.Token) { s.core.Describe(now, t, id, unknownGroup(id)) })
	return GroupDescription{
		ID: d.ID, State: d.State, ProtocolType: d.ProtocolType, Protocol: d.Protocol, Generation: d.Generation, Members: d.Members,
	}, err
}

// GroupListing is a group in a list.
type GroupListing = group.Listing

// ListGroups lists the groups that p may describe, by id; with states only those
// in one of them, whatever the case of its letters.
func (b *Broker) ListGroups(ctx context.Context, p auth.Principal, states []string) ([]GroupListing, error) {
	var out []GroupListing
	for _, s := range b.groups.all() {
		list, err := call[[]GroupListing](ctx, s, s.core.List)
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
