package main

import (
	"context"
	"errors"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

func (c *client) metadata(ctx context.Context, _ *ask, r *reply) error {
	meta, err := c.admin.GetMetadata(nil, true, int(operation.Milliseconds()))
	if err != nil {
		return err
	}
	r.Topics, r.Nodes = map[string]int{}, len(meta.Brokers)
	for name, topic := range meta.Topics {
		r.Topics[name] = len(topic.Partitions)
	}
	r.Cluster, err = c.admin.ClusterID(ctx)
	return err
}

// topicsFailed is the first failure among the results of topics.
func topicsFailed(results []kafka.TopicResult, err error) error {
	for _, one := range results {
		err = errors.Join(err, failed(one.Error))
	}
	return err
}

func (c *client) createTopic(ctx context.Context, q *ask, _ *reply) error {
	return topicsFailed(c.admin.CreateTopics(ctx, []kafka.TopicSpecification{
		{Topic: q.Topic, NumPartitions: q.Partitions, ReplicationFactor: 1, Config: q.Configs},
	}))
}

func (c *client) deleteTopic(ctx context.Context, q *ask, _ *reply) error {
	return topicsFailed(c.admin.DeleteTopics(ctx, []string{q.Topic}))
}

func (c *client) createPartitions(ctx context.Context, q *ask, _ *reply) error {
	return topicsFailed(c.admin.CreatePartitions(ctx, []kafka.PartitionsSpecification{{Topic: q.Topic, IncreaseTo: q.Partitions}}))
}

func (c *client) describeConfigs(ctx context.Context, q *ask, r *reply) error {
	results, err := c.admin.DescribeConfigs(ctx, []kafka.ConfigResource{{Type: kafka.ResourceTopic, Name: q.Topic}})
	if err != nil {
		return err
	}
	r.Configs = map[string]string{}
	for name, entry := range results[0].Config {
		r.Configs[name] = entry.Value
	}
	return failed(results[0].Error)
}

func configsFailed(results []kafka.ConfigResourceResult, err error) error {
	for _, one := range results {
		err = errors.Join(err, failed(one.Error))
	}
	return err
}

func (c *client) alterConfigs(ctx context.Context, q *ask, _ *reply) error {
	var entries []kafka.ConfigEntry
	for name, value := range q.Configs {
		entries = append(entries, kafka.ConfigEntry{Name: name, Value: value, IncrementalOperation: kafka.AlterConfigOpTypeSet})
	}
	for _, name := range q.Unset {
		entries = append(entries, kafka.ConfigEntry{Name: name, IncrementalOperation: kafka.AlterConfigOpTypeDelete})
	}
	return configsFailed(c.admin.IncrementalAlterConfigs(ctx, []kafka.ConfigResource{{Type: kafka.ResourceTopic, Name: q.Topic, Config: entries}}))
}

func (c *client) replaceConfigs(ctx context.Context, q *ask, _ *reply) error {
	entries := kafka.StringMapToConfigEntries(q.Configs, kafka.AlterOperationSet)
	return configsFailed(c.admin.AlterConfigs(ctx, []kafka.ConfigResource{{Type: kafka.ResourceTopic, Name: q.Topic, Config: entries}}))
}

func (c *client) deleteRecords(ctx context.Context, q *ask, _ *reply) error {
	results, err := c.admin.DeleteRecords(ctx, []kafka.TopicPartition{{Topic: &q.Topic, Partition: q.Partition, Offset: kafka.Offset(q.Offset)}})
	for _, one := range results.DeleteRecordsResults {
		err = errors.Join(err, one.TopicPartition.Error)
	}
	return err
}

func (c *client) listGroups(ctx context.Context, _ *ask, r *reply) error {
	groups, err := c.admin.ListConsumerGroups(ctx)
	for _, g := range groups.Valid {
		r.Groups = append(r.Groups, g.GroupID)
	}
	return errors.Join(append(groups.Errors, err)...)
}

func (c *client) describeGroup(ctx context.Context, q *ask, r *reply) error {
	groups, err := c.admin.DescribeConsumerGroups(ctx, []string{q.Group})
	if err != nil {
		return err
	}
	g := groups.ConsumerGroupDescriptions[0]
	r.State, r.Members = g.State.String(), len(g.Members)
	return failed(g.Error)
}

func (c *client) deleteGroup(ctx context.Context, q *ask, _ *reply) error {
	results, err := c.admin.DeleteConsumerGroups(ctx, []string{q.Group})
	for _, one := range results.ConsumerGroupResults {
		err = errors.Join(err, failed(one.Error))
	}
	return err
}

func (c *client) commitOffsets(ctx context.Context, q *ask, _ *reply) error {
	set := kafka.ConsumerGroupTopicPartitions{Group: q.Group}
	for p, at := range q.Offsets {
		set.Partitions = append(set.Partitions, kafka.TopicPartition{Topic: &q.Topic, Partition: p, Offset: kafka.Offset(at)})
	}
	results, err := c.admin.AlterConsumerGroupOffsets(ctx, []kafka.ConsumerGroupTopicPartitions{set})
	for _, group := range results.ConsumerGroupsTopicPartitions {
		for _, tp := range group.Partitions {
			err = errors.Join(err, tp.Error)
		}
	}
	return err
}

func (c *client) committed(ctx context.Context, q *ask, r *reply) error {
	results, err := c.admin.ListConsumerGroupOffsets(ctx, []kafka.ConsumerGroupTopicPartitions{{Group: q.Group}})
	r.Offsets = map[int32]int64{}
	for _, group := range results.ConsumerGroupsTopicPartitions {
		for _, tp := range group.Partitions {
			err = errors.Join(err, tp.Error)
			if *tp.Topic == q.Topic {
				r.Offsets[tp.Partition] = int64(tp.Offset)
			}
		}
	}
	return err
}
