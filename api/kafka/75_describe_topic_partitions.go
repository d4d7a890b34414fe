package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// DescribeTopicPartitions (key 75), version 0, flexible (KIP-966).
//
// Topics in the order of their names, page by page: an answer has at most
// maxPagePartitions partitions, or fewer if the client says so, and names the
// partition with which the next page begins. A topic with an error counts as
// one partition. An empty list asks for all topics; of a list, the cursor's
// topic must be one. Nothing is created. A topic that is deleted between two
// pages is passed over if all are asked for. A cursor that is wrong makes every
// topic of the list INVALID_REQUEST; with an empty list there is no place for
// an error, and the answer is empty.
//
// Left out: eligible leader replicas, of which one node has none.
func describeTopicPartitions(ctx context.Context, c *conn, cl *call, req *kmsg.DescribeTopicPartitionsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeTopicPartitionsResponse()
	names, err := c.namesFrom(ctx, req)
	if err != nil {
		for i := range req.Topics {
			resp.Topics = append(resp.Topics, undescribed(req.Topics[i].Topic, cl.code(ctx, err)))
		}
		return resp
	}
	room := min(max(int(req.ResponsePartitionLimit), 1), maxPagePartitions)
	for _, name := range names {
		if room == 0 {
			resp.NextCursor = cursorAt(name, 0)
			break
		}
		topic, err := c.srv.opts.Broker.Topic(ctx, c.principal, broker.TopicRef{Name: name})
		if err != nil {
			if len(req.Topics) > 0 {
				resp.Topics = append(resp.Topics, undescribed(name, cl.code(ctx, err)))
				room--
			}
			continue
		}
		from := 0
		if req.Cursor != nil && req.Cursor.Topic == name {
			from = min(int(req.Cursor.Partition), len(topic.Partitions))
		}
		to := min(from+room, len(topic.Partitions))
		resp.Topics = append(resp.Topics, c.describedTopic(&topic, from, to))
		if to < len(topic.Partitions) {
			resp.NextCursor = cursorAt(name, to)
			break
		}
		room -= to - from
	}
	return resp
}

// maxPagePartitions is how many partitions one answer has at most, as Kafka's
// max.request.partition.size.limit.
const maxPagePartitions = 2000

// namesFrom are the topics of a request, each once and in order, from the
// cursor's on.
func (c *conn) namesFrom(ctx context.Context, req *kmsg.DescribeTopicPartitionsRequest) ([]string, error) {
	var names []string
	for i := range req.Topics {
		names = append(names, req.Topics[i].Topic)
	}
	if len(names) == 0 {
		names = c.srv.opts.Broker.TopicNames(ctx, c.principal)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if req.Cursor == nil {
		return names, nil
	}
	first, found := slices.BinarySearch(names, req.Cursor.Topic)
	switch {
	case req.Cursor.Partition < 0:
		return nil, fmt.Errorf("%w: the cursor's partition is %d", broker.ErrInvalidRequest, req.Cursor.Partition)
	case len(req.Topics) > 0 && !found:
		return nil, fmt.Errorf("%w: the cursor's topic %q is not in the list", broker.ErrInvalidRequest, req.Cursor.Topic)
	}
	return names[first:], nil
}

func cursorAt(topic string, partition int) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	next := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	next.Topic, next.Partition = topic, int32(partition)
	return &next
}

func undescribed(name string, code int16) kmsg.DescribeTopicPartitionsResponseTopic {
	t := kmsg.NewDescribeTopicPartitionsResponseTopic()
	t.Topic, t.ErrorCode = &name, code
	return t
}

// describedTopic is a topic with its partitions [from, to). A leader is named
// only if the answer of Metadata tells its address.
func (c *conn) describedTopic(in *broker.Topic, from, to int) kmsg.DescribeTopicPartitionsResponseTopic {
	t := kmsg.NewDescribeTopicPartitionsResponseTopic()
	t.Topic, t.TopicID, t.IsInternal = &in.Name, in.ID, in.Internal
	t.AuthorizedOperations = c.topicOperations(in.Name)
	nodes := c.srv.opts.Broker.Nodes()
	for i := from; i < to; i++ {
		p := &in.Partitions[i]
		out := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
		out.Partition, out.LeaderID, out.LeaderEpoch = p.Index, p.Leader, p.LeaderEpoch
		out.Replicas, out.ISR, out.OfflineReplicas = p.Replicas, p.ISR, p.Offline
		out.EligibleLeaderReplicas, out.LastKnownELR = []int32{}, []int32{}
		if !slices.ContainsFunc(nodes, func(n broker.Node) bool { return n.ID == p.Leader }) {
			out.ErrorCode, out.LeaderID = api.KafkaLeaderNotAvailable, -1
		}
		t.Partitions = append(t.Partitions, out)
	}
	return t
}
