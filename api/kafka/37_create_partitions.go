package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// CreatePartitions (key 37), versions 0 to 3.
//
// The count is that of all partitions of the topic afterwards, more than there
// are. The new ones can be used when the answer arrives. A topic that stands
// twice in a request is refused each time and stays as it is.
//
//	v2  flexible
//	v3  a throttling error, never sent
//
// Left out: the timeout. The request is answered when the partitions are there.
func createPartitions(ctx context.Context, c *conn, cl *call, req *kmsg.CreatePartitionsRequest) kmsg.Response {
	resp := kmsg.NewPtrCreatePartitionsResponse()
	specs := make([]broker.PartitionsSpec, len(req.Topics))
	for i := range req.Topics {
		specs[i] = partitionsSpec(&req.Topics[i])
	}
	for i, r := range c.srv.opts.Broker.CreatePartitions(ctx, c.principal, specs, req.ValidateOnly) {
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic, out.ErrorCode, out.ErrorMessage = specs[i].Topic, cl.code(ctx, r.Err), message(r.Err)
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// partitionsSpec translates one topic of a request. A list of assignments that
// is null leaves the choice to the broker, one that is empty does not.
func partitionsSpec(in *kmsg.CreatePartitionsRequestTopic) broker.PartitionsSpec {
	spec := broker.PartitionsSpec{Topic: in.Topic, Count: in.Count}
	if in.Assignment != nil {
		spec.Assignments = make([][]int32, len(in.Assignment))
	}
	for i := range in.Assignment {
		spec.Assignments[i] = in.Assignment[i].Replicas
	}
	return spec
}
