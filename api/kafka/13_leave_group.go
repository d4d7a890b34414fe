package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// LeaveGroup (key 13), versions 0 to 5. Each member has a result of its own; the
// error for all is of the group.
//
//	v3  many members, static ones by their instance id alone
//	v4  flexible
//	v5  a reason
//
// Left out: the reason, which is for Kafka's log.
func leaveGroup(ctx context.Context, c *conn, cl *call, req *kmsg.LeaveGroupRequest) kmsg.Response {
	resp := kmsg.NewPtrLeaveGroupResponse()
	members := []broker.MemberRef{{ID: req.MemberID, Generation: -1}}
	if req.Version >= 3 {
		members = members[:0]
		for i := range req.Members {
			members = append(members, broker.MemberRef{ID: req.Members[i].MemberID, InstanceID: text(req.Members[i].InstanceID), Generation: -1})
		}
	}
	errs, err := c.srv.opts.Broker.LeaveGroup(ctx, c.principal, req.Group, members)
	if err != nil {
		resp.ErrorCode = cl.groupCode(ctx, err)
		return resp
	}
	if req.Version < 3 {
		resp.ErrorCode = cl.groupCode(ctx, errs[0])
		return resp
	}
	for i := range req.Members {
		out := kmsg.NewLeaveGroupResponseMember()
		out.MemberID, out.InstanceID, out.ErrorCode = req.Members[i].MemberID, req.Members[i].InstanceID, cl.groupCode(ctx, errs[i])
		resp.Members = append(resp.Members, out)
	}
	return resp
}
