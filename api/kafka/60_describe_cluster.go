package kafka

import (
	"context"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// DescribeCluster (key 60), versions 0 to 2.
//
// The answer names the nodes, the controller and the cluster. What the client
// may do to the cluster is told if it asks (KIP-430): a bit for each operation,
// none at all for one that may not describe the cluster.
//
//	v0  flexible
//	v1  the kind of endpoint that is asked for; this one is a broker's
//	v2  fenced brokers, of which there are none
//
// Left out: racks.
func describeCluster(_ context.Context, c *conn, cl *call, req *kmsg.DescribeClusterRequest) kmsg.Response {
	b := c.srv.opts.Broker
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.EndpointType, resp.ControllerID, resp.ClusterAuthorizedOperations = endpointBroker, -1, math.MinInt32
	if req.EndpointType != endpointBroker {
		resp.ErrorCode, resp.ErrorMessage = cl.wrongEndpoint(req.EndpointType)
		return resp
	}
	resp.ClusterID, resp.ControllerID = b.ClusterID(), b.Controller()
	for _, n := range b.Nodes() {
		node := kmsg.NewDescribeClusterResponseBroker()
		node.NodeID, node.Host, node.Port = n.ID, n.Host, n.Port
		resp.Brokers = append(resp.Brokers, node)
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = c.clusterOperations()
	}
	return resp
}

// Kinds of endpoints (KIP-919).
const (
	endpointBroker     = 1
	endpointController = 2
)

// wrongEndpoint is the error for a request to another kind of endpoint.
func (cl *call) wrongEndpoint(kind int8) (int16, *string) {
	if kind == endpointController {
		text := "this endpoint is a broker's, and a controller's was asked for"
		return cl.refuse(api.KafkaMismatchedEndpointType), &text
	}
	text := fmt.Sprintf("endpoint type %d is none of brokers (1), controllers (2)", kind)
	return cl.refuse(api.KafkaUnsupportedEndpointType), &text
}
