package conformance

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
)

func pointers(set map[string]string) map[string]*string {
	out := make(map[string]*string, len(set))
	for name, value := range set {
		out[name] = &value
	}
	return out
}

func (f *franz) createTopic(ctx context.Context, q ask) error {
	_, err := f.admin.CreateTopic(ctx, int32(q.Partitions), 1, pointers(q.Configs), q.Topic)
	return err
}

func (f *franz) deleteTopic(ctx context.Context, q ask) error {
	_, err := f.admin.DeleteTopic(ctx, q.Topic)
	return err
}

func (f *franz) createPartitions(ctx context.Context, q ask) error {
	r, err := f.admin.UpdatePartitions(ctx, q.Partitions, q.Topic)
	if err != nil {
		return err
	}
	return r.Error()
}

func (f *franz) describeConfigs(ctx context.Context, q ask) (r reply, err error) {
	all, err := f.admin.DescribeTopicConfigs(ctx, q.Topic)
	if err != nil {
		return r, err
	}
	one, err := all.On(q.Topic, nil)
	if err != nil {
		return r, err
	}
	r.Configs = map[string]string{}
	for _, kv := range one.Configs {
		r.Configs[kv.Key] = kv.MaybeValue()
	}
	return r, one.Err
}

func (f *franz) alterConfigs(ctx context.Context, q ask) error {
	var change []kadm.AlterConfig
	for name, value := range pointers(q.Configs) {
		change = append(change, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: value})
	}
	for _, name := range q.Unset {
		change = append(change, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	r, err := f.admin.AlterTopicConfigs(ctx, change, q.Topic)
	if err != nil {
		return err
	}
	_, err = r.On(q.Topic, func(one *kadm.AlterConfigsResponse) error { return one.Err })
	return err
}

func (f *franz) replaceConfigs(ctx context.Context, q ask) error {
	var change []kadm.AlterConfig
	for name, value := range pointers(q.Configs) {
		change = append(change, kadm.AlterConfig{Name: name, Value: value})
	}
	r, err := f.admin.AlterTopicConfigsState(ctx, change, q.Topic)
	if err != nil {
		return err
	}
	_, err = r.On(q.Topic, func(one *kadm.AlterConfigsResponse) error { return one.Err })
	return err
}

func (f *franz) deleteRecords(ctx context.Context, q ask) error {
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: q.Topic, Partition: q.Partition, At: q.Offset})
	r, err := f.admin.DeleteRecords(ctx, offsets)
	if err != nil {
		return err
	}
	return r.Error()
}

func (f *franz) listGroups(ctx context.Context, _ ask) (r reply, err error) {
	groups, err := f.admin.ListGroups(ctx)
	r.Groups = groups.Groups()
	return r, err
}

func (f *franz) describeGroup(ctx context.Context, q ask) (r reply, err error) {
	groups, err := f.admin.DescribeGroups(ctx, q.Group)
	if err != nil {
		return r, err
	}
	g := groups[q.Group]
	r.State, r.Members = g.State, len(g.Members)
	return r, g.Err
}

func (f *franz) deleteGroup(ctx context.Context, q ask) error {
	_, err := f.admin.DeleteGroup(ctx, q.Group)
	return err
}

func (f *franz) commitOffsets(ctx context.Context, q ask) error {
	offsets := kadm.Offsets{}
	for p, at := range q.Offsets {
		offsets.Add(kadm.Offset{Topic: q.Topic, Partition: p, At: at, LeaderEpoch: -1})
	}
	return f.admin.CommitAllOffsets(ctx, q.Group, offsets)
}

func (f *franz) committed(ctx context.Context, q ask) (r reply, err error) {
	offsets, err := f.admin.FetchOffsets(ctx, q.Group)
	if err != nil {
		return r, err
	}
	r.Offsets = map[int32]int64{}
	offsets.Each(func(o kadm.OffsetResponse) {
		if o.Topic == q.Topic {
			r.Offsets[o.Partition] = o.At
		}
	})
	return r, offsets.Error()
}

func (f *franz) deleteOffsets(ctx context.Context, q ask) error {
	set := kadm.TopicsSet{}
	for p := range q.Offsets {
		set.Add(q.Topic, p)
	}
	r, err := f.admin.DeleteOffsets(ctx, q.Group, set)
	if err != nil {
		return err
	}
	for _, partitions := range r {
		for p, err := range partitions {
			if err != nil {
				return fmt.Errorf("partition %d: %w", p, err)
			}
		}
	}
	return nil
}
