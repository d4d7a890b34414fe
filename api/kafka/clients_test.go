package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/storage/record"
)

// wiretap keeps what a client sends.
type wiretap struct {
	mu    sync.Mutex
	conns []*tapped
}

type tapped struct {
	net.Conn
	tap  *wiretap
	sent bytes.Buffer
}

func (w *wiretap) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &tapped{Conn: nc, tap: w}
	w.mu.Lock()
	w.conns = append(w.conns, c)
	w.mu.Unlock()
	return c, nil
}

func (c *tapped) Write(p []byte) (int, error) {
	c.tap.mu.Lock()
	c.sent.Write(p)
	c.tap.mu.Unlock()
	return c.Conn.Write(p)
}

// batches are the batches that the client produced, in order.
func (w *wiretap) batches(t *testing.T) (out [][]byte) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		for p := c.sent.Bytes(); len(p) > 0; {
			n := 4 + int(binary.BigEndian.Uint32(p))
			frame := p[4:n]
			p = p[n:]
			if binary.BigEndian.Uint16(frame) != 0 {
				continue
			}
			req := kmsg.NewPtrProduceRequest()
			req.SetVersion(int16(binary.BigEndian.Uint16(frame[2:])))
			_, body, ok := payload(frame[8:], req.IsFlexible())
			if !ok {
				t.Fatal("produce header does not parse")
			}
			if err := req.ReadFrom(body); err != nil {
				t.Fatal(err)
			}
			out = append(out, req.Topics[0].Partitions[0].Records)
		}
	}
	return out
}

// franz-go produces and consumes with every codec, idempotent as it is by
// default, and the bytes on disk are the bytes that it sent, but for base offset
// and leader epoch.
func TestFranz(t *testing.T) {
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			d := startDoor(t, setup{})
			d.dial(t).create("t", 1)
			tap := new(wiretap)
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			producer, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.Dialer(tap.dial), kgo.DefaultProduceTopic("t"),
				kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(64<<10))
			if err != nil {
				t.Fatal(err)
			}
			defer producer.Close()
			const n = 3000
			var records []*kgo.Record
			var want []string
			for i := range n {
				want = append(want, fmt.Sprintf("value %d %0100d", i, i))
				records = append(records, &kgo.Record{
					Key: fmt.Appendf(nil, "key %d", i), Value: []byte(want[i]),
					Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}},
				})
			}
			if err := producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			for i, r := range records {
				if r.Offset != int64(i) {
					t.Fatalf("record %d has offset %d", i, r.Offset)
				}
			}
			onDisk := logBytes(t, d.dir)
			for i, sent := range tap.batches(t) {
				stored, rest, err := record.Next(onDisk)
				if err != nil {
					t.Fatalf("batch %d: %v", i, err)
				}
				if len(stored) != len(sent) || !bytes.Equal(stored[8:12], sent[8:12]) || !bytes.Equal(stored[16:], sent[16:]) {
					t.Fatalf("batch %d differs on disk", i)
				}
				onDisk = rest
			}
			if len(bytes.Trim(onDisk, "\x00")) > 0 {
				t.Errorf("%d more bytes on disk", len(onDisk))
			}
			if got := consume(ctx, t, d.addr, n); !slices.Equal(got, want) {
				t.Errorf("%d values consumed", len(got))
			}
		})
	}
}

func consume(ctx context.Context, t *testing.T, addr string, n int) (out []string) {
	t.Helper()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		"t": {0: kgo.NewOffset().AtStart()},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	for len(out) < n {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { out = append(out, string(r.Value)) })
	}
	return out
}

// A transactional producer of franz-go fails with an error that says so, and
// does not wait for ever.
func TestFranzUnsupported(t *testing.T) {
	d := startDoor(t, setup{})
	d.dial(t).create("t", 1)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tx, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.TransactionalID("x"), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	// It fails at once or at the first record, whichever asks first for an id,
	// with the code in a text of kgo's own.
	err = tx.BeginTransaction()
	if err == nil {
		err = tx.ProduceSync(ctx, kgo.StringRecord("a")).FirstErr()
	}
	if err == nil || !strings.Contains(err.Error(), kerr.UnsupportedVersion.Message) {
		t.Errorf("transaction: %v", err)
	}
}
