package kafka

import "leat/auth"

// What a client may do is told, where it asks for that, as a bit for each
// operation by Kafka's numbers (KIP-430).

// operationsOn are the operations that Kafka knows for a kind of resource and
// that are asked about here.
var operationsOn = map[auth.ResourceType][]auth.Operation{
	auth.Topic: {
		auth.Read, auth.Write, auth.Create, auth.Delete, auth.Alter, auth.Describe, auth.DescribeConfigs, auth.AlterConfigs,
	},
	auth.Group:   {auth.Read, auth.Delete, auth.Describe},
	auth.Cluster: {auth.Create, auth.Alter, auth.Describe, auth.DescribeConfigs, auth.AlterConfigs, auth.IdempotentWrite},
}

// operations has a bit for each operation that p may do to r.
func operations(a auth.Authorizer, p auth.Principal, r auth.Resource) int32 {
	bits := int32(0)
	for _, op := range operationsOn[r.Type] {
		if a.Allowed(p, op, r) {
			bits |= 1 << op
		}
	}
	return bits
}

func (c *conn) topicOperations(name string) int32 {
	return operations(c.srv.opts.Authorizer, c.principal, auth.Resource{Type: auth.Topic, Name: name})
}

func (c *conn) groupOperations(id string) int32 {
	return operations(c.srv.opts.Authorizer, c.principal, auth.Resource{Type: auth.Group, Name: id})
}

// clusterOperations are none at all for one that may not describe the cluster.
func (c *conn) clusterOperations() int32 {
	cluster := auth.Resource{Type: auth.Cluster, Name: auth.ClusterName}
	if !c.srv.opts.Authorizer.Allowed(c.principal, auth.Describe, cluster) {
		return 0
	}
	return operations(c.srv.opts.Authorizer, c.principal, cluster)
}
