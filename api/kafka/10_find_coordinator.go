package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// FindCoordinator (key 10), versions 0 to 4.
//
// This server has neither groups nor transactions yet, and says so at the first
// request that every client sends for them: UNSUPPORTED_VERSION with a text.
// The code was chosen by what clients do with it. COORDINATOR_NOT_AVAILABLE, the
// usual one, is retriable: consumers would wait for ever without a word. With
// 35 the Java client, franz-go and Sarama fail the call and show the text or
// "the version of API is not supported", librdkafka reports an error to the
// application. An authorization error would be as final, but send the operator
// to look for rights that are not missing. Naming this node as coordinator would
// only move the failure to APIs that are not advertised.
//
// The API is advertised all the same, because librdkafka before 2.11 looks for
// version 0 before it sends LZ4.
//
//	v1  coordinator type, error text
//	v3  flexible
//	v4  many keys in a request
func findCoordinator(_ context.Context, _ *conn, cl *call, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	text := "consumer groups are not supported by this server"
	switch req.CoordinatorType {
	case 0:
	case 1:
		text = errTransaction.Error()
	default:
		text = "this coordinator type is not supported by this server"
	}
	resp := kmsg.NewPtrFindCoordinatorResponse()
	if req.Version < 4 {
		resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Port = cl.refuse(api.KafkaUnsupportedVersion), &text, -1, -1
		return resp
	}
	for _, key := range req.CoordinatorKeys {
		out := kmsg.NewFindCoordinatorResponseCoordinator()
		out.Key, out.NodeID, out.Port = key, -1, -1
		out.ErrorCode, out.ErrorMessage = cl.refuse(api.KafkaUnsupportedVersion), &text
		resp.Coordinators = append(resp.Coordinators, out)
	}
	return resp
}
