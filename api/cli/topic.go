package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicCmd groups the topic commands.
type TopicCmd struct {
	Create   TopicCreateCmd   `cmd:"" help:"Create a topic."`
	List     TopicListCmd     `cmd:"" help:"List the topics."`
	Describe TopicDescribeCmd `cmd:"" help:"Show the partitions of a topic and what they hold."`
	Delete   TopicDeleteCmd   `cmd:"" help:"Delete a topic and its records."`
}

// TopicCreateCmd creates one topic.
type TopicCreateCmd struct {
	Connection
	Topic             string   `arg:"" help:"Name of the topic."`
	Partitions        int32    `env:"-" default:"-1" placeholder:"N" help:"Number of partitions; by default the server's num.partitions."`
	ReplicationFactor int16    `env:"-" default:"-1" placeholder:"N" help:"Copies of each partition; by default the server's default.replication.factor."`
	Config            []string `env:"-" placeholder:"K=V" sep:"none" help:"Config of the topic, named as in Kafka; may be repeated."`
}

// Run creates the topic and says what it became.
func (c *TopicCreateCmd) Run(ctx context.Context, std IO) error {
	configs, err := parseConfigs(c.Config)
	if err != nil {
		return err
	}
	client, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := kadm.NewClient(client).CreateTopic(ctx, c.Partitions, c.ReplicationFactor, configs, c.Topic)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", c.Topic, detailed(err, resp.ErrMessage))
	}
	std.sayf("topic %s created with %s, replication factor %d", c.Topic, count(resp.NumPartitions, "partition"), resp.ReplicationFactor)
	return nil
}

// parseConfigs reads K=V; a key may be given once.
func parseConfigs(args []string) (map[string]*string, error) {
	configs := make(map[string]*string, len(args))
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, usagef("--config %q is not K=V", arg)
		}
		if _, twice := configs[key]; twice {
			return nil, usagef("--config %s is given twice", key)
		}
		configs[key] = &value
	}
	return configs, nil
}

// detailed puts what the server said in the place of the fixed text of a Kafka error, which says less.
func detailed(err error, message string) error {
	if message == "" {
		return err
	}
	if known, ok := errors.AsType[*kerr.Error](err); ok {
		return fmt.Errorf("%s: %s", known.Message, message)
	}
	return fmt.Errorf("%w (%s)", err, message)
}

// TopicDeleteCmd deletes one topic.
type TopicDeleteCmd struct {
	Connection
	Topic string `arg:"" help:"Name of the topic."`
}

// Run deletes the topic; a topic that is not there is an error.
func (c *TopicDeleteCmd) Run(ctx context.Context, std IO) error {
	client, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := kadm.NewClient(client).DeleteTopic(ctx, c.Topic)
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", c.Topic, detailed(err, resp.ErrMessage))
	}
	std.sayf("topic %s deleted", c.Topic)
	return nil
}

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
	ignoreSIGPIPE()
	client, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	topics, err := kadm.NewClient(client).ListTopicsWithInternal(ctx)
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
	ignoreSIGPIPE()
	client, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	topic, err := findTopic(ctx, client, c.Topic, false)
	if errors.Is(err, errNoTopic) {
		return fmt.Errorf("%w at %s", err, c.Server)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	spans, err := topicSpans(ctx, kadm.NewClient(client), topic, start{})
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

// writeJSON writes one indented document.
func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// writeTable writes rows in aligned columns under a header.
func writeTable(w io.Writer, header []string, rows int, row func(int) []string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, strings.Join(header, "\t")) // an error comes back from Flush
	for i := range rows {
		_, _ = fmt.Fprintln(table, strings.Join(row(i), "\t"))
	}
	return table.Flush()
}
