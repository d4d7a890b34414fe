package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// ListOffsets (key 2), versions 1 to 10.
//
// A time gives the first record that is not older, exactly, with its own time;
// none gives offset -1 and time -1 without an error. Only committed records
// count.
//
//	v2  isolation level
//	v4  leader epoch, checked and answered
//	v6  flexible
//	v7  timestamp -3: the record with the largest time (KIP-734)
//	v8  timestamp -4: earliest local, as -2
//	v9  timestamp -5: last tiered, there is none
//	v10 timeout, of no use without tiers
//
// A timestamp that the version does not have gets UNSUPPORTED_VERSION; a
// partition that is asked for twice, INVALID_REQUEST, each time.
//
// Left out: the isolation level, since without transactions the last stable
// offset is the high watermark. Version 11 knows the timestamp -6, which is about
// tiers.
func listOffsets(ctx context.Context, c *conn, cl *call, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := kmsg.NewPtrListOffsetsResponse()
	var places []partPlace
	var queries []broker.OffsetQuery
	times := timesAsked(req)
	for i := range req.Topics {
		in := &req.Topics[i]
		t := kmsg.NewListOffsetsResponseTopic()
		t.Topic = in.Topic
		for j := range in.Partitions {
			p := &in.Partitions[j]
			out := kmsg.NewListOffsetsResponseTopicPartition()
			out.Partition, out.Offset, out.Timestamp, out.LeaderEpoch = p.Partition, -1, -1, -1
			switch {
			case times[topicPartition{in.Topic, p.Partition}] > 1:
				out.ErrorCode = cl.refuse(api.KafkaInvalidRequest)
			case !timestampKnown(p.Timestamp, req.Version):
				out.ErrorCode = cl.refuse(api.KafkaUnsupportedVersion)
			default:
				places = append(places, partPlace{i, j})
				queries = append(queries, broker.OffsetQuery{
					Topic: in.Topic, Partition: p.Partition, Timestamp: p.Timestamp, Epoch: p.CurrentLeaderEpoch,
				})
			}
			t.Partitions = append(t.Partitions, out)
		}
		resp.Topics = append(resp.Topics, t)
	}
	for i, r := range c.srv.opts.Broker.ListOffsets(ctx, c.principal, queries) {
		out := &resp.Topics[places[i].topic].Partitions[places[i].part]
		out.ErrorCode = cl.code(ctx, r.Err)
		if r.Err == nil {
			out.Offset, out.Timestamp, out.LeaderEpoch = r.Offset, r.Timestamp, r.Epoch
		}
	}
	return resp
}

type topicPartition struct {
	topic     string
	partition int32
}

// partPlace is where a partition stands in a request and its answer.
type partPlace struct{ topic, part int }

func timesAsked(req *kmsg.ListOffsetsRequest) map[topicPartition]int {
	times := map[topicPartition]int{}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			times[topicPartition{req.Topics[i].Topic, req.Topics[i].Partitions[j].Partition}]++
		}
	}
	return times
}

// timestampKnown reports whether a version of the API has the timestamp.
func timestampKnown(ts int64, version int16) bool {
	switch ts {
	case broker.OffsetMaxTimestamp:
		return version >= 7
	case broker.OffsetEarliestLocal:
		return version >= 8
	case broker.OffsetLatestTiered:
		return version >= 9
	default:
		return ts >= broker.OffsetEarliest
	}
}
