package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// admin is a Kafka admin client of the server.
func (s *server) admin() *kadm.Client { return kadm.NewClient(s.kgo()) }

// describe are the configs of a topic, or of a broker where topic is "".
func describe(t *testing.T, s *server, topic string) map[string]*config {
	t.Helper()
	var all kadm.ResourceConfigs
	var err error
	if topic != "" {
		all, err = s.admin().DescribeTopicConfigs(t.Context(), topic)
	} else {
		all, err = s.admin().DescribeBrokerConfigs(t.Context(), s.NodeID)
	}
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d resources", len(all))
	}
	if err == nil {
		err = all[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
	configs := map[string]*config{}
	for _, c := range all[0].Configs {
		configs[c.Key] = &config{c}
	}
	return configs
}

// config is one that may be absent.
type config struct{ kadm.Config }

// value is the value, with a word for a config that is not there.
func (c *config) value() string {
	if c == nil {
		return "(not described)"
	}
	return c.MaybeValue()
}

func (c *config) source() kmsg.ConfigSource {
	if c == nil {
		return 0
	}
	return c.Source
}

func set(name, value string) kadm.AlterConfig {
	return kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value}
}

// altered fails the test unless every resource was altered.
func altered(t *testing.T, answers kadm.AlterConfigsResponses, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a.Err != nil {
			t.Fatalf("%s: %v (%s)", a.Name, a.Err, a.ErrMessage)
		}
	}
}

// TestAdminPartitions proves that partitions are added over the Kafka door, that whoever follows the whole topic sees
// them, that wrong counts change nothing, and that all of it is there after kill -9.
func TestAdminPartitions(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t"}`)
	k.want("subscribed")
	events := s.stream("/v1/topics/t/records?from=earliest", typeSSE)
	for _, c := range []struct {
		count int
		err   error
	}{
		{1, kerr.InvalidPartitions}, {0, kerr.InvalidPartitions}, {-3, kerr.InvalidPartitions}, {3, nil}, {2, kerr.InvalidPartitions}, {4, nil},
	} {
		validated, err := s.admin().ValidateUpdatePartitions(t.Context(), c.count, "t")
		if err != nil {
			t.Fatal(err)
		}
		answers, err := s.admin().UpdatePartitions(t.Context(), c.count, "t")
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range []error{validated["t"].Err, answers["t"].Err} {
			if !errors.Is(got, c.err) {
				t.Errorf("to %d partitions: %v, want %v", c.count, got, c.err)
			}
		}
	}
	if answers, err := s.admin().UpdatePartitions(t.Context(), 3, "missing"); err != nil || !errors.Is(answers["missing"].Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a topic that is not there: %+v %v", answers, err)
	}
	s.post("/v1/topics/t/partitions/3/records?value=line", typeNDJSON, "new\n")
	if r := k.wantData(3, 0, 1)[0]; r.content() != "new" {
		t.Errorf("the socket got %q", r.content())
	}
	if e := events.wantEvent(""); !strings.Contains(e.data, `"partition":3`) {
		t.Errorf("SSE got %s", e.data)
	}
	s.kill()
	s.restart()
	topics, err := s.admin().ListTopics(t.Context(), "t")
	if err != nil || len(topics["t"].Partitions) != 4 {
		t.Errorf("after kill -9: %+v %v", topics, err)
	}
	if f := s.records("t", 3, "from=earliest"); len(f.Records) != 1 {
		t.Errorf("%d records in the new partition", len(f.Records))
	}
}

// TestAdminTopicConfigs proves that configs of a topic are described whole, changed one by one and all at once, that a
// wrong change alters nothing, that a change is in force at once, and that all of it survives kill -9.
func TestAdminTopicConfigs(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "retention.ms=1000000")
	before := describe(t, s, "t")
	for _, name := range []string{
		"cleanup.policy", "compression.type", "flush.messages", "max.message.bytes", "message.timestamp.type", "min.insync.replicas",
		"retention.bytes", "retention.ms", "segment.bytes", "segment.ms",
	} {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is not described", name)
		}
	}
	if c := before["retention.ms"]; c.value() != "1000000" || c.source() != kmsg.ConfigSourceDynamicTopicConfig {
		t.Errorf("retention.ms: %+v", c)
	} else if !slices.ContainsFunc(c.Synonyms, func(s kadm.ConfigSynonym) bool { return s.Source == kmsg.ConfigSourceDefaultConfig }) {
		t.Errorf("retention.ms has no default among its synonyms: %+v", c.Synonyms)
	}
	if c := before["segment.bytes"]; c.value() != "1073741824" || c.source() != kmsg.ConfigSourceDefaultConfig {
		t.Errorf("segment.bytes: %+v", c)
	}

	answers, err := s.admin().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{
		set("max.message.bytes", "2000"), {Op: kadm.DeleteConfig, Name: "retention.ms"}, set("cleanup.policy", "delete"),
	}, "t")
	altered(t, answers, err)
	w := s.wire()
	big := encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), strings.Repeat("x", 3000)))
	if p := w.produce("t", 0, -1, big); p.ErrorCode != codeMessageTooLarge {
		t.Errorf("3,000 bytes with max.message.bytes=2000: code %d", p.ErrorCode)
	}
	answers, err = s.admin().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: new("compact")}}, "t")
	altered(t, answers, err)
	if got := strings.Split(describe(t, s, "t")["cleanup.policy"].value(), ","); !slices.Contains(got, "compact") || !slices.Contains(got, "delete") {
		t.Errorf("cleanup.policy after append: %v", got)
	}
	answers, err = s.admin().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SubtractConfig, Name: "cleanup.policy", Value: new("compact")}}, "t")
	altered(t, answers, err)

	for name, wrong := range map[string][]kadm.AlterConfig{
		"an unknown key":     {set("segment.bytes", "20000"), set("no.such.config", "1")},
		"a value of no kind": {set("segment.bytes", "20000"), set("retention.ms", "soon")},
		"append to a number": {set("segment.bytes", "20000"), {Op: kadm.AppendConfig, Name: "retention.ms", Value: new("1")}},
	} {
		answers, err := s.admin().AlterTopicConfigs(t.Context(), wrong, "t")
		if err != nil || !errors.Is(answers[0].Err, kerr.InvalidConfig) && !errors.Is(answers[0].Err, kerr.InvalidRequest) {
			t.Errorf("%s: %+v %v", name, answers, err)
		}
	}
	validated, err := s.admin().ValidateAlterTopicConfigs(t.Context(), []kadm.AlterConfig{set("segment.bytes", "20000")}, "t")
	altered(t, validated, err)
	check := func(when string, want map[string]string) {
		t.Helper()
		got := describe(t, s, "t")
		for name, value := range want {
			if got[name].value() != value {
				t.Errorf("%s: %s is %q, want %q", when, name, got[name].value(), value)
			}
		}
	}
	want := map[string]string{"max.message.bytes": "2000", "retention.ms": "604800000", "cleanup.policy": "delete", "segment.bytes": "1073741824"}
	check("after changes", want)
	s.kill()
	s.restart()
	check("after kill -9", want)
	if p := s.wire().produce("t", 0, -1, big); p.ErrorCode != codeMessageTooLarge {
		t.Errorf("after kill -9: code %d", p.ErrorCode)
	}
	// All at once: what is not named goes back to its default.
	answers, err = s.admin().AlterTopicConfigsState(t.Context(), []kadm.AlterConfig{set("segment.ms", "3600000")}, "t")
	altered(t, answers, err)
	check("after all at once", map[string]string{"segment.ms": "3600000", "max.message.bytes": "1048588"})
	s.wire().mustProduce("t", 0, big)
}

// TestAdminBrokerConfigs proves that every config of the broker is described with its source, that a dynamic one is in
// force at once and after kill -9, and that a read-only one and an unknown broker are refused.
func TestAdminBrokerConfigs(t *testing.T) {
	s := start(t, "--set", "num.partitions=2")
	configs := describe(t, s, "")
	if c := configs["num.partitions"]; c.value() != "2" || c.source() != kmsg.ConfigSourceStaticBrokerConfig {
		t.Errorf("num.partitions: %+v", c)
	}
	if len(configs) < 10 {
		t.Errorf("only %d configs", len(configs))
	}
	answers, err := s.admin().AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{set("message.max.bytes", "2000"), set("log.retention.ms", "7000000")}, s.NodeID)
	altered(t, answers, err)
	big := encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), strings.Repeat("x", 3000)))
	s.createTopic("t", 1)
	check := func(when string) {
		t.Helper()
		if c := describe(t, s, "")["message.max.bytes"]; c.value() != "2000" || c.source() != kmsg.ConfigSourceDynamicBrokerConfig {
			t.Errorf("%s: message.max.bytes: %+v", when, c)
		}
		if c := describe(t, s, "t")["retention.ms"]; c.value() != "7000000" {
			t.Errorf("%s: retention.ms of a topic without its own: %+v", when, c)
		}
		if p := s.wire().produce("t", 0, -1, big); p.ErrorCode != codeMessageTooLarge {
			t.Errorf("%s: code %d, want %d", when, p.ErrorCode, codeMessageTooLarge)
		}
	}
	check("after the change")
	s.kill()
	s.restart()
	check("after kill -9")
	answers, err = s.admin().AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "message.max.bytes"}}, s.NodeID)
	altered(t, answers, err)
	s.wire().mustProduce("t", 0, big)
	answers, err = s.admin().AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{set("message.max.bytes", "3000000")}) // of the cluster
	altered(t, answers, err)
	if c := describe(t, s, "")["message.max.bytes"]; c.value() != "3000000" || c.source() != kmsg.ConfigSourceDynamicDefaultBrokerConfig {
		t.Errorf("by the cluster's default: %+v", c)
	}
	for name, c := range map[string]kadm.AlterConfig{"read-only": set("log.dirs", "elsewhere"), "unknown": set("no.such.config", "1")} {
		answers, err := s.admin().AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{c}, s.NodeID)
		if err != nil || answers[0].Err == nil {
			t.Errorf("%s: %+v %v", name, answers, err)
		}
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, "77"
	req.Resources = append(req.Resources, r)
	if resp := s.wire().call(req).(*kmsg.DescribeConfigsResponse); len(resp.Resources) != 1 || resp.Resources[0].ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("a broker that is not there: %+v", resp.Resources)
	}
}

// TestAdminConfigDocs proves that each config of a topic and of the broker comes with its type and a sentence of
// documentation when they are asked for, and without when not, in each version.
func TestAdminConfigDocs(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	for version := int16(1); version <= 4; version++ {
		for _, docs := range []bool{true, false} {
			req := kmsg.NewPtrDescribeConfigsRequest()
			req.Version, req.IncludeDocumentation, req.IncludeSynonyms = version, docs && version >= 3, true
			for kind, name := range map[kmsg.ConfigResourceType]string{kmsg.ConfigResourceTypeTopic: "t", kmsg.ConfigResourceTypeBroker: fmt.Sprint(s.NodeID)} {
				r := kmsg.NewDescribeConfigsRequestResource()
				r.ResourceType, r.ResourceName = kind, name
				req.Resources = append(req.Resources, r)
			}
			resp := s.wire().call(req).(*kmsg.DescribeConfigsResponse)
			if len(resp.Resources) != 2 {
				t.Fatalf("version %d: %d resources", version, len(resp.Resources))
			}
			for _, r := range resp.Resources {
				if r.ErrorCode != 0 || len(r.Configs) < 8 {
					t.Errorf("version %d: %s: code %d, %d configs", version, r.ResourceName, r.ErrorCode, len(r.Configs))
				}
				for _, c := range r.Configs {
					if given := text(c.Documentation) != ""; given != req.IncludeDocumentation {
						t.Errorf("version %d: %s: documentation %q, asked for: %v", version, c.Name, text(c.Documentation), docs)
					}
					if version >= 3 && c.ConfigType == 0 {
						t.Errorf("version %d: %s has no type", version, c.Name)
					}
					if c.Source == 0 {
						t.Errorf("version %d: %s has no source", version, c.Name)
					}
				}
			}
		}
	}
}

// TestAdminDeleteRecords proves that records are deleted up to an offset, on every door and for ever, that other
// records stay, and that an offset beyond the end is refused.
func TestAdminDeleteRecords(t *testing.T) {
	s := start(t)
	s.createTopic("t", 2, "segment.bytes=1024")
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("x", 99)+"\n", 10))
	for range 9 {
		s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("y", 99)+"\n", 10))
	}
	s.post("/v1/topics/t/partitions/1/records?value=line", typeNDJSON, "other\n")
	check := func(when string, start int64) {
		t.Helper()
		if f := s.records("t", 0, "from=earliest"); f.Start != start || f.High != 100 || start < 100 && (len(f.Records) == 0 || f.Records[0].Offset != start) {
			t.Errorf("%s: start %d, end %d, want %d, 100", when, f.Start, f.High, start)
		}
		w := s.wire()
		if got, _ := w.listOffset("t", 0, earliest); got != start {
			t.Errorf("%s: ListOffsets gives %d, want %d", when, got, start)
		}
		if start > 0 {
			if p := w.fetch("t", 0, start-1, 1<<20); p.ErrorCode != codeOffsetOutOfRange {
				t.Errorf("%s: a fetch below the start: code %d", when, p.ErrorCode)
			}
		}
		if f := s.records("t", 1, "from=earliest"); len(f.Records) != 1 {
			t.Errorf("%s: the other partition has %d records", when, len(f.Records))
		}
	}
	for _, c := range []struct {
		before, low int64
		err         error
	}{{15, 15, nil}, {7, 15, nil}, {15, 15, nil}, {101, -1, kerr.OffsetOutOfRange}, {-2, -1, kerr.OffsetOutOfRange}, {55, 55, nil}} {
		var offsets kadm.Offsets
		offsets.AddOffset("t", 0, c.before, -1)
		answers, err := s.admin().DeleteRecords(t.Context(), offsets)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := answers.Lookup("t", 0)
		if !errors.Is(a.Err, c.err) || c.err == nil && a.LowWatermark != c.low {
			t.Errorf("before %d: %+v, want %d, %v", c.before, a, c.low, c.err)
		}
	}
	check("after deletes", 55)
	s.kill()
	s.restart()
	check("after kill -9", 55)
	s.deleteRecords("t", 0, -1)
	check("after all are deleted", 100)
	s.stop()
	s.restart()
	check("after a stop", 100)
	if base := s.wire().mustProduce("t", 0, encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), "next"))); base != 100 {
		t.Errorf("the next record has offset %d, want 100", base)
	}
}

// TestAdminCluster proves what the door tells of the cluster: its id and node, the sizes of logs, and where an epoch
// ends.
func TestAdminCluster(t *testing.T) {
	s := start(t)
	s.createTopic("t", 2)
	s.post("/v1/topics/t/partitions/1/records?value=line", typeNDJSON, strings.Repeat("x\n", 20))
	meta, err := s.admin().BrokerMetadata(t.Context())
	if err != nil || meta.Cluster != s.ClusterID || len(meta.Brokers) != 1 || meta.Controller != s.NodeID {
		t.Errorf("metadata %+v %v", meta, err)
	}
	for version := range int16(3) {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.Version = version
		resp := s.wire().call(req).(*kmsg.DescribeClusterResponse)
		if resp.ErrorCode != 0 || resp.ClusterID != s.ClusterID || resp.ControllerID != s.NodeID || len(resp.Brokers) != 1 ||
			fmt.Sprintf("%s:%d", resp.Brokers[0].Host, resp.Brokers[0].Port) != s.Kafka {
			t.Errorf("version %d: %+v", version, resp)
		}
	}
	dirs, err := s.admin().DescribeBrokerLogDirs(t.Context(), s.NodeID, nil)
	if err != nil || len(dirs) != 1 {
		t.Fatalf("log dirs %+v %v", dirs, err)
	}
	for _, d := range dirs {
		if d.Err != nil || d.TotalBytes <= 0 || d.UsableBytes <= 0 || d.UsableBytes > d.TotalBytes || len(d.Topics["t"]) != 2 {
			t.Errorf("log dir %+v", d)
		}
		if p := d.Topics["t"][1]; p.Size <= 0 || p.OffsetLag != 0 || p.IsFuture {
			t.Errorf("partition 1: %+v", p)
		}
	}
	var one kadm.TopicsSet
	one.Add("t", 0)
	if dirs, err := s.admin().DescribeBrokerLogDirs(t.Context(), s.NodeID, one); err != nil {
		t.Error(err)
	} else {
		for _, d := range dirs {
			if len(d.Topics) != 1 || len(d.Topics["t"]) != 1 {
				t.Errorf("one partition: %+v", d.Topics)
			}
		}
	}
	ends := func() (epoch int32, end int64) {
		t.Helper()
		topics, err := s.admin().ListTopics(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		epoch = topics["t"].Partitions[1].LeaderEpoch
		req := kadm.OffsetForLeaderEpochRequest{}
		req.Add("t", 1, epoch)
		all, err := s.admin().OffsetForLeaderEpoch(t.Context(), req)
		if err != nil || all["t"][1].Err != nil || all["t"][1].LeaderEpoch > epoch {
			t.Fatalf("epoch %d: %+v %v", epoch, all, err)
		}
		return epoch, all["t"][1].EndOffset
	}
	first, end := ends()
	if end != 20 {
		t.Errorf("epoch %d ends at %d, want 20", first, end)
	}
	s.kill()
	s.restart()
	s.post("/v1/topics/t/partitions/1/records?value=line", typeNDJSON, "y\n")
	if epoch, end := ends(); end != 21 || epoch < first {
		t.Errorf("after kill -9: epoch %d ends at %d, want 21", epoch, end)
	}
	old := kadm.OffsetForLeaderEpochRequest{}
	old.Add("t", 1, first)
	if all, err := s.admin().OffsetForLeaderEpoch(t.Context(), old); err != nil || all["t"][1].EndOffset < 20 || all["t"][1].EndOffset > 21 {
		t.Errorf("epoch %d: %+v %v", first, all, err)
	}
}
