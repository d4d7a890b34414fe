package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// AlterConfigs (key 33), versions 0 to 2.
//
// The configs that are named replace all that were set for a topic or a broker:
// what is not named goes back to its default. Clients that want to change one
// use IncrementalAlterConfigs. They are in force when the answer arrives. Each
// resource is changed as a whole or not at all; one that stands twice in a
// request is refused each time.
//
//	v1  throttled after the answer, as all versions are
//	v2  flexible
//
// Left out: other kinds of resources, see DescribeConfigs.
func alterConfigs(ctx context.Context, c *conn, cl *call, req *kmsg.AlterConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterConfigsResponse()
	asked := resourcesOf(len(req.Resources), func(i int) (kmsg.ConfigResourceType, string) {
		return req.Resources[i].ResourceType, req.Resources[i].ResourceName
	})
	for i := range req.Resources {
		in, err := &req.Resources[i], asked[i].err
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		if err == nil {
			err = asked[i].replace(ctx, c, in.Configs, req.ValidateOnly)
		}
		out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (r configResource) replace(ctx context.Context, c *conn, configs []kmsg.AlterConfigsRequestResourceConfig, validateOnly bool) error {
	values := make(map[string]string, len(configs))
	for i := range configs {
		name, value := configs[i].Name, configs[i].Value
		if value == nil {
			return fmt.Errorf("%w: the value of config %q is null", broker.ErrInvalidRequest, name)
		}
		if _, twice := values[name]; twice {
			return fmt.Errorf("%w: config %q is given twice", broker.ErrInvalidRequest, name)
		}
		values[name] = *value
	}
	if r.topic != "" {
		return c.srv.opts.Broker.ReplaceTopicConfigs(ctx, c.principal, r.topic, values, validateOnly)
	}
	return c.srv.opts.Broker.ReplaceBrokerConfigs(ctx, c.principal, r.node, values, validateOnly)
}
