package conformance

import (
	"context"
	"errors"
	"fmt"
)

// header is a header of a record. A null value is nil.
type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// record is what a client writes or reads. A null key or value is nil.
type record struct {
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
	Timestamp int64    `json:"timestamp"` // milliseconds; 0 when produced: the client's now
	Partition int32    `json:"partition"` // as read
	Offset    int64    `json:"offset"`    // as read
}

// Where a consumer starts, and what is looked up.
const (
	earliest = "earliest"
	latest   = "latest"
	atOffset = "offset"
	atTime   = "time"
)

const cooperative = "cooperative"

// ask is what a client under test shall do.
type ask struct {
	// Op is one of:
	//
	//	hello             the client's own version -> version
	//	metadata          -> topics, nodes, cluster
	//	produce           records to one partition, in order, with codec, acks, idempotent; returns when they are delivered
	//	read              count records of one partition from at, without a group -> records
	//	join              becomes a member of a group that reads topic from the earliest record where nothing is
	//	                  committed; it commits nothing by itself. Once for a driver; may return before it has joined.
	//	poll              what has arrived, waiting at most 200 ms -> records, assigned, revoked
	//	commit            all that poll has returned
	//	leave             closes the member; a static member stays in the group
	//	create_topic, delete_topic, create_partitions, delete_records, delete_group
	//	describe_configs  of a topic -> configs
	//	alter_configs     sets configs and unsets others of a topic, and leaves the rest (incremental)
	//	replace_configs   sets configs of a topic, and the rest goes back to its default
	//	list_offset       -> offset
	//	list_groups       -> groups
	//	describe_group    -> state, members
	//	commit_offsets    of a group without members
	//	committed         -> offsets
	//	delete_offsets    of a group: those of the partitions in offsets
	Op         string            `json:"op"`
	Topic      string            `json:"topic"`
	Partition  int32             `json:"partition"`
	Records    []record          `json:"records"`
	Codec      string            `json:"codec"` // none, gzip, snappy, lz4, zstd
	Acks       string            `json:"acks"`  // 0, 1, all
	Idempotent bool              `json:"idempotent"`
	At         string            `json:"at"`
	Offset     int64             `json:"offset"` // an offset, or milliseconds for the time
	Count      int               `json:"count"`
	Group      string            `json:"group"`
	Instance   string            `json:"instance"` // of a static member
	Strategy   string            `json:"strategy"` // empty for an eager one
	Partitions int               `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	Unset      []string          `json:"unset"`
	Offsets    map[int32]int64   `json:"offsets"`
}

// reply is what came of it.
type reply struct {
	Error      string            `json:"error"`
	NotOffered string            `json:"not_offered"`
	Version    string            `json:"version"`
	Topics     map[string]int    `json:"topics"` // partitions
	Nodes      int               `json:"nodes"`
	Cluster    string            `json:"cluster"` // empty when the client does not tell
	Records    []record          `json:"records"`
	Assigned   []int32           `json:"assigned"` // the partitions of a member
	Revoked    int               `json:"revoked"`  // how many partitions rebalances have taken from the member so far
	Configs    map[string]string `json:"configs"`
	Offset     int64             `json:"offset"`
	Groups     []string          `json:"groups"`
	State      string            `json:"state"`
	Members    int               `json:"members"`
	Offsets    map[int32]int64   `json:"offsets"`
}

// driver has one instance of a client do things, one after the other.
type driver interface {
	do(ctx context.Context, q ask) (reply, error)
	close()
}

// errNotOffered says that the client has no way to do it, which is no failure.
var errNotOffered = errors.New("not offered by the client")

func notOffered(reason string) error { return fmt.Errorf("%w: %s", errNotOffered, reason) }

// ops is a driver in Go: what each op does.
type ops map[string]func(ctx context.Context, q ask) (reply, error)

func (o ops) do(ctx context.Context, q ask) (reply, error) {
	op, ok := o[q.Op]
	if !ok {
		return reply{}, notOffered("no such call")
	}
	return op(ctx, q)
}

// act is an op that returns nothing.
func act(f func(ctx context.Context, q ask) error) func(context.Context, ask) (reply, error) {
	return func(ctx context.Context, q ask) (reply, error) { return reply{}, f(ctx, q) }
}
