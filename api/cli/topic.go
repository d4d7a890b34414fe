package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// TopicCmd groups the topic commands.
type TopicCmd struct {
	Create   TopicCreateCmd   `cmd:"" help:"Create a topic."`
	List     TopicListCmd     `cmd:"" help:"List the topics."`
	Describe TopicDescribeCmd `cmd:"" help:"Show a topic, its own configs, and what its partitions hold."`
	Offsets  TopicOffsetsCmd  `cmd:"" help:"Show the earliest and latest offset of each partition, and the offset of a time."`
	Config   TopicConfigCmd   `cmd:"" help:"Show what is set for a topic, and where."`
	Alter    TopicAlterCmd    `cmd:"" help:"Add partitions to a topic, or change its configs."`
	Delete   TopicDeleteCmd   `cmd:"" help:"Delete topics and their records."`
}

// TopicCreateCmd creates one topic.
type TopicCreateCmd struct {
	Connection
	Topic             string   `arg:"" help:"Name of the topic."`
	Partitions        int32    `env:"-" default:"-1" placeholder:"N" help:"Number of partitions; by default the server's num.partitions."`
	ReplicationFactor int16    `env:"-" default:"-1" placeholder:"N" help:"Copies of each partition; by default the server's default.replication.factor."`
	Config            []string `env:"-" placeholder:"K=V" sep:"none" help:"Config of the topic, named as in Kafka; may be repeated."`
	IfNotExists       bool     `env:"-" help:"A topic that is there already is no error, and stays as it is."`
}

// Run creates the topic and says what it became.
func (c *TopicCreateCmd) Run(ctx context.Context, std IO) error {
	configs, err := parseConfigs(c.Config)
	if err != nil {
		return err
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		resp, err := s.admin.CreateTopic(ctx, c.Partitions, c.ReplicationFactor, configs, c.Topic)
		if errors.Is(err, kerr.TopicAlreadyExists) && c.IfNotExists {
			s.std.sayf("topic %s is there already", c.Topic)
			return nil
		}
		if err != nil {
			return fmt.Errorf("create topic %s: %w", c.Topic, detailed(err, resp.ErrMessage))
		}
		s.std.sayf("topic %s created with %s, replication factor %d", c.Topic, count(resp.NumPartitions, "partition"), resp.ReplicationFactor)
		return nil
	})
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
		return &serverError{code: known, message: message}
	}
	return fmt.Errorf("%w (%s)", err, message)
}

// serverError is an error that a server answered, in its own words.
type serverError struct {
	code    *kerr.Error
	message string
}

func (e *serverError) Error() string { return e.code.Message + ": " + e.message }
func (e *serverError) Unwrap() error { return e.code }

// TopicAlterCmd changes one topic.
type TopicAlterCmd struct {
	Connection
	Topic        string   `arg:"" help:"Name of the topic."`
	Partitions   int      `env:"-" placeholder:"N" help:"Grow the topic to N partitions. Records stay where they are, so a key may go to another partition from now on."`
	Config       []string `env:"-" placeholder:"K=V" sep:"none" help:"Set a config; may be repeated."`
	DeleteConfig []string `env:"-" placeholder:"K" sep:"none" help:"Take a config of the topic away, so that the server's value holds; may be repeated."`
	Append       []string `env:"-" placeholder:"K=V" sep:"none" help:"Add V to a config that is a list; may be repeated."`
	Subtract     []string `env:"-" placeholder:"K=V" sep:"none" help:"Take V out of a config that is a list; may be repeated."`
}

// Run changes everything that was asked for, or nothing if the server would refuse a part of it.
func (c *TopicAlterCmd) Run(ctx context.Context, std IO) error {
	changes, err := parseChanges(
		flagged{"--config", kadm.SetConfig, c.Config}, flagged{"--delete-config", kadm.DeleteConfig, c.DeleteConfig},
		flagged{"--append", kadm.AppendConfig, c.Append}, flagged{"--subtract", kadm.SubtractConfig, c.Subtract})
	switch {
	case err != nil:
		return err
	case c.Partitions < 0:
		return usagef("--partitions %d: want more than the topic has", c.Partitions)
	case c.Partitions == 0 && len(changes) == 0:
		return usagef("nothing to alter: give --partitions, --config, --delete-config, --append or --subtract")
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		if c.Partitions > 0 && len(changes) > 0 { // the second must not fail after the first is done
			if err := c.grow(ctx, s.admin.ValidateUpdatePartitions); err != nil {
				return err
			}
		}
		if len(changes) > 0 {
			resps, err := s.admin.AlterTopicConfigs(ctx, changes, c.Topic)
			if err := altered(resps, err); err != nil {
				return c.failed("alter topic", c.Topic, err)
			}
			s.std.sayf("topic %s altered: %s", c.Topic, describeChanges(changes))
		}
		if c.Partitions > 0 {
			if err := c.grow(ctx, s.admin.UpdatePartitions); err != nil {
				return err
			}
			s.std.sayf("topic %s has %s now", c.Topic, count(c.Partitions, "partition"))
		}
		return nil
	})
}

// grow sets the number of partitions by one of the two functions that can, or could.
func (c *TopicAlterCmd) grow(ctx context.Context, update func(context.Context, int, ...string) (kadm.CreatePartitionsResponses, error)) error {
	resps, err := update(ctx, c.Partitions, c.Topic)
	if err == nil {
		resp, found := resps[c.Topic]
		if err = detailedIf(resp.Err, resp.ErrMessage); err == nil && !found {
			err = errors.New("the server said nothing of it")
		}
	}
	if err != nil {
		return c.failed("add partitions to topic", c.Topic, err)
	}
	return nil
}

func detailedIf(err error, message string) error {
	if err == nil {
		return nil
	}
	return detailed(err, message)
}

// TopicDeleteCmd deletes topics.
type TopicDeleteCmd struct {
	Connection
	Reporting
	Topics   []string `arg:"" name:"topic" help:"Names of the topics."`
	IfExists bool     `env:"-" help:"A topic that is not there is no error."`
}

// deleteAtOnce is how many topics one request deletes; each waits for the disk.
const deleteAtOnce = 20

// Run deletes the topics, all that it can; a topic that is not there is an error.
func (c *TopicDeleteCmd) Run(ctx context.Context, std IO) error {
	s, err := c.open(ctx, std, c.waiting())
	if err != nil {
		return err
	}
	defer s.Close()
	status := c.progress(s, "deleted", "topic", false)
	defer status.stop()
	names := slices.Compact(slices.Sorted(slices.Values(c.Topics)))
	var failed []error
	for chunk := range slices.Chunk(names, deleteAtOnce) {
		var resps kadm.DeleteTopicResponses
		err := c.within(ctx, func(ctx context.Context) error {
			resps, err = s.admin.DeleteTopics(ctx, chunk...)
			return err
		})
		if err != nil {
			return fmt.Errorf("delete topics from %s on: %w", chunk[0], err)
		}
		for _, name := range chunk {
			err := c.deleted(resps, name, s.std)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			status.add(0)
		}
	}
	if len(names) == 1 || len(failed) == 0 {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		s.std.sayf("%v", err)
	}
	return fmt.Errorf("%d of %d topics not deleted", len(failed), len(names))
}

// deleted says what became of one topic.
func (c *TopicDeleteCmd) deleted(resps kadm.DeleteTopicResponses, name string, std IO) error {
	resp, found := resps[name]
	switch {
	case !found:
		return fmt.Errorf("delete topic %s: the server said nothing of it", name)
	case errors.Is(resp.Err, kerr.UnknownTopicOrPartition) && c.IfExists:
		std.sayf("topic %s is not there", name)
		return nil
	case resp.Err != nil:
		return c.failed("delete topic", name, detailed(resp.Err, resp.ErrMessage))
	}
	std.sayf("topic %s deleted", name)
	return nil
}
