package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// CreateTopics (key 19), versions 2 to 7.
//
// The topics can be used when the answer arrives. -1 partitions or replicas
// mean the server's default, in all versions. A name that stands twice in a
// request is refused each time and not made, and so is every topic of a request
// with more than maxTopicsMade, because the answer tells each one's configs.
//
//	v4  -1 for partitions and replication factor (KIP-464)
//	v5  flexible; the answer tells partitions, replication factor and configs
//	v6  a throttling error, never sent
//	v7  topic ids in the answer
//
// Left out: the timeout. The request is answered when the topics are there.
func createTopics(ctx context.Context, c *conn, cl *call, req *kmsg.CreateTopicsRequest) kmsg.Response {
	resp := kmsg.NewPtrCreateTopicsResponse()
	count := map[string]int{}
	for i := range req.Topics {
		count[req.Topics[i].Topic]++
	}
	var specs []broker.TopicSpec
	var places []int
	for i := range req.Topics {
		in := &req.Topics[i]
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic, out.NumPartitions, out.ReplicationFactor = in.Topic, -1, -1
		resp.Topics = append(resp.Topics, out)
		spec, err := topicSpec(in)
		switch {
		case len(req.Topics) > maxTopicsMade:
			err = fmt.Errorf("%w: %d topics in a request, at most %d are made", broker.ErrPolicyViolation, len(req.Topics), maxTopicsMade)
		case count[in.Topic] > 1:
			err = fmt.Errorf("%w: topic %q is in the request %d times", broker.ErrInvalidRequest, in.Topic, count[in.Topic])
		}
		if err != nil {
			createFailed(ctx, cl, &resp.Topics[i], err)
			continue
		}
		specs, places = append(specs, spec), append(places, i)
	}
	if len(specs) == 0 {
		return resp
	}
	for i, r := range c.srv.opts.Broker.CreateTopics(ctx, c.principal, specs, req.ValidateOnly) {
		out := &resp.Topics[places[i]]
		if r.Err != nil {
			createFailed(ctx, cl, out, r.Err)
			continue
		}
		createdTopic(out, &r, req.ValidateOnly)
	}
	return resp
}

// maxTopicsMade bounds the topics of one request. Kafka has such a limit, too.
const maxTopicsMade = 5_000

func createFailed(ctx context.Context, cl *call, out *kmsg.CreateTopicsResponseTopic, err error) {
	out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
}

// createdTopic fills in what was made, or would be.
func createdTopic(out *kmsg.CreateTopicsResponseTopic, r *broker.TopicResult, validateOnly bool) {
	if !validateOnly {
		out.TopicID = r.Topic.ID
	}
	out.NumPartitions = int32(len(r.Topic.Partitions))
	if len(r.Topic.Partitions) > 0 {
		out.ReplicationFactor = int16(len(r.Topic.Partitions[0].Replicas))
	}
	out.Configs = []kmsg.CreateTopicsResponseTopicConfig{}
	for i := range r.Configs {
		cfg := kmsg.NewCreateTopicsResponseTopicConfig()
		cfg.Name, cfg.Value, cfg.Source = r.Configs[i].Name, &r.Configs[i].Value, int8(r.Configs[i].Source)
		out.Configs = append(out.Configs, cfg)
	}
}

// topicSpec translates one topic of a request. A config that is null is one
// that was not given.
func topicSpec(in *kmsg.CreateTopicsRequestTopic) (broker.TopicSpec, error) {
	spec := broker.TopicSpec{
		Name: in.Topic, Partitions: in.NumPartitions, ReplicationFactor: in.ReplicationFactor,
		Configs: map[string]string{},
	}
	for i := range in.Configs {
		name := in.Configs[i].Name
		if _, twice := spec.Configs[name]; twice {
			return spec, fmt.Errorf("%w: config %q is given twice", broker.ErrInvalidConfig, name)
		}
		if in.Configs[i].Value != nil {
			spec.Configs[name] = *in.Configs[i].Value
		}
	}
	if len(in.ReplicaAssignment) == 0 {
		return spec, nil
	}
	spec.Assignments = map[int32][]int32{}
	for i := range in.ReplicaAssignment {
		a := &in.ReplicaAssignment[i]
		if _, twice := spec.Assignments[a.Partition]; twice {
			return spec, fmt.Errorf("%w: partition %d is assigned twice", broker.ErrInvalidAssignment, a.Partition)
		}
		spec.Assignments[a.Partition] = a.Replicas
	}
	return spec, nil
}
