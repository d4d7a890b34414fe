// Command librdkafka has confluent-kafka-go, which is librdkafka by cgo, do what the conformance tests ask. The package
// comment of leat/e2e/conformance says how it is asked; ask and reply are restated here as far as this client goes.
//
// It is a module of its own because the tests of confluent-kafka-go import half of the container world, which
// `go mod tidy` would add to Leat's go.sum, and because it needs a C compiler.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

type record struct {
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
	Timestamp int64    `json:"timestamp"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
}

type ask struct {
	Op         string            `json:"op"`
	Topic      string            `json:"topic"`
	Partition  int32             `json:"partition"`
	Records    []record          `json:"records"`
	Codec      string            `json:"codec"`
	Acks       string            `json:"acks"`
	Idempotent bool              `json:"idempotent"`
	At         string            `json:"at"`
	Offset     int64             `json:"offset"`
	Count      int               `json:"count"`
	Group      string            `json:"group"`
	Instance   string            `json:"instance"`
	Strategy   string            `json:"strategy"`
	Partitions int               `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	Unset      []string          `json:"unset"`
	Offsets    map[int32]int64   `json:"offsets"`
}

type reply struct {
	Error      string            `json:"error,omitempty"`
	NotOffered string            `json:"not_offered,omitempty"`
	Version    string            `json:"version,omitempty"`
	Topics     map[string]int    `json:"topics,omitempty"`
	Nodes      int               `json:"nodes,omitempty"`
	Cluster    string            `json:"cluster,omitempty"`
	Records    []record          `json:"records,omitempty"`
	Assigned   []int32           `json:"assigned,omitempty"`
	Revoked    int               `json:"revoked,omitempty"`
	Configs    map[string]string `json:"configs,omitempty"`
	Offset     int64             `json:"offset,omitempty"`
	Groups     []string          `json:"groups,omitempty"`
	State      string            `json:"state,omitempty"`
	Members    int               `json:"members,omitempty"`
	Offsets    map[int32]int64   `json:"offsets,omitempty"`
}

// operation is how long one call of the client may take.
const operation = 30 * time.Second

// client is one instance.
type client struct {
	addr  string
	admin *kafka.AdminClient
	member
}

func main() {
	ctx := context.Background() //nolint:forbidigo // this is a main, too
	if err := serve(ctx, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers until the input ends.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	c := &client{addr: os.Getenv("LEAT_BOOTSTRAP")}
	admin, err := kafka.NewAdminClient(c.config())
	if err != nil {
		return err
	}
	defer admin.Close()
	c.admin = admin
	defer func() { _ = c.closeMember() }() // the process ends
	answers := json.NewEncoder(out)
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var q ask
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if err := answers.Encode(c.answer(ctx, &q)); err != nil {
			return err
		}
	}
}

func (c *client) answer(ctx context.Context, q *ask) *reply {
	ctx, cancel := context.WithTimeout(ctx, operation)
	defer cancel()
	r := &reply{}
	op, ok := map[string]func(context.Context, *ask, *reply) error{
		"hello": hello, "metadata": c.metadata, "produce": c.produce, "read": c.read, "list_offset": c.listOffset,
		"join": c.join, "poll": c.poll, "commit": c.commit, "leave": c.leave,
		"create_topic": c.createTopic, "delete_topic": c.deleteTopic, "create_partitions": c.createPartitions,
		"describe_configs": c.describeConfigs, "alter_configs": c.alterConfigs, "replace_configs": c.replaceConfigs,
		"delete_records": c.deleteRecords, "list_groups": c.listGroups, "describe_group": c.describeGroup,
		"delete_group": c.deleteGroup, "commit_offsets": c.commitOffsets, "committed": c.committed,
	}[q.Op]
	if !ok {
		return &reply{NotOffered: "no such call"}
	}
	if err := op(ctx, q, r); err != nil {
		return &reply{Error: err.Error()}
	}
	return r
}

func hello(_ context.Context, _ *ask, r *reply) error {
	_, r.Version = kafka.LibraryVersion()
	return nil
}

// config is what every instance gets, and more.
func (c *client) config(more ...any) *kafka.ConfigMap {
	m := kafka.ConfigMap{"bootstrap.servers": c.addr, "client.id": "librdkafka"}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return &m
}

// failed is nil for a kafka.Error that is none.
func failed(err kafka.Error) error {
	if err.Code() == kafka.ErrNoError {
		return nil
	}
	return err
}
