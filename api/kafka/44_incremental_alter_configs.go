package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// IncrementalAlterConfigs (key 44), versions 0 and 1.
//
// Configs of a topic or a broker are set, taken back to their default, or, if
// they are lists, made longer or shorter; the others stay (KIP-339). They are in
// force when the answer arrives. Each resource is changed as a whole or not at
// all; one that stands twice in a request is refused each time.
//
//	v1  flexible
//
// Left out: other kinds of resources, see DescribeConfigs.
func incrementalAlterConfigs(ctx context.Context, c *conn, cl *call, req *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	asked := resourcesOf(len(req.Resources), func(i int) (kmsg.ConfigResourceType, string) {
		return req.Resources[i].ResourceType, req.Resources[i].ResourceName
	})
	for i := range req.Resources {
		in, err := &req.Resources[i], asked[i].err
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		if err == nil {
			err = asked[i].change(ctx, c, in.Configs, req.ValidateOnly)
		}
		out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (r configResource) change(ctx context.Context, c *conn, configs []kmsg.IncrementalAlterConfigsRequestResourceConfig, validateOnly bool) error {
	changes := make([]broker.ConfigChange, len(configs))
	seen := make(map[string]bool, len(configs))
	for i := range configs {
		in := &configs[i]
		changes[i] = broker.ConfigChange{Name: in.Name, Value: in.Value, Op: broker.ConfigOp(in.Op)}
		switch {
		case seen[in.Name]:
			return fmt.Errorf("%w: config %q is given twice", broker.ErrInvalidRequest, in.Name)
		case changes[i].Op < broker.ConfigSet || changes[i].Op > broker.ConfigSubtract:
			return fmt.Errorf("%w: config %q: operation %d is none of set (0), delete (1), append (2), subtract (3)", broker.ErrInvalidRequest, in.Name, in.Op)
		case changes[i].Op == broker.ConfigDelete:
			changes[i].Value = nil
		case in.Value == nil:
			return fmt.Errorf("%w: the value of config %q is null", broker.ErrInvalidRequest, in.Name)
		}
		seen[in.Name] = true
	}
	if r.topic != "" {
		return c.srv.opts.Broker.AlterTopicConfigs(ctx, c.principal, r.topic, changes, validateOnly)
	}
	return c.srv.opts.Broker.AlterBrokerConfigs(ctx, c.principal, r.node, changes, validateOnly)
}
