package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// join makes a member of a group by hand: the id first, then the generation.
func (c *groupClient) join(t *testing.T) {
	t.Helper()
	for {
		r := c.b.JoinGroup(t.Context(), auth.Anonymous, c.group, c.request())
		if c.id = r.MemberID; errors.Is(r.Err, ErrMemberIDRequired) {
			continue
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		c.joined = r
		return
	}
}

type groupClient struct {
	b         *Broker
	group, id string
	topic     string // that it subscribes to; none if empty
	joined    JoinReply
}

func (c *groupClient) request() *JoinRequest {
	meta := []byte{0, 1, 0, 0, 0, 0}
	if c.topic != "" {
		meta = append([]byte{0, 1, 0, 0, 0, 1, 0, byte(len(c.topic))}, c.topic...)
	}
	meta = append(meta, 0, 0, 0, 0)
	return &JoinRequest{
		Member:       GroupMember{ID: c.id, ClientID: "c", Host: "/127.0.0.1", Session: 10 * time.Second, RebalanceTimeout: 10 * time.Second},
		ProtocolType: "consumer", Protocols: []GroupProtocol{{Name: "range", Metadata: meta}}, IDFirst: true,
	}
}

func (c *groupClient) ref() MemberRef { return MemberRef{ID: c.id, Generation: c.joined.Generation} }

func (c *groupClient) sync(t *testing.T) string {
	t.Helper()
	r := &SyncRequest{MemberRef: c.ref(), Assignments: map[string][]byte{}}
	for _, m := range c.joined.Members {
		r.Assignments[m.ID] = []byte("all for " + m.ID)
	}
	reply := c.b.SyncGroup(t.Context(), auth.Anonymous, c.group, r)
	if reply.Err != nil {
		t.Fatal(reply.Err)
	}
	return string(reply.Assignment)
}

func (c *groupClient) commit(t *testing.T, topic string, partition int32, offset int64) error {
	t.Helper()
	return commitOne(t.Context(), c.b, c.group, c.ref(), CommitOffset{Topic: topic, Partition: partition, Offset: offset, LeaderEpoch: 3, Metadata: "m"})
}

func commitOne(ctx context.Context, b *Broker, group string, m MemberRef, o CommitOffset) error {
	errs, err := b.CommitOffsets(ctx, auth.Anonymous, group, m, -1, []CommitOffset{o})
	if err == nil {
		err = errs[0]
	}
	return err
}

func fetchOne(t *testing.T, b *Broker, group, topic string, partition int32) int64 {
	t.Helper()
	out, err := b.FetchOffsets(t.Context(), auth.Anonymous, group, []TopicPartitions{{Topic: topic, Partitions: []int32{partition}}})
	if err != nil || len(out) != 1 || out[0].Err != nil {
		t.Fatalf("offsets of %s: %+v, %v", group, out, err)
	}
	return out[0].Offset
}

var nobody = MemberRef{Generation: -1}

// quickGroups do not wait for more members.
var quickGroups = map[string]string{"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}

// groupBroker opens a broker that the test closes itself.
func groupBroker(t *testing.T, fs *disk.Mem) *Broker {
	t.Helper()
	b, err := Open(t.Context(), Options{Path: "/data", FS: fs, Configs: quickGroups})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a group has committed, and who is in it, is there after a clean stop and
// after a power cut, and a member goes on in its generation.
func TestGroupsSurvive(t *testing.T) {
	fs := disk.NewMem()
	b := groupBroker(t, fs)
	create(t, b, "orders", 2, nil)
	if got := fetchOne(t, b, "g", "orders", 0); got != -1 {
		t.Fatalf("a group that never was has offset %d", got)
	}
	c := &groupClient{b: b, group: "g"}
	c.join(t)
	if got := c.sync(t); got != "all for "+c.id {
		t.Fatalf("assignment %q", got)
	}
	for i := range int64(10) {
		if err := c.commit(t, "orders", 1, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := commitOne(t.Context(), b, "alone", nobody, CommitOffset{Topic: "orders", Offset: 5}); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"clean", "cut"} {
		if how == "clean" {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			clone := fs.CrashClone(0, nil)
			_ = b.Close()
			fs = clone
		}
		b = groupBroker(t, fs)
		c.b = b
		awaitGroups(t, b)
		if err := b.Heartbeat(t.Context(), auth.Anonymous, "g", c.ref()); err != nil {
			t.Fatalf("%s: heartbeat: %v", how, err)
		}
		if got := fetchOne(t, b, "g", "orders", 1); got != 9 {
			t.Fatalf("%s: offset %d, want 9", how, got)
		}
		if got := fetchOne(t, b, "alone", "orders", 0); got != 5 {
			t.Fatalf("%s: offset of a group without members %d, want 5", how, got)
		}
		list, err := b.ListGroups(t.Context(), auth.Anonymous, nil)
		if err != nil || fmt.Sprint(list) != "[{alone Empty } {g Stable consumer}]" {
			t.Fatalf("%s: groups %v, %v", how, list, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// awaitGroups waits until every shard serves.
func awaitGroups(t *testing.T, b *Broker) {
	t.Helper()
	for _, s := range b.groups.all() {
		<-s.loaded
		if err := s.ready(); err != nil {
			t.Fatal(err)
		}
	}
}

// A commit is refused, and changes nothing, from a member of an old generation,
// a stranger, and while the group has members from anybody else (case 26).
func TestCase26CommitFencing(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	c := &groupClient{b: b, group: "g"}
	c.join(t)
	if err := c.commit(t, "orders", 0, 7); !errors.Is(err, ErrRebalanceInProgress) {
		t.Errorf("before the assignment: %v", err)
	}
	c.sync(t)
	if err := c.commit(t, "orders", 0, 7); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]struct {
		m    MemberRef
		want error
	}{
		"old generation": {MemberRef{ID: c.id, Generation: c.joined.Generation - 1}, ErrIllegalGeneration},
		"stranger":       {MemberRef{ID: "x", Generation: c.joined.Generation}, ErrUnknownMember},
		"nobody":         {nobody, ErrUnknownMember},
	} {
		if err := commitOne(t.Context(), b, "g", try.m, CommitOffset{Topic: "orders", Offset: 1}); !errors.Is(err, try.want) {
			t.Errorf("%s: %v, want %v", name, err, try.want)
		}
	}
	if got := fetchOne(t, b, "g", "orders", 0); got != 7 {
		t.Errorf("offset %d, want 7", got)
	}
	if _, err := b.LeaveGroup(t.Context(), auth.Anonymous, "g", []MemberRef{{ID: c.id}}); err != nil {
		t.Fatal(err)
	}
	if err := commitOne(t.Context(), b, "g", nobody, CommitOffset{Topic: "orders", Offset: 1}); err != nil {
		t.Errorf("to the empty group: %v", err)
	}
}

// Bad offsets are refused one by one; the others are committed.
func TestCommitRefuses(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	errs, err := b.CommitOffsets(t.Context(), auth.Anonymous, "g", nobody, -1, []CommitOffset{
		{Topic: "orders", Offset: 3},
		{Topic: "nowhere", Offset: 3},
		{Topic: "orders", Partition: 9, Offset: 3},
		{Topic: "orders", Offset: -5},
		{Topic: "orders", Offset: 4, Metadata: string(make([]byte, 4097))},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, ErrUnknownTopic, ErrUnknownPartition, ErrInvalidRequest, ErrMetadataTooLarge} {
		if !errors.Is(errs[i], want) {
			t.Errorf("offset %d: %v, want %v", i, errs[i], want)
		}
	}
	if got := fetchOne(t, b, "g", "orders", 0); got != 3 {
		t.Errorf("offset %d, want 3", got)
	}
	if errs, err := b.CommitOffsets(t.Context(), auth.Anonymous, "g", nobody, -1, nil); err != nil || len(errs) != 0 {
		t.Errorf("a commit of nothing: %v, %v", errs, err)
	}
}

// A fetch of many offsets answers each partition in its place: those side by side
// and those far apart, asked twice, without an offset, and that do not exist.
func TestFetchManyOffsets(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 100, nil)
	create(t, b, "orders2", 100, nil)
	for _, p := range []int32{0, 1, 2, 5, 50, 99} {
		for i, topic := range []string{"orders", "orders2"} {
			if err := commitOne(t.Context(), b, "g", nobody, CommitOffset{Topic: topic, Partition: p, Offset: int64(100*i) + int64(p)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, want := range []map[int32]int64{
		{0: 0, 1: 1, 2: 2, 3: -1, 5: 5},
		{50: 50, 51: -1},
		{0: 0, 99: 99},
		{-1: -1, 0: 0},
		{math.MaxInt32: -1, math.MaxInt32 - 1: -1},
		{'2' << 24: -1, '2'<<24 + 1: -1}, // as in the key of another topic
		{},
	} {
		var ask []int32
		for p := range want {
			ask = append(ask, p, p)
		}
		got, err := b.FetchOffsets(t.Context(), auth.Anonymous, "g", []TopicPartitions{{"orders", ask}})
		if err != nil || len(got) != len(ask) {
			t.Fatalf("%v: %v, %v", ask, got, err)
		}
		for i, c := range got {
			if c.Partition != ask[i] || c.Offset != want[ask[i]] || c.Err != nil {
				t.Errorf("%v: in place %d is %+v, want offset %d", ask, i, c, want[ask[i]])
			}
		}
	}
}

// Offsets of a deleted topic are gone for a topic of the same name at once, and
// from the store soon; a group that has lost all is gone too.
func TestOffsetsOfDeletedTopics(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	if err := commitOne(t.Context(), b, "g", nobody, CommitOffset{Topic: "orders", Offset: 3}); err != nil {
		t.Fatal(err)
	}
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "orders"}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	create(t, b, "orders", 1, nil)
	if got := fetchOne(t, b, "g", "orders", 0); got != -1 {
		t.Errorf("offset %d of a topic that was never read", got)
	}
	for _, s := range b.groups.all() {
		if err := s.sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if errs := b.DeleteGroups(t.Context(), auth.Anonymous, []string{"g"}); !errors.Is(errs[0], ErrUnknownGroup) {
		t.Errorf("a group that has lost all: %v", errs[0])
	}
}

// Groups and offsets are deleted when nobody uses them, and not before.
func TestDeleteGroups(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 2, nil)
	c := &groupClient{b: b, group: "g"}
	c.join(t)
	c.sync(t)
	for partition := range int32(2) {
		if err := c.commit(t, "orders", partition, 7); err != nil {
			t.Fatal(err)
		}
	}
	if errs := b.DeleteGroups(t.Context(), auth.Anonymous, []string{"g", "other", ""}); !errors.Is(errs[0], ErrGroupNotEmpty) ||
		!errors.Is(errs[1], ErrUnknownGroup) || !errors.Is(errs[2], ErrInvalidGroupID) {
		t.Fatalf("%v", errs)
	}
	errs, err := b.DeleteOffsets(t.Context(), auth.Anonymous, "g", []TopicPartitions{{Topic: "orders", Partitions: []int32{1}}})
	if err != nil || errs[0] != nil {
		t.Fatal(errs, err)
	}
	if got := fetchOne(t, b, "g", "orders", 1); got != -1 {
		t.Errorf("offset %d after it was deleted", got)
	}
	if _, err := b.LeaveGroup(t.Context(), auth.Anonymous, "g", []MemberRef{{ID: c.id}}); err != nil {
		t.Fatal(err)
	}
	if errs := b.DeleteGroups(t.Context(), auth.Anonymous, []string{"g"}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if d := b.DescribeGroups(t.Context(), auth.Anonymous, []string{"g"}); d[0].State != "Dead" || !errors.Is(d[0].Err, ErrUnknownGroup) {
		t.Errorf("%+v", d[0])
	}
	if got := fetchOne(t, b, "g", "orders", 0); got != -1 {
		t.Errorf("offset %d of a deleted group", got)
	}
}

// Clients may read the offsets topic and nothing else.
func TestOffsetsTopicIsReserved(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	if err := commitOne(t.Context(), b, "g", nobody, CommitOffset{Topic: "orders", Offset: 3}); err != nil {
		t.Fatal(err)
	}
	topic, err := b.Topic(t.Context(), auth.Anonymous, TopicRef{Name: offsetsTopic})
	if err != nil || !topic.Internal || len(topic.Partitions) != 3 {
		t.Fatalf("%+v, %v", topic, err)
	}
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: offsetsTopic}, {ID: topic.ID}}); !errors.Is(r[0].Err, ErrInvalidTopic) || !errors.Is(r[1].Err, ErrInvalidTopic) {
		t.Errorf("delete: %v, %v", r[0].Err, r[1].Err)
	}
	if _, err := b.NewRecordSet(t.Context(), auth.Anonymous, offsetsTopic); !errors.Is(err, ErrInvalidTopic) {
		t.Errorf("produce: %v", err)
	}
}

// Many commits at a time share batches, and each is there when it is answered.
func TestConcurrentCommits(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			name := fmt.Sprint("g", i)
			for offset := range int64(20) {
				if err := commitOne(t.Context(), b, name, nobody, CommitOffset{Topic: "orders", Offset: offset}); err != nil {
					t.Error(err)
					return
				}
				if got := fetchOne(t, b, name, "orders", 0); got != offset {
					t.Errorf("%s: %d after %d was committed", name, got, offset)
				}
			}
		})
	}
	clients.Wait()
}
