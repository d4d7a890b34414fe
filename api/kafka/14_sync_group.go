package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// SyncGroup (key 14), versions 0 to 5. It is answered when the leader has sent
// the assignment and that is on disk.
//
//	v3  static members
//	v4  flexible
//	v5  protocol type and name, which must be the group's
func syncGroup(ctx context.Context, c *conn, cl *call, req *kmsg.SyncGroupRequest) kmsg.Response {
	in := &broker.SyncRequest{
		MemberRef:    broker.MemberRef{ID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation},
		ProtocolType: text(req.ProtocolType), Protocol: text(req.Protocol), Assignments: make(map[string][]byte, len(req.GroupAssignment)),
	}
	for i := range req.GroupAssignment {
		in.Assignments[req.GroupAssignment[i].MemberID] = req.GroupAssignment[i].MemberAssignment
	}
	reply := c.srv.opts.Broker.SyncGroup(ctx, c.principal, req.Group, in)
	resp := kmsg.NewPtrSyncGroupResponse()
	resp.ErrorCode, resp.MemberAssignment = cl.groupCode(ctx, reply.Err), reply.Assignment
	resp.ProtocolType, resp.Protocol = nullable(reply.ProtocolType), nullable(reply.Protocol)
	if resp.MemberAssignment == nil {
		resp.MemberAssignment = []byte{}
	}
	return resp
}
