package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// oracle is the reference client: it prepares what a client under test meets and sees what that client did.
type oracle struct {
	addr string
	*kgo.Client
	admin *kadm.Client
}

func newOracle(t *testing.T, addr string) *oracle {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &oracle{addr: addr, Client: client, admin: kadm.NewClient(client)}
}

// create makes a topic.
func (o *oracle) create(ctx context.Context, topic string, partitions int32, configs ...string) error {
	set := map[string]*string{}
	for i := 0; i+1 < len(configs); i += 2 {
		set[configs[i]] = &configs[i+1]
	}
	_, err := o.admin.CreateTopic(ctx, partitions, 1, set, topic)
	return err
}

var kgoCodecs = map[string]kgo.CompressionCodec{
	"": kgo.NoCompression(), "none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// write appends records to a partition and sets their offsets and times.
func (o *oracle) write(ctx context.Context, codec, topic string, partition int32, records []record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgoCodecs[codec]))
	if err != nil {
		return err
	}
	defer client.Close()
	out := toKgo(topic, partition, records)
	if err := client.ProduceSync(ctx, out...).FirstErr(); err != nil {
		return fmt.Errorf("reference write: %w", err)
	}
	for i, r := range out {
		records[i].Partition, records[i].Offset, records[i].Timestamp = partition, r.Offset, r.Timestamp.UnixMilli()
	}
	return nil
}

// read is the first n records of a partition; it waits for them.
func (o *oracle) read(ctx context.Context, topic string, partition int32, n int) ([]record, error) {
	records, err := readKgo(ctx, o.addr, topic, partition, kgo.NewOffset().AtStart(), n)
	if err != nil {
		return records, fmt.Errorf("reference read: %d of %d records: %w", len(records), n, err)
	}
	return records, nil
}

// end is the offset that the next record gets.
func (o *oracle) end(ctx context.Context, topic string, partition int32) (int64, error) {
	ends, err := o.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	end, ok := ends.Lookup(topic, partition)
	if !ok {
		return 0, fmt.Errorf("no end of %s-%d", topic, partition)
	}
	return end.Offset, end.Err
}

// batch is what the header of a record batch says.
type batch struct {
	codec    string
	producer int64
	epoch    int16
	sequence int32
	count    int32
}

var codecNames = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// batches are the headers of the batches of partition 0 as they are stored, from its first on.
func (o *oracle) batches(ctx context.Context, topic string) ([]batch, error) {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = 100, 1, 32<<20, -1
	t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic, p.PartitionMaxBytes, p.CurrentLeaderEpoch = topic, 32<<20, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	topics, err := o.admin.ListTopics(ctx, topic)
	if err != nil {
		return nil, err
	}
	req.Topics[0].TopicID = topics[topic].ID
	resp, err := req.RequestWith(ctx, o.SeedBrokers()[0])
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("fetch: %d topics", len(resp.Topics))
	}
	if err := errors.Join(kerr.ErrorForCode(resp.ErrorCode), kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)); err != nil {
		return nil, err
	}
	return parseBatches(resp.Topics[0].Partitions[0].RecordBatches)
}

// parseBatches reads the fixed headers of record batches v2.
func parseBatches(raw []byte) (out []batch, err error) {
	const headerSize = 61
	for len(raw) > 0 {
		if len(raw) < headerSize {
			return nil, fmt.Errorf("%d bytes after %d batches", len(raw), len(out))
		}
		size := 12 + int(binary.BigEndian.Uint32(raw[8:]))
		codec := int(binary.BigEndian.Uint16(raw[21:]) & 7)
		if size < headerSize || size > len(raw) || codec >= len(codecNames) {
			return nil, fmt.Errorf("batch of %d bytes in %d, codec %d", size, len(raw), codec)
		}
		out = append(out, batch{
			codec: codecNames[codec], producer: int64(binary.BigEndian.Uint64(raw[43:])), epoch: int16(binary.BigEndian.Uint16(raw[51:])),
			sequence: int32(binary.BigEndian.Uint32(raw[53:])), count: int32(binary.BigEndian.Uint32(raw[57:])),
		})
		raw = raw[size:]
	}
	return out, nil
}

func toKgo(topic string, partition int32, records []record) []*kgo.Record {
	out := make([]*kgo.Record, len(records))
	for i, r := range records {
		out[i] = &kgo.Record{Topic: topic, Partition: partition, Key: r.Key, Value: r.Value}
		if r.Timestamp != 0 {
			out[i].Timestamp = time.UnixMilli(r.Timestamp)
		}
		for _, h := range r.Headers {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	return out
}

func fromKgo(r *kgo.Record) record {
	out := record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp.UnixMilli(), Partition: r.Partition, Offset: r.Offset}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, header{Key: h.Key, Value: h.Value})
	}
	return out
}

// readKgo reads n records of a partition with a fresh consumer.
func readKgo(ctx context.Context, addr, topic string, partition int32, from kgo.Offset, n int) (out []record, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: from}}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for len(out) < n {
		fetches := client.PollRecords(ctx, n-len(out))
		if err := fetches.Err(); err != nil {
			return out, err
		}
		for _, r := range fetches.Records() {
			out = append(out, fromKgo(r))
		}
	}
	return out, nil
}
