package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// DescribeGroups (key 15), versions 0 to 6. A group that does not exist is Dead,
// without an error before version 6. A group that is named twice is answered
// once.
//
// A group of leases has no members. Its leases stand in their place, so that tools
// show who has what: each is a member named after its partition, which is its
// assignment in the form that consumers use, with the lease as JSON for metadata.
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
		if d.ProtocolType == leaseType && d.Err == nil {
			leases, err := c.srv.opts.Broker.GroupLeases(ctx, c.principal, d.ID)
			if err != nil && !errors.Is(err, broker.ErrUnknownGroup) {
				out.ErrorCode, out.ErrorMessage = cl.groupCode(ctx, err), message(err)
			}
			out.Members = leaseMembers(leases)
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

// leaseType is the protocol type of groups of leases.
const leaseType = "lease"

// leaseMetadata is what a lease says of itself. Its id is the worker's alone.
type leaseMetadata struct {
	First      int64 `json:"first_offset"`
	Next       int64 `json:"next_offset"`
	Deadline   int64 `json:"deadline"` // in ms since 1970
	Deliveries int   `json:"delivery_count"`
	Delayed    bool  `json:"delayed"` // nobody gets the partition before the deadline
}

func leaseMembers(leases []broker.LeaseState) []kmsg.DescribeGroupsResponseGroupMember {
	out := make([]kmsg.DescribeGroupsResponseGroupMember, 0, len(leases))
	for i := range leases {
		l := &leases[i]
		m := kmsg.NewDescribeGroupsResponseGroupMember()
		m.MemberID, m.ClientID = fmt.Sprintf("%s/%d", l.Topic, l.Partition), leaseType
		text, err := json.Marshal(leaseMetadata{l.First, l.Next, l.Deadline.UnixMilli(), l.Deliveries, l.Delayed})
		if err != nil {
			panic(err) // numbers can be encoded
		}
		topic := kmsg.NewConsumerMemberAssignmentTopic()
		topic.Topic, topic.Partitions = l.Topic, []int32{l.Partition}
		assignment := kmsg.NewConsumerMemberAssignment()
		assignment.Topics = append(assignment.Topics, topic)
		m.ProtocolMetadata, m.MemberAssignment = text, assignment.AppendTo(nil)
		out = append(out, m)
	}
	return out
}
