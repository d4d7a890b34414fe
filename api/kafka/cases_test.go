package kafka

import (
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Case 29, over the door: a group's offsets stay as long as a member is there,
// however long it says nothing but that it lives; once the group is empty they
// stay for offsets.retention.minutes from that moment, and then go with it.
func TestCase29OffsetsExpire(t *testing.T) {
	var ahead atomic.Int64
	configs := maps.Clone(quick)
	configs["offsets.retention.minutes"], configs["offsets.retention.check.interval.ms"] = "1", "5"
	d := startDoor(t, setup{configs: configs, now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	c := d.dial(t)
	c.create("t", 1)
	commit := func(group, member string, generation int32) {
		t.Helper()
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Group, req.MemberID, req.Generation = group, member, generation
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 7}}}}
		if p := ask[*kmsg.OffsetCommitResponse](c, req, 8).Topics[0].Partitions[0]; p.ErrorCode != 0 {
			t.Fatalf("commit: code %d", p.ErrorCode)
		}
	}
	committed := func(group string) int64 {
		t.Helper()
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group, req.Topics = group, []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}}
		return ask[*kmsg.OffsetFetchResponse](c, req, 5).Topics[0].Partitions[0].Offset
	}
	groups := func() (ids []string) {
		t.Helper()
		for _, g := range ask[*kmsg.ListGroupsResponse](c, kmsg.NewPtrListGroupsRequest(), 4).Groups {
			ids = append(ids, g.Group)
		}
		return ids
	}
	m := c.joinAs(5, "g", "")
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = "g", m.MemberID, m.Generation
	if r := ask[*kmsg.SyncGroupResponse](c, sync, 3); r.ErrorCode != 0 {
		t.Fatalf("sync: code %d", r.ErrorCode)
	}
	commit("g", m.MemberID, m.Generation)
	commit("alone", "", -1)
	for range 36 { // three minutes
		ahead.Add(int64(5 * time.Second))
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation = "g", m.MemberID, m.Generation
		if r := ask[*kmsg.HeartbeatResponse](c, req, 3); r.ErrorCode != 0 {
			t.Fatalf("heartbeat: code %d", r.ErrorCode)
		}
	}
	eventually(t, "the offsets of the group that never had a member go", func() bool { return committed("alone") == -1 })
	if at := committed("g"); at != 7 {
		t.Errorf("offset %d of the group with a member", at)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group, leave.MemberID = "g", m.MemberID
	if r := ask[*kmsg.LeaveGroupResponse](c, leave, 1); r.ErrorCode != 0 {
		t.Fatalf("leave: code %d", r.ErrorCode)
	}
	ahead.Add(int64(50 * time.Second))
	commit("later", "", -1)
	ahead.Add(int64(5 * time.Second))
	if at := committed("g"); at != 7 {
		t.Errorf("offset %d of the empty group, before its time", at)
	}
	ahead.Add(int64(10 * time.Second))
	eventually(t, "the offsets of the empty group go", func() bool { return committed("g") == -1 })
	if at := committed("later"); at != 7 {
		t.Errorf("offset %d of a group whose time is not over", at)
	}
	eventually(t, "the group goes", func() bool { return slices.Equal(groups(), []string{"later"}) })
}
