package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// ElectLeaders (key 43), versions 0 to 2.
//
// A node that leads all of its partitions has nothing to elect and answers
// ELECTION_NOT_NEEDED. An unclean election of a damaged partition accepts what is
// lost, so that it takes records again; the message says which offsets that are.
// Null asks for all partitions, and the answer leaves out those that need none.
//
//	v1  the kind of election (KIP-460), top-level error
//	v2  flexible
//
// Left out: the timeout. The request is answered when it is done.
func electLeaders(ctx context.Context, c *conn, cl *call, req *kmsg.ElectLeadersRequest) kmsg.Response {
	resp := kmsg.NewPtrElectLeadersResponse()
	unclean := req.Version >= 1 && req.ElectionType == 1
	var want []broker.Election
	if req.Topics != nil {
		want = []broker.Election{}
	}
	for i := range req.Topics {
		for _, p := range req.Topics[i].Partitions {
			want = append(want, broker.Election{Topic: req.Topics[i].Topic, Partition: p})
		}
	}
	if req.Version >= 1 && req.ElectionType != 0 && req.ElectionType != 1 {
		resp.ErrorCode = cl.refuse(api.KafkaInvalidRequest)
		return resp
	}
	results, err := c.srv.opts.Broker.ElectLeaders(ctx, c.principal, unclean, want)
	if err != nil {
		resp.ErrorCode = cl.code(ctx, err)
		for _, e := range want {
			results = append(results, broker.ElectionResult{Election: e, Err: err})
		}
	}
	for i := range results {
		r := &results[i]
		out := kmsg.NewElectLeadersResponseTopicPartition()
		out.Partition, out.ErrorCode, out.ErrorMessage = r.Partition, cl.code(ctx, r.Err), message(r.Err)
		if r.Err == nil {
			out.ErrorMessage = &r.Note
		}
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != r.Topic {
			t := kmsg.NewElectLeadersResponseTopic()
			t.Topic = r.Topic
			resp.Topics = append(resp.Topics, t)
		}
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, out)
	}
	return resp
}
