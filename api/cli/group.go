package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// GroupCmd groups the commands of consumer groups.
type GroupCmd struct {
	List         GroupListCmd         `cmd:"" help:"List the consumer groups."`
	Describe     GroupDescribeCmd     `cmd:"" help:"Show a group, its members or leases, what it has committed, and how far behind that is."`
	Delete       GroupDeleteCmd       `cmd:"" help:"Delete groups without members, with what they have committed."`
	ResetOffsets GroupResetOffsetsCmd `cmd:"" help:"Commit other offsets for a group without members."`
}

// errNoGroup is a group that the server does not have.
var errNoGroup = errors.New("no such group")

// groupFailed says what the server refused to do with a group.
func (c Connection) groupFailed(what, group string, err error) error {
	if errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("group %s: %w at %s", group, errNoGroup, c.Server)
	}
	return fmt.Errorf("%s %s: %w", what, group, err)
}

// describeGroup describes a group; for one that does not exist the error is kerr.GroupIDNotFound, which servers say by the
// state alone in older versions.
func describeGroup(ctx context.Context, s *session, group string) (kadm.DescribedGroup, error) {
	groups, err := s.admin.DescribeGroups(ctx, group)
	if err != nil {
		return kadm.DescribedGroup{}, err
	}
	g, err := groups.On(group, nil)
	switch {
	case err != nil:
		return g, errors.New("the server said nothing of it")
	case g.State == "Dead" && (g.Err == nil || errors.Is(g.Err, kerr.GroupIDNotFound)):
		return g, kerr.GroupIDNotFound
	}
	return g, detailedIf(g.Err, g.ErrMessage)
}

// GroupListCmd lists groups.
type GroupListCmd struct {
	Connection
	JSON bool `env:"-" help:"Print one JSON array."`
}

// groupRow is a group as `group list --json` prints it.
type groupRow struct {
	Group        string `json:"group"`
	State        string `json:"state"`
	ProtocolType string `json:"protocol_type"`
	Coordinator  int32  `json:"coordinator"`
}

// Run prints a row a group, by name.
func (c *GroupListCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		groups, err := s.admin.ListGroups(ctx)
		if err != nil {
			return fmt.Errorf("list groups: %w", err)
		}
		rows := []groupRow{}
		for _, g := range groups.Sorted() {
			rows = append(rows, groupRow{Group: g.Group, State: g.State, ProtocolType: g.ProtocolType, Coordinator: g.Coordinator})
		}
		if c.JSON {
			return quiet(writeJSON(std.Out, rows))
		}
		return quiet(writeTable(std.Out, []string{"GROUP", "STATE", "TYPE", "COORDINATOR"}, len(rows), func(i int) []string {
			r := rows[i]
			return []string{r.Group, cmp.Or(r.State, "-"), cmp.Or(r.ProtocolType, "-"), fmt.Sprint(r.Coordinator)}
		}))
	})
}

// GroupDeleteCmd deletes groups.
type GroupDeleteCmd struct {
	Connection
	Groups   []string `arg:"" name:"group" help:"Names of the groups."`
	IfExists bool     `env:"-" help:"A group that is not there is no error."`
}

// Run deletes the groups, all that it can.
func (c *GroupDeleteCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		names := slices.Compact(slices.Sorted(slices.Values(c.Groups)))
		resps, err := s.admin.DeleteGroups(ctx, names...)
		if err != nil {
			return fmt.Errorf("delete %s %s: %w", nounOf(len(names), "group"), strings.Join(names, ", "), err)
		}
		var failed []error
		for _, name := range names {
			if err := c.deleted(resps, name, s.std); err != nil {
				failed = append(failed, err)
			}
		}
		if len(names) == 1 || len(failed) == 0 {
			return errors.Join(failed...)
		}
		for _, err := range failed {
			s.std.sayf("%v", err)
		}
		return fmt.Errorf("%d of %d groups not deleted", len(failed), len(names))
	})
}

// nounOf is the noun for n things.
func nounOf(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// deleted says what became of one group.
func (c *GroupDeleteCmd) deleted(resps kadm.DeleteGroupResponses, name string, std IO) error {
	resp, found := resps[name]
	switch {
	case !found:
		return fmt.Errorf("delete group %s: the server said nothing of it", name)
	case errors.Is(resp.Err, kerr.GroupIDNotFound) && c.IfExists:
		std.sayf("group %s is not there", name)
		return nil
	case errors.Is(resp.Err, kerr.NonEmptyGroup):
		return fmt.Errorf("delete group %s: it has members, or leases that live; stop them first", name)
	case resp.Err != nil:
		return c.groupFailed("delete group", name, detailed(resp.Err, resp.ErrMessage))
	}
	std.sayf("group %s deleted", name)
	return nil
}
