package kafka

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	topicResource  = kmsg.ConfigResourceTypeTopic
	brokerResource = kmsg.ConfigResourceTypeBroker
)

// describeConfigs asks for the configs of one resource.
func (c *client) describeConfigs(kind kmsg.ConfigResourceType, name string) map[string]kmsg.DescribeConfigsResponseResourceConfig {
	c.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kind, ResourceName: name}}
	req.IncludeSynonyms = true
	r := ask[*kmsg.DescribeConfigsResponse](c, req, 4).Resources[0]
	if r.ErrorCode != 0 {
		c.t.Fatalf("describe %q: code %d", name, r.ErrorCode)
	}
	out := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
	for _, cfg := range r.Configs {
		out[cfg.Name] = cfg
	}
	return out
}

// DescribeConfigs tells all of every config of a topic and of a broker, some of
// them if they are named, and no more than the version and the flags ask for.
func TestDescribeConfigs(t *testing.T) {
	c := startDoor(t, setup{configs: map[string]string{"log.retention.ms": "5000"}}).dial(t)
	c.create("t", 1, "max.message.bytes", "2000")
	for v := int16(1); v <= 4; v++ {
		for _, flags := range []bool{false, true} {
			req := kmsg.NewPtrDescribeConfigsRequest()
			req.IncludeSynonyms, req.IncludeDocumentation = flags, flags
			for kind, name := range map[kmsg.ConfigResourceType]string{topicResource: "t", brokerResource: "1"} {
				for _, names := range [][]string{nil, {}} {
					req.Resources = append(req.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kind, ResourceName: name, ConfigNames: names})
					resp := ask[*kmsg.DescribeConfigsResponse](c, req, v)
					req.Resources = nil
					r := resp.Resources[0]
					if len(resp.Resources) != 1 || r.ErrorCode != 0 || r.ErrorMessage != nil || r.ResourceType != kind || r.ResourceName != name || len(r.Configs) < 20 {
						t.Fatalf("version %d: %+v", v, resp)
					}
					for _, cfg := range r.Configs {
						checkConfig(t, v, &cfg, flags)
					}
				}
			}
		}
	}
	topic, node := c.describeConfigs(topicResource, "t"), c.describeConfigs(brokerResource, "1")
	for _, tc := range []struct {
		in          map[string]kmsg.DescribeConfigsResponseResourceConfig
		name, value string
		source      kmsg.ConfigSource
		kind        kmsg.ConfigType
		readOnly    bool
		synonyms    string
	}{
		{topic, "max.message.bytes", "2000", kmsg.ConfigSourceDynamicTopicConfig, kmsg.ConfigTypeInt, false, "max.message.bytes=2000 message.max.bytes=1048588"},
		{topic, "retention.ms", "5000", kmsg.ConfigSourceStaticBrokerConfig, kmsg.ConfigTypeLong, false, "log.retention.ms=5000 log.retention.ms=604800000"},
		{topic, "cleanup.policy", "delete", kmsg.ConfigSourceDefaultConfig, kmsg.ConfigTypeList, false, "log.cleanup.policy=delete"},
		{topic, "preallocate", "false", kmsg.ConfigSourceDefaultConfig, kmsg.ConfigTypeBoolean, false, "log.preallocate=false"},
		{node, "log.retention.ms", "5000", kmsg.ConfigSourceStaticBrokerConfig, kmsg.ConfigTypeLong, false, "log.retention.ms=5000 log.retention.ms=604800000"},
		{node, "num.partitions", "4", kmsg.ConfigSourceDefaultConfig, kmsg.ConfigTypeInt, false, "num.partitions=4"},
		{node, "node.id", "1", kmsg.ConfigSourceStaticBrokerConfig, kmsg.ConfigTypeInt, true, "node.id=1"},
	} {
		got, ok := tc.in[tc.name]
		var synonyms []string
		for _, s := range got.ConfigSynonyms {
			synonyms = append(synonyms, s.Name+"="+*s.Value)
		}
		if !ok || *got.Value != tc.value || got.Source != tc.source || got.ConfigType != tc.kind || got.ReadOnly != tc.readOnly || strings.Join(synonyms, " ") != tc.synonyms {
			t.Errorf("%s: %+v, synonyms %v", tc.name, got, synonyms)
		}
	}
	if all := c.describeConfigs(brokerResource, ""); len(all) != 0 {
		t.Errorf("nothing was set for all brokers, but there is %v", all)
	}
}

func checkConfig(t *testing.T, v int16, cfg *kmsg.DescribeConfigsResponseResourceConfig, flags bool) {
	t.Helper()
	if cfg.Name == "" || cfg.Value == nil || cfg.Source < 1 || cfg.Source > 5 || cfg.IsSensitive {
		t.Errorf("version %d: %+v", v, cfg)
	}
	if (len(cfg.ConfigSynonyms) > 0) != flags {
		t.Errorf("version %d: %s has %d synonyms, asked for: %v", v, cfg.Name, len(cfg.ConfigSynonyms), flags)
	}
	if flags && (*cfg.ConfigSynonyms[0].Value != *cfg.Value || cfg.ConfigSynonyms[0].Source != cfg.Source) {
		t.Errorf("version %d: %s: the first synonym is not the value in force: %+v", v, cfg.Name, cfg)
	}
	if v >= 3 && (cfg.ConfigType == 0 || (cfg.Documentation != nil && *cfg.Documentation != "") != flags) {
		t.Errorf("version %d: %s: %+v", v, cfg.Name, cfg)
	}
}

// A list of names picks configs; a resource that is unknown, of no kind that
// has configs, or asked for twice is refused by itself, with a text.
func TestDescribeConfigsSelection(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 1)
	c.create("dup", 1)
	cases := []struct {
		kind  kmsg.ConfigResourceType
		name  string
		names []string
		code  int16
		want  string
	}{
		{topicResource, "t", []string{"retention.ms", "no.such", "cleanup.policy", "retention.ms"}, 0, "cleanup.policy retention.ms"},
		{topicResource, "dup", nil, 42, ""},
		{topicResource, "dup", []string{"retention.ms"}, 42, ""},
		{topicResource, "missing", nil, 3, ""},
		{topicResource, "bad/name", nil, 17, ""},
		{topicResource, "", nil, 17, ""},
		{brokerResource, "1", []string{"num.partitions"}, 0, "num.partitions"},
		{brokerResource, "2", nil, 42, ""},
		{brokerResource, "-1", nil, 42, ""},
		{brokerResource, "one", nil, 42, ""},
		{brokerResource, "4294967297", nil, 42, ""},
		{kmsg.ConfigResourceTypeBrokerLogger, "1", nil, 42, ""},
		{kmsg.ConfigResourceTypeClientMetrics, "x", nil, 42, ""},
		{kmsg.ConfigResourceTypeUnknown, "t", nil, 42, ""},
		{-7, "t", nil, 42, ""},
	}
	for v := int16(1); v <= 4; v++ {
		req := kmsg.NewPtrDescribeConfigsRequest()
		for _, tc := range cases {
			req.Resources = append(req.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: tc.kind, ResourceName: tc.name, ConfigNames: tc.names})
		}
		resp := ask[*kmsg.DescribeConfigsResponse](c, req, v)
		for i, r := range resp.Resources {
			var names []string
			for _, cfg := range r.Configs {
				names = append(names, cfg.Name)
			}
			if r.ResourceType != cases[i].kind || r.ResourceName != cases[i].name || r.ErrorCode != cases[i].code || (r.ErrorMessage == nil) != (r.ErrorCode == 0) || strings.Join(names, " ") != cases[i].want {
				t.Errorf("version %d: %+v: code %d, names %v", v, cases[i], r.ErrorCode, names)
			}
		}
	}
	// One broker by two names is one broker.
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: brokerResource, ResourceName: "1"}, {ResourceType: brokerResource, ResourceName: "01"}, {ResourceType: brokerResource}}
	var codes []int16
	for _, r := range ask[*kmsg.DescribeConfigsResponse](c, req, 4).Resources {
		codes = append(codes, r.ErrorCode)
	}
	if !slices.Equal(codes, []int16{42, 42, 0}) {
		t.Errorf("codes %v", codes)
	}
}

type alteration struct {
	kind    kmsg.ConfigResourceType
	name    string
	configs []kmsg.AlterConfigsRequestResourceConfig
	code    int16
}

// settings are configs to set, by turns a name and a value; the value "null" is
// null.
func settings(pairs ...string) (out []kmsg.AlterConfigsRequestResourceConfig) {
	for i := 0; i < len(pairs); i += 2 {
		cfg := kmsg.AlterConfigsRequestResourceConfig{Name: pairs[i]}
		if pairs[i+1] != "null" {
			cfg.Value = &pairs[i+1]
		}
		out = append(out, cfg)
	}
	return out
}

func (c *client) alter(version int16, validate bool, cases []alteration) {
	c.t.Helper()
	req := kmsg.NewPtrAlterConfigsRequest()
	req.ValidateOnly = validate
	for _, tc := range cases {
		req.Resources = append(req.Resources, kmsg.AlterConfigsRequestResource{ResourceType: tc.kind, ResourceName: tc.name, Configs: tc.configs})
	}
	resp := ask[*kmsg.AlterConfigsResponse](c, req, version)
	if len(resp.Resources) != len(cases) {
		c.t.Fatalf("version %d: %d answers", version, len(resp.Resources))
	}
	for i, r := range resp.Resources {
		if r.ResourceType != cases[i].kind || r.ResourceName != cases[i].name || r.ErrorCode != cases[i].code || (r.ErrorMessage == nil) != (r.ErrorCode == 0) {
			c.t.Errorf("version %d: %s: code %d, want %d", version, r.ResourceName, r.ErrorCode, cases[i].code)
		}
	}
}

// AlterConfigs replaces what was set for a topic or a broker: what it does not
// name goes back to its default. A refused resource stays as it was, and with
// validate_only all do.
func TestAlterConfigs(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	for v := int16(0); v <= 2; v++ {
		name := string('a' + rune(v))
		for _, topic := range []string{"t-", "dup-", "bad-"} {
			c.create(topic+name, 1, "retention.ms", "1000", "segment.bytes", "5000")
		}
		cases := []alteration{
			{topicResource, "t-" + name, settings("retention.ms", "2000"), 0},
			{topicResource, "dup-" + name, settings("retention.ms", "2000"), 42},
			{topicResource, "dup-" + name, nil, 42},
			{topicResource, "bad-" + name, settings("retention.ms", "2000", "no.such", "1"), 40},
			{brokerResource, "1", settings("num.partitions", "7"), 0},
			{brokerResource, "", settings("log.retention.ms", "9000"), 0},
			{topicResource, "missing", nil, 3},
			{brokerResource, "9", nil, 42},
			{kmsg.ConfigResourceTypeBrokerLogger, "1", nil, 42},
		}
		value := func(kind kmsg.ConfigResourceType, resource, config string) string {
			if cfg, ok := c.describeConfigs(kind, resource)[config]; ok {
				return *cfg.Value
			}
			return "none"
		}
		check := func(when string, retention, segment, partitions, all string) {
			t.Helper()
			for _, w := range []struct{ got, want string }{
				{value(topicResource, "t-"+name, "retention.ms"), retention},
				{value(topicResource, "t-"+name, "segment.bytes"), segment},
				{value(topicResource, "dup-"+name, "retention.ms"), "1000"},
				{value(topicResource, "bad-"+name, "retention.ms"), "1000"},
				{value(brokerResource, "1", "num.partitions"), partitions},
				{value(brokerResource, "", "log.retention.ms"), all},
			} {
				if w.got != w.want {
					t.Errorf("version %d: %s: %s, want %s", v, when, w.got, w.want)
				}
			}
		}
		c.alter(v, true, cases)
		check("only validated", "1000", "5000", "4", "none")
		c.alter(v, false, cases)
		check("altered", "2000", "1073741824", "7", "9000")
		c.alter(v, false, []alteration{
			{topicResource, "t-" + name, settings("retention.ms", "null"), 42},
			{topicResource, "dup-" + name, settings("retention.ms", "1", "retention.ms", "2"), 42},
			{topicResource, "bad-" + name, settings("retention.ms", "soon"), 40},
			{brokerResource, "1", settings("num.partitions", "0"), 40},
			{brokerResource, "", settings("node.id", "3"), 40},
		})
		check("after refusals", "2000", "1073741824", "7", "9000")
		c.alter(v, false, []alteration{{topicResource, "t-" + name, nil, 0}, {brokerResource, "1", nil, 0}, {brokerResource, "", nil, 0}})
		check("reset", "604800000", "1073741824", "4", "none")
	}
}

type increment struct {
	op          kmsg.IncrementalAlterConfigOp
	name, value string // "null" is null
}

// IncrementalAlterConfigs sets, deletes, appends and subtracts, leaves the rest,
// and changes nothing of a resource where one change is wrong.
func TestIncrementalAlterConfigs(t *testing.T) {
	const set, remove, add, subtract = kmsg.IncrementalAlterConfigOpSet, kmsg.IncrementalAlterConfigOpDelete, kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract
	c := startDoor(t, setup{}).dial(t)
	for v := int16(0); v <= 1; v++ {
		topic := string('a' + rune(v))
		c.create(topic, 1, "retention.ms", "1000")
		for _, step := range []struct {
			kind     kmsg.ConfigResourceType
			name     string
			validate bool
			changes  []increment
			code     int16
			look     string
			want     string
		}{
			{topicResource, topic, true, []increment{{set, "segment.bytes", "7000"}}, 0, "segment.bytes", "1073741824"},
			{topicResource, topic, false, []increment{{set, "segment.bytes", "7000"}}, 0, "segment.bytes", "7000"},
			{topicResource, topic, false, nil, 0, "retention.ms", "1000"},
			{topicResource, topic, false, []increment{{remove, "retention.ms", "null"}}, 0, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{remove, "retention.ms", "ignored"}}, 0, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{add, "cleanup.policy", "compact"}}, 0, "cleanup.policy", "delete,compact"},
			{topicResource, topic, false, []increment{{add, "cleanup.policy", "compact"}}, 0, "cleanup.policy", "delete,compact"},
			{topicResource, topic, false, []increment{{subtract, "cleanup.policy", "delete"}}, 0, "cleanup.policy", "compact"},
			{topicResource, topic, false, []increment{{add, "cleanup.policy", "shred"}}, 40, "cleanup.policy", "compact"},
			{topicResource, topic, false, []increment{{add, "retention.ms", "1"}}, 40, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{subtract, "retention.ms", "1"}}, 40, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{set, "retention.ms", "5"}, {set, "no.such", "1"}}, 40, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{set, "retention.ms", "5"}, {remove, "retention.ms", "null"}}, 42, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{4, "retention.ms", "5"}}, 42, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{-1, "retention.ms", "5"}}, 42, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{set, "retention.ms", "null"}}, 42, "retention.ms", "604800000"},
			{topicResource, topic, false, []increment{{add, "cleanup.policy", "null"}}, 42, "cleanup.policy", "compact"},
			{topicResource, topic, false, []increment{{set, "", "1"}}, 40, "retention.ms", "604800000"},
			{brokerResource, "1", false, []increment{{set, "log.retention.ms", "8000"}}, 0, "log.retention.ms", "8000"},
			{brokerResource, "", false, []increment{{set, "log.retention.ms", "7000"}}, 0, "log.retention.ms", "7000"},
			{brokerResource, "1", false, []increment{{remove, "log.retention.ms", "null"}}, 0, "log.retention.ms", "7000"},
			{brokerResource, "", false, []increment{{remove, "log.retention.ms", "null"}}, 0, "log.retention.ms", "none"},
			{brokerResource, "1", false, []increment{{set, "node.id", "2"}}, 40, "node.id", "1"},
		} {
			req := kmsg.NewPtrIncrementalAlterConfigsRequest()
			req.ValidateOnly = step.validate
			r := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: step.kind, ResourceName: step.name}
			for i := range step.changes {
				ch := &step.changes[i]
				cfg := kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: ch.name, Op: ch.op}
				if ch.value != "null" {
					cfg.Value = &ch.value
				}
				r.Configs = append(r.Configs, cfg)
			}
			req.Resources = append(req.Resources, r)
			got := ask[*kmsg.IncrementalAlterConfigsResponse](c, req, v).Resources[0]
			if got.ErrorCode != step.code || (got.ErrorMessage == nil) != (got.ErrorCode == 0) || got.ResourceName != step.name || got.ResourceType != step.kind {
				t.Errorf("version %d: %v: %+v, want code %d", v, step.changes, got, step.code)
			}
			value := "none"
			if cfg, ok := c.describeConfigs(step.kind, step.name)[step.look]; ok {
				value = *cfg.Value
			}
			if value != step.want {
				t.Errorf("version %d: %v: %s is %s, want %s", v, step.changes, step.look, value, step.want)
			}
		}
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: topicResource, ResourceName: topic}
		req.Resources = append(req.Resources, r, r, kmsg.IncrementalAlterConfigsRequestResource{ResourceType: topicResource, ResourceName: "missing"},
			kmsg.IncrementalAlterConfigsRequestResource{ResourceType: brokerResource, ResourceName: "x"}, kmsg.IncrementalAlterConfigsRequestResource{ResourceType: 16, ResourceName: "x"})
		var codes []int16
		for _, r := range ask[*kmsg.IncrementalAlterConfigsResponse](c, req, v).Resources {
			codes = append(codes, r.ErrorCode)
		}
		if !slices.Equal(codes, []int16{42, 42, 3, 42, 42}) {
			t.Errorf("version %d: codes %v", v, codes)
		}
	}
}
