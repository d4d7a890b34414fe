package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/auth"
	"leat/storage/record"
)

// ListPartitionReassignments has nothing to list, whatever is asked for.
func TestListPartitionReassignments(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 2)
	for name, topics := range map[string][]kmsg.ListPartitionReassignmentsRequestTopic{
		"all":   nil,
		"none":  {},
		"some":  {{Topic: "t", Partitions: []int32{0, 1, 99}}, {Topic: "t", Partitions: []int32{0}}},
		"wrong": {{Topic: "missing", Partitions: []int32{0}}, {Topic: "bad/name"}},
	} {
		req := kmsg.NewPtrListPartitionReassignmentsRequest()
		req.Topics = topics
		resp := ask[*kmsg.ListPartitionReassignmentsResponse](c, req, 0)
		if resp.ErrorCode != 0 || resp.ErrorMessage != nil || len(resp.Topics) != 0 {
			t.Errorf("%s: %+v", name, resp)
		}
	}
}

// sequenced is a batch of an idempotent producer.
func sequenced(t *testing.T, id int64, epoch int16, first int32, values ...string) record.Batch {
	t.Helper()
	b := batch(t, 0, values...)
	binary.BigEndian.PutUint64(b[43:], uint64(id))
	binary.BigEndian.PutUint16(b[51:], uint16(epoch))
	binary.BigEndian.PutUint32(b[53:], uint32(first))
	return reseal(b)
}

// DescribeProducers tells what each partition knows of each producer, follows
// it from batch to batch, over a new epoch and over a restart, and refuses each
// bad partition by itself.
func TestDescribeProducers(t *testing.T) {
	dir := t.TempDir()
	begun := time.Now().Add(-time.Second).UnixMilli()
	type producer struct {
		id       int64
		epoch    int32
		sequence int32
	}
	describe := func(c *client, partitions ...int32) []kmsg.DescribeProducersResponseTopicPartition {
		t.Helper()
		req := kmsg.NewPtrDescribeProducersRequest()
		req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: partitions}}
		resp := ask[*kmsg.DescribeProducersResponse](c, req, 0)
		if len(resp.Topics) != 1 || resp.Topics[0].Topic != "t" || len(resp.Topics[0].Partitions) != len(partitions) {
			t.Fatalf("%+v", resp)
		}
		return resp.Topics[0].Partitions
	}
	expect := func(c *client, partition int32, want ...producer) {
		t.Helper()
		p := describe(c, partition)[0]
		var got []producer
		for _, a := range p.ActiveProducers {
			got = append(got, producer{a.ProducerID, a.ProducerEpoch, a.LastSequence})
			if a.LastTimestamp < begun || a.LastTimestamp > time.Now().UnixMilli() || a.CoordinatorEpoch != -1 || a.CurrentTxnStartOffset != -1 {
				t.Errorf("partition %d: %+v", partition, a)
			}
		}
		slices.SortFunc(got, func(a, b producer) int { return int(a.id - b.id) })
		if p.ErrorCode != 0 || p.ErrorMessage != nil || p.Partition != partition || !slices.Equal(got, want) {
			t.Errorf("partition %d: code %d, %+v, want %+v", partition, p.ErrorCode, got, want)
		}
	}
	produce := func(c *client, partition int32, b record.Batch) {
		t.Helper()
		if p := c.produce(9, "t", partition, b); p.ErrorCode != 0 {
			t.Fatalf("produce: code %d", p.ErrorCode)
		}
	}
	t.Run("served", func(t *testing.T) {
		c := startDoor(t, setup{dir: dir}).dial(t)
		c.create("t", 3)
		expect(c, 0)
		produce(c, 0, batch(t, 0, "nobody's"))
		expect(c, 0)
		produce(c, 0, sequenced(t, 7, 2, 0, "a", "b", "c"))
		expect(c, 0, producer{7, 2, 2})
		produce(c, 0, sequenced(t, 8, 0, 41, "a")) // whatever the first sequence is
		produce(c, 0, sequenced(t, 7, 2, 3, "d"))
		expect(c, 0, producer{7, 2, 3}, producer{8, 0, 41})
		if p := c.produce(9, "t", 0, sequenced(t, 7, 2, 9, "gap")); p.ErrorCode != 45 {
			t.Errorf("a gap: code %d", p.ErrorCode)
		}
		produce(c, 0, sequenced(t, 8, 0, 41, "a")) // a retry
		produce(c, 0, sequenced(t, 7, 3, 0, "next epoch"))
		expect(c, 0, producer{7, 3, 0}, producer{8, 0, 41})
		produce(c, 1, sequenced(t, 9, 0, math.MaxInt32, "a", "wraps"))
		expect(c, 1, producer{9, 0, 0})
		expect(c, 2)
	})
	c := startDoor(t, setup{dir: dir}).dial(t)
	expect(c, 0, producer{7, 3, 0}, producer{8, 0, 41})
	expect(c, 1, producer{9, 0, 0})

	want := []int16{0, 3, 3, 42, 42}
	for i, p := range describe(c, 1, 3, -1, 2, 2) {
		if p.ErrorCode != want[i] || (p.ErrorMessage == nil) != (want[i] == 0) || want[i] != 0 && len(p.ActiveProducers) != 0 {
			t.Errorf("partition %d: %+v, want code %d", p.Partition, p, want[i])
		}
	}
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, name := range []string{"missing", "bad/name"} {
		req.Topics = append(req.Topics, kmsg.DescribeProducersRequestTopic{Topic: name, Partitions: []int32{0}})
	}
	resp := ask[*kmsg.DescribeProducersResponse](c, req, 0)
	if a, b := resp.Topics[0].Partitions[0].ErrorCode, resp.Topics[1].Partitions[0].ErrorCode; a != 3 || b != 17 {
		t.Errorf("topics that are not there: codes %d, %d", a, b)
	}
}

// What a partition tells counts: behind more producers than an answer has, the
// next partition is refused.
func TestDescribeProducersBound(t *testing.T) {
	d := startDoor(t, setup{})
	d.dial(t).create("t", 1)
	c := newConn(d.Server, new(writerConn))
	at := topicPartition{"t", 0}
	if _, err := c.producers(t.Context(), at, nil, maxProducersTold); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	if _, err := c.producers(t.Context(), at, nil, maxProducersTold+1); err == nil || !strings.Contains(err.Error(), "fewer") {
		t.Errorf("behind the bound: %v", err)
	}
}

// kadm finds the producers that kgo made.
func TestDescribeProducersByClient(t *testing.T) {
	d := startDoor(t, setup{})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	d.dial(t).create("t", 2)
	client, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, kgo.StringRecord("a"), kgo.StringRecord("b"), kgo.StringRecord("c")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	described, err := kadm.NewClient(client).DescribeProducers(ctx, kadm.TopicsSet{"t": {0: {}, 1: {}}})
	if err != nil {
		t.Fatal(err)
	}
	got, none := described["t"].Partitions[0].ActiveProducers.Sorted(), described["t"].Partitions[1].ActiveProducers
	if len(got) != 1 || got[0].ProducerID != id || got[0].ProducerEpoch != epoch || got[0].LastSequence != 2 || len(none) != 0 {
		t.Errorf("%+v and %+v, want producer %d epoch %d", got, none, id, epoch)
	}
}

// ListConfigResources names topics and brokers by kind, knows the kinds that
// have none, and refuses those that there are not.
func TestListConfigResources(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("b", 1)
	c.create("a", 1)
	for _, tc := range []struct {
		version int16
		kinds   []int8
		want    string
		code    int16
	}{
		{0, nil, "", 0},
		{1, nil, "2a 2b 41", 0},
		{1, []int8{2}, "2a 2b", 0},
		{1, []int8{4}, "41", 0},
		{1, []int8{4, 2, 2}, "2a 2b 41", 0},
		{1, []int8{8, 16, 32}, "", 0},
		{1, []int8{2, 3}, "", 35},
		{1, []int8{0}, "", 35},
		{1, []int8{-1}, "", 35},
	} {
		req := kmsg.NewPtrListConfigResourcesRequest()
		req.ResourceTypes = tc.kinds
		resp := ask[*kmsg.ListConfigResourcesResponse](c, req, tc.version)
		var got []string
		for _, r := range resp.ConfigResources {
			got = append(got, fmt.Sprint(r.Type)+r.Name)
		}
		if s := strings.Join(got, " "); resp.ErrorCode != tc.code || s != tc.want {
			t.Errorf("version %d, kinds %v: code %d, %q, want code %d, %q", tc.version, tc.kinds, resp.ErrorCode, s, tc.code, tc.want)
		}
	}
}

// described is one page, with the topics as "name: first-last" or "name: code".
func (c *client) described(limit int32, cursor *kmsg.DescribeTopicPartitionsRequestCursor, topics ...string) (page string, next *kmsg.DescribeTopicPartitionsResponseNextCursor) {
	c.t.Helper()
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.ResponsePartitionLimit, req.Cursor = limit, cursor
	for _, name := range topics {
		req.Topics = append(req.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: name})
	}
	resp := ask[*kmsg.DescribeTopicPartitionsResponse](c, req, 0)
	var out []string
	for _, topic := range resp.Topics {
		switch n := len(topic.Partitions); {
		case topic.ErrorCode != 0:
			out = append(out, fmt.Sprintf("%s: code %d", *topic.Topic, topic.ErrorCode))
		case n == 0:
			out = append(out, *topic.Topic+": none")
		default:
			out = append(out, fmt.Sprintf("%s: %d-%d", *topic.Topic, topic.Partitions[0].Partition, topic.Partitions[n-1].Partition))
		}
		if (topic.TopicID == [16]byte{}) != (topic.ErrorCode != 0) {
			c.t.Errorf("%s has the id %x", *topic.Topic, topic.TopicID)
		}
		for _, p := range topic.Partitions {
			if p.ErrorCode != 0 || p.LeaderID != 1 || p.LeaderEpoch != 0 || !slices.Equal(p.Replicas, []int32{1}) || !slices.Equal(p.ISR, p.Replicas) ||
				p.EligibleLeaderReplicas == nil || p.LastKnownELR == nil || len(p.EligibleLeaderReplicas)+len(p.LastKnownELR)+len(p.OfflineReplicas) > 0 {
				c.t.Errorf("%s: %+v", *topic.Topic, p)
			}
		}
	}
	return strings.Join(out, ", "), resp.NextCursor
}

// DescribeTopicPartitions pages through the topics in the order of their names,
// all of them or those that are named, and never past its limit.
func TestDescribeTopicPartitions(t *testing.T) {
	c := startDoor(t, setup{configs: map[string]string{"auto.create.topics.enable": "true"}}).dial(t)
	c.create("c", 2)
	c.create("a", 3)
	c.create("b", 1)
	at := func(topic string, partition int32) *kmsg.DescribeTopicPartitionsRequestCursor {
		return &kmsg.DescribeTopicPartitionsRequestCursor{Topic: topic, Partition: partition}
	}
	for _, tc := range []struct {
		limit  int32
		cursor *kmsg.DescribeTopicPartitionsRequestCursor
		topics []string
		want   string
		next   string
	}{
		{2000, nil, nil, "a: 0-2, b: 0-0, c: 0-1", ""},
		{6, nil, nil, "a: 0-2, b: 0-0, c: 0-1", ""},
		{5, nil, nil, "a: 0-2, b: 0-0, c: 0-0", "c/1"},
		{4, nil, nil, "a: 0-2, b: 0-0", "c/0"},
		{2, nil, nil, "a: 0-1", "a/2"},
		{2, at("a", 2), nil, "a: 2-2, b: 0-0", "c/0"},
		{2, at("c", 0), nil, "c: 0-1", ""},
		{0, at("c", 0), nil, "c: 0-0", "c/1"},
		{-1, at("c", 1), nil, "c: 1-1", ""},
		{math.MaxInt32, at("a", 1), nil, "a: 1-2, b: 0-0, c: 0-1", ""},
		{2000, at("a", 99), nil, "a: none, b: 0-0, c: 0-1", ""},
		{2000, at("a", math.MaxInt32), []string{"a"}, "a: none", ""},
		{2000, at("aa", 5), nil, "b: 0-0, c: 0-1", ""}, // deleted between two pages
		{2000, at("d", 0), nil, "", ""},
		{2000, at("a", -1), nil, "", ""},
		{2000, nil, []string{"c", "a", "c"}, "a: 0-2, c: 0-1", ""},
		{4, nil, []string{"c", "a"}, "a: 0-2, c: 0-0", "c/1"},
		{4, at("c", 1), []string{"c", "a"}, "c: 1-1", ""},
		{2000, nil, []string{"missing", "b", "bad/name", ""}, ": code 17, b: 0-0, bad/name: code 17, missing: code 3", ""},
		{2, nil, []string{"missing", "b", "bad/name"}, "b: 0-0, bad/name: code 17", "missing/0"},
		{2000, at("b", 0), []string{"a", "c"}, "a: code 42, c: code 42", ""},
		{2000, at("a", -1), []string{"a", "c"}, "a: code 42, c: code 42", ""},
	} {
		got, next := c.described(tc.limit, tc.cursor, tc.topics...)
		cursor := ""
		if next != nil {
			cursor = fmt.Sprintf("%s/%d", next.Topic, next.Partition)
		}
		if got != tc.want || cursor != tc.next {
			t.Errorf("limit %d, cursor %+v, topics %q: %q, then %q; want %q, then %q", tc.limit, tc.cursor, tc.topics, got, cursor, tc.want, tc.next)
		}
	}
	if got, _ := c.described(2000, nil, "missing"); got != "missing: code 3" {
		t.Errorf("asking made a topic: %s", got)
	}
}

// No answer has more than 2,000 partitions, whatever the client asks for, and
// the pages together have every partition once.
func TestDescribeTopicPartitionsPages(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("large", 2001)
	c.create("small", 3)
	var pages []string
	var cursor *kmsg.DescribeTopicPartitionsRequestCursor
	for range 10 {
		page, next := c.described(math.MaxInt32, cursor)
		pages = append(pages, page)
		if next == nil {
			break
		}
		cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: next.Topic, Partition: next.Partition}
	}
	if want := []string{"large: 0-1999", "large: 2000-2000, small: 0-2"}; !slices.Equal(pages, want) {
		t.Errorf("%q, want %q", pages, want)
	}
}

// Who may not do what the APIs ask for is told so, and sees no topic.
func TestDescribeAuthorization(t *testing.T) {
	dir := t.TempDir()
	epochs(t, dir, "t", 1, 1)
	var rights gate
	c := startDoor(t, setup{dir: dir, authorizer: &rights, opts: Options{Authorizer: &rights}}).dial(t)
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	if p := ask[*kmsg.DescribeProducersResponse](c, producers, 0).Topics[0].Partitions[0]; p.ErrorCode != 29 || p.ErrorMessage == nil {
		t.Errorf("DescribeProducers: %+v", p)
	}
	if r := ask[*kmsg.ListPartitionReassignmentsResponse](c, kmsg.NewPtrListPartitionReassignmentsRequest(), 0); r.ErrorCode != 31 || r.ErrorMessage == nil {
		t.Errorf("ListPartitionReassignments: %+v", r)
	}
	for v := int16(0); v <= 1; v++ {
		if r := ask[*kmsg.ListConfigResourcesResponse](c, kmsg.NewPtrListConfigResourcesRequest(), v); r.ErrorCode != 31 || len(r.ConfigResources) > 0 {
			t.Errorf("ListConfigResources version %d: %+v", v, r)
		}
	}
	if got, _ := c.described(9, nil); got != "" {
		t.Errorf("all topics: %q", got)
	}
	if got, _ := c.described(9, nil, "t", "missing"); got != "missing: code 29, t: code 29" {
		t.Errorf("named topics: %q", got)
	}
}

// What a client may do is told as bits by Kafka's numbers, to those that ask.
func TestAuthorizedOperations(t *testing.T) {
	d := startDoor(t, setup{configs: quick})
	c := d.dial(t)
	c.create("t", 1)
	c.joinAs(9, "g", "")
	bits := func(ops ...auth.Operation) (out int32) {
		for _, op := range ops {
			out |= 1 << op
		}
		return out
	}
	topic := bits(auth.Read, auth.Write, auth.Create, auth.Delete, auth.Alter, auth.Describe, auth.DescribeConfigs, auth.AlterConfigs)
	cluster := bits(auth.Create, auth.Alter, auth.Describe, auth.DescribeConfigs, auth.AlterConfigs, auth.IdempotentWrite)
	group := bits(auth.Read, auth.Delete, auth.Describe)
	const untold = math.MinInt32
	for _, asks := range []bool{false, true} {
		told := func(ops int32) int32 {
			if asks {
				return ops
			}
			return untold
		}
		for v := int16(8); v <= 13; v++ {
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = named("t", "bad/name")
			req.IncludeTopicAuthorizedOperations, req.IncludeClusterAuthorizedOperations = asks, asks
			resp := ask[*kmsg.MetadataResponse](c, req, v)
			if got, bad := resp.Topics[0].AuthorizedOperations, resp.Topics[1].AuthorizedOperations; got != told(topic) || bad != untold {
				t.Errorf("Metadata version %d: topic %b, bad topic %b", v, got, bad)
			}
			if v <= 10 && resp.AuthorizedOperations != told(cluster) {
				t.Errorf("Metadata version %d: cluster %b", v, resp.AuthorizedOperations)
			}
		}
		for v := int16(3); v <= 6; v++ {
			req := kmsg.NewPtrDescribeGroupsRequest()
			req.Groups, req.IncludeAuthorizedOperations = []string{"g", "missing"}, asks
			resp := ask[*kmsg.DescribeGroupsResponse](c, req, v)
			if got, missing := resp.Groups[0].AuthorizedOperations, resp.Groups[1].AuthorizedOperations; got != told(group) || missing != untold {
				t.Errorf("DescribeGroups version %d: %b, of a missing group %b", v, got, missing)
			}
		}
	}
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	if got := ask[*kmsg.DescribeTopicPartitionsResponse](c, req, 0).Topics[1].AuthorizedOperations; got != topic {
		t.Errorf("DescribeTopicPartitions: %b", got)
	}
}
