package cli

import (
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fakeGroup is a group with at most one member that joins; whoever joins takes the place of the one before.
type fakeGroup struct {
	offsets    map[string]map[int32]int64
	member     string
	generation int32
	protocol   string
	metadata   []byte
	assignment []byte
	refuse     *kerr.Error // what a member is told that joins
}

func (g *fakeGroup) state() string {
	if g.member == "" {
		return "Empty"
	}
	return "Stable"
}

// commit commits an offset for a group, which is made by that.
func (f *fake) commit(group, topic string, partition int32, offset int64) *fakeGroup {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groupLocked(group)
	g.commit(topic, partition, offset)
	return g
}

// committed is what a group has committed for a topic.
func (f *fake) committed(group, topic string) map[int32]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.mu.groups[group]; g != nil {
		return maps.Clone(g.offsets[topic])
	}
	return nil
}

func (g *fakeGroup) commit(topic string, partition int32, offset int64) {
	if g.offsets[topic] == nil {
		g.offsets[topic] = map[int32]int64{}
	}
	g.offsets[topic][partition] = offset
}

func (f *fake) groupLocked(name string) *fakeGroup {
	g := f.mu.groups[name]
	if g == nil {
		g = &fakeGroup{offsets: map[string]map[int32]int64{}}
		f.mu.groups[name] = g
	}
	return g
}

// coordinateLocked handles the requests of groups.
func (f *fake) coordinateLocked(req kmsg.Request, resp kmsg.Response) {
	switch req := req.(type) {
	case *kmsg.FindCoordinatorRequest:
		resp := resp.(*kmsg.FindCoordinatorResponse)
		host, port, _ := net.SplitHostPort(f.addr)
		number, _ := strconv.Atoi(port)
		resp.NodeID, resp.Host, resp.Port = 1, host, int32(number)
	case *kmsg.JoinGroupRequest:
		f.joinLocked(req, resp.(*kmsg.JoinGroupResponse))
	case *kmsg.SyncGroupRequest:
		g, resp := f.groupLocked(req.Group), resp.(*kmsg.SyncGroupResponse)
		for _, a := range req.GroupAssignment {
			g.assignment = a.MemberAssignment
		}
		resp.MemberAssignment = g.assignment
	case *kmsg.LeaveGroupRequest:
		f.groupLocked(req.Group).member = ""
	case *kmsg.OffsetCommitRequest:
		f.commitLocked(req, resp.(*kmsg.OffsetCommitResponse))
	case *kmsg.OffsetFetchRequest:
		f.fetchOffsetsLocked(req, resp.(*kmsg.OffsetFetchResponse))
	case *kmsg.DescribeGroupsRequest:
		f.describeGroupsLocked(req, resp.(*kmsg.DescribeGroupsResponse))
	case *kmsg.ListGroupsRequest:
		for _, name := range slices.Sorted(maps.Keys(f.mu.groups)) {
			g := kmsg.NewListGroupsResponseGroup()
			g.Group, g.ProtocolType, g.GroupState = name, "consumer", f.mu.groups[name].state()
			resp.(*kmsg.ListGroupsResponse).Groups = append(resp.(*kmsg.ListGroupsResponse).Groups, g)
		}
	case *kmsg.DeleteGroupsRequest:
		for _, name := range req.Groups {
			deleted := kmsg.NewDeleteGroupsResponseGroup()
			deleted.Group = name
			switch g := f.mu.groups[name]; {
			case g == nil:
				deleted.ErrorCode = kerr.GroupIDNotFound.Code
			case g.member != "":
				deleted.ErrorCode = kerr.NonEmptyGroup.Code
			}
			if deleted.ErrorCode == 0 {
				delete(f.mu.groups, name)
			}
			resp.(*kmsg.DeleteGroupsResponse).Groups = append(resp.(*kmsg.DeleteGroupsResponse).Groups, deleted)
		}
	}
}

func (f *fake) joinLocked(req *kmsg.JoinGroupRequest, resp *kmsg.JoinGroupResponse) {
	g := f.groupLocked(req.Group)
	if g.refuse != nil {
		resp.ErrorCode = g.refuse.Code
		return
	}
	g.generation++
	g.member, g.protocol, g.metadata = "member-"+strconv.Itoa(int(g.generation)), req.Protocols[0].Name, req.Protocols[0].Metadata
	resp.Generation, resp.LeaderID, resp.MemberID, resp.Protocol = g.generation, g.member, g.member, &g.protocol
	resp.Members = []kmsg.JoinGroupResponseMember{{MemberID: g.member, ProtocolMetadata: g.metadata}}
}

func (f *fake) commitLocked(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse) {
	g := f.groupLocked(req.Group)
	for _, t := range req.Topics {
		topic := kmsg.NewOffsetCommitResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			answer := kmsg.NewOffsetCommitResponseTopicPartition()
			answer.Partition = p.Partition
			if req.MemberID != g.member {
				answer.ErrorCode = kerr.UnknownMemberID.Code
			} else {
				g.commit(t.Topic, p.Partition, p.Offset)
			}
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

func (f *fake) fetchOffsetsLocked(req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse) {
	var offsets map[string]map[int32]int64
	if g := f.mu.groups[req.Group]; g != nil {
		offsets = g.offsets
	}
	add := func(name string, partitions []int32) {
		topic := kmsg.NewOffsetFetchResponseTopic()
		topic.Topic = name
		for _, id := range partitions {
			p := kmsg.NewOffsetFetchResponseTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch = id, -1, -1
			if at, ok := offsets[name][id]; ok {
				p.Offset = at
			}
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	for _, t := range req.Topics {
		add(t.Topic, t.Partitions)
	}
	if req.Topics == nil {
		for name, partitions := range offsets {
			add(name, slices.Collect(maps.Keys(partitions)))
		}
	}
}

func (f *fake) describeGroupsLocked(req *kmsg.DescribeGroupsRequest, resp *kmsg.DescribeGroupsResponse) {
	for _, name := range req.Groups {
		out := kmsg.NewDescribeGroupsResponseGroup()
		out.Group, out.State = name, "Dead"
		if g := f.mu.groups[name]; g != nil {
			out.State, out.ProtocolType = g.state(), "consumer"
			if g.member != "" {
				out.Protocol = g.protocol
				m := kmsg.NewDescribeGroupsResponseGroupMember()
				m.MemberID, m.ClientID, m.ClientHost, m.ProtocolMetadata, m.MemberAssignment = g.member, "shop", "/10.0.0.1", g.metadata, g.assignment
				out.Members = append(out.Members, m)
			}
		}
		resp.Groups = append(resp.Groups, out)
	}
}
