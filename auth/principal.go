// Package auth says who is calling and what they may do: principals, the
// authorizer that broker asks once a call, and the rule that a server without
// authentication binds loopback only.
//
// It authenticates nothing by itself yet and knows no protocol. broker, the
// doors and main may import it.
package auth

// Principal is an identity that a door has established. The zero value is
// Anonymous. It is a value: copy it freely.
type Principal struct {
	// Type is Kafka's principal type; empty means "User".
	Type string
	// Name is the name within the type; empty means "ANONYMOUS".
	Name string
}

// Anonymous is the principal of a connection that did not authenticate.
var Anonymous = Principal{}

// String is the principal as Kafka writes it, for example "User:ANONYMOUS".
func (p Principal) String() string {
	kind, name := p.Type, p.Name
	if kind == "" {
		kind = "User"
	}
	if name == "" {
		name = "ANONYMOUS"
	}
	return kind + ":" + name
}

// Operation is what a principal wants to do, with Kafka's numbers (KIP-11).
type Operation int8

// The operations of Kafka's access control lists.
const (
	Read            Operation = 3
	Write           Operation = 4
	Create          Operation = 5
	Delete          Operation = 6
	Alter           Operation = 7
	Describe        Operation = 8
	DescribeConfigs Operation = 10
	AlterConfigs    Operation = 11
	IdempotentWrite Operation = 12
)

// ResourceType is the kind of thing an operation is done to, with Kafka's
// numbers.
type ResourceType int8

// The resource types that Leat asks about.
const (
	Topic   ResourceType = 2
	Group   ResourceType = 3
	Cluster ResourceType = 4
)

// Resource is one thing. The cluster's name is ClusterName.
type Resource struct {
	Type ResourceType
	Name string
}

// ClusterName is the name of the one resource of type Cluster.
const ClusterName = "kafka-cluster"

// Authorizer decides. It must be safe for concurrent use and must not block.
type Authorizer interface {
	// Allowed reports whether p may do op to r.
	Allowed(p Principal, op Operation, r Resource) bool
}

// AllowAll is the authorizer of a server whose authentication is off.
type AllowAll struct{}

// Allowed is always true.
func (AllowAll) Allowed(Principal, Operation, Resource) bool { return true }
