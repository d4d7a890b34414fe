package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicListCmd lists topics.
type TopicListCmd struct {
	Connection
	Internal bool `env:"-" help:"Also list topics that Leat keeps for itself."`
	JSON     bool `env:"-" help:"Print one JSON array."`
}

// topicRow is a topic as `topic list --json` prints it.
type topicRow struct {
	Name              string `json:"name"`
	ID                string `json:"topic_id"`
	Partitions        int    `json:"partitions"`
	ReplicationFactor int    `json:"replication_factor"`
	Internal          bool   `json:"internal"`
}

// Run prints a row a topic, by name.
func (c *TopicListCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		topics, err := s.admin.ListTopicsWithInternal(ctx)
		if err != nil {
			return fmt.Errorf("list topics: %w", err)
		}
		rows := []topicRow{}
		for _, t := range topics.Sorted() {
			if t.Err != nil {
				return fmt.Errorf("topic %s: %w", t.Topic, t.Err)
			}
			if t.IsInternal && !c.Internal {
				continue
			}
			rows = append(rows, topicRow{
				Name: t.Topic, ID: topicID(t.ID), Partitions: len(t.Partitions),
				ReplicationFactor: t.Partitions.NumReplicas(), Internal: t.IsInternal,
			})
		}
		slices.SortFunc(rows, func(a, b topicRow) int { return cmp.Compare(a.Name, b.Name) })
		if c.JSON {
			return quiet(writeJSON(std.Out, rows))
		}
		return quiet(writeTable(std.Out, []string{"TOPIC", "PARTITIONS", "REPLICATION-FACTOR"}, len(rows), func(i int) []string {
			return []string{rows[i].Name, strconv.Itoa(rows[i].Partitions), strconv.Itoa(rows[i].ReplicationFactor)}
		}))
	})
}

// TopicDescribeCmd shows one topic.
type TopicDescribeCmd struct {
	Connection
	Topic string `arg:"" help:"Name of the topic."`
	JSON  bool   `env:"-" help:"Print one JSON object."`
}

// topicDetail is a topic as `topic describe --json` prints it.
type topicDetail struct {
	Name       string         `json:"name"`
	ID         string         `json:"topic_id"`
	Internal   bool           `json:"internal"`
	Partitions []partitionRow `json:"partitions"`
}

type partitionRow struct {
	Partition   int32   `json:"partition"`
	Leader      int32   `json:"leader"`
	LeaderEpoch int32   `json:"leader_epoch"`
	Replicas    []int32 `json:"replicas"`
	ISR         []int32 `json:"isr"`
	StartOffset int64   `json:"start_offset"`
	EndOffset   int64   `json:"end_offset"`
}

// Run prints a row a partition.
func (c *TopicDescribeCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		topic, err := c.existing(ctx, s, c.Topic)
		if err != nil {
			return err
		}
		spans, err := topicSpans(ctx, s.admin, topic, start{})
		if err != nil {
			return err
		}
		detail := describe(topic, spans)
		if c.JSON {
			return quiet(writeJSON(std.Out, detail))
		}
		header := []string{"PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"}
		return quiet(writeTable(std.Out, header, len(detail.Partitions), func(i int) []string {
			p := detail.Partitions[i]
			return []string{
				strconv.Itoa(int(p.Partition)), strconv.Itoa(int(p.Leader)), strconv.Itoa(int(p.LeaderEpoch)),
				joinIDs(p.Replicas), joinIDs(p.ISR), strconv.FormatInt(p.StartOffset, 10), strconv.FormatInt(p.EndOffset, 10),
			}
		}))
	})
}

// describe joins metadata and offsets, by partition.
func describe(topic kmsg.MetadataResponseTopic, spans []span) topicDetail {
	byPartition := map[int32]span{}
	for _, s := range spans {
		byPartition[s.partition] = s
	}
	detail := topicDetail{Name: *topic.Topic, ID: topicID(topic.TopicID), Internal: topic.IsInternal}
	for _, p := range topic.Partitions {
		detail.Partitions = append(detail.Partitions, partitionRow{
			Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR,
			StartOffset: byPartition[p.Partition].first, EndOffset: byPartition[p.Partition].end,
		})
	}
	slices.SortFunc(detail.Partitions, func(a, b partitionRow) int { return cmp.Compare(a.Partition, b.Partition) })
	return detail
}

// TopicOffsetsCmd shows offsets.
type TopicOffsetsCmd struct {
	Connection
	Topic     string `arg:"" help:"Name of the topic."`
	At        string `env:"-" placeholder:"TIME" help:"Also show the offset of the first record of this time or later (the latest offset if there is none): milliseconds since 1970, or as 2026-01-31T12:00:00Z."`
	Partition int32  `env:"-" default:"-1" placeholder:"N" help:"Only this partition; by default all."`
	JSON      bool   `env:"-" help:"Print one JSON array."`
}

// offsetsRow is a partition as `topic offsets --json` prints it.
type offsetsRow struct {
	Partition int32  `json:"partition"`
	Earliest  int64  `json:"earliest"`
	Latest    int64  `json:"latest"`
	At        *int64 `json:"at,omitempty"` // absent without --at; the latest offset if no record is as new
}

// Run prints a row a partition.
func (c *TopicOffsetsCmd) Run(ctx context.Context, std IO) error {
	var from start
	if c.At != "" {
		ms, err := parseTime(c.At)
		if err != nil {
			return usagef("--at %v", err)
		}
		from = start{kind: fromTime, value: ms}
	}
	if err := checkPartition(c.Partition); err != nil {
		return err
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		topic, err := c.existing(ctx, s, c.Topic)
		if err != nil {
			return err
		}
		if err := inTopic(topic, c.Partition); err != nil {
			return err
		}
		spans, err := topicSpans(ctx, s.admin, topic, from)
		if err != nil {
			return err
		}
		rows := []offsetsRow{}
		for _, s := range spans {
			if c.Partition >= 0 && s.partition != c.Partition {
				continue
			}
			row := offsetsRow{Partition: s.partition, Earliest: s.first, Latest: s.end}
			if from.kind == fromTime {
				row.At = &s.atTimestamp
			}
			rows = append(rows, row)
		}
		slices.SortFunc(rows, func(a, b offsetsRow) int { return cmp.Compare(a.Partition, b.Partition) })
		return c.write(std, rows)
	})
}

func (c *TopicOffsetsCmd) write(std IO, rows []offsetsRow) error {
	if c.JSON {
		return quiet(writeJSON(std.Out, rows))
	}
	header := []string{"PARTITION", "EARLIEST", "LATEST"}
	if c.At != "" {
		header = append(header, "AT")
	}
	return quiet(writeTable(std.Out, header, len(rows), func(i int) []string {
		row := []string{strconv.Itoa(int(rows[i].Partition)), strconv.FormatInt(rows[i].Earliest, 10), strconv.FormatInt(rows[i].Latest, 10)}
		if c.At != "" {
			row = append(row, strconv.FormatInt(*rows[i].At, 10))
		}
		return row
	}))
}

// topicID writes an id as Kafka's tools do: base64url without padding.
func topicID(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// joinIDs writes node ids as 1,2,3.
func joinIDs(ids []int32) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = strconv.Itoa(int(id))
	}
	return strings.Join(words, ",")
}
