package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// fill writes n records with times 1 s apart to partition 0, in batches of ten.
func (c *check) fill(n int) ([]record, error) {
	if err := c.create(1); err != nil {
		return nil, err
	}
	records := sample(c.topic, n)
	first := time.Now().Add(-time.Hour).UnixMilli()
	for i := range records {
		records[i].Timestamp = first + int64(i)*1000
	}
	for at := 0; at < n; at += 10 {
		if err := c.oracle.write(c.ctx, "gzip", c.topic, 0, records[at:min(at+10, n)]); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (c *check) readFrom(at string, offset int64, want []record) error {
	got, err := c.do(ask{Op: "read", Topic: c.topic, At: at, Offset: offset, Count: len(want)})
	if err != nil {
		return err
	}
	return samePlace(got.Records, want)
}

func consumeEarliest(c *check) error {
	records, err := c.fill(40)
	if err != nil {
		return err
	}
	return c.readFrom(earliest, 0, records)
}

// consumeOffset starts in the middle of a batch.
func consumeOffset(c *check) error {
	records, err := c.fill(40)
	if err != nil {
		return err
	}
	return c.readFrom(atOffset, 17, records[17:])
}

// consumeTime starts at the first record that is not older, also between two and in the middle of a batch.
func consumeTime(c *check) error {
	records, err := c.fill(40)
	if err != nil {
		return err
	}
	if err := c.readFrom(atTime, records[23].Timestamp, records[23:]); err != nil {
		return err
	}
	return c.readFrom(atTime, records[31].Timestamp+1, records[32:])
}

// consumeLatest proves that a client at the end gets what comes after, in order, and nothing of what was there.
func consumeLatest(c *check) error {
	if _, err := c.fill(40); err != nil {
		return err
	}
	const count = 3
	type result struct {
		reply
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := c.do(ask{Op: "read", Topic: c.topic, At: latest, Count: count})
		done <- result{r, err}
	}()
	var written []record
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		next := sample(fmt.Sprint("later", i), 1)
		if err := c.oracle.write(c.ctx, "none", c.topic, 0, next); err != nil {
			return errors.Join(err, (<-done).err)
		}
		written = append(written, next...)
		select {
		case r := <-done:
			if r.err != nil {
				return r.err
			}
			first := int64(-1)
			if len(r.Records) > 0 {
				first = r.Records[0].Offset - 40
			}
			if first < 0 || first+count > int64(len(written)) {
				return fmt.Errorf("%d records, the first at %d of those written since", len(r.Records), first)
			}
			return samePlace(r.Records, written[first:first+count])
		case <-tick.C:
		}
	}
}

// consumeCut proves that a client starts at what is left when the records before have been deleted.
func consumeCut(c *check) error {
	records, err := c.fill(40)
	if err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: c.topic, At: 15})
	if _, err := c.oracle.admin.DeleteRecords(c.ctx, offsets); err != nil {
		return err
	}
	return c.readFrom(earliest, 0, records[15:])
}

// listOffsets asks for both ends and for times.
func listOffsets(c *check) error {
	records, err := c.fill(40)
	if err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: c.topic, At: 5})
	if _, err := c.oracle.admin.DeleteRecords(c.ctx, offsets); err != nil {
		return err
	}
	for _, q := range []ask{
		{At: earliest, Count: 5},
		{At: latest, Count: 40},
		{At: atTime, Offset: records[23].Timestamp, Count: 23},
		{At: atTime, Offset: records[23].Timestamp + 1, Count: 24},
	} {
		want := int64(q.Count)
		q.Op, q.Topic, q.Count = "list_offset", c.topic, 0
		got, err := c.do(q)
		if err != nil {
			return fmt.Errorf("%s: %w", q.At, err)
		}
		if got.Offset != want {
			return fmt.Errorf("%s %d is offset %d, want %d", q.At, q.Offset, got.Offset, want)
		}
	}
	return nil
}

// noTopic is how clients call an unknown topic.
var noTopic = []string{"UNKNOWN_TOPIC", "does not host this topic", "topic or partition that does not exist"}

// unknownTopic proves that the client is told, on a server that makes no topics by itself.
func unknownTopic(c *check) error {
	addr := serve(c.t, "--set", "auto.create.topics.enable=false")
	d, err := c.client.open(c.t, addr)
	if err != nil {
		return err
	}
	defer d.close()
	_, err = d.do(c.ctx, ask{Op: "produce", Topic: "nobody-made-it", Acks: "all", Records: sample(c.topic, 1)})
	if err == nil {
		return fmt.Errorf("a record for an unknown topic was not refused")
	}
	if err := mention(err, append(noTopic, "not present in metadata", "message timed out", "failed to update metadata")...); err != nil {
		return err
	}
	topics, err := newOracle(c.t, addr).admin.ListTopics(c.ctx)
	if err != nil {
		return err
	}
	if topics.Has("nobody-made-it") {
		return fmt.Errorf("the refused topic was made")
	}
	return nil
}
