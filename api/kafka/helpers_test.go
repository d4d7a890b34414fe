package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"leat/auth"
	"leat/broker"
	"leat/storage/disk"
	"leat/storage/record"
)

// No test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds every wait of these tests; it is never reached when they pass.
const limit = 20 * time.Second

// door is a server on a loopback port, with a broker on a temporary directory.
type door struct {
	*Server
	addr string
	dir  string
	reg  *prometheus.Registry
	logs *syncBuffer
}

type setup struct {
	opts     Options
	configs  map[string]string
	noBroker bool
	// dir is the broker's directory, default a fresh one; authorizer is its.
	dir        string
	authorizer auth.Authorizer
	// disk, if there is one, holds the directory.
	disk *disk.Mem
	// now, if there is one, is the broker's clock.
	now func() time.Time
	// closes says that the test closes the broker.
	closes bool
}

// startDoor serves until the test ends.
func startDoor(t testing.TB, s setup) *door {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	d := &door{addr: ln.Addr().String(), dir: s.dir, reg: prometheus.NewRegistry(), logs: new(syncBuffer)}
	if !s.noBroker {
		s.opts.Broker = openBroker(t, d.addr, &s)
	}
	s.opts.Logger = slog.New(slog.NewTextHandler(d.logs, nil))
	s.opts.Registerer = d.reg
	d.Server = New(s.opts)
	served := make(chan error, 1)
	go func() { served <- d.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; !errors.Is(err, ErrClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return d
}

func openBroker(t testing.TB, addr string, s *setup) *broker.Broker {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	opts := broker.Options{Path: s.dir, Host: host, Port: int32(n), Configs: s.configs, Authorizer: s.authorizer, Now: s.now}
	if s.disk != nil {
		opts.FS = s.disk
	}
	b, err := broker.Open(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil && !s.closes {
			t.Errorf("close broker: %v", err)
		}
	})
	return b
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// client is a connection that speaks the protocol frame by frame.
type client struct {
	t testing.TB
	net.Conn
	corr int32
}

func (d *door) dial(t testing.TB) *client {
	t.Helper()
	nc, err := net.Dial("tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, Conn: nc}
}

// frame is a request as it goes over the wire.
func (c *client) frame(req kmsg.Request) []byte {
	c.corr++
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, c.corr)
}

// head is a frame with nothing behind its header, whatever the key.
func (c *client) head(key, version int16) []byte {
	p := binary.BigEndian.AppendUint32(nil, minFrame)
	p = binary.BigEndian.AppendUint16(p, uint16(key))
	p = binary.BigEndian.AppendUint16(p, uint16(version))
	return append(p, 0, 0, 0, 1, 0xff, 0xff)
}

func (c *client) send(p []byte) {
	c.t.Helper()
	if _, err := c.Write(p); err != nil {
		c.t.Fatal(err)
	}
}

// recv reads one response frame and returns what follows the correlation id.
func (c *client) recv() (corr int32, body []byte) {
	c.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		c.t.Fatal(err)
	}
	p := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, p); err != nil {
		c.t.Fatal(err)
	}
	return int32(binary.BigEndian.Uint32(p)), p[4:]
}

// decode fills resp from a body, whose header has tags in flexible versions.
func decode[R kmsg.Response](t testing.TB, resp R, body []byte) R {
	t.Helper()
	if resp.IsFlexible() && resp.Key() != keyAPIVersions {
		if len(body) == 0 || body[0] != 0 {
			t.Fatalf("%T version %d: no empty tags in the response header", resp, resp.GetVersion())
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		t.Fatalf("%T version %d: %v", resp, resp.GetVersion(), err)
	}
	// What kmsg makes of the answer must be all of the answer.
	if again := resp.AppendTo(nil); !bytes.Equal(again, body) {
		t.Fatalf("%T version %d: %d bytes decode to %d", resp, resp.GetVersion(), len(body), len(again))
	}
	return resp
}

// ask sends one request at a version and returns the answer.
func ask[R kmsg.Response](c *client, req kmsg.Request, version int16) R {
	c.t.Helper()
	req.SetVersion(version)
	c.send(c.frame(req))
	corr, body := c.recv()
	if corr != c.corr {
		c.t.Fatalf("%T: correlation id %d, want %d", req, corr, c.corr)
	}
	return decode(c.t, req.ResponseKind().(R), body)
}

// closed reports that the server closed the connection without a byte.
func (c *client) closed() {
	c.t.Helper()
	n, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if n != 0 || err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("read %d bytes, error %v; want the connection closed", n, err)
	}
}

// eventually polls until ok, for what has no event to wait on.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		<-tick.C
	}
}

// counter reads one metric by name and label values.
func (d *door) counter(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := make([]string, 0, len(m.GetLabel()))
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if len(have) == len(labels) && equal(have, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func equal(a, b []string) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// batch builds an uncompressed batch of values.
func batch(t testing.TB, codec record.Codec, values ...string) record.Batch {
	t.Helper()
	var w record.Builder
	w.Reset(record.Options{Codec: codec})
	now := time.Now().UnixMilli()
	for _, v := range values {
		w.Add(now, nil, []byte(v), nil)
	}
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b)
}

// create makes a topic with n partitions.
func (c *client) create(topic string, n int32, configs ...string) [16]byte {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	in := kmsg.NewCreateTopicsRequestTopic()
	in.Topic, in.NumPartitions, in.ReplicationFactor = topic, n, -1
	for i := 0; i < len(configs); i += 2 {
		cfg := kmsg.NewCreateTopicsRequestTopicConfig()
		cfg.Name, cfg.Value = configs[i], &configs[i+1]
		in.Configs = append(in.Configs, cfg)
	}
	req.Topics = append(req.Topics, in)
	resp := ask[*kmsg.CreateTopicsResponse](c, req, 7)
	if code := resp.Topics[0].ErrorCode; code != 0 {
		c.t.Fatalf("create %s: code %d", topic, code)
	}
	return resp.Topics[0].TopicID
}

// produceRequest is a produce of one partition.
func produceRequest(topic string, partition int32, acks int16, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = acks, int32(limit/time.Millisecond)
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = topic, []kmsg.ProduceRequestTopicPartition{p}
	req.Topics = append(req.Topics, t)
	return req
}

// produce appends records with acks=all and returns the partition's answer.
func (c *client) produce(version int16, topic string, partition int32, records []byte) kmsg.ProduceResponseTopicPartition {
	c.t.Helper()
	resp := ask[*kmsg.ProduceResponse](c, produceRequest(topic, partition, -1, records), version)
	return resp.Topics[0].Partitions[0]
}

// fetchRequest asks for one partition without waiting.
func fetchRequest(topic string, id [16]byte, partition int32, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MinBytes, req.MaxBytes, req.SessionEpoch = 1, 50<<20, -1
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = partition, offset, 10<<20, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID, t.Partitions = topic, id, []kmsg.FetchRequestTopicPartition{p}
	req.Topics = append(req.Topics, t)
	return req
}
