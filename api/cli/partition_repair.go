package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// PartitionRepairCmd repairs a damaged partition.
type PartitionRepairCmd struct {
	Connection
	Topic     string `arg:"" help:"Name of the topic."`
	Partition int32  `arg:"" help:"Partition to repair."`
	Yes       bool   `env:"-" help:"Give up what is lost without being asked."`
	JSON      bool   `env:"-" help:"Print what was lost as one JSON object."`
}

// Run has the server accept what is lost, and says what that was. The server keeps the damaged files.
func (c *PartitionRepairCmd) Run(ctx context.Context, std IO) error {
	if c.Partition < 0 {
		return usagef("partition %d: partitions count from 0", c.Partition)
	}
	if !c.Yes {
		return usagef("a repair gives up the damaged records of partition %d of %s for good; say so with --yes", c.Partition, c.Topic)
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		topic, err := c.existing(ctx, s, c.Topic)
		if err != nil {
			return err
		}
		if err := inTopic(topic, c.Partition); err != nil {
			return err
		}
		results, err := s.admin.ElectLeaders(ctx, kadm.ElectLiveReplica, kadm.TopicsSet{c.Topic: {c.Partition: {}}})
		if err != nil {
			return fmt.Errorf("repair partition %d of %s: %w", c.Partition, c.Topic, err)
		}
		r, found := results[c.Topic][c.Partition]
		switch {
		case !found:
			return fmt.Errorf("repair partition %d of %s: the server said nothing of it", c.Partition, c.Topic)
		case errors.Is(r.Err, kerr.ElectionNotNeeded):
			s.std.sayf("partition %d of %s is not damaged", c.Partition, c.Topic)
		case r.Err != nil:
			return fmt.Errorf("repair partition %d of %s: %w", c.Partition, c.Topic, r.Err)
		default:
			s.std.sayf("partition %d of %s is repaired; %s", c.Partition, c.Topic, r.ErrMessage)
		}
		if !c.JSON {
			return nil
		}
		return quiet(writeJSON(std.Out, struct {
			Topic     string `json:"topic"`
			Partition int32  `json:"partition"`
			Repaired  bool   `json:"repaired"`
			Lost      string `json:"lost,omitempty"`
		}{c.Topic, c.Partition, r.Err == nil, r.ErrMessage}))
	})
}
