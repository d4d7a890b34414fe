package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// Heartbeat (key 12), versions 0 to 4. REBALANCE_IN_PROGRESS tells the member to
// join again.
//
//	v3  static members
//	v4  flexible
func heartbeat(ctx context.Context, c *conn, cl *call, req *kmsg.HeartbeatRequest) kmsg.Response {
	resp := kmsg.NewPtrHeartbeatResponse()
	member := broker.MemberRef{ID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation}
	resp.ErrorCode = cl.groupCode(ctx, c.srv.opts.Broker.Heartbeat(ctx, c.principal, req.Group, member))
	return resp
}
