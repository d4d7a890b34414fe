package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

// saramaClient is Sarama on its defaults, but for the waits.
type saramaClient struct {
	ops
	addr   string
	client sarama.Client
	admin  sarama.ClusterAdmin

	// Of a member.
	group  sarama.ConsumerGroup
	cancel context.CancelFunc
	work   sync.WaitGroup
	topic  string
	coming chan *sarama.ConsumerMessage
	polled []*sarama.ConsumerMessage
	mu     struct {
		sync.Mutex
		session sarama.ConsumerGroupSession
		claims  []int32
		revoked int
		err     error
	}
}

func saramaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Retry.Backoff = 20 * time.Millisecond
	c.Metadata.Retry.Backoff = 20 * time.Millisecond
	c.Consumer.MaxWaitTime = 200 * time.Millisecond
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	return c
}

func openSarama(_ *testing.T, addr string) (driver, error) {
	client, err := sarama.NewClient([]string{addr}, saramaConfig())
	if err != nil {
		return nil, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s := &saramaClient{addr: addr, client: client, admin: admin}
	s.ops = ops{
		"hello": hello("github.com/IBM/sarama"), "metadata": s.metadata, "produce": act(s.produce), "read": s.read, "list_offset": s.listOffset,
		"join": act(s.join), "poll": s.poll, "commit": act(s.commit), "leave": act(s.leave),
		"create_topic": act(s.createTopic), "delete_topic": act(s.deleteTopic), "create_partitions": act(s.createPartitions),
		"describe_configs": s.describeConfigs, "alter_configs": act(s.alterConfigs), "replace_configs": act(s.replaceConfigs),
		"delete_records": act(s.deleteRecords), "list_groups": s.listGroups, "describe_group": s.describeGroup,
		"delete_group": act(s.deleteGroup), "commit_offsets": act(s.commitOffsets), "committed": s.committed,
		"delete_offsets": act(s.deleteOffsets),
	}
	return s, nil
}

func (s *saramaClient) close() {
	if s.group != nil {
		_ = s.leave(context.Background(), ask{})
	}
	_ = s.admin.Close() // and the client
}

func (s *saramaClient) produce(_ context.Context, q ask) error {
	config := saramaConfig()
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll}[q.Acks]
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[q.Codec]
	if q.Idempotent {
		config.Producer.Idempotent, config.Net.MaxOpenRequests = true, 1
	}
	producer, err := sarama.NewSyncProducer([]string{s.addr}, config)
	if err != nil {
		return err
	}
	var messages []*sarama.ProducerMessage
	for _, r := range q.Records {
		m := &sarama.ProducerMessage{Topic: q.Topic, Partition: q.Partition}
		if r.Key != nil {
			m.Key = sarama.ByteEncoder(r.Key)
		}
		if r.Value != nil {
			m.Value = sarama.ByteEncoder(r.Value)
		}
		if r.Timestamp != 0 {
			m.Timestamp = time.UnixMilli(r.Timestamp)
		}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		messages = append(messages, m)
	}
	err = producer.SendMessages(messages)
	if each, ok := errors.AsType[sarama.ProducerErrors](err); ok {
		err = each[0].Err
	}
	return errors.Join(err, producer.Close())
}

func fromSarama(m *sarama.ConsumerMessage) record {
	r := record{Key: m.Key, Value: m.Value, Timestamp: m.Timestamp.UnixMilli(), Partition: m.Partition, Offset: m.Offset}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, header{Key: string(h.Key), Value: h.Value})
	}
	return r
}

// place is an offset for Sarama; a time is looked up.
func (s *saramaClient) place(q ask) (int64, error) {
	switch q.At {
	case earliest:
		return sarama.OffsetOldest, nil
	case latest:
		return sarama.OffsetNewest, nil
	case atTime:
		return s.client.GetOffset(q.Topic, q.Partition, q.Offset)
	default:
		return q.Offset, nil
	}
}

func (s *saramaClient) read(ctx context.Context, q ask) (r reply, err error) {
	from, err := s.place(q)
	if err != nil {
		return r, err
	}
	config := saramaConfig()
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer([]string{s.addr}, config)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	part, err := consumer.ConsumePartition(q.Topic, q.Partition, from)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	for len(r.Records) < q.Count {
		select {
		case m := <-part.Messages():
			r.Records = append(r.Records, fromSarama(m))
		case err := <-part.Errors():
			return r, err
		case <-ctx.Done():
			return r, fmt.Errorf("%d of %d records: %w", len(r.Records), q.Count, ctx.Err())
		}
	}
	return r, nil
}

func (s *saramaClient) listOffset(_ context.Context, q ask) (r reply, err error) {
	at, ok := map[string]int64{earliest: sarama.OffsetOldest, latest: sarama.OffsetNewest}[q.At]
	if !ok {
		at = q.Offset
	}
	r.Offset, err = s.client.GetOffset(q.Topic, q.Partition, at)
	return r, err
}

func (s *saramaClient) join(ctx context.Context, q ask) (err error) {
	config := saramaConfig()
	config.Consumer.Group.Session.Timeout = 10 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Consumer.Group.InstanceId = q.Instance
	if q.Strategy == cooperative {
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	}
	if s.group, err = sarama.NewConsumerGroup([]string{s.addr}, q.Group, config); err != nil {
		return err
	}
	s.topic, s.coming = q.Topic, make(chan *sarama.ConsumerMessage)
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.work.Go(func() {
		for ctx.Err() == nil {
			if err := s.group.Consume(ctx, []string{q.Topic}, saramaHandler{s}); err != nil && ctx.Err() == nil {
				s.mu.Lock()
				s.mu.err = err
				s.mu.Unlock()
				return
			}
		}
	})
	return nil
}

// saramaHandler gets the sessions of a member.
type saramaHandler struct{ *saramaClient }

// Setup keeps the session. That of a cooperative member lives on through rebalances.
func (h saramaHandler) Setup(session sarama.ConsumerGroupSession) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.session = session
	return nil
}

// Cleanup has nothing to do: the claims have ended.
func (h saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim hands every message to poll. It runs as long as the member has the partition.
func (h saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	h.mu.Lock()
	h.mu.claims = append(h.mu.claims, claim.Partition())
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.mu.claims = slices.DeleteFunc(h.mu.claims, func(p int32) bool { return p == claim.Partition() })
		h.mu.revoked++
	}()
	for m := range claim.Messages() {
		select {
		case h.coming <- m:
		case <-session.Context().Done():
			return nil
		}
	}
	return nil
}

func (s *saramaClient) poll(ctx context.Context, _ ask) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	s.polled = nil
	for open := true; open; {
		select {
		case m := <-s.coming:
			s.polled = append(s.polled, m)
			r.Records = append(r.Records, fromSarama(m))
		case <-ctx.Done():
			open = false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Assigned, r.Revoked = slices.Clone(s.mu.claims), s.mu.revoked
	return r, s.mu.err
}

func (s *saramaClient) commit(context.Context, ask) error {
	s.mu.Lock()
	session := s.mu.session
	s.mu.Unlock()
	for _, m := range s.polled {
		session.MarkMessage(m, "")
	}
	session.Commit()
	return nil
}

func (s *saramaClient) leave(context.Context, ask) error {
	s.cancel()
	err := s.group.Close()
	s.work.Wait()
	s.group = nil
	return err
}

func (s *saramaClient) metadata(context.Context, ask) (r reply, err error) {
	topics, err := s.admin.ListTopics()
	if err != nil {
		return r, err
	}
	r.Topics = map[string]int{}
	for name, topic := range topics {
		r.Topics[name] = int(topic.NumPartitions)
	}
	brokers, _, err := s.admin.DescribeCluster()
	r.Nodes = len(brokers)
	return r, err
}

func (s *saramaClient) createTopic(_ context.Context, q ask) error {
	return s.admin.CreateTopic(q.Topic, &sarama.TopicDetail{NumPartitions: int32(q.Partitions), ReplicationFactor: 1, ConfigEntries: pointers(q.Configs)}, false)
}

func (s *saramaClient) deleteTopic(_ context.Context, q ask) error {
	return s.admin.DeleteTopic(q.Topic)
}

func (s *saramaClient) createPartitions(_ context.Context, q ask) error {
	return s.admin.CreatePartitions(q.Topic, int32(q.Partitions), nil, false)
}

func (s *saramaClient) describeConfigs(_ context.Context, q ask) (r reply, err error) {
	results, err := s.admin.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: q.Topic}}, sarama.DescribeConfigsOptions{})
	r.Configs = map[string]string{}
	for _, one := range results {
		for _, e := range one.Configs {
			r.Configs[e.Name] = e.Value
		}
		if one.ErrorCode != sarama.ErrNoError {
			err = errors.Join(err, one.ErrorCode)
		}
	}
	return r, err
}

func (s *saramaClient) alterConfigs(_ context.Context, q ask) error {
	change := map[string]sarama.IncrementalAlterConfigsEntry{}
	for name, value := range pointers(q.Configs) {
		change[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: value}
	}
	for _, name := range q.Unset {
		change[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationDelete}
	}
	return s.admin.IncrementalAlterConfig(sarama.TopicResource, q.Topic, change, false)
}

func (s *saramaClient) replaceConfigs(_ context.Context, q ask) error {
	return s.admin.AlterConfig(sarama.TopicResource, q.Topic, pointers(q.Configs), false)
}

func (s *saramaClient) deleteRecords(_ context.Context, q ask) error {
	return s.admin.DeleteRecords(q.Topic, map[int32]int64{q.Partition: q.Offset})
}

func (s *saramaClient) listGroups(context.Context, ask) (r reply, err error) {
	groups, err := s.admin.ListConsumerGroups()
	r.Groups = slices.Collect(maps.Keys(groups))
	return r, err
}

func (s *saramaClient) describeGroup(_ context.Context, q ask) (r reply, err error) {
	groups, err := s.admin.DescribeConsumerGroups([]string{q.Group})
	if err != nil || len(groups) != 1 {
		return r, errors.Join(err, fmt.Errorf("%d groups", len(groups)))
	}
	r.State, r.Members = groups[0].State, len(groups[0].Members)
	return r, nil
}

func (s *saramaClient) deleteGroup(_ context.Context, q ask) error {
	return s.admin.DeleteConsumerGroup(q.Group)
}

func (s *saramaClient) commitOffsets(_ context.Context, q ask) error {
	offsets := map[int32]sarama.OffsetAndMetadata{}
	for p, at := range q.Offsets {
		offsets[p] = sarama.OffsetAndMetadata{Offset: at, LeaderEpoch: -1}
	}
	_, err := s.admin.AlterConsumerGroupOffsets(q.Group, map[string]map[int32]sarama.OffsetAndMetadata{q.Topic: offsets}, nil)
	return err
}

func (s *saramaClient) committed(_ context.Context, q ask) (r reply, err error) {
	offsets, err := s.admin.ListConsumerGroupOffsets(q.Group, nil)
	if err != nil {
		return r, err
	}
	r.Offsets = map[int32]int64{}
	for p, block := range offsets.Blocks[q.Topic] {
		r.Offsets[p] = block.Offset
	}
	return r, nil
}

func (s *saramaClient) deleteOffsets(_ context.Context, q ask) (err error) {
	for p := range q.Offsets {
		err = errors.Join(err, s.admin.DeleteConsumerGroupOffset(q.Group, q.Topic, p))
	}
	return err
}
