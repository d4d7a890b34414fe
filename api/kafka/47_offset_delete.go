package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// OffsetDelete (key 47), version 0, which is never flexible (KIP-496). Offsets of
// topics that a member reads stay.
func offsetDelete(ctx context.Context, c *conn, cl *call, req *kmsg.OffsetDeleteRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	queries := make([]broker.TopicPartitions, len(req.Topics))
	for i := range req.Topics {
		queries[i].Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			queries[i].Partitions = append(queries[i].Partitions, req.Topics[i].Partitions[j].Partition)
		}
	}
	errs, err := c.srv.opts.Broker.DeleteOffsets(ctx, c.principal, req.Group, queries)
	if err != nil {
		resp.ErrorCode = cl.groupCode(ctx, err)
		return resp
	}
	for i := range queries {
		t := kmsg.NewOffsetDeleteResponseTopic()
		t.Topic = queries[i].Topic
		for _, partition := range queries[i].Partitions {
			p := kmsg.NewOffsetDeleteResponseTopicPartition()
			p.Partition, p.ErrorCode = partition, cl.groupCode(ctx, errs[0])
			errs = errs[1:]
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}
