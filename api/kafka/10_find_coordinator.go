package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// FindCoordinator (key 10), versions 0 to 4.
//
// The coordinator of a group is the node that has its partition of the offsets
// topic. A key that is named twice is answered once.
//
//	v1  coordinator type, error text
//	v3  flexible
//	v4  many keys in a request
//
// Left out: transactions and share groups. Their ids are refused with
// UNSUPPORTED_VERSION and a text: COORDINATOR_NOT_AVAILABLE, the usual code, is
// retriable, and producers would wait for ever without a word. With 35 the Java
// client, franz-go and Sarama fail the call, librdkafka reports an error to the
// application. Version 5 has one more error of transactions, version 6 share
// groups.
func findCoordinator(ctx context.Context, c *conn, cl *call, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	if req.Version < 4 {
		out := c.coordinator(ctx, cl, req.CoordinatorType, req.CoordinatorKey)
		resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Host, resp.Port = out.ErrorCode, out.ErrorMessage, out.NodeID, out.Host, out.Port
		return resp
	}
	for _, key := range once(req.CoordinatorKeys) {
		resp.Coordinators = append(resp.Coordinators, c.coordinator(ctx, cl, req.CoordinatorType, key))
	}
	return resp
}

// The types of coordinators.
const (
	groupCoordinator       = 0
	transactionCoordinator = 1
)

// coordinator finds the coordinator of one key.
func (c *conn) coordinator(ctx context.Context, cl *call, kind int8, key string) kmsg.FindCoordinatorResponseCoordinator {
	out := kmsg.NewFindCoordinatorResponseCoordinator()
	out.Key, out.NodeID, out.Port = key, -1, -1
	if kind != groupCoordinator {
		text := "this coordinator type is not supported by this server"
		if kind == transactionCoordinator {
			text = broker.ErrTransactionState.Error()
		}
		out.ErrorCode, out.ErrorMessage = cl.refuse(api.KafkaUnsupportedVersion), &text
		return out
	}
	node, err := c.srv.opts.Broker.Coordinator(c.principal, key)
	if err != nil {
		out.ErrorCode, out.ErrorMessage = cl.groupCode(ctx, err), message(err)
		return out
	}
	out.NodeID, out.Host, out.Port = node.ID, node.Host, node.Port
	return out
}
