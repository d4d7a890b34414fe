package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// DescribeConfigs (key 32), versions 1 to 4.
//
// Every config that there is comes with the value in force, where it comes from
// and its type; for a topic, or for a broker by its id. A broker without an id
// stands for all: its configs are those that were set for the whole cluster
// while it ran. A list of names picks some; names that do not exist are left
// out. A null list and an empty one ask for all. A resource that stands twice in
// a request is refused each time.
//
//	v1  sources and synonyms
//	v3  types and documentation
//	v4  flexible
//
// Left out: other kinds of resources (loggers, client metrics, groups), and
// sensitive values, since there are none.
func describeConfigs(ctx context.Context, c *conn, cl *call, req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	asked := resourcesOf(len(req.Resources), func(i int) (kmsg.ConfigResourceType, string) {
		return req.Resources[i].ResourceType, req.Resources[i].ResourceName
	})
	for i := range req.Resources {
		in, err := &req.Resources[i], asked[i].err
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		out.Configs = []kmsg.DescribeConfigsResponseResourceConfig{}
		var entries []broker.ConfigEntry
		if err == nil {
			entries, err = asked[i].describe(ctx, c)
		}
		out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
		for j := range entries {
			if len(in.ConfigNames) == 0 || slices.Contains(in.ConfigNames, entries[j].Name) {
				out.Configs = append(out.Configs, describedConfig(&entries[j], req))
			}
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func describedConfig(e *broker.ConfigEntry, req *kmsg.DescribeConfigsRequest) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value, out.ReadOnly = e.Name, &e.Value, e.ReadOnly
	out.IsDefault, out.Source, out.ConfigType = e.Default(), kmsg.ConfigSource(e.Source), kmsg.ConfigType(e.Type)
	if req.IncludeSynonyms {
		for i := range e.Synonyms {
			s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			s.Name, s.Value, s.Source = e.Synonyms[i].Name, &e.Synonyms[i].Value, kmsg.ConfigSource(e.Synonyms[i].Source)
			out.ConfigSynonyms = append(out.ConfigSynonyms, s)
		}
	}
	if req.IncludeDocumentation {
		out.Documentation = &e.Doc
	}
	return out
}

// allNodes stands for every broker: what is set for it holds where a broker
// has nothing of its own.
const allNodes = -1

// configResource is what has configs: a topic or, if that is empty, a broker;
// or what is wrong with what a request names.
type configResource struct {
	topic string
	node  int32
	err   error
}

// resourcesOf reads the n resources of a request to one of the three config
// APIs. One that stands there twice is refused each time.
func resourcesOf(n int, at func(i int) (kmsg.ConfigResourceType, string)) []configResource {
	out, times := make([]configResource, n), map[configResource]int{}
	for i := range out {
		out[i] = resourceOf(at(i))
		if out[i].err == nil {
			times[out[i]]++
		}
	}
	for i, r := range out {
		if r.err == nil && times[r] > 1 {
			out[i].err = fmt.Errorf("%w: the resource is in the request %d times", broker.ErrInvalidRequest, times[r])
		}
	}
	return out
}

func resourceOf(kind kmsg.ConfigResourceType, name string) configResource {
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		return configResource{topic: name, err: broker.CheckTopicName(name)}
	case kmsg.ConfigResourceTypeBroker:
		if name == "" {
			return configResource{node: allNodes}
		}
		node, err := strconv.ParseInt(name, 10, 32)
		if err != nil || node < 0 {
			err = fmt.Errorf("%w: a broker's name is its id, or empty for all, but it is %q", broker.ErrInvalidRequest, name)
		}
		return configResource{node: int32(node), err: err}
	default:
		return configResource{err: fmt.Errorf("%w: resources of type %d have no configs here, only topics (2) and brokers (4)", broker.ErrInvalidRequest, kind)}
	}
}

func (r configResource) describe(ctx context.Context, c *conn) ([]broker.ConfigEntry, error) {
	if r.topic != "" {
		return c.srv.opts.Broker.TopicConfigs(ctx, c.principal, r.topic)
	}
	return c.srv.opts.Broker.BrokerConfigs(ctx, c.principal, r.node)
}
