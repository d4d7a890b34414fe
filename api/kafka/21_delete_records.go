package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// DeleteRecords (key 21), versions 0 to 2.
//
// Records before the offset are gone for every reader, and for good, when the
// answer arrives; -1 means the high watermark. An offset that the log has passed
// already changes nothing and is answered with the low watermark there is. A
// partition that stands twice in a request is refused each time.
//
//	v1  throttled after the answer, as all versions are
//	v2  flexible
//
// Left out: the timeout. The request is answered when the records are gone.
func deleteRecords(ctx context.Context, c *conn, cl *call, req *kmsg.DeleteRecordsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteRecordsResponse()
	times := map[topicPartition]int{}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			times[topicPartition{req.Topics[i].Topic, req.Topics[i].Partitions[j].Partition}]++
		}
	}
	var places []partPlace
	var specs []broker.DeleteRecordsSpec
	for i := range req.Topics {
		in := &req.Topics[i]
		t := kmsg.NewDeleteRecordsResponseTopic()
		t.Topic = in.Topic
		for j := range in.Partitions {
			p := &in.Partitions[j]
			out := kmsg.NewDeleteRecordsResponseTopicPartition()
			out.Partition, out.LowWatermark = p.Partition, -1
			if times[topicPartition{in.Topic, p.Partition}] > 1 {
				out.ErrorCode = cl.refuse(api.KafkaInvalidRequest)
			} else {
				places = append(places, partPlace{i, j})
				specs = append(specs, broker.DeleteRecordsSpec{Topic: in.Topic, Partition: p.Partition, Offset: p.Offset})
			}
			t.Partitions = append(t.Partitions, out)
		}
		resp.Topics = append(resp.Topics, t)
	}
	if len(specs) == 0 {
		return resp
	}
	for i, r := range c.srv.opts.Broker.DeleteRecords(ctx, c.principal, specs) {
		out := &resp.Topics[places[i].topic].Partitions[places[i].part]
		out.ErrorCode = cl.code(ctx, r.Err)
		if r.Err == nil {
			out.LowWatermark = r.LowWatermark
		}
	}
	return resp
}
