package conformance

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

func metadata(c *check) error {
	if err := c.create(3); err != nil {
		return err
	}
	r, err := c.do(ask{Op: "metadata"})
	if err != nil {
		return err
	}
	if r.Topics[c.topic] != 3 || r.Nodes != 1 {
		return fmt.Errorf("%d partitions on %d nodes, want 3 on one", r.Topics[c.topic], r.Nodes)
	}
	meta, err := c.oracle.admin.BrokerMetadata(c.ctx)
	if err != nil {
		return err
	}
	if r.Cluster != "" && r.Cluster != meta.Cluster {
		return fmt.Errorf("cluster %q, want %q", r.Cluster, meta.Cluster)
	}
	return nil
}

// topicConfig is what the reference sees of a config of the check's topic, and whether the topic itself sets it.
func (c *check) topicConfig(name string) (value string, own bool, err error) {
	all, err := c.oracle.admin.DescribeTopicConfigs(c.ctx, c.topic)
	if err != nil {
		return "", false, err
	}
	one, err := all.On(c.topic, nil)
	if err != nil {
		return "", false, err
	}
	for _, kv := range one.Configs {
		if kv.Key == name {
			return kv.MaybeValue(), kv.Source.String() == "DYNAMIC_TOPIC_CONFIG", nil
		}
	}
	return "", false, fmt.Errorf("no config %s", name)
}

func (c *check) wantConfig(name, value string, own bool) error {
	got, is, err := c.topicConfig(name)
	if err == nil && (is != own || own && got != value) {
		err = fmt.Errorf("%s is %q, set on the topic: %v; want %q, %v", name, got, is, value, own)
	}
	return err
}

// createTopic makes a topic with a config, which cannot be made twice, and one with a config that there is none of.
func createTopic(c *check) error {
	q := ask{Op: "create_topic", Topic: c.topic, Partitions: 3, Configs: map[string]string{"retention.ms": "86400000"}}
	if _, err := c.do(q); err != nil {
		return err
	}
	topics, err := c.oracle.admin.ListTopics(c.ctx, c.topic)
	if err != nil {
		return err
	}
	if n := len(topics[c.topic].Partitions); n != 3 {
		return fmt.Errorf("%d partitions, want 3", n)
	}
	if err := c.wantConfig("retention.ms", "86400000", true); err != nil {
		return err
	}
	if err := c.refused(q, "TOPIC_ALREADY_EXISTS", "already exists"); err != nil {
		return err
	}
	q.Topic += "-bad"
	q.Configs = map[string]string{"retention.ms": "soon"}
	return c.refused(q, "INVALID_CONFIG", "invalid config", "configuration is invalid")
}

func deleteTopic(c *check) error {
	if err := c.create(2); err != nil {
		return err
	}
	q := ask{Op: "delete_topic", Topic: c.topic}
	if _, err := c.do(q); err != nil {
		return err
	}
	topics, err := c.oracle.admin.ListTopics(c.ctx)
	if err != nil {
		return err
	}
	if topics.Has(c.topic) {
		return errors.New("the topic is still there")
	}
	return c.refused(q, noTopic...)
}

func createPartitions(c *check) error {
	if err := c.create(2); err != nil {
		return err
	}
	q := ask{Op: "create_partitions", Topic: c.topic, Partitions: 5}
	if _, err := c.do(q); err != nil {
		return err
	}
	topics, err := c.oracle.admin.ListTopics(c.ctx, c.topic)
	if err != nil {
		return err
	}
	if n := len(topics[c.topic].Partitions); n != 5 {
		return fmt.Errorf("%d partitions, want 5", n)
	}
	q.Partitions = 3
	return c.refused(q, "INVALID_PARTITIONS", "number of partitions", "invalid partition")
}

func describeConfigs(c *check) error {
	if err := c.create(1, "retention.ms", "3600000", "cleanup.policy", "compact"); err != nil {
		return err
	}
	r, err := c.do(ask{Op: "describe_configs", Topic: c.topic})
	if err != nil {
		return err
	}
	for name, want := range map[string]string{"retention.ms": "3600000", "cleanup.policy": "compact", "max.message.bytes": "1048588"} {
		if r.Configs[name] != want {
			return fmt.Errorf("%s is %q, want %q", name, r.Configs[name], want)
		}
	}
	return nil
}

func alterConfigs(c *check) error {
	if err := c.create(1, "retention.ms", "3600000", "segment.bytes", "2097152"); err != nil {
		return err
	}
	q := ask{Op: "alter_configs", Topic: c.topic, Configs: map[string]string{"max.message.bytes": "70000"}, Unset: []string{"retention.ms"}}
	if _, err := c.do(q); err != nil {
		return err
	}
	return errors.Join(c.wantConfig("max.message.bytes", "70000", true), c.wantConfig("segment.bytes", "2097152", true), c.wantConfig("retention.ms", "", false))
}

func replaceConfigs(c *check) error {
	if err := c.create(1, "retention.ms", "3600000"); err != nil {
		return err
	}
	q := ask{Op: "replace_configs", Topic: c.topic, Configs: map[string]string{"max.message.bytes": "70000"}}
	if _, err := c.do(q); err != nil {
		return err
	}
	return errors.Join(c.wantConfig("max.message.bytes", "70000", true), c.wantConfig("retention.ms", "", false))
}

func deleteRecords(c *check) error {
	records, err := c.fill(40)
	if err != nil {
		return err
	}
	if _, err := c.do(ask{Op: "delete_records", Topic: c.topic, Offset: 25}); err != nil {
		return err
	}
	starts, err := c.oracle.admin.ListStartOffsets(c.ctx, c.topic)
	if err != nil {
		return err
	}
	if start, _ := starts.Lookup(c.topic, 0); start.Offset != 25 {
		return fmt.Errorf("the partition starts at %d, want 25", start.Offset)
	}
	left, err := c.oracle.read(c.ctx, c.topic, 0, 15)
	if err != nil {
		return err
	}
	if err := samePlace(left, records[25:]); err != nil {
		return err
	}
	return c.refused(ask{Op: "delete_records", Topic: c.topic, Offset: 41}, kerr.OffsetOutOfRange.Message, "out of range", "outside the range")
}
