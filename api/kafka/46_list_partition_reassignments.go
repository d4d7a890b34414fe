package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ListPartitionReassignments (key 46), version 0, flexible (KIP-455).
//
// One node has nowhere to move a replica to, so there is nothing to list,
// whichever topics are asked for; a topic that does not exist is left out, as
// Kafka does. The tools ask this to tell a moving partition from one that has
// lost a replica.
//
// Left out: the timeout. The request is answered at once.
func listPartitionReassignments(ctx context.Context, c *conn, cl *call, _ *kmsg.ListPartitionReassignmentsRequest) kmsg.Response {
	resp := kmsg.NewPtrListPartitionReassignmentsResponse()
	err := c.srv.opts.Broker.Reassignments(ctx, c.principal)
	resp.ErrorCode, resp.ErrorMessage = cl.code(ctx, err), message(err)
	return resp
}
