package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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
	Name              string            `json:"name"`
	ID                string            `json:"topic_id"`
	Internal          bool              `json:"internal"`
	ReplicationFactor int               `json:"replication_factor"`
	Configs           map[string]string `json:"configs"` // that are the topic's own; null if the server does not say
	Partitions        []partitionRow    `json:"partitions"`
}

type partitionRow struct {
	Partition   int32   `json:"partition"`
	Leader      int32   `json:"leader"`
	LeaderEpoch int32   `json:"leader_epoch"`
	Replicas    []int32 `json:"replicas"`
	ISR         []int32 `json:"isr"`
	Offline     []int32 `json:"offline"` // those that take no records, such as damaged ones
	StartOffset int64   `json:"start_offset"`
	EndOffset   int64   `json:"end_offset"`
}

func (r partitionRow) offline() string { return cmp.Or(joinIDs(r.Offline), "-") }

// Run prints the topic, and then a row a partition.
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
		if rows, err := describeConfigs(ctx, s, kmsg.ConfigResourceTypeTopic, c.Topic); err != nil {
			s.std.sayf("configs are not known: %v", err)
		} else {
			detail.Configs = ownConfigs(rows)
		}
		if c.JSON {
			return quiet(writeJSON(std.Out, detail))
		}
		if err := detail.write(std.Out); err != nil {
			return quiet(err)
		}
		header := []string{"PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE", "START", "END"}
		return quiet(writeTable(std.Out, header, len(detail.Partitions), func(i int) []string {
			p := detail.Partitions[i]
			return []string{
				strconv.Itoa(int(p.Partition)), strconv.Itoa(int(p.Leader)), strconv.Itoa(int(p.LeaderEpoch)),
				joinIDs(p.Replicas), joinIDs(p.ISR), p.offline(), strconv.FormatInt(p.StartOffset, 10), strconv.FormatInt(p.EndOffset, 10),
			}
		}))
	})
}

// ownConfigs are those that are set for the topic itself.
func ownConfigs(rows []configRow) map[string]string {
	own := map[string]string{}
	for _, r := range rows {
		if r.Source == kmsg.ConfigSourceDynamicTopicConfig.String() && r.Value != nil {
			own[r.Name] = *r.Value
		}
	}
	return own
}

// write prints what is true of the whole topic: a row under its header, and a line between it and the partitions.
func (d topicDetail) write(w io.Writer) error {
	header := []string{"TOPIC", "ID", "PARTITIONS", "REPLICATION-FACTOR", "CONFIGS"}
	err := writeTable(w, header, 1, func(int) []string {
		words := make([]string, 0, len(d.Configs))
		for _, name := range slices.Sorted(maps.Keys(d.Configs)) {
			words = append(words, name+"="+d.Configs[name])
		}
		configs := cmp.Or(strings.Join(words, " "), "-")
		return []string{d.Name, d.ID, strconv.Itoa(len(d.Partitions)), strconv.Itoa(d.ReplicationFactor), configs}
	})
	if err == nil {
		_, err = fmt.Fprintln(w)
	}
	return err
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
			Offline:     append([]int32{}, p.OfflineReplicas...),
			StartOffset: byPartition[p.Partition].first, EndOffset: byPartition[p.Partition].end,
		})
	}
	slices.SortFunc(detail.Partitions, func(a, b partitionRow) int { return cmp.Compare(a.Partition, b.Partition) })
	if len(detail.Partitions) > 0 {
		detail.ReplicationFactor = len(detail.Partitions[0].Replicas)
	}
	return detail
}

// TopicOffsetsCmd shows offsets.
type TopicOffsetsCmd struct {
	Connection
	Topic     string `arg:"" help:"Name of the topic."`
	At        string `env:"-" placeholder:"TIME" help:"Also show the first record of this time or later, its offset (the latest offset if there is none) and its time: milliseconds since 1970, or as 2026-01-31T12:00:00Z."`
	Partition int32  `env:"-" default:"-1" placeholder:"N" help:"Only this partition; by default all."`
	JSON      bool   `env:"-" help:"Print one JSON array."`
}

// offsetsRow is a partition as `topic offsets --json` prints it.
type offsetsRow struct {
	Partition int32 `json:"partition"`
	Earliest  int64 `json:"earliest"`
	Latest    int64 `json:"latest"`
	*offsetAt       // absent without --at
}

// offsetAt is the first record of a time or later.
type offsetAt struct {
	Offset int64  `json:"at"`           // the latest offset if no record is as late
	Time   *int64 `json:"at_timestamp"` // null if no record is as late
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
				row.offsetAt = &offsetAt{Offset: s.atTimestamp}
				if s.atTime >= 0 {
					row.Time = &s.atTime
				}
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
		header = append(header, "AT", "AT-TIME")
		if without := slices.DeleteFunc(slices.Clone(rows), func(r offsetsRow) bool { return r.Time != nil }); len(without) > 0 {
			std.sayf("no record is as late as %s in %s: AT is where the next one goes", c.At, whichPartitions(without, len(rows)))
		}
	}
	return quiet(writeTable(std.Out, header, len(rows), func(i int) []string {
		row := []string{strconv.Itoa(int(rows[i].Partition)), strconv.FormatInt(rows[i].Earliest, 10), strconv.FormatInt(rows[i].Latest, 10)}
		if c.At != "" {
			at := "-"
			if rows[i].Time != nil {
				at = time.UnixMilli(*rows[i].Time).UTC().Format("2006-01-02T15:04:05.000Z07:00")
			}
			row = append(row, strconv.FormatInt(rows[i].Offset, 10), at)
		}
		return row
	}))
}

// whichPartitions names some of all partitions.
func whichPartitions(some []offsetsRow, all int) string {
	switch {
	case len(some) == 1:
		return fmt.Sprintf("partition %d", some[0].Partition)
	case len(some) == all:
		return "any partition"
	}
	ids := make([]int32, len(some))
	for i, r := range some {
		ids[i] = r.Partition
	}
	return "partitions " + joinIDs(ids)
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
