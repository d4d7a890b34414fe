package kafka

import (
	"context"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// ListConfigResources (key 74), versions 0 and 1, flexible (KIP-1142).
//
// What DescribeConfigs can be asked for by name: topics and brokers. Kinds that
// Kafka has and that have no configs here (loggers, client metrics, groups) have
// no resources; a kind that there is not is refused with UNSUPPORTED_VERSION. No
// kinds asks for all.
//
//	v0  client metrics only, of which there are none
//	v1  the kinds of resources are asked for
func listConfigResources(ctx context.Context, c *conn, cl *call, req *kmsg.ListConfigResourcesRequest) kmsg.Response {
	resp := kmsg.NewPtrListConfigResourcesResponse()
	topics, nodes, err := c.srv.opts.Broker.ConfigResources(ctx, c.principal)
	if err != nil {
		resp.ErrorCode = cl.code(ctx, err)
		return resp
	}
	kinds := req.ResourceTypes
	for _, kind := range kinds {
		if !slices.Contains(resourceKinds, kmsg.ConfigResourceType(kind)) {
			resp.ErrorCode = cl.refuse(api.KafkaUnsupportedVersion)
			return resp
		}
	}
	wanted := func(kind kmsg.ConfigResourceType) bool {
		return req.Version >= 1 && (len(kinds) == 0 || slices.Contains(kinds, int8(kind)))
	}
	add := func(kind kmsg.ConfigResourceType, name string) {
		r := kmsg.NewListConfigResourcesResponseConfigResource()
		r.Type, r.Name = int8(kind), name
		resp.ConfigResources = append(resp.ConfigResources, r)
	}
	if wanted(kmsg.ConfigResourceTypeTopic) {
		for _, name := range topics {
			add(kmsg.ConfigResourceTypeTopic, name)
		}
	}
	if wanted(kmsg.ConfigResourceTypeBroker) {
		for _, n := range nodes {
			add(kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(n.ID)))
		}
	}
	return resp
}

// resourceKinds are the kinds of resources that Kafka has configs for.
var resourceKinds = []kmsg.ConfigResourceType{
	kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeBrokerLogger,
	kmsg.ConfigResourceTypeClientMetrics, kmsg.ConfigResourceTypeGroupConfig,
}
