package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// OffsetForLeaderEpoch (key 23), versions 2 to 4.
//
// A reader that knows the leader epoch of its last record learns where that
// epoch ended, and so whether what it read is still in the log (KIP-320). The
// answer is the largest epoch there is that is not larger than the asked one,
// and where the next one begins or the log ends; -1 and -1 for an epoch that the
// log does not know. The epoch that the reader takes for current is checked
// first. librdkafka speaks version 2 and no other.
//
//	v2  the current leader epoch
//	v3  the id of a follower
//	v4  flexible
//
// Left out: followers do not ask here, so every replica id is a reader's.
func offsetForLeaderEpoch(ctx context.Context, c *conn, cl *call, req *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	var places []partPlace
	var queries []broker.EpochQuery
	for i := range req.Topics {
		in := &req.Topics[i]
		t := kmsg.NewOffsetForLeaderEpochResponseTopic()
		t.Topic = in.Topic
		t.Partitions = make([]kmsg.OffsetForLeaderEpochResponseTopicPartition, len(in.Partitions))
		for j := range in.Partitions {
			p := &in.Partitions[j]
			t.Partitions[j] = kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			t.Partitions[j].Partition = p.Partition
			places = append(places, partPlace{i, j})
			queries = append(queries, broker.EpochQuery{
				Topic: in.Topic, Partition: p.Partition, CurrentEpoch: p.CurrentLeaderEpoch, Epoch: p.LeaderEpoch,
			})
		}
		resp.Topics = append(resp.Topics, t)
	}
	for i, r := range c.srv.opts.Broker.EpochEnds(ctx, c.principal, queries) {
		out := &resp.Topics[places[i].topic].Partitions[places[i].part]
		out.ErrorCode = cl.code(ctx, r.Err)
		if r.Err == nil {
			out.LeaderEpoch, out.EndOffset = r.Epoch, r.EndOffset
		}
	}
	return resp
}
