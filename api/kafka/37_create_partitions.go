package kafka

import (
	"context"
	"fmt"

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
	times := map[string]int{}
	for i := range req.Topics {
		times[req.Topics[i].Topic]++
	}
	var specs []broker.PartitionsSpec
	var places []int
	for i := range req.Topics {
		in := &req.Topics[i]
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = in.Topic
		if n := times[in.Topic]; n > 1 {
			err := fmt.Errorf("%w: topic %q is in the request %d times", broker.ErrInvalidRequest, in.Topic, n)
			out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
		} else {
			specs, places = append(specs, partitionsSpec(in)), append(places, i)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(specs) == 0 {
		return resp
	}
	for i, r := range c.srv.opts.Broker.CreatePartitions(ctx, c.principal, specs, req.ValidateOnly) {
		out := &resp.Topics[places[i]]
		out.ErrorCode, out.ErrorMessage = cl.code(ctx, r.Err), message(r.Err)
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
