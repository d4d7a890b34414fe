package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	dialTimeout  = 3 * time.Second  // for one TCP connection
	helloTimeout = 5 * time.Second  // for the first answer of a server that accepted
	adminTimeout = 60 * time.Second // for an admin request; creating 10,000 partitions takes seconds
	graceTimeout = 5 * time.Second  // for records in flight after Ctrl-C or a failure
)

// Connection is the flag that every client command has.
type Connection struct {
	Server string `default:"127.0.0.1:9092" env:"LEAT_SERVER" placeholder:"HOST:PORT" help:"Kafka address of the server (default ${default})."`
}

// open connects and waits for the first answer, so that a server that is down, or is no Kafka server, is an error within
// seconds and not a retry without end. The caller closes the client.
func (c Connection) open(ctx context.Context, opts ...kgo.Opt) (*kgo.Client, error) {
	if _, _, err := net.SplitHostPort(c.Server); err != nil {
		return nil, usagef("--server %q is not HOST:PORT", c.Server)
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", c.Server)
	if err != nil {
		return nil, fmt.Errorf("no server at %s: %w", c.Server, dialReason(err))
	}
	if err := conn.Close(); err != nil {
		return nil, fmt.Errorf("close the first connection to %s: %w", c.Server, err)
	}
	opts = append([]kgo.Opt{
		kgo.SeedBrokers(c.Server), kgo.ClientID("leat-cli"), kgo.DialTimeout(dialTimeout),
		kgo.DisableClientMetrics(), // they would only cost requests
	}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("set up the client: %w", err)
	}
	hello, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if err := client.Ping(hello); err != nil {
		client.Close()
		return nil, fmt.Errorf("%s does not answer as a Kafka server: %w", c.Server, err)
	}
	return client, nil
}

// dialReason is the cause inside a net.OpError, whose text would repeat the address.
func dialReason(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}

// errNoTopic is a topic that the server does not have.
var errNoTopic = errors.New("no such topic")

// findTopic asks for one topic. With create, a server that creates topics on demand does so.
// It answers at once when the topic is not there, and waits up to helloTimeout for a topic that is being made.
func findTopic(ctx context.Context, client *kgo.Client, name string, create bool) (kmsg.MetadataResponseTopic, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	for {
		req := kmsg.NewPtrMetadataRequest()
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &name
		req.Topics = append(req.Topics, asked)
		req.AllowAutoTopicCreation = create
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return kmsg.MetadataResponseTopic{}, fmt.Errorf("topic %s: %w", name, err)
		}
		if len(resp.Topics) != 1 {
			return kmsg.MetadataResponseTopic{}, fmt.Errorf("topic %s: the server described %d topics", name, len(resp.Topics))
		}
		topic := resp.Topics[0]
		err = kerr.ErrorForCode(topic.ErrorCode)
		switch {
		case err == nil && len(topic.Partitions) > 0:
			return topic, nil
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			return topic, fmt.Errorf("%s: %w", name, errNoTopic)
		case err != nil && !errors.Is(err, kerr.LeaderNotAvailable):
			return topic, fmt.Errorf("topic %s: %w", name, err)
		}
		retry := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			retry.Stop()
			return topic, fmt.Errorf("topic %s has no leader yet: %w", name, context.Cause(ctx))
		case <-retry.C:
		}
	}
}
