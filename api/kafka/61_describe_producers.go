package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// DescribeProducers (key 61), version 0, flexible (KIP-664).
//
// The idempotent producers that a partition remembers: epoch, sequence of the
// last record, and when the broker took it. That is the broker's time and not
// the record's, because it is the one by which producer.id.expiration.ms
// forgets a producer. A partition that stands twice in a request is refused
// each time, and so is each that comes after maxProducersTold.
//
// Left out: transactions, so the coordinator's epoch and the first offset of a
// transaction are always -1.
func describeProducers(ctx context.Context, c *conn, cl *call, req *kmsg.DescribeProducersRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeProducersResponse()
	times := map[topicPartition]int{}
	for i := range req.Topics {
		for _, p := range req.Topics[i].Partitions {
			times[topicPartition{req.Topics[i].Topic, p}]++
		}
	}
	told := 0
	for i := range req.Topics {
		in := &req.Topics[i]
		t := kmsg.NewDescribeProducersResponseTopic()
		t.Topic = in.Topic
		for _, partition := range in.Partitions {
			out := kmsg.NewDescribeProducersResponseTopicPartition()
			out.Partition = partition
			producers, err := c.producers(ctx, topicPartition{in.Topic, partition}, times, told)
			out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
			out.ActiveProducers = describedProducers(producers)
			told += len(producers)
			t.Partitions = append(t.Partitions, out)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

// maxProducersTold is how many producers one answer may have before its last
// partition: a partition has up to 65,536 of them, and a request may name any
// number of partitions.
const maxProducersTold = 65_536

// producers are those of one partition of a request, after so many of others.
func (c *conn) producers(ctx context.Context, at topicPartition, times map[topicPartition]int, told int) ([]broker.Producer, error) {
	if n := times[at]; n > 1 {
		return nil, fmt.Errorf("%w: the partition is in the request %d times", broker.ErrInvalidRequest, n)
	}
	if told > maxProducersTold {
		return nil, fmt.Errorf("%w: the partitions before this one have more than %d producers; ask for fewer partitions", broker.ErrInvalidRequest, maxProducersTold)
	}
	return c.srv.opts.Broker.Producers(ctx, c.principal, at.topic, at.partition)
}

func describedProducers(in []broker.Producer) []kmsg.DescribeProducersResponseTopicPartitionActiveProducer {
	out := make([]kmsg.DescribeProducersResponseTopicPartitionActiveProducer, len(in))
	for i := range in {
		p := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		p.ProducerID, p.ProducerEpoch, p.LastSequence = in[i].ID, int32(in[i].Epoch), in[i].LastSequence
		p.LastTimestamp, p.CoordinatorEpoch = in[i].LastWrite.UnixMilli(), -1
		out[i] = p
	}
	return out
}
