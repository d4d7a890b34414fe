package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupDescribeCmd shows one group.
type GroupDescribeCmd struct {
	Connection
	Group string `arg:"" help:"Name of the group."`
	JSON  bool   `env:"-" help:"Print one JSON object."`
}

// groupDetail is a group as `group describe --json` prints it.
type groupDetail struct {
	groupRow
	Protocol string           `json:"protocol"`
	Members  []groupMember    `json:"members"`
	Leases   []groupLease     `json:"leases,omitempty"` // of a group whose workers take leases
	Offsets  []groupPartition `json:"partitions"`
}

type groupMember struct {
	ID         string  `json:"member_id"`
	InstanceID *string `json:"instance_id"`
	ClientID   string  `json:"client_id"`
	Host       string  `json:"host"`
	Partitions int     `json:"partitions"` // that it was assigned
}

// groupLease is a lease that a worker has, or with Delayed a partition that nobody gets before the deadline.
type groupLease struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	First      int64  `json:"first_offset"`
	Next       int64  `json:"next_offset"`
	Deadline   int64  `json:"deadline"` // in ms since 1970
	Deliveries int    `json:"delivery_count"`
	Delayed    bool   `json:"delayed"`
}

// leaseType is the protocol type of groups whose workers take leases. Such a group has its leases where others have
// members: the metadata is a lease as JSON, the assignment that of a consumer.
const leaseType = "lease"

// addLease takes a lease over, and reports whether the member is one.
func (d *groupDetail) addLease(m *kadm.DescribedGroupMember) (at groupLease, ok bool) {
	text, _ := m.Join.Raw()
	raw, _ := m.Assigned.Raw()
	var assigned kmsg.ConsumerMemberAssignment
	if d.ProtocolType != leaseType || json.Unmarshal(text, &at) != nil || assigned.ReadFrom(raw) != nil || len(assigned.Topics) != 1 || len(assigned.Topics[0].Partitions) != 1 {
		return at, false
	}
	at.Topic, at.Partition = assigned.Topics[0].Topic, assigned.Topics[0].Partitions[0]
	d.Leases = append(d.Leases, at)
	return at, true
}

// groupPartition is a partition that the group has committed an offset for, or that a member reads.
type groupPartition struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Committed *int64  `json:"committed_offset"` // null if nothing is committed
	Metadata  string  `json:"metadata"`
	End       *int64  `json:"end_offset"` // null if the server does not say
	Lag       *int64  `json:"lag"`        // null without the two
	MemberID  *string `json:"member_id"`  // "lease" for a lease; null if nobody reads it
}

// Run prints the group, then a row a partition, then a row a lease or a member.
func (c *GroupDescribeCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		group, err := describeGroup(ctx, s, c.Group)
		if err != nil {
			return c.groupFailed("describe group", c.Group, err)
		}
		committed, err := s.admin.FetchOffsets(ctx, c.Group)
		if err != nil {
			return fmt.Errorf("offsets of group %s: %w", c.Group, err)
		}
		detail := detailOf(group, committed)
		if err := detail.addEnds(ctx, s); err != nil {
			return err
		}
		if c.JSON {
			return quiet(writeJSON(std.Out, detail))
		}
		return quiet(detail.write(std.Out))
	})
}

// detailOf joins what a group has committed with what its members read.
func detailOf(group kadm.DescribedGroup, committed kadm.OffsetResponses) *groupDetail {
	d := &groupDetail{
		groupRow: groupRow{Group: group.Group, State: group.State, ProtocolType: group.ProtocolType, Coordinator: group.Coordinator.NodeID},
		Protocol: group.Protocol, Members: []groupMember{}, Offsets: []groupPartition{},
	}
	type place struct {
		topic     string
		partition int32
	}
	reader := map[place]string{}
	for i := range group.Members {
		m := &group.Members[i]
		if l, ok := d.addLease(m); ok {
			reader[place{l.Topic, l.Partition}] = leaseType
			continue
		}
		member := groupMember{ID: m.MemberID, InstanceID: m.InstanceID, ClientID: m.ClientID, Host: m.ClientHost}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				for _, p := range t.Partitions {
					reader[place{t.Topic, p}] = m.MemberID
					member.Partitions++
				}
			}
		}
		d.Members = append(d.Members, member)
	}
	for _, o := range committed.Sorted() {
		p := groupPartition{Topic: o.Topic, Partition: o.Partition, Metadata: o.Metadata}
		if o.At >= 0 && o.Err == nil {
			p.Committed = &o.At
		}
		if id, ok := reader[place{o.Topic, o.Partition}]; ok {
			p.MemberID = &id
			delete(reader, place{o.Topic, o.Partition})
		}
		d.Offsets = append(d.Offsets, p)
	}
	for at, id := range reader {
		d.Offsets = append(d.Offsets, groupPartition{Topic: at.topic, Partition: at.partition, MemberID: &id})
	}
	slices.SortFunc(d.Offsets, func(a, b groupPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	slices.SortFunc(d.Leases, func(a, b groupLease) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	slices.SortFunc(d.Members, func(a, b groupMember) int { return cmp.Compare(a.ID, b.ID) })
	return d
}

// addEnds asks where the partitions end.
func (d *groupDetail) addEnds(ctx context.Context, s *session) error {
	var topics []string
	for i := range d.Offsets {
		topics = append(topics, d.Offsets[i].Topic)
	}
	if topics = slices.Compact(topics); len(topics) == 0 {
		return nil
	}
	ends, err := s.admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return fmt.Errorf("end offsets: %w", err)
	}
	for i := range d.Offsets {
		p := &d.Offsets[i]
		end, ok := ends.Lookup(p.Topic, p.Partition)
		if !ok || end.Err != nil {
			continue
		}
		p.End = &end.Offset
		if p.Committed != nil {
			lag := max(0, end.Offset-*p.Committed)
			p.Lag = &lag
		}
	}
	return nil
}

// write prints tables with lines between them.
func (d *groupDetail) write(w io.Writer) error {
	err := writeTable(w, []string{"GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR", "MEMBERS"}, 1, func(int) []string {
		return []string{
			d.Group, d.State, cmp.Or(d.ProtocolType, "-"), cmp.Or(d.Protocol, "-"),
			strconv.Itoa(int(d.Coordinator)), strconv.Itoa(len(d.Members)),
		}
	})
	if err == nil && len(d.Offsets) > 0 {
		_, _ = fmt.Fprintln(w) // an error comes back from the table
		err = writeTable(w, []string{"TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"}, len(d.Offsets), func(i int) []string {
			p := d.Offsets[i]
			member := "-"
			if p.MemberID != nil {
				member = *p.MemberID
			}
			return []string{p.Topic, strconv.Itoa(int(p.Partition)), orDash(p.Committed), orDash(p.End), orDash(p.Lag), member}
		})
	}
	if err == nil && len(d.Leases) > 0 {
		_, _ = fmt.Fprintln(w)
		err = writeTable(w, []string{"TOPIC", "PARTITION", "FIRST", "NEXT", "STATE", "UNTIL", "DELIVERIES"}, len(d.Leases), func(i int) []string {
			l := d.Leases[i]
			state := "live"
			if l.Delayed {
				state = "delayed"
			}
			return []string{
				l.Topic, strconv.Itoa(int(l.Partition)), strconv.FormatInt(l.First, 10), strconv.FormatInt(l.Next, 10), state,
				time.UnixMilli(l.Deadline).UTC().Format(time.RFC3339), strconv.Itoa(l.Deliveries),
			}
		})
	}
	if err == nil && len(d.Members) > 0 {
		_, _ = fmt.Fprintln(w)
		err = writeTable(w, []string{"MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"}, len(d.Members), func(i int) []string {
			m := d.Members[i]
			instance := "-"
			if m.InstanceID != nil {
				instance = *m.InstanceID
			}
			return []string{m.ID, instance, cmp.Or(m.ClientID, "-"), m.Host, strconv.Itoa(m.Partitions)}
		})
	}
	return err
}

// orDash is a number that may not be known.
func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}
