package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// proportionLimit is by how much one request may make the process grow, whatever it repeats or lists.
const proportionLimit = 256 << 20

// repeated is n times the same.
func repeated[T any](n int, v T) []T { return slices.Repeat([]T{v}, n) }

// distinct is n short names that are all different.
func distinct(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%x", i)
	}
	return out
}

// each is f of every element.
func each[T, U any](in []T, f func(T) U) []U {
	out := make([]U, len(in))
	for i := range in {
		out[i] = f(in[i])
	}
	return out
}

// TestAnswersInProportion proves that no request gets an answer out of proportion to its bytes by naming the same thing
// again and again, or as many things as fit into it: the largest frames of each API cost bounded memory, and are
// answered or refused in time.
func TestAnswersInProportion(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false", "--set", "offsets.topic.num.partitions=1")
	w := s.wire()
	w.create("t", 1000, 1)
	s.commitMuch(w)
	pointers := func(names []string) []kmsg.MetadataRequestTopic {
		return each(names, func(name string) kmsg.MetadataRequestTopic { return kmsg.MetadataRequestTopic{Topic: &name} })
	}
	const n = 200_000
	var partitions []int32
	for i := range int32(n) {
		partitions = append(partitions, i)
	}
	zeros := make([]int32, n)
	offsets := func(topic string, list []int32) []kmsg.OffsetFetchRequestTopic {
		return []kmsg.OffsetFetchRequestTopic{{Topic: topic, Partitions: list}}
	}
	groups := func(list ...kmsg.OffsetFetchRequestGroup) *kmsg.OffsetFetchRequest {
		return &kmsg.OffsetFetchRequest{Version: 9, Groups: list}
	}
	for name, req := range map[string]kmsg.Request{
		"OffsetFetch, one group":       groups(repeated(n/2, kmsg.OffsetFetchRequestGroup{Group: "g"})...),
		"OffsetFetch, one partition":   &kmsg.OffsetFetchRequest{Version: 5, Group: "g", Topics: offsets("t", zeros)},
		"OffsetFetch, one topic":       &kmsg.OffsetFetchRequest{Version: 5, Group: "g", Topics: repeated(2*n/5, offsets("t", []int32{0})[0])},
		"OffsetFetch, many partitions": &kmsg.OffsetFetchRequest{Version: 5, Group: "g", Topics: offsets("t", partitions)},
		"OffsetFetch, many groups":     groups(each(distinct(n/3), func(id string) kmsg.OffsetFetchRequestGroup { return kmsg.OffsetFetchRequestGroup{Group: id} })...),
		"DescribeGroups, one":          &kmsg.DescribeGroupsRequest{Version: 5, Groups: repeated(n, "g")},
		"DescribeGroups, many":         &kmsg.DescribeGroupsRequest{Version: 6, Groups: distinct(4 * n / 5)},
		"DescribeGroups, no name":      &kmsg.DescribeGroupsRequest{Version: 6, Groups: repeated(4*n, "")},
		"DeleteGroups, no name":        &kmsg.DeleteGroupsRequest{Version: 2, Groups: repeated(4*n, "")},
		"FindCoordinator, no name":     &kmsg.FindCoordinatorRequest{Version: 4, CoordinatorKeys: repeated(4*n, "")},
		"FindCoordinator, many":        &kmsg.FindCoordinatorRequest{Version: 4, CoordinatorKeys: distinct(4 * n / 5)},
		"Metadata, one":                &kmsg.MetadataRequest{Version: 9, Topics: pointers(repeated(n, "t"))},
		"Metadata, many":               &kmsg.MetadataRequest{Version: 9, Topics: pointers(distinct(3 * n / 2))},
		"Metadata, no name":            &kmsg.MetadataRequest{Version: 9, Topics: pointers(repeated(4*n, ""))},
		"DescribeTopicPartitions, one": &kmsg.DescribeTopicPartitionsRequest{ResponsePartitionLimit: 1 << 30, Topics: repeated(n, kmsg.DescribeTopicPartitionsRequestTopic{Topic: "t"})},
		"DescribeTopicPartitions, many": &kmsg.DescribeTopicPartitionsRequest{ResponsePartitionLimit: 1 << 30, Topics: each(distinct(n/2), func(s string) kmsg.DescribeTopicPartitionsRequestTopic {
			return kmsg.DescribeTopicPartitionsRequestTopic{Topic: s}
		})},
		"DescribeProducers, one":           &kmsg.DescribeProducersRequest{Topics: []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: zeros}}},
		"DescribeProducers, many":          &kmsg.DescribeProducersRequest{Topics: []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: partitions}}},
		"DescribeLogDirs, one":             &kmsg.DescribeLogDirsRequest{Version: 4, Topics: []kmsg.DescribeLogDirsRequestTopic{{Topic: "t", Partitions: zeros}}},
		"ListPartitionReassignments, many": &kmsg.ListPartitionReassignmentsRequest{Topics: []kmsg.ListPartitionReassignmentsRequestTopic{{Topic: "t", Partitions: partitions}}},
		"ListConfigResources, one kind":    &kmsg.ListConfigResourcesRequest{Version: 1, ResourceTypes: repeated(4*n, int8(2))},
		"DescribeConfigs, one":             &kmsg.DescribeConfigsRequest{Version: 4, Resources: repeated(n/2, kmsg.DescribeConfigsRequestResource{ResourceType: 2, ResourceName: "t"})},
		"DescribeConfigs, many": &kmsg.DescribeConfigsRequest{Version: 4, Resources: each(distinct(n/2), func(s string) kmsg.DescribeConfigsRequestResource {
			return kmsg.DescribeConfigsRequestResource{ResourceType: 2, ResourceName: s}
		})},
		"CreateTopics, many": &kmsg.CreateTopicsRequest{Version: 7, ValidateOnly: true, Topics: each(distinct(n/2), func(s string) kmsg.CreateTopicsRequestTopic {
			return kmsg.CreateTopicsRequestTopic{Topic: s, NumPartitions: 1, ReplicationFactor: 1}
		})},
		"DeleteTopics, many":        &kmsg.DeleteTopicsRequest{Version: 5, TopicNames: distinct(n / 2)},
		"ListOffsets, one":          &kmsg.ListOffsetsRequest{Version: 7, Topics: []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: repeated(n, kmsg.ListOffsetsRequestTopicPartition{Timestamp: -1})}}},
		"OffsetForLeaderEpoch, one": &kmsg.OffsetForLeaderEpochRequest{Version: 4, Topics: []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "t", Partitions: repeated(n, kmsg.OffsetForLeaderEpochRequestTopicPartition{CurrentLeaderEpoch: -1})}}},
		"ElectLeaders, one":         &kmsg.ElectLeadersRequest{Version: 2, Topics: []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: zeros}}},
		"LeaveGroup, no name":       &kmsg.LeaveGroupRequest{Version: 5, Group: "g", Members: make([]kmsg.LeaveGroupRequestMember, n)},
		"OffsetDelete, one":         &kmsg.OffsetDeleteRequest{Group: "g", Topics: []kmsg.OffsetDeleteRequestTopic{{Topic: "x", Partitions: make([]kmsg.OffsetDeleteRequestTopicPartition, n)}}},
		"Produce, no batch":         &kmsg.ProduceRequest{Version: 9, Acks: 1, Topics: []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: make([]kmsg.ProduceRequestTopicPartition, n/2-1)}}},
		"Fetch, one":                &kmsg.FetchRequest{Version: 12, MaxBytes: 1 << 30, SessionEpoch: -1, Topics: []kmsg.FetchRequestTopic{{Topic: "t", Partitions: repeated(n/2, fetchRequest("t", 0, 0, 1<<20, 0).Topics[0].Partitions[0])}}},
	} {
		s.collect()
		before := s.memory()
		stop := s.watchMemory()
		begun := time.Now()
		p := kmsg.NewRequestFormatter(kmsg.FormatterClientID("p")).AppendRequest(nil, req, 1)
		if err := bombard(s.Kafka, [][]byte{p}, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		grown := stop() - before
		t.Logf("%s: %d KiB, %d MiB more, %v", name, len(p)>>10, grown>>20, time.Since(begun))
		if grown > proportionLimit {
			t.Errorf("%s: %d KiB made the process grow by %d MiB", name, len(p)>>10, grown>>20)
		}
	}
	w.ping()
}

// commitMuch commits for every partition of the topic, with as much text as there may be.
func (s *server) commitMuch(w *wire) {
	s.t.Helper()
	words := strings.Repeat("m", 4096)
	for from := range int32(10) {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.Generation = 7, "g", -1
		topic := kmsg.NewOffsetCommitRequestTopic()
		topic.Topic = "t"
		for i := range int32(100) {
			p := kmsg.NewOffsetCommitRequestTopicPartition()
			p.Partition, p.Offset, p.Metadata = from*100+i, 0, &words
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
		for _, p := range w.call(req).(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
			if p.ErrorCode != codeNone {
				s.t.Fatalf("commit: code %d", p.ErrorCode)
			}
		}
	}
}
