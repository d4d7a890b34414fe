package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// quick are configs with which groups do not wait for more members.
var quick = map[string]string{"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}

// joinAs joins a group with one request of version v, twice where the id comes
// first.
func (c *client) joinAs(v int16, group, id string) *kmsg.JoinGroupResponse {
	c.t.Helper()
	for range 2 {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = group, id, "consumer", 10_000, 10_000
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte("meta")}}
		resp := ask[*kmsg.JoinGroupResponse](c, req, v)
		if resp.ErrorCode != 79 {
			return resp
		}
		id = resp.MemberID
	}
	c.t.Fatal("the id was not enough")
	return nil
}

// Every version of the APIs takes a member through a generation, a commit and
// its end.
func TestGroupVersions(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	c := d.dial(t)
	c.create("t", 2)
	for v := int16(0); v <= 9; v++ {
		group := fmt.Sprint("g", v)
		joined := c.joinAs(v, group, "")
		if joined.ErrorCode != 0 || joined.Generation != 1 || joined.LeaderID != joined.MemberID || len(joined.Members) != 1 ||
			*joined.Protocol != "range" || string(joined.Members[0].ProtocolMetadata) != "meta" {
			t.Fatalf("join %d: %+v", v, joined)
		}
		sync := kmsg.NewPtrSyncGroupRequest()
		sync.Group, sync.MemberID, sync.Generation = group, joined.MemberID, 1
		sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: joined.MemberID, MemberAssignment: []byte("all")}}
		if r := ask[*kmsg.SyncGroupResponse](c, sync, min(v, 5)); r.ErrorCode != 0 || string(r.MemberAssignment) != "all" {
			t.Fatalf("sync %d: %+v", min(v, 5), r)
		}
		commit := kmsg.NewPtrOffsetCommitRequest()
		commit.Group, commit.MemberID, commit.Generation = group, joined.MemberID, 1
		text := "note"
		commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{
			{Partition: 1, Offset: 40 + int64(v), LeaderEpoch: 2, Metadata: &text}, {Partition: 7, Offset: 1},
		}}}
		if r := ask[*kmsg.OffsetCommitResponse](c, commit, max(v, 1)); r.Topics[0].Partitions[0].ErrorCode != 0 || r.Topics[0].Partitions[1].ErrorCode != 3 {
			t.Fatalf("commit %d: %+v", max(v, 1), r)
		}
		checkFetched(t, c, max(v, 1), group, 40+int64(v), max(v, 1) >= 6)
		beat := kmsg.NewPtrHeartbeatRequest()
		beat.Group, beat.MemberID, beat.Generation = group, joined.MemberID, 1
		if r := ask[*kmsg.HeartbeatResponse](c, beat, min(v, 4)); r.ErrorCode != 0 {
			t.Fatalf("heartbeat %d: %+v", min(v, 4), r)
		}
		describe := kmsg.NewPtrDescribeGroupsRequest()
		describe.Groups = []string{group, "none"}
		r := ask[*kmsg.DescribeGroupsResponse](c, describe, min(v, 6))
		if g := r.Groups[0]; g.ErrorCode != 0 || g.State != "Stable" || len(g.Members) != 1 || g.Members[0].ClientHost != "/127.0.0.1" || string(g.Members[0].MemberAssignment) != "all" {
			t.Fatalf("describe %d: %+v", min(v, 6), g)
		}
		if g := r.Groups[1]; g.State != "Dead" || g.ErrorCode != map[bool]int16{true: 69}[min(v, 6) == 6] {
			t.Fatalf("describe %d: %+v", min(v, 6), g)
		}
		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Group, leave.MemberID, leave.Members = group, joined.MemberID, []kmsg.LeaveGroupRequestMember{{MemberID: joined.MemberID}, {MemberID: "x"}}
		l := ask[*kmsg.LeaveGroupResponse](c, leave, min(v, 5))
		if l.ErrorCode != 0 || v >= 3 && (l.Members[0].ErrorCode != 0 || l.Members[1].ErrorCode != 25) {
			t.Fatalf("leave %d: %+v", min(v, 5), l)
		}
	}
}

// checkFetched asks for what was committed for partition 1, by its name and by
// none.
func checkFetched(t *testing.T, c *client, v int16, group string, want int64, epochs bool) {
	t.Helper()
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Group = group
	fetch.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0, 1}}, {Topic: "none", Partitions: []int32{0}}}
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: group, Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: []int32{0, 1}}}}, {Group: group}}
	epoch := int32(-1)
	if epochs {
		epoch = 2
	}
	r := ask[*kmsg.OffsetFetchResponse](c, fetch, v)
	if v >= 8 {
		if len(r.Groups) != 2 || len(r.Groups[1].Topics) != 1 || r.Groups[0].Topics[0].Partitions[0].Offset != -1 {
			t.Fatalf("fetch %d: %+v", v, r)
		}
		for _, p := range []kmsg.OffsetFetchResponseGroupTopicPartition{r.Groups[0].Topics[0].Partitions[1], r.Groups[1].Topics[0].Partitions[0]} {
			if p.Partition != 1 || p.Offset != want || p.LeaderEpoch != epoch || *p.Metadata != "note" || p.ErrorCode != 0 {
				t.Fatalf("fetch %d: %+v", v, p)
			}
		}
		return
	}
	p := r.Topics[0].Partitions[1]
	if p.Partition != 1 || p.Offset != want || v >= 5 && p.LeaderEpoch != epoch || *p.Metadata != "note" || r.Topics[0].Partitions[0].Offset != -1 || r.Topics[1].Partitions[0].ErrorCode != 0 {
		t.Fatalf("fetch %d: %+v", v, r)
	}
	if v < 2 {
		return
	}
	fetch.Topics = nil
	if r := ask[*kmsg.OffsetFetchResponse](c, fetch, v); len(r.Topics) != 1 || r.Topics[0].Partitions[0].Offset != want {
		t.Fatalf("fetch %d of all: %+v", v, r)
	}
}

// A group that does not exist has none of the members that leave it, and nothing
// committed, also for topics that cannot be.
func TestGroupThatIsNot(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	c := d.dial(t)
	c.create("t", 1)
	for _, exists := range []bool{false, true} { // the offsets topic, and not the group
		if exists {
			c.joinAs(5, "other", "")
		}
		for v := range int16(6) {
			leave := kmsg.NewPtrLeaveGroupRequest()
			leave.Group, leave.MemberID = "none", "x"
			leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: "x"}, {MemberID: "y"}}
			r := ask[*kmsg.LeaveGroupResponse](c, leave, v)
			if v < 3 && r.ErrorCode == 25 {
				continue
			}
			if v < 3 || r.ErrorCode != 0 || len(r.Members) != 2 || r.Members[0].ErrorCode != 25 || r.Members[1].ErrorCode != 25 {
				t.Errorf("leave %d, %v: %+v", v, exists, r)
			}
		}
		for v := int16(1); v <= 7; v++ {
			fetch := kmsg.NewPtrOffsetFetchRequest()
			fetch.Group = "none"
			for _, name := range []string{"", "a/b", "nowhere", "t"} {
				fetch.Topics = append(fetch.Topics, kmsg.OffsetFetchRequestTopic{Topic: name, Partitions: []int32{0}})
			}
			r := ask[*kmsg.OffsetFetchResponse](c, fetch, v)
			if len(r.Topics) != 4 {
				t.Fatalf("fetch %d: %+v", v, r)
			}
			for _, topic := range r.Topics {
				if p := topic.Partitions[0]; p.Offset != -1 || p.ErrorCode != 0 {
					t.Errorf("fetch %d, %v of %q: %+v", v, exists, topic.Topic, p)
				}
			}
		}
	}
}

// A client that goes away while it waits in a join is no member any more, and
// whoever waited for it goes on.
func TestJoinerGoesAway(t *testing.T) {
	d := startDoor(t, setup{configs: map[string]string{"group.initial.rebalance.delay.ms": "60000"}})
	gone := d.dial(t)
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = "g", "consumer", 10_000, 300_000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	req.SetVersion(3)
	gone.send(gone.frame(req))
	c := d.dial(t)
	state := func() string {
		describe := kmsg.NewPtrDescribeGroupsRequest()
		describe.Groups = []string{"g"}
		g := ask[*kmsg.DescribeGroupsResponse](c, describe, 5).Groups[0]
		return fmt.Sprint(g.State, len(g.Members))
	}
	eventually(t, "the member to come", func() bool { return state() == "PreparingRebalance1" })
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the member to go", func() bool { return state() == "Empty0" })
}

// Three franz-go consumers of a group read every record once, also when one of
// them leaves and another comes, and the group's tools see them.
func TestFranzGroup(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	d.dial(t).create("t", 6)
	ctx, cancel := context.WithTimeout(context.Background(), 3*limit)
	defer cancel()
	producer, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	const n = 600
	var mu sync.Mutex
	seen := map[string]int{}
	var done sync.WaitGroup
	all := make(chan struct{})
	consume := func(ctx context.Context) {
		done.Go(func() {
			cl, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.BlockRebalanceOnPoll(),
				kgo.DisableAutoCommit(), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(100*time.Millisecond))
			if err != nil {
				t.Error(err)
				return
			}
			defer cl.CloseAllowingRebalance()
			for ctx.Err() == nil {
				fetches := cl.PollRecords(ctx, 20)
				records := fetches.Records()
				if err := cl.CommitRecords(context.WithoutCancel(ctx), records...); err == nil {
					mu.Lock()
					for _, r := range records {
						seen[string(r.Value)]++
					}
					if len(seen) == n {
						select {
						case <-all:
						default:
							close(all)
						}
					}
					mu.Unlock()
				}
				cl.AllowRebalance()
			}
		})
	}
	first, stopFirst := context.WithCancel(ctx)
	rest, stopRest := context.WithCancel(ctx)
	consume(first)
	consume(rest)
	for i := range n {
		if err := producer.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
			t.Fatal(err)
		}
		switch i {
		case n / 3:
			stopFirst()
		case n / 2:
			consume(rest)
		}
	}
	select {
	case <-all:
	case <-ctx.Done():
		t.Error("not all records were read")
	}
	admin := kadm.NewClient(producer)
	groups, err := admin.DescribeGroups(ctx, "g")
	if err != nil || groups["g"].State != "Stable" || len(groups["g"].Members) != 2 {
		t.Errorf("group: %+v, %v", groups["g"], err)
	}
	lag, err := admin.Lag(ctx, "g")
	if err != nil || lag["g"].Lag.Total() != 0 {
		t.Errorf("lag: %+v, %v", lag["g"].Lag, err)
	}
	stopFirst()
	stopRest()
	done.Wait()
	for value, times := range seen {
		if times != 1 {
			t.Errorf("record %s was read %d times", value, times)
		}
	}
	list, err := admin.ListGroups(ctx)
	if err != nil || !slices.Equal(list.Groups(), []string{"g"}) || list["g"].State != "Empty" {
		t.Errorf("groups: %+v, %v", list, err)
	}
	if r, err := admin.DeleteGroups(ctx, "g"); err != nil || r["g"].Err != nil {
		t.Errorf("delete: %+v, %v", r, err)
	}
	if out, err := admin.FetchOffsets(ctx, "g"); err != nil || len(out) != 0 {
		t.Errorf("offsets of a deleted group: %+v, %v", out, err)
	}
}

// The server's own topic can be read, and nothing else.
func TestOffsetsTopicOverTheDoor(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	c := d.dial(t)
	c.create("t", 1)
	c.joinAs(9, "g", "")
	meta := kmsg.NewPtrMetadataRequest()
	name := "__consumer_offsets"
	meta.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	if r := ask[*kmsg.MetadataResponse](c, meta, 9); !r.Topics[0].IsInternal || len(r.Topics[0].Partitions) != 2 {
		t.Errorf("%+v", r.Topics[0])
	}
	remove := kmsg.NewPtrDeleteTopicsRequest()
	remove.TopicNames = []string{name}
	if r := ask[*kmsg.DeleteTopicsResponse](c, remove, 3); r.Topics[0].ErrorCode != 17 {
		t.Errorf("delete: %+v", r.Topics[0])
	}
	if code := c.produce(9, name, 0, batch(t, 0, strings.Repeat("x", 10))).ErrorCode; code != 17 {
		t.Errorf("produce: %d", code)
	}
}

// What is named twice costs nothing twice: a group or key is answered once, a
// partition too. Offsets of a group that is named again are told until there are
// many.
func TestGroupsNamedTwice(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	c := d.dial(t)
	c.create("t", 2)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = "g", -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 0, Offset: 5}, {Partition: 1, Offset: 6}}}}
	if p := ask[*kmsg.OffsetCommitResponse](c, commit, 8).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatalf("commit: code %d", p.ErrorCode)
	}
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKeys = []string{"g", "h", "g"}
	if r := ask[*kmsg.FindCoordinatorResponse](c, find, 4).Coordinators; len(r) != 2 || r[0].Key != "g" || r[1].Key != "h" {
		t.Errorf("FindCoordinator: %+v", r)
	}
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{"g", "g", "h", "g"}
	if r := ask[*kmsg.DescribeGroupsResponse](c, describe, 6).Groups; len(r) != 2 || r[0].Group != "g" || r[0].State != "Empty" || r[1].ErrorCode != 69 {
		t.Errorf("DescribeGroups: %+v", r)
	}
	for v := int16(1); v <= 7; v++ {
		fetch := kmsg.NewPtrOffsetFetchRequest()
		fetch.Group, fetch.Topics = "g", []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{1, 0, 1}}, {Topic: "t", Partitions: []int32{0}}}
		r := ask[*kmsg.OffsetFetchResponse](c, fetch, v)
		if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 2 || r.Topics[0].Partitions[0].Offset != 6 || r.Topics[0].Partitions[1].Offset != 5 {
			t.Errorf("OffsetFetch version %d: %+v", v, r.Topics)
		}
	}
	for v := int16(8); v <= 9; v++ {
		fetch := kmsg.NewPtrOffsetFetchRequest()
		twice := kmsg.OffsetFetchRequestGroup{Group: "g"}
		fetch.Groups = []kmsg.OffsetFetchRequestGroup{twice, {Group: "h", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: []int32{0, 0}}}}, twice}
		r := ask[*kmsg.OffsetFetchResponse](c, fetch, v).Groups
		if len(r) != 3 || len(r[0].Topics[0].Partitions) != 2 || len(r[1].Topics[0].Partitions) != 1 || len(r[2].Topics[0].Partitions) != 2 {
			t.Errorf("OffsetFetch version %d: %+v", v, r)
		}
		fetch.Groups = slices.Repeat([]kmsg.OffsetFetchRequestGroup{twice}, maxOffsetsTold/2+2)
		for i, r := range ask[*kmsg.OffsetFetchResponse](c, fetch, v).Groups {
			if refused := i >= maxOffsetsTold/2; (r.ErrorCode == 42) != refused || (len(r.Topics) == 0) != refused {
				t.Fatalf("OffsetFetch version %d: group %d: %+v", v, i, r)
			}
		}
	}
	drop := kmsg.NewPtrDeleteGroupsRequest()
	drop.Groups = []string{"g", "g", "h"}
	if r := ask[*kmsg.DeleteGroupsResponse](c, drop, 2).Groups; len(r) != 2 || r[0].ErrorCode != 0 || r[1].ErrorCode != 69 {
		t.Errorf("DeleteGroups: %+v", r)
	}
}
