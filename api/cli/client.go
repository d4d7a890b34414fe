package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	dialTimeout  = 3 * time.Second  // for one TCP connection of the client, which tries again
	readOverhead = 10 * time.Second // for one answer, beyond what the request itself allows; the client tries again
	graceTimeout = 5 * time.Second  // for records in flight after Ctrl-C or a failure
)

// Connection holds the flags that every client command has.
type Connection struct {
	Server  string        `default:"127.0.0.1:9092" env:"LEAT_SERVER" placeholder:"HOST:PORT" help:"Kafka address of the server (default ${default})."`
	Timeout time.Duration `default:"30s" env:"-" placeholder:"TIME" help:"How long to wait for a server that does not answer (default ${default})."`
}

// session is a client, the admin form of it, and the words of the command that has it.
type session struct {
	*kgo.Client
	admin *kadm.Client
	std   IO
	lines *statusLine // is std.Err
	watch *watch
}

// Close ends the session; nothing is said after it.
func (s *session) Close() {
	s.watch.stop()
	s.Client.Close()
}

var (
	errInterrupted = errors.New("interrupted")
	errTimeout     = errors.New("timeout")
)

// open connects and waits for the first answer, so that a server that is down, or is no Kafka server, is an error and not
// a retry without end: at once if the connection is refused, after --timeout if nothing answers. The caller closes the session.
func (c Connection) open(ctx context.Context, std IO, patience string, opts ...kgo.Opt) (*session, error) {
	if err := checkAddress(c.Server); err != nil {
		return nil, err
	}
	if c.Timeout <= 0 {
		return nil, usagef("--timeout %s: want more than 0", c.Timeout)
	}
	ignoreSIGPIPE()
	s := &session{lines: newStatusLine(std.Err), std: std}
	s.std.Err = s.lines
	s.watch = newWatch(s.std, c.silence(), patience)
	client, err := c.connect(ctx, s.watch, opts)
	if err != nil {
		s.watch.stop()
		return nil, err
	}
	s.Client, s.admin = client, kadm.NewClient(client)
	s.admin.SetTimeoutMillis(int32(min(c.Timeout, time.Hour).Milliseconds()))
	return s, nil
}

// silence is how long a server may say nothing before the user is told.
func (c Connection) silence() time.Duration { return min(3*time.Second, c.Timeout/2) }

// waiting is what is said of a server that does not answer by a command that gives up in the end.
func (c Connection) waiting() string { return fmt.Sprintf("waiting up to %s", c.Timeout) }

func (c Connection) connect(ctx context.Context, w *watch, opts []kgo.Opt) (*kgo.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	defer cancel()
	w.asked(c.Server)
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Server)
	if err != nil {
		return nil, c.explain(ctx, fmt.Errorf("no server at %s: %w", c.Server, dialReason(err)))
	}
	err = greet(ctx, conn)
	_ = conn.Close()
	switch {
	case err == nil:
		w.answered(c.Server)
	case !errors.Is(err, errSilent): // the client may have more luck
		return nil, c.explain(ctx, fmt.Errorf("%s %w: --server takes the Kafka address of a server, which has port 9092 unless it was told otherwise", c.Server, err))
	}
	opts = append([]kgo.Opt{
		kgo.SeedBrokers(c.Server), kgo.ClientID("leat-cli"), kgo.DialTimeout(dialTimeout), kgo.WithHooks(w),
		kgo.RequestTimeoutOverhead(max(time.Second, min(readOverhead, c.Timeout))),
		kgo.DisableClientMetrics(), // they would only cost requests
	}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("set up the client: %w", err)
	}
	for {
		err := client.Ping(ctx)
		if err == nil {
			return client, nil
		}
		if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() && ctx.Err() == nil {
			continue
		}
		client.Close()
		return nil, c.explain(ctx, fmt.Errorf("%s does not answer as a Kafka server: %w", c.Server, err))
	}
}

var (
	errHTTP   = errors.New("speaks HTTP, not Kafka")
	errTLS    = errors.New("speaks TLS, which leat does not")
	errOddity = errors.New("does not speak Kafka")
	errClosed = errors.New("closes the connection without an answer")
	errSilent = errors.New("does not answer")
)

// greet tells whether the other end of a fresh connection speaks Kafka, by its answer to a request for its versions. The
// bytes of that request, by its correlation id, are also lines of text with an empty one at the end, so that a server of
// HTTP answers at once, too, and does not wait for more.
func greet(ctx context.Context, conn net.Conn) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
	}()
	request := []byte{3: 10, 5: byte(kmsg.ApiVersions), 8: '\r', 9: '\n', 10: '\r', 11: '\n', 12: 0xff, 13: 0xff}
	_ = conn.SetDeadline(time.Now().Add(dialTimeout)) // what follows tells if it cannot
	if _, err := conn.Write(request); err != nil {
		return cmp.Or(ctx.Err(), errClosed)
	}
	answer := make([]byte, 8) // its size and the correlation id
	n, err := io.ReadFull(conn, answer)
	answer = answer[:n]
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case n == 8 && bytes.Equal(answer[4:], request[8:12]):
		return nil
	case n == 0 && errors.Is(err, os.ErrDeadlineExceeded):
		return errSilent
	case n == 0:
		return errClosed
	case bytes.HasPrefix(answer, []byte("HTTP/")):
		return errHTTP
	case bytes.HasPrefix(answer, []byte{21, 3}): // an alert
		return errTLS
	}
	return errOddity
}

// checkAddress refuses a --server that cannot be meant.
func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if n, numErr := strconv.ParseUint(port, 10, 16); err != nil || numErr != nil || n == 0 {
		return usagef("--server %q is not HOST:PORT, for example 127.0.0.1:9092", addr)
	}
	return nil
}

// ask opens a session, gives it to do for as long as --timeout allows, and closes it.
func (c Connection) ask(ctx context.Context, std IO, do func(context.Context, *session) error) error {
	s, err := c.open(ctx, std, c.waiting())
	if err != nil {
		return err
	}
	defer s.Close()
	return c.within(ctx, func(ctx context.Context) error { return do(ctx, s) })
}

// within gives do the time of --timeout, and explains how it failed.
func (c Connection) within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	defer cancel()
	return c.explain(ctx, do(ctx))
}

// explain turns an error that only says that ctx ended into what happened. What a server answered stands.
func (c Connection) explain(ctx context.Context, err error) error {
	if _, answered := errors.AsType[*kerr.Error](err); err == nil || answered || ctx.Err() == nil {
		return err
	}
	if errors.Is(context.Cause(ctx), errTimeout) {
		return fmt.Errorf("%s did not answer within %s (--timeout)", c.Server, c.Timeout)
	}
	return errInterrupted
}

// dialReason is the cause inside a net.OpError, whose text would repeat the address.
func dialReason(err error) error {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return errors.New(lookup.Err)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}

// errNoTopic is a topic that the server does not have.
var errNoTopic = errors.New("no such topic")

// existing finds a topic that has to be there.
func (c Connection) existing(ctx context.Context, client *session, name string) (kmsg.MetadataResponseTopic, error) {
	topic, err := findTopic(ctx, client, name, false)
	if errors.Is(err, errNoTopic) {
		err = c.noTopic(name)
	}
	return topic, err
}

// noTopic is the error of every command whose topic is not there.
func (c Connection) noTopic(name string) error {
	return fmt.Errorf("topic %s: %w at %s", name, errNoTopic, c.Server)
}

// failed says what the server refused to do with a topic.
func (c Connection) failed(what, name string, err error) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return c.noTopic(name)
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}

// findTopic asks for one topic. With create, a server that creates topics on demand does so.
// It answers at once when the topic is not there, and waits until ctx ends for a topic that is being made.
func findTopic(ctx context.Context, client *session, name string, create bool) (kmsg.MetadataResponseTopic, error) {
	for {
		req := kmsg.NewPtrMetadataRequest()
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &name
		req.Topics = append(req.Topics, asked)
		req.AllowAutoTopicCreation = create
		resp, err := req.RequestWith(ctx, client.Client)
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
			return topic, fmt.Errorf("topic %s: %w", name, errNoTopic)
		case err != nil && !errors.Is(err, kerr.LeaderNotAvailable):
			return topic, fmt.Errorf("topic %s: %w", name, err)
		}
		retry := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			retry.Stop()
			return topic, fmt.Errorf("topic %s has no leader: %w", name, kerr.LeaderNotAvailable)
		case <-retry.C:
		}
	}
}

// inTopic refuses a partition that the topic does not have; -1 stands for all.
func inTopic(topic kmsg.MetadataResponseTopic, partition int32) error {
	if partition > 0 && len(topic.Partitions) == 1 {
		return fmt.Errorf("topic %s has only partition 0, not %d", *topic.Topic, partition)
	}
	if int(partition) >= len(topic.Partitions) {
		return fmt.Errorf("topic %s has partitions 0 to %d, not %d", *topic.Topic, len(topic.Partitions)-1, partition)
	}
	return nil
}

// checkPartition refuses a --partition that cannot be meant.
func checkPartition(partition int32) error {
	if partition < -1 {
		return usagef("--partition %d: partitions count from 0", partition)
	}
	return nil
}
