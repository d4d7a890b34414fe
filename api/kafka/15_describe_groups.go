package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// DescribeGroups (key 15), versions 0 to 6. A group that does not exist is Dead,
// without an error before version 6. A group that is named twice is answered
// once.
//
//	v3  authorized operations (KIP-430)
//	v4  static members
//	v5  flexible
//	v6  GROUP_ID_NOT_FOUND, error text
func describeGroups(ctx context.Context, c *conn, cl *call, req *kmsg.DescribeGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	for _, d := range c.srv.opts.Broker.DescribeGroups(ctx, c.principal, once(req.Groups)) {
		out := kmsg.NewDescribeGroupsResponseGroup()
		out.Group, out.State, out.ProtocolType, out.Protocol = d.ID, d.State, d.ProtocolType, d.Protocol
		if req.Version >= 6 || !errors.Is(d.Err, broker.ErrUnknownGroup) {
			out.ErrorCode, out.ErrorMessage = cl.groupCode(ctx, d.Err), message(d.Err)
		}
		if req.IncludeAuthorizedOperations && d.Err == nil {
			out.AuthorizedOperations = c.groupOperations(d.ID)
		}
		for i := range d.Members {
			m := &d.Members[i]
			to := kmsg.NewDescribeGroupsResponseGroupMember()
			to.MemberID, to.InstanceID, to.ClientID, to.ClientHost = m.ID, nullable(m.InstanceID), m.ClientID, m.Host
			to.ProtocolMetadata, to.MemberAssignment = m.Metadata, m.Assignment
			out.Members = append(out.Members, to)
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}
