package conformance

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/segmentio/kafka-go"
)

func (k *kafkaGo) metadata(ctx context.Context, _ ask) (r reply, err error) {
	meta, err := k.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return r, err
	}
	r.Topics, r.Nodes, r.Cluster = map[string]int{}, len(meta.Brokers), meta.ClusterID
	for _, topic := range meta.Topics {
		r.Topics[topic.Name] = len(topic.Partitions)
	}
	return r, nil
}

// joined is all errors of an answer, and that of the call.
func joined[K comparable](each map[K]error, err error) error {
	return errors.Join(append(slices.Collect(maps.Values(each)), err)...)
}

func (k *kafkaGo) createTopic(ctx context.Context, q ask) error {
	topic := kafka.TopicConfig{Topic: q.Topic, NumPartitions: q.Partitions, ReplicationFactor: 1}
	for name, value := range q.Configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	resp, err := k.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err != nil {
		return err
	}
	return joined(resp.Errors, nil)
}

func (k *kafkaGo) deleteTopic(ctx context.Context, q ask) error {
	resp, err := k.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{q.Topic}})
	if err != nil {
		return err
	}
	return joined(resp.Errors, nil)
}

func (k *kafkaGo) createPartitions(ctx context.Context, q ask) error {
	resp, err := k.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: q.Topic, Count: int32(q.Partitions)}}})
	if err != nil {
		return err
	}
	return joined(resp.Errors, nil)
}

func (k *kafkaGo) describeConfigs(ctx context.Context, q ask) (r reply, err error) {
	resp, err := k.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: q.Topic}},
	})
	if err != nil || len(resp.Resources) != 1 {
		return r, errors.Join(err, errors.New("no answer for the topic"))
	}
	r.Configs = map[string]string{}
	for _, e := range resp.Resources[0].ConfigEntries {
		r.Configs[e.ConfigName] = e.ConfigValue
	}
	return r, resp.Resources[0].Error
}

func (k *kafkaGo) alterConfigs(ctx context.Context, q ask) error {
	resource := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: q.Topic}
	for name, value := range q.Configs {
		resource.Configs = append(resource.Configs, kafka.IncrementalAlterConfigsRequestConfig{Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet})
	}
	for _, name := range q.Unset {
		resource.Configs = append(resource.Configs, kafka.IncrementalAlterConfigsRequestConfig{Name: name, ConfigOperation: kafka.ConfigOperationDelete})
	}
	resp, err := k.client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{resource}})
	if err != nil {
		return err
	}
	for _, one := range resp.Resources {
		err = errors.Join(err, one.Error)
	}
	return err
}

func (k *kafkaGo) replaceConfigs(ctx context.Context, q ask) error {
	resource := kafka.AlterConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: q.Topic}
	for name, value := range q.Configs {
		resource.Configs = append(resource.Configs, kafka.AlterConfigRequestConfig{Name: name, Value: value})
	}
	resp, err := k.client.AlterConfigs(ctx, &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{resource}})
	if err != nil {
		return err
	}
	return joined(resp.Errors, nil)
}

func (k *kafkaGo) listGroups(ctx context.Context, _ ask) (r reply, err error) {
	resp, err := k.client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return r, err
	}
	for _, g := range resp.Groups {
		r.Groups = append(r.Groups, g.GroupID)
	}
	return r, resp.Error
}

func (k *kafkaGo) describeGroup(ctx context.Context, q ask) (r reply, err error) {
	resp, err := k.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{q.Group}})
	if err != nil || len(resp.Groups) != 1 {
		return r, errors.Join(err, errors.New("no answer for the group"))
	}
	r.State, r.Members = resp.Groups[0].GroupState, len(resp.Groups[0].Members)
	return r, resp.Groups[0].Error
}

func (k *kafkaGo) deleteGroup(ctx context.Context, q ask) error {
	resp, err := k.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{q.Group}})
	if err != nil {
		return err
	}
	return joined(resp.Errors, nil)
}

func (k *kafkaGo) commitOffsets(ctx context.Context, q ask) error {
	var offsets []kafka.OffsetCommit
	for p, at := range q.Offsets {
		offsets = append(offsets, kafka.OffsetCommit{Partition: int(p), Offset: at})
	}
	resp, err := k.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: q.Group, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{q.Topic: offsets}})
	if err != nil {
		return err
	}
	for _, p := range resp.Topics[q.Topic] {
		err = errors.Join(err, p.Error)
	}
	return err
}

func (k *kafkaGo) committed(ctx context.Context, q ask) (r reply, err error) {
	all := []int{0, 1, 2, 3}
	resp, err := k.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: q.Group, Topics: map[string][]int{q.Topic: all}})
	if err != nil {
		return r, err
	}
	r.Offsets = map[int32]int64{}
	for _, p := range resp.Topics[q.Topic] {
		r.Offsets[int32(p.Partition)] = p.CommittedOffset
		err = errors.Join(err, p.Error)
	}
	return r, errors.Join(err, resp.Error)
}

func (k *kafkaGo) deleteOffsets(ctx context.Context, q ask) error {
	var partitions []int
	for p := range q.Offsets {
		partitions = append(partitions, int(p))
	}
	resp, err := k.client.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: q.Group, Topics: map[string][]int{q.Topic: partitions}})
	if err != nil {
		return err
	}
	for _, p := range resp.Topics[q.Topic] {
		err = errors.Join(err, p.Error)
	}
	return errors.Join(err, resp.Error)
}
