package conformance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
)

const groupPartitions = 4

// resume proves that a member reads all, and that the next one goes on where it has committed.
func resume(c *check) error {
	var first, second *member
	return c.group(groupPartitions, func() (err error) {
		before, err := c.spread("before", groupPartitions, 10)
		if err != nil {
			return err
		}
		if first, err = c.join("", ""); err != nil {
			return err
		}
		if err := c.once(before, first); err != nil {
			return err
		}
		if err := first.leave(); err != nil {
			return err
		}
		if err := c.committed(10); err != nil {
			return err
		}
		after, err := c.spread("after", groupPartitions, 7)
		if err != nil {
			return err
		}
		if second, err = c.join("", ""); err != nil {
			return err
		}
		return c.once(after, second)
	}, &first, &second)
}

// committed has the reference look at what the check's group has committed for each partition.
func (c *check) committed(want int64) error {
	offsets, err := c.oracle.admin.FetchOffsets(c.ctx, c.topic)
	if err != nil {
		return err
	}
	for p := range int32(groupPartitions) {
		if o, _ := offsets.Lookup(c.topic, p); o.At != want {
			return fmt.Errorf("partition %d is committed at %d, want %d", p, o.At, want)
		}
	}
	return nil
}

// rebalance proves that a second member takes its half and gives it back when it leaves; all is read once.
func rebalance(c *check) error {
	var a, b *member
	return c.group(groupPartitions, func() (err error) {
		if a, err = c.join("", ""); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, a); err != nil {
			return err
		}
		all, err := c.spread("alone", groupPartitions, 5)
		if err != nil {
			return err
		}
		if err := c.once(all, a); err != nil {
			return err
		}
		if b, err = c.join("", ""); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, a, b); err != nil {
			return err
		}
		both, err := c.spread("both", groupPartitions, 5)
		if err != nil {
			return err
		}
		all = append(all, both...)
		if err := c.once(all, a, b); err != nil {
			return err
		}
		if err := b.leave(); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, a); err != nil {
			return err
		}
		again, err := c.spread("again", groupPartitions, 5)
		if err != nil {
			return err
		}
		return c.once(append(all, again...), a, b)
	}, &a, &b)
}

// cooperate proves that a member keeps what it need not give away when another joins.
func cooperate(c *check) error {
	var a, b *member
	return c.group(groupPartitions, func() (err error) {
		if a, err = c.join("", cooperative); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, a); err != nil {
			return err
		}
		if b, err = c.join("", cooperative); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, a, b); err != nil {
			return err
		}
		if n := a.revoked(); n != groupPartitions/2 {
			return fmt.Errorf("%d partitions were taken from the first member, want %d", n, groupPartitions/2)
		}
		groups, err := c.oracle.admin.DescribeGroups(c.ctx, c.topic)
		if err != nil {
			return err
		}
		if protocol := groups[c.topic].Protocol; !strings.Contains(protocol, cooperative) {
			return fmt.Errorf("the group has agreed on %q", protocol)
		}
		all, err := c.spread("both", groupPartitions, 5)
		if err != nil {
			return err
		}
		return c.once(all, a, b)
	}, &a, &b)
}

// static proves that a member with an instance id comes back to its partitions, and the other does not notice.
func static(c *check) error {
	var a, b, back *member
	return c.group(groupPartitions, func() (err error) {
		if a, err = c.join("instance-a", ""); err != nil {
			return err
		}
		if b, err = c.join("instance-b", ""); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, a, b); err != nil {
			return err
		}
		had, taken := a.assigned(), b.revoked()
		if err := a.leave(); err != nil {
			return err
		}
		if err := c.instances("instance-a", "instance-b"); err != nil {
			return fmt.Errorf("after the first has gone: %w", err)
		}
		if back, err = c.join("instance-a", ""); err != nil {
			return err
		}
		if err := c.shared(groupPartitions, back, b); err != nil {
			return err
		}
		if got := back.assigned(); !slices.Equal(got, had) {
			return fmt.Errorf("the member came back to %v, it had %v", got, had)
		}
		if n := b.revoked(); n != taken {
			return fmt.Errorf("%d partitions were taken from the other member", n-taken)
		}
		all, err := c.spread("both", groupPartitions, 5)
		if err != nil {
			return err
		}
		return errors.Join(c.once(all, back, b), c.instances("instance-a", "instance-b"))
	}, &a, &b, &back)
}

// instances has the reference compare the instance ids of the group's members.
func (c *check) instances(want ...string) error {
	groups, err := c.oracle.admin.DescribeGroups(c.ctx, c.topic)
	if err != nil {
		return err
	}
	var got []string
	for _, m := range groups[c.topic].Members {
		if m.InstanceID != nil {
			got = append(got, *m.InstanceID)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the group has the instances %q, want %q", got, want)
	}
	return nil
}

// seeGroup proves that the client lists a group, and describes it with and without a member.
func seeGroup(op string, see func(c *check, r reply, active bool) error) func(*check) error {
	return func(c *check) error {
		var m *member
		return c.group(groupPartitions, func() (err error) {
			all, err := c.spread("all", groupPartitions, 5)
			if err != nil {
				return err
			}
			if m, err = c.join("", ""); err != nil {
				return err
			}
			if err := c.once(all, m); err != nil {
				return err
			}
			for _, active := range []bool{true, false} {
				if !active {
					if err := m.leave(); err != nil {
						return err
					}
				}
				err := c.until(op, func() error {
					r, err := c.do(ask{Op: op, Group: c.topic})
					if err != nil {
						return err
					}
					return see(c, r, active)
				})
				if err != nil {
					return err
				}
			}
			return nil
		}, &m)
	}
}

func listed(c *check, r reply, _ bool) error {
	if !slices.Contains(r.Groups, c.topic) {
		return fmt.Errorf("%q is not among the groups %q", c.topic, r.Groups)
	}
	return nil
}

func described(_ *check, r reply, active bool) error {
	state, members := "Empty", 0
	if active {
		state, members = "Stable", 1
	}
	if r.State != state || r.Members != members {
		return fmt.Errorf("the group is %q with %d members, want %s with %d", r.State, r.Members, state, members)
	}
	return nil
}

// commitOutside proves that the client sets the offsets of a group that has no members.
func commitOutside(c *check) error {
	if err := c.create(groupPartitions); err != nil {
		return err
	}
	if _, err := c.spread("all", groupPartitions, 5); err != nil {
		return err
	}
	if _, err := c.do(ask{Op: "commit_offsets", Group: c.topic, Topic: c.topic, Offsets: map[int32]int64{0: 3, 1: 3, 2: 3, 3: 3}}); err != nil {
		return err
	}
	return c.committed(3)
}

// seeded has the reference commit offsets of the check's group for its topic.
func (c *check) seeded() error {
	if err := c.create(groupPartitions); err != nil {
		return err
	}
	if _, err := c.spread("all", groupPartitions, 5); err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	for p := range int32(groupPartitions) {
		offsets.Add(kadm.Offset{Topic: c.topic, Partition: p, At: int64(p) + 1, LeaderEpoch: -1})
	}
	return c.oracle.admin.CommitAllOffsets(c.ctx, c.topic, offsets)
}

func seeCommitted(c *check) error {
	if err := c.seeded(); err != nil {
		return err
	}
	r, err := c.do(ask{Op: "committed", Group: c.topic, Topic: c.topic})
	if err != nil {
		return err
	}
	if want := map[int32]int64{0: 1, 1: 2, 2: 3, 3: 4}; !maps.Equal(r.Offsets, want) {
		return fmt.Errorf("committed is %v, want %v", r.Offsets, want)
	}
	return nil
}

func deleteGroup(c *check) error {
	if err := c.seeded(); err != nil {
		return err
	}
	if _, err := c.do(ask{Op: "delete_group", Group: c.topic}); err != nil {
		return err
	}
	groups, err := c.oracle.admin.ListGroups(c.ctx)
	if err != nil {
		return err
	}
	if slices.Contains(groups.Groups(), c.topic) {
		return errors.New("the group is still there")
	}
	return c.refused(ask{Op: "delete_group", Group: c.topic}, "GROUP_ID_NOT_FOUND", "group id does not exist", "group id not found", "not found", "group ID does not exist")
}

func deleteOffsets(c *check) error {
	if err := c.seeded(); err != nil {
		return err
	}
	if _, err := c.do(ask{Op: "delete_offsets", Group: c.topic, Topic: c.topic, Offsets: map[int32]int64{1: 0, 3: 0}}); err != nil {
		return err
	}
	offsets, err := c.oracle.admin.FetchOffsets(c.ctx, c.topic)
	if err != nil {
		return err
	}
	got := map[int32]int64{}
	offsets.Each(func(o kadm.OffsetResponse) { got[o.Partition] = o.At })
	if want := map[int32]int64{0: 1, 2: 3}; !maps.Equal(got, want) {
		return fmt.Errorf("committed is %v, want %v", got, want)
	}
	return nil
}
