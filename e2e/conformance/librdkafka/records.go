package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// produce returns when every record is delivered, or with the first that is not.
func (c *client) produce(_ context.Context, q *ask, _ *reply) error {
	producer, err := kafka.NewProducer(c.config("acks", q.Acks, "compression.type", q.codec(), "enable.idempotence", q.Idempotent,
		"linger.ms", 5, "topic.metadata.propagation.max.ms", 1000, "message.timeout.ms", int(operation.Milliseconds())))
	if err != nil {
		return err
	}
	defer producer.Close()
	delivered := make(chan kafka.Event, len(q.Records))
	for _, rec := range q.Records {
		m := &kafka.Message{TopicPartition: kafka.TopicPartition{Topic: &q.Topic, Partition: q.Partition}, Key: rec.Key, Value: rec.Value}
		if rec.Timestamp != 0 {
			m.Timestamp = time.UnixMilli(rec.Timestamp)
		}
		for _, h := range rec.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		if err := producer.Produce(m, delivered); err != nil {
			return err
		}
	}
	for range q.Records {
		m, ok := (<-delivered).(*kafka.Message)
		if !ok {
			return errors.New("a delivery report that is none")
		}
		if m.TopicPartition.Error != nil {
			return m.TopicPartition.Error
		}
	}
	return nil
}

func (q *ask) codec() string {
	if q.Codec == "" {
		return "none"
	}
	return q.Codec
}

func fromMessage(m *kafka.Message) record {
	rec := record{Key: m.Key, Value: m.Value, Timestamp: m.Timestamp.UnixMilli(), Partition: m.TopicPartition.Partition, Offset: int64(m.TopicPartition.Offset)}
	for _, h := range m.Headers {
		rec.Headers = append(rec.Headers, header{Key: h.Key, Value: h.Value})
	}
	return rec
}

// read assigns itself the partition, without a group.
func (c *client) read(ctx context.Context, q *ask, r *reply) error {
	consumer, err := kafka.NewConsumer(c.config("group.id", "reader", "enable.auto.commit", false, "auto.offset.reset", "error", "fetch.wait.max.ms", 200))
	if err != nil {
		return err
	}
	defer func() { _ = consumer.Close() }()
	from := kafka.TopicPartition{Topic: &q.Topic, Partition: q.Partition}
	switch q.At {
	case "earliest":
		from.Offset = kafka.OffsetBeginning
	case "latest":
		from.Offset = kafka.OffsetEnd
	case "offset":
		from.Offset = kafka.Offset(q.Offset)
	case "time":
		from.Offset = kafka.Offset(q.Offset)
		found, err := consumer.OffsetsForTimes([]kafka.TopicPartition{from}, int(operation.Milliseconds()))
		if err != nil {
			return err
		}
		if from = found[0]; from.Error != nil {
			return from.Error
		}
	}
	if err := consumer.Assign([]kafka.TopicPartition{from}); err != nil {
		return err
	}
	for len(r.Records) < q.Count {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d of %d records: %w", len(r.Records), q.Count, err)
		}
		switch e := consumer.Poll(100).(type) {
		case *kafka.Message:
			if e.TopicPartition.Error != nil {
				return e.TopicPartition.Error
			}
			r.Records = append(r.Records, fromMessage(e))
		case kafka.Error:
			return e
		}
	}
	return nil
}

func (c *client) listOffset(ctx context.Context, q *ask, r *reply) error {
	spec := map[string]kafka.OffsetSpec{
		"earliest": kafka.EarliestOffsetSpec, "latest": kafka.LatestOffsetSpec, "time": kafka.NewOffsetSpecForTimestamp(q.Offset),
	}[q.At]
	at := kafka.TopicPartition{Topic: &q.Topic, Partition: q.Partition}
	found, err := c.admin.ListOffsets(ctx, map[kafka.TopicPartition]kafka.OffsetSpec{at: spec})
	if err != nil {
		return err
	}
	for _, info := range found.ResultInfos {
		r.Offset = int64(info.Offset)
		return failed(info.Error)
	}
	return errors.New("no answer for the partition")
}

// member is the client in a group.
type member struct {
	consumer *kafka.Consumer
	polled   map[int32]kafka.TopicPartition // the offsets to commit
	revoked  int
}

func (c *client) join(_ context.Context, q *ask, _ *reply) (err error) {
	strategy := "range"
	if q.Strategy == "cooperative" {
		strategy = "cooperative-sticky"
	}
	config := c.config("group.id", q.Group, "enable.auto.commit", false, "auto.offset.reset", "earliest", "session.timeout.ms", 10_000,
		"heartbeat.interval.ms", 200, "fetch.wait.max.ms", 200, "partition.assignment.strategy", strategy)
	if q.Instance != "" {
		(*config)["group.instance.id"] = q.Instance
	}
	c.polled = map[int32]kafka.TopicPartition{}
	if c.consumer, err = kafka.NewConsumer(config); err != nil {
		return err
	}
	return c.consumer.SubscribeTopics([]string{q.Topic}, func(_ *kafka.Consumer, e kafka.Event) error {
		if lost, ok := e.(kafka.RevokedPartitions); ok {
			c.revoked += len(lost.Partitions)
		}
		return nil // librdkafka assigns by itself
	})
}

func (c *client) poll(_ context.Context, _ *ask, r *reply) error {
	clear(c.polled)
	wait := 200
	for len(r.Records) < 1000 {
		e := c.consumer.Poll(wait)
		if e == nil {
			break
		}
		switch e := e.(type) {
		case *kafka.Message:
			if e.TopicPartition.Error != nil {
				return e.TopicPartition.Error
			}
			r.Records = append(r.Records, fromMessage(e))
			next := e.TopicPartition
			next.Offset++
			c.polled[next.Partition] = next
			wait = 10
		case kafka.Error:
			return e
		}
	}
	assigned, err := c.consumer.Assignment()
	if err != nil {
		return err
	}
	for _, tp := range assigned {
		r.Assigned = append(r.Assigned, tp.Partition)
	}
	r.Revoked = c.revoked
	return nil
}

func (c *client) commit(context.Context, *ask, *reply) error {
	var offsets []kafka.TopicPartition
	for _, tp := range c.polled {
		offsets = append(offsets, tp)
	}
	done, err := c.consumer.CommitOffsets(offsets)
	for _, tp := range done {
		err = errors.Join(err, tp.Error)
	}
	return err
}

func (c *client) leave(context.Context, *ask, *reply) error { return c.closeMember() }

func (m *member) closeMember() error {
	if m.consumer == nil {
		return nil
	}
	consumer := m.consumer
	m.consumer = nil
	return consumer.Close()
}
