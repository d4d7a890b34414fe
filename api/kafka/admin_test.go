package kafka

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/auth"
	"leat/broker"
)

// DeleteRecords moves the low watermark in every version, refuses each bad
// partition by itself, and what it deleted is gone for readers.
func TestDeleteRecords(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	for v := int16(0); v <= 2; v++ {
		topic := fmt.Sprintf("t%d", v)
		c.create(topic, 4)
		c.create("compact-"+topic, 1, "cleanup.policy", "compact")
		for p := range int32(3) {
			for range 5 {
				c.produce(9, topic, p, batch(t, 0, "a", "b"))
			}
		}
		part := func(partition int32, offset int64) kmsg.DeleteRecordsRequestTopicPartition {
			return kmsg.DeleteRecordsRequestTopicPartition{Partition: partition, Offset: offset}
		}
		for _, step := range []struct {
			topic string
			parts []kmsg.DeleteRecordsRequestTopicPartition
			codes []int16
			low   []int64
		}{
			{topic, []kmsg.DeleteRecordsRequestTopicPartition{part(0, 3), part(1, -1), part(3, -1)}, []int16{0, 0, 0}, []int64{3, 10, 0}},
			{topic, []kmsg.DeleteRecordsRequestTopicPartition{part(0, 1), part(0, 2), part(2, 10)}, []int16{42, 42, 0}, []int64{-1, -1, 10}},
			{topic, []kmsg.DeleteRecordsRequestTopicPartition{part(0, 2), part(1, 0)}, []int16{0, 0}, []int64{3, 10}},
			{topic, []kmsg.DeleteRecordsRequestTopicPartition{part(0, 11), part(1, -2), part(4, 0), part(-1, 0)}, []int16{1, 1, 3, 3}, []int64{-1, -1, -1, -1}},
			{"missing", []kmsg.DeleteRecordsRequestTopicPartition{part(0, 0)}, []int16{3}, []int64{-1}},
			{"bad/name", []kmsg.DeleteRecordsRequestTopicPartition{part(0, 0)}, []int16{17}, []int64{-1}},
			{"compact-" + topic, []kmsg.DeleteRecordsRequestTopicPartition{part(0, -1)}, []int16{44}, []int64{-1}},
			{topic, nil, nil, nil},
		} {
			req := kmsg.NewPtrDeleteRecordsRequest()
			req.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: step.topic, Partitions: step.parts}}
			resp := ask[*kmsg.DeleteRecordsResponse](c, req, v)
			if len(resp.Topics) != 1 || resp.Topics[0].Topic != step.topic || len(resp.Topics[0].Partitions) != len(step.parts) {
				t.Fatalf("version %d: %+v", v, resp)
			}
			for i, p := range resp.Topics[0].Partitions {
				if p.Partition != step.parts[i].Partition || p.ErrorCode != step.codes[i] || p.LowWatermark != step.low[i] {
					t.Errorf("version %d: %s: %+v: code %d low watermark %d, want %d %d", v, step.topic, step.parts[i], p.ErrorCode, p.LowWatermark, step.codes[i], step.low[i])
				}
			}
		}
		// A topic may be listed twice, with other partitions each time.
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Topics = []kmsg.DeleteRecordsRequestTopic{
			{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{part(0, 4)}},
			{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{part(3, 0)}},
		}
		resp := ask[*kmsg.DeleteRecordsResponse](c, req, v)
		if a, b := resp.Topics[0].Partitions[0], resp.Topics[1].Partitions[0]; a.ErrorCode != 0 || a.LowWatermark != 4 || b.ErrorCode != 0 || b.LowWatermark != 0 {
			t.Errorf("version %d: listed twice: %+v", v, resp.Topics)
		}
		for offset, code := range map[int64]int16{3: 1, 4: 0} {
			if p := ask[*kmsg.FetchResponse](c, fetchRequest(topic, [16]byte{}, 0, offset), 12).Topics[0].Partitions[0]; p.ErrorCode != code {
				t.Errorf("version %d: fetch at %d: code %d, want %d", v, offset, p.ErrorCode, code)
			}
		}
	}
}

// epochs makes a directory with a topic whose partition 0 got n records in each
// of so many epochs: every start after a crash begins a new one.
func epochs(t *testing.T, dir, topic string, epochs, n int) {
	t.Helper()
	ctx := context.Background()
	for epoch := range epochs {
		b, err := broker.Open(ctx, broker.Options{Path: dir})
		if err != nil {
			t.Fatal(err)
		}
		if epoch == 0 {
			r := b.CreateTopics(ctx, auth.Anonymous, []broker.TopicSpec{{Name: topic, Partitions: 2, ReplicationFactor: 1}}, false)
			if r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
		}
		for range n {
			req := &broker.ProduceRequest{Acks: broker.AcksAll, Timeout: limit, Batches: []broker.ProduceBatch{{Topic: topic, Batch: batch(t, 0, "v")}}}
			if r := b.Produce(ctx, auth.Anonymous, req).Wait(ctx); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		// What is left is what a crash leaves.
		if err := os.Remove(filepath.Join(dir, "CLEAN")); err != nil {
			t.Fatal(err)
		}
	}
}

// OffsetForLeaderEpoch says where each epoch ended, checks the reader's own
// epoch first, and does so in every version, of which librdkafka speaks 2.
func TestOffsetForLeaderEpoch(t *testing.T) {
	dir := t.TempDir()
	epochs(t, dir, "t", 3, 2) // epochs 0 to 2, now 3 without a record
	c := startDoor(t, setup{dir: dir}).dial(t)
	for v := int16(2); v <= 4; v++ {
		for _, tc := range []struct {
			topic                string
			partition            int32
			current, asked, want int32
			end                  int64
			code                 int16
		}{
			{"t", 0, -1, 0, 0, 2, 0},
			{"t", 0, 3, 1, 1, 4, 0},
			{"t", 0, -1, 2, 2, 6, 0},
			{"t", 0, -1, 3, 3, 6, 0},
			{"t", 0, -1, 4, -1, -1, 0},
			{"t", 0, -1, -1, -1, -1, 0},
			{"t", 0, -1, math.MaxInt32, -1, -1, 0},
			{"t", 0, -1, math.MinInt32, -1, -1, 0},
			{"t", 0, 2, 0, -1, -1, 74},
			{"t", 0, 4, 0, -1, -1, 75},
			{"t", 2, -1, 0, -1, -1, 3},
			{"t", -1, -1, 0, -1, -1, 3},
			{"missing", 0, -1, 0, -1, -1, 3},
			{"bad/name", 0, -1, 0, -1, -1, 17},
		} {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = tc.partition, tc.current, tc.asked
			req.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: tc.topic, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{p, p}}}
			resp := ask[*kmsg.OffsetForLeaderEpochResponse](c, req, v)
			if len(resp.Topics) != 1 || resp.Topics[0].Topic != tc.topic || len(resp.Topics[0].Partitions) != 2 {
				t.Fatalf("version %d: %+v", v, resp)
			}
			for _, got := range resp.Topics[0].Partitions {
				if got.Partition != tc.partition || got.ErrorCode != tc.code || got.LeaderEpoch != tc.want || got.EndOffset != tc.end {
					t.Errorf("version %d: %+v: %+v", v, tc, got)
				}
			}
		}
	}
}

// CreatePartitions gives topics more partitions, which can be used at once, and
// refuses each bad topic with a code and a text, in every version.
func TestCreatePartitions(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	assign := func(replicas ...int32) []kmsg.CreatePartitionsRequestTopicAssignment {
		out := []kmsg.CreatePartitionsRequestTopicAssignment{}
		for _, r := range replicas {
			out = append(out, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: []int32{r}})
		}
		return out
	}
	for v := int16(0); v <= 3; v++ {
		name := func(s string) string { return fmt.Sprintf("%s-%d", s, v) }
		for _, topic := range []string{"more", "assigned", "same", "fewer", "huge", "dup", "short", "long", "foreign", "empty"} {
			c.create(name(topic), 2)
		}
		cases := []struct {
			topic      string
			count      int32
			assignment []kmsg.CreatePartitionsRequestTopicAssignment
			code       int16
		}{
			{name("more"), 5, nil, 0},
			{name("assigned"), 4, assign(1, 1), 0},
			{name("same"), 2, nil, 37},
			{name("fewer"), 1, nil, 37},
			{name("fewer") + "-missing", 5, nil, 3},
			{name("huge"), math.MaxInt32, nil, 37},
			{name("dup"), 3, nil, 42},
			{name("dup"), 4, nil, 42},
			{name("short"), 4, assign(1), 39},
			{name("long"), 3, assign(1, 1), 39},
			{name("foreign"), 3, assign(9), 39},
			{name("empty"), 3, assign(), 39},
			{"bad/name", 3, nil, 17},
			{name("more") + "x", -1, nil, 3},
		}
		for _, validate := range []bool{true, false} {
			req := kmsg.NewPtrCreatePartitionsRequest()
			req.ValidateOnly = validate
			for _, tc := range cases {
				req.Topics = append(req.Topics, kmsg.CreatePartitionsRequestTopic{Topic: tc.topic, Count: tc.count, Assignment: tc.assignment})
			}
			resp := ask[*kmsg.CreatePartitionsResponse](c, req, v)
			if len(resp.Topics) != len(cases) {
				t.Fatalf("version %d: %d topics", v, len(resp.Topics))
			}
			for i, got := range resp.Topics {
				if got.Topic != cases[i].topic || got.ErrorCode != cases[i].code || (got.ErrorMessage == nil) != (got.ErrorCode == 0) {
					t.Errorf("version %d: %s to %d: code %d, want %d", v, got.Topic, cases[i].count, got.ErrorCode, cases[i].code)
				}
			}
			p := c.produce(9, name("more"), 4, batch(t, 0, "a"))
			if want := map[bool]int16{true: 3, false: 0}[validate]; p.ErrorCode != want {
				t.Errorf("version %d: produce to a new partition, validate only %v: code %d", v, validate, p.ErrorCode)
			}
		}
		for topic, n := range map[string]int{"more": 5, "assigned": 4, "same": 2, "dup": 2, "huge": 2} {
			meta := kmsg.NewPtrMetadataRequest()
			meta.Topics = named(name(topic))
			if got := len(ask[*kmsg.MetadataResponse](c, meta, 12).Topics[0].Partitions); got != n {
				t.Errorf("version %d: %s has %d partitions, want %d", v, topic, got, n)
			}
		}
	}
}

// DescribeLogDirs tells the sizes of all logs for a null list, of those that are
// named otherwise, and leaves out what there is not, in every version.
func TestDescribeLogDirs(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	c.create("a", 2)
	c.create("b", 1)
	sent := batch(t, 0, strings.Repeat("x", 1000))
	c.produce(9, "a", 1, sent)
	topic := func(name string, partitions ...int32) kmsg.DescribeLogDirsRequestTopic {
		return kmsg.DescribeLogDirsRequestTopic{Topic: name, Partitions: partitions}
	}
	for v := int16(1); v <= 4; v++ {
		for _, tc := range []struct {
			name   string
			topics []kmsg.DescribeLogDirsRequestTopic
			want   string
		}{
			{"all", nil, "a/0 a/1 b/0"},
			{"none", []kmsg.DescribeLogDirsRequestTopic{}, ""},
			{"some", []kmsg.DescribeLogDirsRequestTopic{topic("a", 1), topic("b", 0)}, "a/1 b/0"},
			{"no partition", []kmsg.DescribeLogDirsRequestTopic{topic("a")}, ""},
			{"listed twice", []kmsg.DescribeLogDirsRequestTopic{topic("a", 1), topic("a", 0, 1)}, "a/0 a/1"},
			{"unknown", []kmsg.DescribeLogDirsRequestTopic{topic("a", -1, 2, 99), topic("missing", 0), topic("", 0)}, ""},
		} {
			req := kmsg.NewPtrDescribeLogDirsRequest()
			req.Topics = tc.topics
			resp := ask[*kmsg.DescribeLogDirsResponse](c, req, v)
			if resp.ErrorCode != 0 || len(resp.Dirs) != 1 || resp.Dirs[0].Dir != d.dir || resp.Dirs[0].ErrorCode != 0 {
				t.Fatalf("version %d: %s: %+v", v, tc.name, resp)
			}
			dir := resp.Dirs[0]
			if v >= 4 && (dir.TotalBytes <= 0 || dir.UsableBytes <= 0 || dir.UsableBytes > dir.TotalBytes) {
				t.Errorf("version %d: %d bytes of %d are free", v, dir.UsableBytes, dir.TotalBytes)
			}
			var got []string
			for _, topic := range dir.Topics {
				for _, p := range topic.Partitions {
					got = append(got, fmt.Sprintf("%s/%d", topic.Topic, p.Partition))
					size := int64(0)
					if topic.Topic == "a" && p.Partition == 1 {
						size = int64(len(sent))
					}
					if p.Size != size || p.OffsetLag != 0 || p.IsFuture {
						t.Errorf("version %d: %s/%d: %+v, want %d bytes", v, topic.Topic, p.Partition, p, size)
					}
				}
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("version %d: %s: %q, want %q", v, tc.name, s, tc.want)
			}
		}
	}
}

// DescribeCluster names cluster, controller and nodes, tells rights if it is
// asked to, and refuses to be taken for a controller, in every version.
func TestDescribeCluster(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	all := int32(0)
	for _, op := range []auth.Operation{auth.Create, auth.Alter, auth.Describe, auth.DescribeConfigs, auth.AlterConfigs, auth.IdempotentWrite} {
		all |= 1 << op
	}
	for v := int16(0); v <= 2; v++ {
		for _, operations := range []bool{false, true} {
			req := kmsg.NewPtrDescribeClusterRequest()
			req.IncludeClusterAuthorizedOperations, req.IncludeFencedBrokers = operations, true
			resp := ask[*kmsg.DescribeClusterResponse](c, req, v)
			want := map[bool]int32{false: math.MinInt32, true: all}[operations]
			if resp.ErrorCode != 0 || resp.ErrorMessage != nil || resp.ClusterID != d.opts.Broker.ClusterID() || resp.ControllerID != 1 ||
				resp.EndpointType != 1 || resp.ClusterAuthorizedOperations != want || len(resp.Brokers) != 1 {
				t.Errorf("version %d: %+v", v, resp)
			}
			if b := resp.Brokers[0]; b.NodeID != 1 || b.Host != "127.0.0.1" || b.Port == 0 || b.Rack != nil || b.IsFenced {
				t.Errorf("version %d: %+v", v, b)
			}
		}
		for kind, code := range map[int8]int16{2: 114, 0: 115, 3: 115, -1: 115} {
			req := kmsg.NewPtrDescribeClusterRequest()
			req.EndpointType = kind
			resp := ask[*kmsg.DescribeClusterResponse](c, req, v)
			if v == 0 {
				code = 0
			}
			if resp.ErrorCode != code || (resp.ErrorMessage == nil) != (code == 0) || v > 0 && (len(resp.Brokers) != 0 || resp.ControllerID != -1) {
				t.Errorf("version %d: endpoint type %d: %+v, want code %d", v, kind, resp, code)
			}
		}
	}
	none := newConn(New(Options{Authorizer: denied{}}), new(writerConn)).clusterOperations()
	if none != 0 {
		t.Errorf("operations %b without a right", none)
	}
}

// Every version that is advertised is answered, but for those of Produce that
// only librdkafka's feature test looks at; and every other version, and every
// key that is not advertised, closes the connection without a byte.
func TestEveryAdvertisedVersionIsServed(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	c := d.dial(t)
	c.create("t", 1)
	requests := samples(t)
	served := map[int16]bool{}
	closes := func(key, version int16) {
		t.Helper()
		other := d.dial(t)
		other.send(other.head(key, version))
		other.closed()
		_ = other.Close()
	}
	for _, k := range ask[*kmsg.ApiVersionsResponse](c, kmsg.NewPtrApiVersionsRequest(), 0).ApiKeys {
		i := slices.IndexFunc(requests, func(r kmsg.Request) bool { return r.Key() == k.ApiKey })
		if i < 0 {
			t.Fatalf("no request of %s", kmsg.NameForKey(k.ApiKey))
		}
		lowest := k.MinVersion
		if k.ApiKey == 0 {
			lowest = 3
		}
		for v := lowest; v <= k.MaxVersion; v++ {
			ask[kmsg.Response](c, requests[i], v)
		}
		served[k.ApiKey] = true
		closes(k.ApiKey, -1)
		closes(k.ApiKey, lowest-1)
		if k.ApiKey != keyAPIVersions { // TestAPIVersions has that
			closes(k.ApiKey, k.MaxVersion+1)
			closes(k.ApiKey, math.MaxInt16)
		}
	}
	for key := int16(-1); key <= kmsg.MaxKey+1; key++ {
		for version := int16(0); version <= 2 && !served[key]; version++ {
			closes(key, version)
		}
	}
	ask[*kmsg.MetadataResponse](c, kmsg.NewPtrMetadataRequest(), 12) // the others did not disturb this one
}
