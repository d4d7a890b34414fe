package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// PartitionCmd groups the partition commands.
type PartitionCmd struct {
	List          PartitionListCmd          `cmd:"" help:"List the partitions of topics, with what they hold and their size on disk."`
	DeleteRecords PartitionDeleteRecordsCmd `cmd:"" help:"Delete the oldest records of a partition."`
	Repair        PartitionRepairCmd        `cmd:"" help:"Give up the damaged records of a partition, so that it takes records again."`
}

// PartitionListCmd lists partitions.
type PartitionListCmd struct {
	Connection
	Topics []string `arg:"" optional:"" name:"topic" help:"Topics to list; by default all."`
	JSON   bool     `env:"-" help:"Print one JSON array."`
}

// partitionSize is a partition as `partition list --json` prints it.
type partitionSize struct {
	Topic string `json:"topic"`
	partitionRow
	Size *int64 `json:"size_bytes"` // of the leader's log; null if the server does not say
}

// Run prints a row a partition, by topic.
func (c *PartitionListCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		names := slices.Compact(slices.Sorted(slices.Values(c.Topics)))
		if len(names) == 0 {
			topics, err := s.admin.ListTopics(ctx)
			if err != nil {
				return fmt.Errorf("list topics: %w", err)
			}
			names = topics.Names()
		}
		dirs, err := s.admin.DescribeAllLogDirs(ctx, nil)
		if err != nil {
			s.std.sayf("sizes are not known: %v", err)
		}
		rows := []partitionSize{}
		for _, name := range names {
			topic, err := c.existing(ctx, s, name)
			if err != nil {
				return err
			}
			spans, err := topicSpans(ctx, s.admin, topic, start{})
			if err != nil {
				return err
			}
			for _, p := range describe(topic, spans).Partitions {
				rows = append(rows, partitionSize{Topic: name, partitionRow: p, Size: sizeOf(dirs[p.Leader], name, p.Partition)})
			}
		}
		return c.write(std, rows)
	})
}

// sizeOf is the size of a partition in the directories of one node, nil if they do not have it.
func sizeOf(dirs kadm.DescribedLogDirs, topic string, partition int32) *int64 {
	if p, ok := dirs.LookupPartition(topic, partition); ok {
		return &p.Size
	}
	return nil
}

func (c *PartitionListCmd) write(std IO, rows []partitionSize) error {
	if c.JSON {
		return quiet(writeJSON(std.Out, rows))
	}
	return quiet(writeTable(std.Out, []string{"TOPIC", "PARTITION", "LEADER", "OFFLINE", "START", "END", "SIZE"}, len(rows), func(i int) []string {
		r := rows[i]
		size := "-"
		if r.Size != nil {
			size = humanBytes(*r.Size)
		}
		return []string{
			r.Topic, strconv.Itoa(int(r.Partition)), strconv.Itoa(int(r.Leader)), r.offline(),
			strconv.FormatInt(r.StartOffset, 10), strconv.FormatInt(r.EndOffset, 10), size,
		}
	}))
}

// humanBytes writes a size with three digits or so: 950B, 12.3MB. Units are powers of 1000, as disks are sold.
func humanBytes(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10) + "B"
	}
	f, unit := float64(n), -1
	for f >= 999.95 && unit < 4 {
		f, unit = f/1000, unit+1
	}
	return fmt.Sprintf("%.1f%cB", f, "kMGTP"[unit])
}

// PartitionDeleteRecordsCmd deletes records.
type PartitionDeleteRecordsCmd struct {
	Connection
	Topic     string `arg:"" help:"Name of the topic."`
	Partition int32  `env:"-" required:"" placeholder:"N" help:"Partition to delete from."`
	Before    string `env:"-" required:"" placeholder:"OFFSET" help:"Delete every record before this offset; latest deletes all there are."`
	JSON      bool   `env:"-" help:"Print the new earliest offset as one JSON object."`
}

// Run deletes the records and says what is the earliest offset now. Nobody is asked: the offset is the confirmation.
func (c *PartitionDeleteRecordsCmd) Run(ctx context.Context, std IO) error {
	before := int64(-1) // the end, as Kafka has it
	if c.Before != "latest" {
		n, err := strconv.ParseInt(c.Before, 10, 64)
		if err != nil || n < 0 {
			return usagef("--before %q: want an offset or latest", c.Before)
		}
		before = n
	}
	if c.Partition < 0 {
		return usagef("--partition %d: partitions count from 0", c.Partition)
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		topic, err := c.existing(ctx, s, c.Topic)
		if err != nil {
			return err
		}
		if err := inTopic(topic, c.Partition); err != nil {
			return err
		}
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: c.Topic, Partition: c.Partition, At: before})
		resps, err := s.admin.DeleteRecords(ctx, offsets)
		if err != nil {
			return fmt.Errorf("delete records of %s: %w", c.Topic, err)
		}
		resp, found := resps.Lookup(c.Topic, c.Partition)
		switch {
		case !found:
			return fmt.Errorf("delete records of %s: the server said nothing of it", c.Topic)
		case errors.Is(resp.Err, kerr.OffsetOutOfRange):
			return fmt.Errorf("partition %d of %s has no offset %s: %w", c.Partition, c.Topic, c.Before, resp.Err)
		case resp.Err != nil:
			return fmt.Errorf("delete records of partition %d of %s: %w", c.Partition, c.Topic, resp.Err)
		}
		s.std.sayf("partition %d of %s begins at offset %d now", c.Partition, c.Topic, resp.LowWatermark)
		if !c.JSON {
			return nil
		}
		return quiet(writeJSON(std.Out, struct {
			Topic     string `json:"topic"`
			Partition int32  `json:"partition"`
			Earliest  int64  `json:"start_offset"`
		}{c.Topic, c.Partition, resp.LowWatermark}))
	})
}
