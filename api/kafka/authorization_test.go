package kafka

import (
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/auth"
)

// denied lets nobody do anything.
type denied struct{}

func (denied) Allowed(auth.Principal, auth.Operation, auth.Resource) bool { return false }

// gate lets everybody do everything while it is open.
type gate struct{ open atomic.Bool }

func (g *gate) Allowed(auth.Principal, auth.Operation, auth.Resource) bool { return g.open.Load() }

// Whoever has no rights gets the code that says so from every one of the admin
// APIs, and nothing is changed.
func TestAdminAuthorization(t *testing.T) {
	dir := t.TempDir()
	epochs(t, dir, "t", 1, 2)
	var rights gate
	c := startDoor(t, setup{dir: dir, authorizer: &rights, opts: Options{Authorizer: &rights}}).dial(t)
	value := "1"
	remove := kmsg.NewPtrDeleteRecordsRequest()
	remove.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: "t", Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: -1}}}}
	epoch := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epoch.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{CurrentLeaderEpoch: -1}}}}
	more := kmsg.NewPtrCreatePartitionsRequest()
	more.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "t", Count: 9}}
	describe, alter, increment := kmsg.NewPtrDescribeConfigsRequest(), kmsg.NewPtrAlterConfigsRequest(), kmsg.NewPtrIncrementalAlterConfigsRequest()
	for kind, name := range map[kmsg.ConfigResourceType]string{kmsg.ConfigResourceTypeTopic: "t", kmsg.ConfigResourceTypeBroker: "1"} {
		describe.Resources = append(describe.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kind, ResourceName: name})
		alter.Resources = append(alter.Resources, kmsg.AlterConfigsRequestResource{ResourceType: kind, ResourceName: name})
		increment.Resources = append(increment.Resources, kmsg.IncrementalAlterConfigsRequestResource{
			ResourceType: kind, ResourceName: name, Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "segment.bytes", Value: &value}},
		})
	}
	codeFor := func(kind kmsg.ConfigResourceType) int16 {
		return map[kmsg.ConfigResourceType]int16{kmsg.ConfigResourceTypeTopic: 29, kmsg.ConfigResourceTypeBroker: 31}[kind]
	}
	if code := ask[*kmsg.DeleteRecordsResponse](c, remove, 2).Topics[0].Partitions[0].ErrorCode; code != 29 {
		t.Errorf("DeleteRecords: code %d", code)
	}
	if code := ask[*kmsg.OffsetForLeaderEpochResponse](c, epoch, 4).Topics[0].Partitions[0].ErrorCode; code != 29 {
		t.Errorf("OffsetForLeaderEpoch: code %d", code)
	}
	if code := ask[*kmsg.CreatePartitionsResponse](c, more, 3).Topics[0].ErrorCode; code != 29 {
		t.Errorf("CreatePartitions: code %d", code)
	}
	for _, r := range ask[*kmsg.DescribeConfigsResponse](c, describe, 4).Resources {
		if r.ErrorCode != codeFor(r.ResourceType) || len(r.Configs) != 0 {
			t.Errorf("DescribeConfigs: %+v", r)
		}
	}
	for _, r := range ask[*kmsg.AlterConfigsResponse](c, alter, 2).Resources {
		if r.ErrorCode != codeFor(r.ResourceType) {
			t.Errorf("AlterConfigs: %+v", r)
		}
	}
	for _, r := range ask[*kmsg.IncrementalAlterConfigsResponse](c, increment, 1).Resources {
		if r.ErrorCode != codeFor(r.ResourceType) {
			t.Errorf("IncrementalAlterConfigs: %+v", r)
		}
	}
	for v := int16(1); v <= 4; v++ {
		resp := ask[*kmsg.DescribeLogDirsResponse](c, kmsg.NewPtrDescribeLogDirsRequest(), v)
		if v >= 3 && resp.ErrorCode != 31 || len(resp.Dirs) != 0 {
			t.Errorf("DescribeLogDirs version %d: %+v", v, resp)
		}
	}
	cluster := kmsg.NewPtrDescribeClusterRequest()
	cluster.IncludeClusterAuthorizedOperations = true
	if resp := ask[*kmsg.DescribeClusterResponse](c, cluster, 2); resp.ErrorCode != 0 || resp.ClusterAuthorizedOperations != 0 {
		t.Errorf("DescribeCluster: %+v", resp)
	}
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	if resp := ask[*kmsg.ElectLeadersResponse](c, elect, 2); resp.ErrorCode != 31 || resp.Topics[0].Partitions[0].ErrorCode != 31 {
		t.Errorf("ElectLeaders: %+v", resp)
	}
	rights.open.Store(true)
	list := kmsg.NewPtrListOffsetsRequest()
	list.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: []kmsg.ListOffsetsRequestTopicPartition{{CurrentLeaderEpoch: -1, Timestamp: -2}}}}
	if p := ask[*kmsg.ListOffsetsResponse](c, list, 7).Topics[0].Partitions[0]; p.ErrorCode != 0 || p.Offset != 0 {
		t.Errorf("records were deleted: %+v", p)
	}
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = named("t")
	if topic := ask[*kmsg.MetadataResponse](c, meta, 12).Topics[0]; len(topic.Partitions) != 2 {
		t.Errorf("%d partitions", len(topic.Partitions))
	}
	for kind, name := range map[kmsg.ConfigResourceType]string{topicResource: "t", brokerResource: "1"} {
		for _, cfg := range c.describeConfigs(kind, name) {
			if cfg.Source < kmsg.ConfigSourceStaticBrokerConfig {
				t.Errorf("%q has %+v", name, cfg)
			}
		}
	}
}
