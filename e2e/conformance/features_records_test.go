package conformance

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// roundTrip has the client write records to partition 0 and read them back; the reference reads them, too.
func (c *check) roundTrip(q ask) error {
	if err := c.create(1); err != nil {
		return err
	}
	return c.writeAndRead(q)
}

func (c *check) writeAndRead(q ask) error {
	q.Op, q.Topic = "produce", c.topic
	if _, err := c.do(q); err != nil {
		return err
	}
	stored, err := c.oracle.read(c.ctx, c.topic, 0, len(q.Records))
	if err != nil {
		return err
	}
	if err := same(stored, q.Records); err != nil {
		return fmt.Errorf("as the reference reads it: %w", err)
	}
	if end, err := c.oracle.end(c.ctx, c.topic, 0); err != nil || end != int64(len(q.Records)) {
		return errors.Join(fmt.Errorf("the partition ends at %d, want %d", end, len(q.Records)), err)
	}
	back, err := c.do(ask{Op: "read", Topic: c.topic, At: earliest, Count: len(q.Records)})
	if err != nil {
		return err
	}
	return samePlace(back.Records, stored)
}

// produceCodec proves that what the client compresses arrives compressed, and as it was.
func produceCodec(codec string) func(*check) error {
	return func(c *check) error {
		records := sample(c.topic, 30)
		if err := c.roundTrip(ask{Records: records, Codec: codec, Acks: "all"}); err != nil {
			return err
		}
		batches, err := c.oracle.batches(c.ctx, c.topic)
		if err != nil {
			return err
		}
		for _, b := range batches {
			if b.codec != codec {
				return fmt.Errorf("a stored batch is compressed by %s, want %s", b.codec, codec)
			}
		}
		return nil
	}
}

// consumeCodec proves that the client reads what another compressed.
func consumeCodec(codec string) func(*check) error {
	return func(c *check) error {
		if err := c.create(1); err != nil {
			return err
		}
		records := sample(c.topic, 200)
		if err := c.oracle.write(c.ctx, codec, c.topic, 0, records); err != nil {
			return err
		}
		back, err := c.do(ask{Op: "read", Topic: c.topic, At: earliest, Count: len(records)})
		if err != nil {
			return err
		}
		return samePlace(back.Records, records)
	}
}

func produceAcks(acks string) func(*check) error {
	return func(c *check) error { return c.roundTrip(ask{Records: sample(c.topic, 30), Acks: acks}) }
}

// idempotent proves that the client has got a producer id and numbers what it sends.
func idempotent(c *check) error {
	if err := c.roundTrip(ask{Records: sample(c.topic, 30), Acks: "all", Idempotent: true}); err != nil {
		return err
	}
	batches, err := c.oracle.batches(c.ctx, c.topic)
	if err != nil {
		return err
	}
	var next int32
	for _, b := range batches {
		if b.producer < 0 || b.epoch < 0 || b.sequence != next || b.producer != batches[0].producer {
			return fmt.Errorf("a stored batch has producer %d, epoch %d and sequence %d, want sequence %d", b.producer, b.epoch, b.sequence, next)
		}
		next += b.count
	}
	return nil
}

// nulls proves that null keys and values are not empty ones.
func nulls(c *check) error {
	return c.roundTrip(ask{Acks: "all", Records: []record{
		{Key: []byte("a"), Value: []byte("value")},
		{Key: nil, Value: []byte("no key")},
		{Key: []byte("tombstone"), Value: nil},
		{Key: []byte("last"), Value: []byte("end")},
	}})
}

// empties proves that empty keys, values and headers are not null.
func empties(c *check) error {
	return c.roundTrip(ask{Acks: "all", Records: []record{
		{Key: []byte("empty"), Value: []byte{}},
		{Key: []byte(""), Value: []byte("an empty key")},
		{Key: []byte("k"), Value: []byte("an empty header"), Headers: []header{{"empty", []byte{}}}},
	}})
}

func headers(c *check) error {
	return c.roundTrip(ask{Acks: "all", Records: []record{
		{Key: []byte("k"), Value: []byte("v"), Headers: []header{
			{"trace", []byte("abc")}, {"twice", []byte("1")}, {"twice", []byte("2")}, {"grüße", []byte("\xff bytes")},
		}},
		{Key: []byte("k2"), Value: []byte("no headers")},
		{Key: []byte("k3"), Value: []byte("v3"), Headers: []header{{"one", []byte("only")}}},
	}})
}

// timestamps proves that the times which the client gives its records are kept.
func timestamps(c *check) error {
	records := sample(c.topic, 10)
	for i := range records {
		records[i].Timestamp = time.Now().Add(-time.Hour).UnixMilli() + int64(i*7)
	}
	if err := c.roundTrip(ask{Acks: "all", Records: records}); err != nil {
		return err
	}
	stored, err := c.oracle.read(c.ctx, c.topic, 0, len(records))
	if err != nil {
		return err
	}
	for i, r := range stored {
		if r.Timestamp != records[i].Timestamp {
			return fmt.Errorf("record %d has time %d, want %d", i, r.Timestamp, records[i].Timestamp)
		}
	}
	return nil
}

// appendTime proves that the client shows the server's time where the topic asks for it, whatever the producer says.
func appendTime(c *check) error {
	if err := c.create(1, "message.timestamp.type", "LogAppendTime"); err != nil {
		return err
	}
	before := time.Now().UnixMilli()
	records := sample(c.topic, 5)
	for i := range records {
		records[i].Timestamp = before - 3_600_000
	}
	if err := c.oracle.write(c.ctx, "none", c.topic, 0, records); err != nil {
		return err
	}
	back, err := c.do(ask{Op: "read", Topic: c.topic, At: earliest, Count: len(records)})
	if err != nil {
		return err
	}
	for _, r := range back.Records {
		if r.Timestamp < before || r.Timestamp > time.Now().UnixMilli() {
			return fmt.Errorf("time %d, want one since %d", r.Timestamp, before)
		}
	}
	return same(back.Records, records)
}

// large proves that a record just below the limit goes through.
func large(c *check) error {
	records := sample(c.topic, 3)
	records[1].Value = slices.Repeat([]byte("0123456789abcdef"), 900_000/16)
	return c.roundTrip(ask{Acks: "all", Records: records})
}

// manyBatches proves that the client reads on over many answers.
func manyBatches(c *check) error {
	if err := c.create(1, "segment.bytes", "1048576"); err != nil {
		return err
	}
	var all []record
	for i := range 12 {
		part := sample(fmt.Sprint(c.topic, i), 500)
		if err := c.oracle.write(c.ctx, []string{"none", "gzip", "snappy"}[i%3], c.topic, 0, part); err != nil {
			return err
		}
		all = append(all, part...)
	}
	back, err := c.do(ask{Op: "read", Topic: c.topic, At: earliest, Count: len(all)})
	if err != nil {
		return err
	}
	return samePlace(back.Records, all)
}

// tooLarge proves that the client is told what is too large for the topic, and that it can go on.
func tooLarge(c *check) error {
	if err := c.create(1, "max.message.bytes", "5000"); err != nil {
		return err
	}
	huge := []record{{Key: []byte("k"), Value: make([]byte, 50_000)}}
	if err := c.refused(ask{Op: "produce", Topic: c.topic, Acks: "all", Records: huge}, "too large", "MESSAGE_TOO_LARGE", "larger than", "size exceed"); err != nil {
		return err
	}
	return c.writeAndRead(ask{Acks: "all", Records: sample(c.topic, 1)})
}

// keyless proves that the client is told that a compacted topic takes no record without a key.
func keyless(c *check) error {
	if err := c.create(1, "cleanup.policy", "compact"); err != nil {
		return err
	}
	q := ask{Op: "produce", Topic: c.topic, Acks: "all", Records: []record{{Value: []byte("no key")}}}
	if err := c.refused(q, "INVALID_RECORD", "failed validation", "failed the validation", "failed to validate"); err != nil {
		return err
	}
	return c.writeAndRead(ask{Acks: "all", Records: sample(c.topic, 3)})
}

// badName proves that the client is told that a name is none for a topic.
func badName(c *check) error {
	q := ask{Op: "produce", Topic: "no topic!", Acks: "all", Records: sample(c.topic, 1)}
	return c.refused(q, "INVALID_TOPIC", "invalid topic", "unknown topic", "topic is invalid", "is invalid", "not performed on an invalid", "illegal")
}

// autoCreate proves that the first record makes its topic.
func autoCreate(c *check) error {
	return c.writeAndRead(ask{Acks: "all", Records: sample(c.topic, 5)})
}
