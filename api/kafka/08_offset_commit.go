package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// OffsetCommit (key 8), versions 1 to 9.
//
// The offsets are on disk when the answer arrives. One that is refused, for a
// topic or partition that does not exist or a text that is too long, does not
// keep the others from being committed; if the member may not commit, nothing
// is. A commit of nothing is answered with nothing.
//
//	v1  member and generation; the timestamp of this version is not used
//	v2  the client says how long the offsets are kept, until v4
//	v6  leader epochs
//	v7  static members
//	v8  flexible
//	v9  the generation may be the epoch of a KIP-848 member, which there are none of
//
// Left out: version 10, which has ids in the place of topic names and came for
// KIP-848 groups; clients go down to 9.
func offsetCommit(ctx context.Context, c *conn, cl *call, req *kmsg.OffsetCommitRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetCommitResponse()
	var offsets []broker.CommitOffset
	var places []partPlace
	for i := range req.Topics {
		in := &req.Topics[i]
		t := kmsg.NewOffsetCommitResponseTopic()
		t.Topic = in.Topic
		for j := range in.Partitions {
			p := &in.Partitions[j]
			out := kmsg.NewOffsetCommitResponseTopicPartition()
			out.Partition = p.Partition
			t.Partitions = append(t.Partitions, out)
			places = append(places, partPlace{i, j})
			offsets = append(offsets, broker.CommitOffset{
				Topic: in.Topic, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: text(p.Metadata),
			})
		}
		resp.Topics = append(resp.Topics, t)
	}
	member := broker.MemberRef{ID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation}
	errs, err := c.srv.opts.Broker.CommitOffsets(ctx, c.principal, req.Group, member, req.RetentionTimeMillis, offsets)
	for i, place := range places {
		failed := err
		if failed == nil {
			failed = errs[i]
		}
		resp.Topics[place.topic].Partitions[place.part].ErrorCode = cl.groupCode(ctx, failed)
	}
	return resp
}
