package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What is advertised is the APIs with the ranges of the support table,
// sorted, with flexible versions where kmsg has them.
func TestTableOfHandlers(t *testing.T) {
	want := map[int16][3]int16{ // min, max, lowest that is served
		0: {0, 11, 3}, 1: {4, 17, 4}, 2: {1, 10, 1}, 3: {0, 13, 0},
		8: {1, 9, 1}, 9: {1, 9, 1}, 10: {0, 4, 0}, 11: {0, 9, 0}, 12: {0, 4, 0}, 13: {0, 5, 0}, 14: {0, 5, 0}, 15: {0, 6, 0}, 16: {0, 5, 0},
		18: {0, 4, 0}, 19: {2, 7, 2}, 20: {1, 6, 1}, 21: {0, 2, 0}, 22: {0, 4, 0}, 23: {2, 4, 2},
		32: {1, 4, 1}, 33: {0, 2, 0}, 35: {1, 4, 1}, 37: {0, 3, 0}, 42: {0, 2, 0}, 43: {0, 2, 0}, 44: {0, 1, 0}, 46: {0, 0, 0}, 47: {0, 0, 0}, 60: {0, 2, 0}, 61: {0, 0, 0},
		74: {0, 1, 0}, 75: {0, 0, 0},
	}
	hs := newHandlers(newMetrics())
	if len(hs.table) != len(want) || !slices.IsSortedFunc(hs.table, func(a, b *handler) int { return int(a.key - b.key) }) {
		t.Errorf("%d handlers", len(hs.table))
	}
	for _, h := range hs.table {
		if got := [3]int16{h.min, h.max, h.accept}; got != want[h.key] {
			t.Errorf("%s: %v, want %v", h.name, got, want[h.key])
		}
		if name := kmsg.NameForKey(h.key); !strings.EqualFold(name, h.name) {
			t.Errorf("key %d is %s, not %s", h.key, name, h.name)
		}
		for v := h.accept; v <= h.max; v++ {
			req := kmsg.RequestForKey(h.key)
			req.SetVersion(v)
			if req.IsFlexible() != (v >= h.flexible) {
				t.Errorf("%s version %d: flexible is %v", h.name, v, req.IsFlexible())
			}
		}
		if hs.find(h.key) != h {
			t.Errorf("%s is not found", h.name)
		}
	}
	if hs.find(4) != nil || hs.find(-1) != nil || hs.find(maxKey) != nil || hs.find(maxKey+1) != nil || hs.find(999) != nil {
		t.Error("found what is not there")
	}
}

// ApiVersions answers the table in every version, and in the body of version 0
// with code 35 for a version that is not known yet, on a connection that goes
// on (KIP-511).
func TestAPIVersions(t *testing.T) {
	d := startDoor(t, setup{noBroker: true})
	c := d.dial(t)
	check := func(resp *kmsg.ApiVersionsResponse, code int16) {
		t.Helper()
		if resp.ErrorCode != code || len(resp.ApiKeys) != len(d.handlers.table) || len(resp.SupportedFeatures) != 0 {
			t.Errorf("version %d: %+v", resp.Version, resp)
		}
		for i, h := range d.handlers.table {
			if k := resp.ApiKeys[i]; k.ApiKey != h.key || k.MinVersion != h.min || k.MaxVersion != h.max {
				t.Errorf("version %d: %+v", resp.Version, k)
			}
		}
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "librdkafka", "2.11.1"
	for v := int16(0); v <= 4; v++ {
		check(ask[*kmsg.ApiVersionsResponse](c, req, v), 0)
	}
	for _, v := range []int16{5, 6, 99} {
		req.SetVersion(v)
		c.send(c.frame(req))
		corr, body := c.recv()
		if corr != c.corr {
			t.Fatalf("correlation id %d", corr)
		}
		check(decode(t, kmsg.NewPtrApiVersionsResponse(), body), 35)
	}
	for name, ok := range map[string]bool{
		"a": true, "apache-kafka-java": true, "v1.2.3-SNAPSHOT": true,
		"": false, "-a": false, "a.": false, "a b": false, "ü": false,
	} {
		req.ClientSoftwareName = name
		resp := ask[*kmsg.ApiVersionsResponse](c, req, 3)
		if want := map[bool]int16{true: 0, false: 42}[ok]; resp.ErrorCode != want {
			t.Errorf("software name %q: code %d", name, resp.ErrorCode)
		}
	}
}

// Metadata names nodes, cluster, topics and leaders in every version; null,
// empty and named lists, auto-creation and ids follow the version's rules.
func TestMetadata(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 3)
	b := d.opts.Broker
	for v := int16(0); v <= 13; v++ {
		req := kmsg.NewPtrMetadataRequest()
		if v == 0 {
			req.Topics = []kmsg.MetadataRequestTopic{}
		}
		resp := ask[*kmsg.MetadataResponse](c, req, v)
		if len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != 1 || resp.Brokers[0].Host != "127.0.0.1" || len(resp.Topics) != 1 {
			t.Fatalf("version %d: %+v", v, resp)
		}
		topic := resp.Topics[0]
		if *topic.Topic != "t" || len(topic.Partitions) != 3 || v >= 10 && topic.TopicID != id || topic.ErrorCode != 0 {
			t.Errorf("version %d: %+v", v, topic)
		}
		for i, p := range topic.Partitions {
			if p.Partition != int32(i) || p.Leader != 1 || p.ErrorCode != 0 || !slices.Equal(p.ISR, []int32{1}) || !slices.Equal(p.Replicas, p.ISR) {
				t.Errorf("version %d: %+v", v, p)
			}
		}
		if v >= 2 && *resp.ClusterID != b.ClusterID() || v >= 1 && resp.ControllerID != 1 {
			t.Errorf("version %d: cluster %v controller %d", v, resp.ClusterID, resp.ControllerID)
		}
		if v >= 1 {
			req.Topics = []kmsg.MetadataRequestTopic{}
			if resp := ask[*kmsg.MetadataResponse](c, req, v); len(resp.Topics) != 0 {
				t.Errorf("version %d: empty list gives %d topics", v, len(resp.Topics))
			}
		}
	}
}

func named(names ...string) []kmsg.MetadataRequestTopic {
	topics := make([]kmsg.MetadataRequestTopic, len(names))
	for i := range names {
		topics[i].Topic = &names[i]
	}
	return topics
}

// A missing topic is made when client and server allow it, and is then ready
// for use; otherwise it is unknown, at once. A bad name is code 17.
func TestMetadataAutoCreate(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	off := startDoor(t, setup{configs: map[string]string{"auto.create.topics.enable": "false"}}).dial(t)
	for v := int16(0); v <= 13; v++ {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = named("missing-"+string('a'+rune(v)), "missing-"+string('a'+rune(v)), "bad/name")
		check := func(c *client, want int16, partitions int) {
			t.Helper()
			resp := ask[*kmsg.MetadataResponse](c, req, v)
			if len(resp.Topics) != 2 {
				t.Fatalf("version %d: %d topics for two names", v, len(resp.Topics))
			}
			got := resp.Topics[0]
			if got.ErrorCode != want || len(got.Partitions) != partitions || got.Topic == nil || *got.Topic != *req.Topics[0].Topic {
				t.Errorf("version %d: %+v, want code %d", v, got, want)
			}
			if bad := resp.Topics[1]; bad.ErrorCode != 17 || *bad.Topic != "bad/name" {
				t.Errorf("version %d: bad name %+v", v, bad)
			}
		}
		req.AllowAutoTopicCreation = false
		if v >= 4 {
			check(c, 3, 0)
		}
		req.AllowAutoTopicCreation = true
		check(c, 0, 4)
		check(off, 3, 0)
		if p := c.produce(9, *req.Topics[0].Topic, 3, batch(t, 0, "a")); p.ErrorCode != 0 {
			t.Errorf("version %d: produce at once: code %d", v, p.ErrorCode)
		}
	}
}

// From version 12 topics are found by id; an unknown id is code 100, and an id
// in an older version a bad request.
func TestMetadataByID(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	id := c.create("t", 1)
	for v := int16(10); v <= 13; v++ {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{{TopicID: id}, {TopicID: [16]byte{9}}}
		if v < 12 {
			req.Topics[0].Topic, req.Topics[1].Topic = new(string), new(string)
		}
		resp := ask[*kmsg.MetadataResponse](c, req, v)
		want := []int16{42, 42}
		if v >= 12 {
			want = []int16{0, 100}
		}
		if got := []int16{resp.Topics[0].ErrorCode, resp.Topics[1].ErrorCode}; !slices.Equal(got, want) {
			t.Errorf("version %d: codes %v, want %v", v, got, want)
		}
		if v >= 12 && (*resp.Topics[0].Topic != "t" || resp.Topics[1].Topic != nil || resp.Topics[1].TopicID != [16]byte{9}) {
			t.Errorf("version %d: %+v", v, resp.Topics)
		}
	}
}

// CreateTopics makes topics with defaults and configs, validates without
// making, refuses what is wrong each with its code and text, and answers in
// every version.
func TestCreateTopics(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	one, bad := "1000", "x"
	topic := func(name string, partitions int32, replicas int16, configs ...kmsg.CreateTopicsRequestTopicConfig) kmsg.CreateTopicsRequestTopic {
		out := kmsg.NewCreateTopicsRequestTopic()
		out.Topic, out.NumPartitions, out.ReplicationFactor, out.Configs = name, partitions, replicas, configs
		return out
	}
	assigned := topic("assigned", -1, -1)
	assigned.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: []int32{1}}, {Partition: 1, Replicas: []int32{1}}}
	twiceAssigned := assigned
	twiceAssigned.Topic = "twice-assigned"
	twiceAssigned.ReplicaAssignment = append(twiceAssigned.ReplicaAssignment[:1:1], twiceAssigned.ReplicaAssignment[0])
	for v := int16(2); v <= 7; v++ {
		suffix := "-" + string('a'+rune(v))
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{
			topic("default"+suffix, -1, -1),
			topic("set"+suffix, 2, 1, kmsg.CreateTopicsRequestTopicConfig{Name: "retention.ms", Value: &one}),
			topic("dup"+suffix, 1, 1), topic("dup"+suffix, 1, 1),
			topic("set-a", 1, 1), // exists from version 2 on, see below
			topic("bad/name", 1, 1), topic("none"+suffix, 0, 1), topic("three"+suffix, 1, 3),
			topic("config"+suffix, 1, 1, kmsg.CreateTopicsRequestTopicConfig{Name: "retention.ms", Value: &bad}),
			topic("unknown"+suffix, 1, 1, kmsg.CreateTopicsRequestTopicConfig{Name: "no.such", Value: &one}),
			twiceAssigned,
		}
		if v == 2 {
			c.create("set-a", 1)
		}
		want := []int16{0, 0, 42, 42, 36, 17, 37, 38, 40, 40, 39}
		for _, validate := range []bool{true, false} {
			req.ValidateOnly = validate
			resp := ask[*kmsg.CreateTopicsResponse](c, req, v)
			for i, r := range resp.Topics {
				if r.ErrorCode != want[i] || r.Topic != req.Topics[i].Topic || (r.ErrorMessage == nil) != (r.ErrorCode == 0) {
					t.Errorf("version %d: %s: code %d, want %d", v, r.Topic, r.ErrorCode, want[i])
				}
			}
			made := resp.Topics[1]
			if v >= 5 && (made.NumPartitions != 2 || made.ReplicationFactor != 1 || resp.Topics[0].NumPartitions != 4) {
				t.Errorf("version %d: %+v", v, made)
			}
			if i := slices.IndexFunc(made.Configs, func(c kmsg.CreateTopicsResponseTopicConfig) bool { return c.Name == "retention.ms" }); v >= 5 && (i < 0 || *made.Configs[i].Value != "1000" || made.Configs[i].Source != 1) {
				t.Errorf("version %d: configs %+v", v, made.Configs)
			}
			if v >= 7 && (made.TopicID == [16]byte{}) != validate {
				t.Errorf("version %d: id %x, validate only %v", v, made.TopicID, validate)
			}
		}
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, assigned)
	if resp := ask[*kmsg.CreateTopicsResponse](c, req, 7); resp.Topics[0].ErrorCode != 0 || resp.Topics[0].NumPartitions != 2 {
		t.Errorf("assigned: %+v", resp.Topics[0])
	}
}

// A request for more topics than one answer may describe is refused for each of
// them, and makes none.
func TestCreateTooManyTopics(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	req := kmsg.NewPtrCreateTopicsRequest()
	for i := range maxTopicsMade + 1 {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = fmt.Sprint("t", i), 1, 1
		req.Topics = append(req.Topics, topic)
	}
	for i, r := range ask[*kmsg.CreateTopicsResponse](c, req, 7).Topics {
		if r.ErrorCode != 44 || r.ErrorMessage == nil {
			t.Fatalf("topic %d: %+v", i, r)
		}
	}
	if r := ask[*kmsg.MetadataResponse](c, kmsg.NewPtrMetadataRequest(), 9); len(r.Topics) != 0 {
		t.Errorf("%d topics", len(r.Topics))
	}
}

// DeleteTopics removes by name and, from version 6, by id, and answers each
// topic in every version.
func TestDeleteTopics(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	for v := int16(1); v <= 6; v++ {
		a, b := "a-"+string('a'+rune(v)), "b-"+string('a'+rune(v))
		missing, dup := "missing", "dup"
		c.create(a, 1)
		id := c.create(b, 1)
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TopicNames = []string{a, missing, dup, dup}
		want := []int16{0, 3, 42, 42}
		if v >= 6 {
			req.Topics = []kmsg.DeleteTopicsRequestTopic{
				{Topic: &a}, {Topic: &missing}, {Topic: &dup}, {Topic: &dup}, {TopicID: id}, {TopicID: [16]byte{9}}, {Topic: &b, TopicID: id},
			}
			want = append(want, 0, 100, 42)
		}
		resp := ask[*kmsg.DeleteTopicsResponse](c, req, v)
		for i, r := range resp.Topics {
			if r.ErrorCode != want[i] || v >= 5 && (r.ErrorMessage == nil) != (r.ErrorCode == 0) {
				t.Errorf("version %d: topic %d: code %d, want %d", v, i, r.ErrorCode, want[i])
			}
		}
		if v >= 6 && (*resp.Topics[4].Topic != b || resp.Topics[0].TopicID == [16]byte{} || resp.Topics[5].Topic != nil) {
			t.Errorf("version %d: %+v", v, resp.Topics)
		}
		if p := c.produce(9, a, 99, batch(t, 0, "x")); p.ErrorCode != 3 {
			t.Errorf("version %d: produce after delete: code %d", v, p.ErrorCode)
		}
	}
}

// InitProducerId never gives an id twice and refuses transactional ids for
// good.
func TestInitProducerID(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	seen := map[int64]bool{}
	tx := "tx"
	for v := int16(0); v <= 4; v++ {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.ProducerID, req.ProducerEpoch = 1, 3
		for range 3 {
			resp := ask[*kmsg.InitProducerIDResponse](c, req, v)
			if resp.ErrorCode != 0 || resp.ProducerEpoch != 0 || resp.ProducerID < 0 || seen[resp.ProducerID] {
				t.Errorf("version %d: %+v", v, resp)
			}
			seen[resp.ProducerID] = true
		}
		req.TransactionalID = &tx
		if resp := ask[*kmsg.InitProducerIDResponse](c, req, v); resp.ErrorCode != 35 || resp.ProducerID != -1 {
			t.Errorf("version %d: transactional: %+v", v, resp)
		}
	}
}

// FindCoordinator names this node for every group, and says of transactions,
// finally and with a text, that they are not served.
func TestFindCoordinator(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	for v := int16(0); v <= 4; v++ {
		for kind := int8(0); kind <= 2; kind++ {
			if v == 0 && kind > 0 {
				continue // version 0 knows groups only
			}
			code, node := int16(35), int32(-1)
			if kind == 0 {
				code, node = 0, 1
			}
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorKey, req.CoordinatorKeys, req.CoordinatorType = "g", []string{"g", "h"}, kind
			resp := ask[*kmsg.FindCoordinatorResponse](c, req, v)
			if v < 4 {
				if resp.ErrorCode != code || resp.NodeID != node || v >= 1 && (resp.ErrorMessage == nil) != (kind == 0) || kind == 0 && resp.Host != "127.0.0.1" {
					t.Errorf("version %d: %+v", v, resp)
				}
				continue
			}
			if len(resp.Coordinators) != 2 || resp.Coordinators[1].Key != "h" {
				t.Fatalf("version %d: %+v", v, resp)
			}
			for _, r := range resp.Coordinators {
				if r.ErrorCode != code || r.NodeID != node || kind > 0 && (r.ErrorMessage == nil || !strings.Contains(*r.ErrorMessage, "not supported")) {
					t.Errorf("version %d: %+v", v, r)
				}
			}
		}
	}
}
