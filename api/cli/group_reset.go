package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// GroupResetOffsetsCmd moves a group to another place of a topic.
type GroupResetOffsetsCmd struct {
	Connection
	Group  string `arg:"" help:"Name of the group. One that is not there is made."`
	Topic  string `arg:"" name:"topic[/partition]" help:"Topic, for all its partitions, or one partition of it, as in logs/3."`
	To     string `env:"-" required:"" placeholder:"WHERE" help:"Where the group goes on: earliest, latest, an offset (of one partition), ts:TIME (milliseconds since 1970, or as 2026-01-31T12:00:00Z), or tail:N, N records before the end of each partition."`
	DryRun bool   `env:"-" help:"Only show what would be committed."`
	JSON   bool   `env:"-" help:"Print one JSON array."`
}

// resetRow is a partition as `group reset-offsets --json` prints it.
type resetRow struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Before    *int64 `json:"before"` // null if nothing was committed
	After     int64  `json:"after"`
}

// Run commits the offsets and prints a row a partition.
func (c *GroupResetOffsetsCmd) Run(ctx context.Context, std IO) error {
	topic, partition, err := parseTopicPartition(c.Topic)
	if err != nil {
		return err
	}
	to, err := parseStart("--to", c.To)
	if err != nil {
		return err
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		spans, err := c.place(ctx, s, topic, partition, to)
		if err != nil {
			return err
		}
		group, err := describeGroup(ctx, s, c.Group)
		switch {
		case errors.Is(err, kerr.GroupIDNotFound):
			s.std.sayf("group %s is new", c.Group)
		case err != nil:
			return c.groupFailed("describe group", c.Group, err)
		case len(group.Members) > 0 || group.State != "Empty":
			return fmt.Errorf("group %s has %s (%s); stop them first", c.Group, count(len(group.Members), "member"), group.State)
		}
		committed, err := s.admin.FetchOffsets(ctx, c.Group)
		if err != nil {
			return fmt.Errorf("offsets of group %s: %w", c.Group, err)
		}
		rows := make([]resetRow, len(spans))
		for i, span := range spans {
			rows[i] = resetRow{Topic: topic, Partition: span.partition, After: span.next}
			if o, ok := committed.Lookup(topic, span.partition); ok && o.At >= 0 {
				rows[i].Before = &o.At
			}
		}
		what := fmt.Sprintf("of %s in %s for group %s", count(len(rows), "partition"), topic, c.Group)
		if c.DryRun {
			s.std.sayf("offsets %s would be reset", what)
		} else {
			if err := c.commit(ctx, s, rows); err != nil {
				return err
			}
			s.std.sayf("offsets %s reset", what)
		}
		return c.write(std, rows)
	})
}

// place finds the offsets to commit.
func (c *GroupResetOffsetsCmd) place(ctx context.Context, s *session, name string, partition int32, to start) ([]span, error) {
	topic, err := c.existing(ctx, s, name)
	if err != nil {
		return nil, err
	}
	if err := inTopic(topic, partition); err != nil {
		return nil, err
	}
	spans, err := topicSpans(ctx, s.admin, topic, to)
	if err != nil {
		return nil, err
	}
	if partition >= 0 {
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.partition != partition })
	}
	if to.kind == fromOffset && len(spans) > 1 {
		return nil, usagef("--to %s needs one partition, as in %s/0: the topic has %d", c.To, name, len(spans))
	}
	return plan(to, spans)
}

// commit commits them all, or names the first that the server refused.
func (c *GroupResetOffsetsCmd) commit(ctx context.Context, s *session, rows []resetRow) error {
	var offsets kadm.Offsets
	for _, r := range rows {
		offsets.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.After, LeaderEpoch: -1})
	}
	resps, err := s.admin.CommitOffsets(ctx, c.Group, offsets)
	if err != nil {
		return fmt.Errorf("reset offsets of group %s: %w", c.Group, err)
	}
	for _, r := range rows {
		resp, found := resps.Lookup(r.Topic, r.Partition)
		switch {
		case !found:
			return fmt.Errorf("reset offsets of group %s: the server said nothing of partition %d", c.Group, r.Partition)
		case errors.Is(resp.Err, kerr.UnknownMemberID): // Kafka's word for a commit from outside
			return fmt.Errorf("group %s has members; stop them first", c.Group)
		case resp.Err != nil:
			return fmt.Errorf("reset offset of partition %d in %s for group %s: %w", r.Partition, r.Topic, c.Group, resp.Err)
		}
	}
	return nil
}

func (c *GroupResetOffsetsCmd) write(std IO, rows []resetRow) error {
	if c.JSON {
		return quiet(writeJSON(std.Out, rows))
	}
	return quiet(writeTable(std.Out, []string{"TOPIC", "PARTITION", "BEFORE", "AFTER"}, len(rows), func(i int) []string {
		r := rows[i]
		return []string{r.Topic, strconv.Itoa(int(r.Partition)), orDash(r.Before), strconv.FormatInt(r.After, 10)}
	}))
}

// parseTopicPartition reads TOPIC or TOPIC/PARTITION; -1 stands for all. Names of topics have no slash.
func parseTopicPartition(s string) (topic string, partition int32, err error) {
	topic, digits, one := strings.Cut(s, "/")
	if !one {
		return s, -1, nil
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if topic == "" || err != nil || n < 0 {
		return "", 0, usagef("%q is not TOPIC or TOPIC/PARTITION", s)
	}
	return topic, int32(n), nil
}
