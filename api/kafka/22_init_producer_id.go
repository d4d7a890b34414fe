package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// InitProducerId (key 22), versions 0 to 4.
//
// Without a transactional id every call gets a fresh producer id with epoch 0,
// also a client that tells its old id to have the epoch bumped (v3, KIP-360).
//
//	v2  flexible
//	v3  the client's id and epoch
//	v4  PRODUCER_FENCED may be answered, which needs transactions
//
// Left out: transactions. A transactional id gets UNSUPPORTED_VERSION, which
// every client takes as final; an authorization error would be as final but
// untrue. Version 5 has one more error of transactions.
func initProducerID(ctx context.Context, c *conn, cl *call, req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if req.TransactionalID != nil {
		resp.ErrorCode = cl.refuse(api.KafkaUnsupportedVersion)
		return resp
	}
	id, epoch, err := c.srv.opts.Broker.InitProducerID(ctx, c.principal)
	resp.ErrorCode = cl.code(ctx, err)
	if err == nil {
		resp.ProducerID, resp.ProducerEpoch = id, epoch
	}
	return resp
}
