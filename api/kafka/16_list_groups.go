package kafka

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// classicType is the type of every group there is (KIP-848).
const classicType = "classic"

// ListGroups (key 16), versions 0 to 5. A group that has committed offsets and
// never had a member is Empty, without a protocol type.
//
//	v3  flexible
//	v4  only groups in one of some states (KIP-518)
//	v5  only groups of one of some types
func listGroups(ctx context.Context, c *conn, cl *call, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrListGroupsResponse()
	classic := len(req.TypesFilter) == 0 || slices.ContainsFunc(req.TypesFilter, func(t string) bool { return strings.EqualFold(t, classicType) })
	list, err := c.srv.opts.Broker.ListGroups(ctx, c.principal, req.StatesFilter)
	resp.ErrorCode = cl.groupCode(ctx, err)
	for _, g := range list {
		if classic {
			out := kmsg.NewListGroupsResponseGroup()
			out.Group, out.ProtocolType, out.GroupState, out.GroupType = g.ID, g.ProtocolType, g.State, classicType
			resp.Groups = append(resp.Groups, out)
		}
	}
	return resp
}
