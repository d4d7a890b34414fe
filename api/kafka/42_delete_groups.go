package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DeleteGroups (key 42), versions 0 to 2. A group goes with all that it has
// committed, unless it has members. A group that is named twice is answered once.
//
//	v2  flexible
//
// Left out: version 3, which has a text beside the code.
func deleteGroups(ctx context.Context, c *conn, cl *call, req *kmsg.DeleteGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteGroupsResponse()
	groups := once(req.Groups)
	for i, err := range c.srv.opts.Broker.DeleteGroups(ctx, c.principal, groups) {
		out := kmsg.NewDeleteGroupsResponseGroup()
		out.Group, out.ErrorCode = groups[i], cl.groupCode(ctx, err)
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}
