package cli

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// administerLocked handles the requests that change or describe more than records.
func (f *fake) administerLocked(req kmsg.Request, resp kmsg.Response) {
	switch req := req.(type) {
	case *kmsg.CreatePartitionsRequest:
		f.createPartitionsLocked(req, resp.(*kmsg.CreatePartitionsResponse))
	case *kmsg.DeleteRecordsRequest:
		f.deleteRecordsLocked(req, resp.(*kmsg.DeleteRecordsResponse))
	case *kmsg.ElectLeadersRequest:
		f.electLeadersLocked(req, resp.(*kmsg.ElectLeadersResponse))
	case *kmsg.DescribeConfigsRequest:
		f.describeConfigsLocked(req, resp.(*kmsg.DescribeConfigsResponse))
	case *kmsg.IncrementalAlterConfigsRequest:
		f.alterConfigsLocked(req, resp.(*kmsg.IncrementalAlterConfigsResponse))
	case *kmsg.DescribeLogDirsRequest:
		dir := kmsg.NewDescribeLogDirsResponseDir()
		dir.Dir, dir.TotalBytes, dir.UsableBytes = "/data", 250_000_000_000, 99_000_000
		for name, logs := range f.mu.topics {
			topic := kmsg.NewDescribeLogDirsResponseDirTopic()
			topic.Topic = name
			for i, log := range logs {
				p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
				p.Partition, p.Size = int32(i), 1234*log.next
				topic.Partitions = append(topic.Partitions, p)
			}
			dir.Topics = append(dir.Topics, topic)
		}
		resp.(*kmsg.DescribeLogDirsResponse).Dirs = append(resp.(*kmsg.DescribeLogDirsResponse).Dirs, dir)
	default:
		f.coordinateLocked(req, resp)
	}
}

func (f *fake) createPartitionsLocked(req *kmsg.CreatePartitionsRequest, resp *kmsg.CreatePartitionsResponse) {
	for _, t := range req.Topics {
		answer := kmsg.NewCreatePartitionsResponseTopic()
		answer.Topic = t.Topic
		have := len(f.mu.topics[t.Topic])
		switch {
		case have == 0:
			answer.ErrorCode = kerr.UnknownTopicOrPartition.Code
		case int(t.Count) <= have:
			message := "the topic has " + strconv.Itoa(have) + " partitions"
			answer.ErrorCode, answer.ErrorMessage = kerr.InvalidPartitions.Code, &message
		case !req.ValidateOnly:
			for range int(t.Count) - have {
				f.mu.topics[t.Topic] = append(f.mu.topics[t.Topic], &fakeLog{})
			}
		}
		resp.Topics = append(resp.Topics, answer)
	}
}

func (f *fake) deleteRecordsLocked(req *kmsg.DeleteRecordsRequest, resp *kmsg.DeleteRecordsResponse) {
	for _, t := range req.Topics {
		topic := kmsg.NewDeleteRecordsResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			answer := kmsg.NewDeleteRecordsResponseTopicPartition()
			answer.Partition = p.Partition
			log := f.logLocked(t.Topic, p.Partition)
			switch {
			case log == nil:
				answer.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case p.Offset > log.next:
				answer.ErrorCode = kerr.OffsetOutOfRange.Code
			case p.Offset == -1:
				log.first = log.next
			default:
				log.first = max(log.first, p.Offset)
			}
			if log != nil {
				answer.LowWatermark = log.first
			}
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

// electLeadersLocked repairs partition 1 of every topic; the others are whole.
func (f *fake) electLeadersLocked(req *kmsg.ElectLeadersRequest, resp *kmsg.ElectLeadersResponse) {
	for _, t := range req.Topics {
		topic := kmsg.NewElectLeadersResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			answer, lost := kmsg.NewElectLeadersResponseTopicPartition(), "lost offsets: 4 to 7"
			answer.Partition, answer.ErrorMessage = p, &lost
			if p != 1 || req.ElectionType != 1 {
				answer.ErrorCode = kerr.ElectionNotNeeded.Code
			}
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

// resource names what has configs.
func resource(kind kmsg.ConfigResourceType, name string) string {
	if kind == kmsg.ConfigResourceTypeTopic {
		return "topic " + name
	}
	return "node " + name
}

// describeConfigsLocked gives a read-only default and a secret to every topic and node, beside what was set.
func (f *fake) describeConfigsLocked(req *kmsg.DescribeConfigsRequest, resp *kmsg.DescribeConfigsResponse) {
	for _, r := range req.Resources {
		answer := kmsg.NewDescribeConfigsResponseResource()
		answer.ResourceType, answer.ResourceName = r.ResourceType, r.ResourceName
		source := kmsg.ConfigSourceDynamicTopicConfig
		if r.ResourceType == kmsg.ConfigResourceTypeBroker {
			source = kmsg.ConfigSourceDynamicBrokerConfig
		}
		set := f.mu.configs[resource(r.ResourceType, r.ResourceName)]
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(set))) {
			value := set[name]
			answer.Configs = append(answer.Configs, kmsg.DescribeConfigsResponseResourceConfig{Name: name, Value: &value, Source: source})
		}
		if r.ResourceName != "" {
			id, docs := "7", "What it is."
			answer.Configs = append(answer.Configs,
				kmsg.DescribeConfigsResponseResourceConfig{
					Name: "an.id", Value: &id, ReadOnly: true, Source: kmsg.ConfigSourceDefaultConfig, Documentation: &docs,
				},
				kmsg.DescribeConfigsResponseResourceConfig{Name: "password", IsSensitive: true, Source: kmsg.ConfigSourceStaticBrokerConfig})
		}
		if r.ResourceName == "9" {
			message := "there is no node 9"
			answer.ErrorCode, answer.ErrorMessage, answer.Configs = kerr.InvalidRequest.Code, &message, nil
		}
		resp.Resources = append(resp.Resources, answer)
	}
}

// alterConfigsLocked refuses names with a space and knows what a list is.
func (f *fake) alterConfigsLocked(req *kmsg.IncrementalAlterConfigsRequest, resp *kmsg.IncrementalAlterConfigsResponse) {
	for _, r := range req.Resources {
		answer := kmsg.NewIncrementalAlterConfigsResponseResource()
		answer.ResourceType, answer.ResourceName = r.ResourceType, r.ResourceName
		name := resource(r.ResourceType, r.ResourceName)
		configs := maps.Clone(f.mu.configs[name])
		if configs == nil {
			configs = map[string]string{}
		}
		for _, c := range r.Configs {
			list := strings.FieldsFunc(configs[c.Name], func(r rune) bool { return r == ',' })
			switch c.Op {
			case kmsg.IncrementalAlterConfigOpDelete:
				delete(configs, c.Name)
			case kmsg.IncrementalAlterConfigOpAppend:
				configs[c.Name] = strings.Join(append(list, *c.Value), ",")
			case kmsg.IncrementalAlterConfigOpSubtract:
				configs[c.Name] = strings.Join(slices.DeleteFunc(list, func(v string) bool { return v == *c.Value }), ",")
			default:
				configs[c.Name] = *c.Value
			}
			if strings.Contains(c.Name, "unknown") {
				message := "there is no config " + c.Name
				answer.ErrorCode, answer.ErrorMessage = kerr.InvalidConfig.Code, &message
			}
		}
		if answer.ErrorCode == 0 {
			f.mu.configs[name] = configs
		}
		resp.Resources = append(resp.Resources, answer)
	}
}

// port is the port that the fake listens on.
func (f *fake) port() string {
	_, port, _ := net.SplitHostPort(f.addr)
	return port
}
