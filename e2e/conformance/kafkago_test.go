package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// kafkaGo is segmentio's kafka-go: Writer, Reader, ConsumerGroup and Client.
type kafkaGo struct {
	ops
	addr   string
	client *kafka.Client

	// Of a member.
	group  *kafka.ConsumerGroup
	cancel context.CancelFunc
	work   sync.WaitGroup
	topic  string
	coming chan kafka.Message
	polled map[int]int64 // the offsets to commit
	mu     struct {
		sync.Mutex
		generation *kafka.Generation
		owned      []int32
		revoked    int
	}
}

func openKafkaGo(_ *testing.T, addr string) (driver, error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	k := &kafkaGo{addr: addr, client: &kafka.Client{Addr: tcp, Transport: &kafka.Transport{}}}
	k.ops = ops{
		"hello": hello("github.com/segmentio/kafka-go"), "metadata": k.metadata, "produce": act(k.produce), "read": k.read,
		"list_offset": k.listOffset, "join": act(k.join), "poll": k.poll, "commit": act(k.commit), "leave": act(k.leave),
		"create_topic": act(k.createTopic), "delete_topic": act(k.deleteTopic), "create_partitions": act(k.createPartitions),
		"describe_configs": k.describeConfigs, "alter_configs": act(k.alterConfigs), "replace_configs": act(k.replaceConfigs),
		"list_groups": k.listGroups, "describe_group": k.describeGroup, "delete_group": act(k.deleteGroup),
		"commit_offsets": act(k.commitOffsets), "committed": k.committed, "delete_offsets": act(k.deleteOffsets),
	}
	return k, nil
}

func (k *kafkaGo) close() {
	if k.group != nil {
		_ = k.leave(context.Background(), ask{})
	}
	if transport, ok := k.client.Transport.(*kafka.Transport); ok {
		transport.CloseIdleConnections()
	}
}

func (k *kafkaGo) produce(ctx context.Context, q ask) (err error) {
	if q.Idempotent {
		return notOffered("kafka-go has no idempotent producer")
	}
	writer := &kafka.Writer{
		Addr: k.client.Addr, Topic: q.Topic, BatchTimeout: 5 * time.Millisecond, MaxAttempts: 3, AllowAutoTopicCreation: true,
		Balancer:     kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(q.Partition) }),
		RequiredAcks: map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}[q.Acks],
		Compression:  map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}[q.Codec],
		Transport:    k.client.Transport,
	}
	defer func() { err = errors.Join(err, writer.Close()) }()
	var messages []kafka.Message
	for _, r := range q.Records {
		m := kafka.Message{Key: r.Key, Value: r.Value}
		if r.Timestamp != 0 {
			m.Time = time.UnixMilli(r.Timestamp)
		}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		messages = append(messages, m)
	}
	err = writer.WriteMessages(ctx, messages...)
	if each, ok := errors.AsType[kafka.WriteErrors](err); ok {
		err = errors.Join(each...)
	}
	return err
}

func fromKafkaGo(m kafka.Message) record {
	r := record{Key: m.Key, Value: m.Value, Timestamp: m.Time.UnixMilli(), Partition: int32(m.Partition), Offset: m.Offset}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, header{Key: h.Key, Value: h.Value})
	}
	return r
}

func (k *kafkaGo) reader(topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{Brokers: []string{k.addr}, Topic: topic, Partition: partition, MaxWait: 200 * time.Millisecond, MaxBytes: 8 << 20})
}

func (k *kafkaGo) read(ctx context.Context, q ask) (r reply, err error) {
	reader := k.reader(q.Topic, int(q.Partition))
	defer func() { err = errors.Join(err, reader.Close()) }()
	switch q.At {
	case earliest:
		err = reader.SetOffset(kafka.FirstOffset)
	case latest:
		err = reader.SetOffset(kafka.LastOffset)
	case atTime:
		err = reader.SetOffsetAt(ctx, time.UnixMilli(q.Offset))
	default:
		err = reader.SetOffset(q.Offset)
	}
	if err != nil {
		return r, err
	}
	for len(r.Records) < q.Count {
		m, err := reader.ReadMessage(ctx)
		if err != nil {
			return r, fmt.Errorf("%d of %d records: %w", len(r.Records), q.Count, err)
		}
		r.Records = append(r.Records, fromKafkaGo(m))
	}
	return r, nil
}

func (k *kafkaGo) listOffset(ctx context.Context, q ask) (r reply, err error) {
	p := int(q.Partition)
	request := map[string]kafka.OffsetRequest{
		earliest: kafka.FirstOffsetOf(p), latest: kafka.LastOffsetOf(p), atTime: kafka.TimeOffsetOf(p, time.UnixMilli(q.Offset)),
	}[q.At]
	resp, err := k.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{q.Topic: {request}}})
	if err != nil || len(resp.Topics[q.Topic]) != 1 {
		return r, errors.Join(err, errors.New("no answer for the partition"))
	}
	one := resp.Topics[q.Topic][0]
	switch q.At {
	case earliest:
		r.Offset = one.FirstOffset
	case latest:
		r.Offset = one.LastOffset
	default:
		for offset := range one.Offsets {
			r.Offset = offset
		}
	}
	return r, one.Error
}

func (k *kafkaGo) join(ctx context.Context, q ask) (err error) {
	if q.Strategy == cooperative || q.Instance != "" {
		return notOffered("kafka-go knows neither cooperative nor static members")
	}
	k.group, err = kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: q.Group, Brokers: []string{k.addr}, Topics: []string{q.Topic}, HeartbeatInterval: 200 * time.Millisecond,
		SessionTimeout: 10 * time.Second, RebalanceTimeout: 10 * time.Second, JoinGroupBackoff: 100 * time.Millisecond, StartOffset: kafka.FirstOffset,
	})
	if err != nil {
		return err
	}
	k.topic, k.coming = q.Topic, make(chan kafka.Message)
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.work.Go(func() {
		for ctx.Err() == nil {
			generation, err := k.group.Next(ctx)
			if err != nil {
				continue // kafka-go tries again
			}
			k.begin(generation)
		}
	})
	return nil
}

// begin reads the partitions of a generation; an eager member has lost all of those before.
func (k *kafkaGo) begin(generation *kafka.Generation) {
	k.mu.Lock()
	k.mu.revoked += len(k.mu.owned)
	k.mu.generation, k.mu.owned = generation, nil
	for _, a := range generation.Assignments[k.topic] {
		k.mu.owned = append(k.mu.owned, int32(a.ID))
	}
	k.mu.Unlock()
	for _, a := range generation.Assignments[k.topic] {
		generation.Start(func(ctx context.Context) {
			reader := k.reader(k.topic, a.ID)
			defer func() { _ = reader.Close() }()
			if reader.SetOffset(a.Offset) != nil {
				return
			}
			for {
				m, err := reader.ReadMessage(ctx)
				if err != nil {
					return
				}
				select {
				case k.coming <- m:
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

func (k *kafkaGo) poll(ctx context.Context, _ ask) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	k.polled = map[int]int64{}
	for open := true; open; {
		select {
		case m := <-k.coming:
			k.polled[m.Partition] = m.Offset + 1
			r.Records = append(r.Records, fromKafkaGo(m))
		case <-ctx.Done():
			open = false
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	r.Assigned, r.Revoked = slices.Clone(k.mu.owned), k.mu.revoked
	return r, nil
}

func (k *kafkaGo) commit(context.Context, ask) error {
	k.mu.Lock()
	generation := k.mu.generation
	k.mu.Unlock()
	return generation.CommitOffsets(map[string]map[int]int64{k.topic: k.polled})
}

func (k *kafkaGo) leave(context.Context, ask) error {
	k.cancel()
	err := k.group.Close()
	k.work.Wait()
	k.group = nil
	return err
}
