package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// OffsetFetch (key 9), versions 1 to 9.
//
// A partition for which nothing was committed has the offset -1 and no error,
// and so has every partition of a group that does not exist. Only what is on
// disk is told. A partition that is named twice is answered once. A group that is
// named again is refused behind maxOffsetsTold offsets.
//
//	v2  null topics ask for all that was committed; an error for the group
//	v5  leader epochs
//	v6  flexible
//	v7  only offsets that no transaction may change; there are no others
//	v8  many groups in a request
//	v9  member and epoch of KIP-848, which are not looked at
//
// Left out: version 10, which has ids in the place of topic names and came for
// KIP-848 groups; clients go down to 9.
func offsetFetch(ctx context.Context, c *conn, cl *call, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetFetchResponse()
	if req.Version >= 8 {
		resp.Groups = c.offsetsOfGroups(ctx, cl, req.Groups)
		return resp
	}
	var queries []broker.TopicPartitions
	if req.Topics != nil || req.Version < 2 {
		queries = partitionsOnce(len(req.Topics), func(i int) (string, []int32) { return req.Topics[i].Topic, req.Topics[i].Partitions })
	}
	offsets, err := c.srv.opts.Broker.FetchOffsets(ctx, c.principal, req.Group, queries)
	if err != nil {
		resp.ErrorCode = cl.groupCode(ctx, err)
		offsets = unknownOffsets(queries, err)
	}
	for i := range offsets {
		o := &offsets[i]
		if last := len(resp.Topics) - 1; last < 0 || resp.Topics[last].Topic != o.Topic {
			t := kmsg.NewOffsetFetchResponseTopic()
			t.Topic = o.Topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewOffsetFetchResponseTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = o.Partition, o.Offset, o.LeaderEpoch, &o.Metadata, cl.groupCode(ctx, o.Err)
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return resp
}

// maxOffsetsTold is how many offsets an answer may have before a group that is
// named again is refused: an answer must not be as many times as large as what
// it tells as the client cares to ask.
const maxOffsetsTold = 10_000

func (c *conn) offsetsOfGroups(ctx context.Context, cl *call, groups []kmsg.OffsetFetchRequestGroup) (all []kmsg.OffsetFetchResponseGroup) {
	told, named := 0, map[string]bool{}
	for i := range groups {
		in := &groups[i]
		if named[in.Group] && told >= maxOffsetsTold {
			out := kmsg.NewOffsetFetchResponseGroup()
			out.Group, out.ErrorCode = in.Group, cl.refuse(api.KafkaInvalidRequest)
			all = append(all, out)
			continue
		}
		named[in.Group] = true
		out := c.groupOffsets(ctx, cl, in)
		for j := range out.Topics {
			told += len(out.Topics[j].Partitions)
		}
		all = append(all, out)
	}
	return all
}

// partitionsOnce are the partitions of n topics of a request, each once. It is
// not nil.
func partitionsOnce(n int, at func(i int) (topic string, partitions []int32)) []broker.TopicPartitions {
	seen := map[topicPartition]bool{}
	out := make([]broker.TopicPartitions, 0, n)
	for i := range n {
		topic, partitions := at(i)
		q := broker.TopicPartitions{Topic: topic}
		for _, p := range partitions {
			if named := (topicPartition{topic, p}); !seen[named] {
				seen[named] = true
				q.Partitions = append(q.Partitions, p)
			}
		}
		out = append(out, q)
	}
	return out
}

// unknownOffsets answers each partition with the error of the group, which has
// no place of its own in version 1.
func unknownOffsets(queries []broker.TopicPartitions, err error) []broker.CommittedOffset {
	var out []broker.CommittedOffset
	for _, q := range queries {
		for _, p := range q.Partitions {
			out = append(out, broker.CommittedOffset{Topic: q.Topic, Partition: p, Offset: -1, LeaderEpoch: -1, Err: err})
		}
	}
	return out
}

// groupOffsets answers for one of many groups.
func (c *conn) groupOffsets(ctx context.Context, cl *call, in *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	out := kmsg.NewOffsetFetchResponseGroup()
	out.Group = in.Group
	var queries []broker.TopicPartitions
	if in.Topics != nil {
		queries = partitionsOnce(len(in.Topics), func(i int) (string, []int32) { return in.Topics[i].Topic, in.Topics[i].Partitions })
	}
	offsets, err := c.srv.opts.Broker.FetchOffsets(ctx, c.principal, in.Group, queries)
	if err != nil {
		out.ErrorCode = cl.groupCode(ctx, err)
		return out
	}
	for i := range offsets {
		o := &offsets[i]
		if last := len(out.Topics) - 1; last < 0 || out.Topics[last].Topic != o.Topic {
			t := kmsg.NewOffsetFetchResponseGroupTopic()
			t.Topic = o.Topic
			out.Topics = append(out.Topics, t)
		}
		p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = o.Partition, o.Offset, o.LeaderEpoch, &o.Metadata, cl.groupCode(ctx, o.Err)
		t := &out.Topics[len(out.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return out
}
