package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// JoinGroup (key 11), versions 0 to 9.
//
// It is answered when the rebalance is over that it begins, or when the client
// goes away; what comes behind it on the connection waits as long.
//
//	v1  rebalance timeout; before, the session timeout stands for it
//	v4  a new member is told its id first (KIP-394)
//	v5  static members (KIP-345)
//	v6  flexible
//	v7  protocol type in the answer
//	v8  a reason
//	v9  the leader may be told to skip the assignment (KIP-814)
//
// Left out: the reason, which is for Kafka's log.
func joinGroup(ctx context.Context, c *conn, cl *call, req *kmsg.JoinGroupRequest) kmsg.Response {
	in := &broker.JoinRequest{
		Member: broker.GroupMember{
			ID: req.MemberID, InstanceID: text(req.InstanceID), ClientID: cl.client, Host: c.host(),
			Session: millis(req.SessionTimeoutMillis), RebalanceTimeout: millis(req.RebalanceTimeoutMillis),
		},
		ProtocolType: req.ProtocolType, IDFirst: req.Version >= 4, MaySkip: req.Version >= 9,
	}
	if req.Version < 1 || req.RebalanceTimeoutMillis < 0 {
		in.RebalanceTimeout = in.Session
	}
	for i := range req.Protocols {
		in.Protocols = append(in.Protocols, broker.GroupProtocol{Name: req.Protocols[i].Name, Metadata: req.Protocols[i].Metadata})
	}
	reply := c.srv.opts.Broker.JoinGroup(ctx, c.principal, req.Group, in)

	resp := kmsg.NewPtrJoinGroupResponse()
	resp.ErrorCode, resp.MemberID, resp.Generation = cl.groupCode(ctx, reply.Err), reply.MemberID, reply.Generation
	resp.LeaderID, resp.SkipAssignment = reply.Leader, reply.SkipAssignment
	resp.ProtocolType, resp.Protocol = nullable(reply.ProtocolType), nullable(reply.Protocol)
	if resp.Protocol == nil && req.Version < 7 {
		resp.Protocol = new(string)
	}
	for i := range reply.Members {
		m := &reply.Members[i]
		out := kmsg.NewJoinGroupResponseMember()
		out.MemberID, out.InstanceID, out.ProtocolMetadata = m.ID, nullable(m.InstanceID), m.Metadata
		resp.Members = append(resp.Members, out)
	}
	return resp
}

func millis(n int32) time.Duration { return time.Duration(n) * time.Millisecond }
