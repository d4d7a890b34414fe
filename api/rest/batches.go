package rest

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

// runBatches appends record batches as they are. Several are all checked
// first, because each is appended by itself, as is one for a topic that it would
// make.
func (p *production) runBatches() error {
	batches, err := splitBatches(p.text)
	if err != nil {
		return err
	}
	check := func(*api.Records) error { return p.checkBatches(batches) }
	if err := p.checkTarget(check); err != nil {
		return err
	}
	if len(batches) > 1 {
		if err := check(nil); err != nil {
			return err
		}
	}
	req := &broker.ProduceRequest{Acks: p.acks, Timeout: p.timeout}
	for _, b := range batches {
		req.Batches = append(req.Batches, broker.ProduceBatch{Topic: p.topic, Partition: p.partition, Batch: b})
	}
	ctx := p.r.Context()
	out := &outcome{}
	for i, r := range p.s.broker.Produce(ctx, principal(p.r), req).Wait(ctx) {
		out.results = append(out.results, broker.PartitionResult{
			Partition: p.partition, Base: r.Base, Count: int(batches[i].Count()), Timestamp: r.Timestamp, Duplicate: r.Duplicate, Err: r.Err,
		})
	}
	if p.receipts == receiptsDefault {
		p.receipts = receiptsSummary
	}
	return p.answer(out)
}

// splitBatches frames a body that is nothing but whole batches.
func splitBatches(text []byte) ([]record.Batch, error) {
	var out []record.Batch
	at := len(text)
	for len(text) > 0 {
		b, rest, err := record.Next(text)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: the body ends in the middle of a batch: %w", broker.ErrCorruptBatch, err)
		}
		if err != nil {
			return nil, batchFault(len(out), at-len(text), err)
		}
		out, text = append(out, b), rest
	}
	return out, nil
}

// batchFault is an error about one batch of a body.
func batchFault(index, pos int, err error) error {
	at := int64(pos)
	rs := &api.Records{Count: 1}
	rs.Refuse(&api.ItemError{Index: &index, Byte: &at}, err)
	return rs.Finish()
}

// batchRules are the configs of a topic that a batch must fit.
type batchRules struct {
	limits        record.Limits
	maxBytes      int64
	before, after int64 // ms; 0 where the server's clock decides
	headerOnly    bool
}

// checkBatches applies to every batch what the log will apply to each.
func (p *production) checkBatches(batches []record.Batch) error {
	rules, err := p.batchRules()
	if err != nil {
		return err
	}
	pos := 0
	for i, b := range batches {
		if err := rules.check(b, time.Now().UnixMilli()); err != nil {
			return batchFault(i, pos, err)
		}
		pos += len(b)
	}
	return nil
}

func (p *production) batchRules() (batchRules, error) {
	var rules batchRules
	ctx, who := p.r.Context(), principal(p.r)
	entries, err := p.s.broker.TopicConfigs(ctx, who, p.topic)
	if errors.Is(err, broker.ErrUnknownTopic) { // Produce will make it
		made := p.s.broker.CreateTopics(ctx, who, []broker.TopicSpec{{Name: p.topic, Partitions: -1, ReplicationFactor: -1}}, true)[0]
		if entries, err = made.Configs, made.Err; errors.Is(err, broker.ErrTopicExists) {
			return rules, nil // since just now, and it looks at every batch itself
		}
	}
	appendTime := false
	for _, e := range entries {
		n, _ := strconv.ParseInt(e.Value, 10, 64)
		switch e.Name {
		case "max.message.bytes":
			rules.maxBytes = n
		case "batch.max.expanded.bytes":
			rules.limits.MaxExpanded = n
		case "message.timestamp.before.max.ms":
			rules.before = n
		case "message.timestamp.after.max.ms":
			rules.after = n
		case "message.timestamp.type":
			appendTime = e.Value == "LogAppendTime"
		case "cleanup.policy":
			rules.limits.RequireKeys = strings.Contains(e.Value, "compact")
		case "leat.validate":
			rules.headerOnly = e.Value == "header"
		}
	}
	if appendTime {
		rules.before, rules.after = 0, 0
	}
	return rules, err
}

func (r *batchRules) check(b record.Batch, now int64) error {
	if r.maxBytes > 0 && int64(len(b)) > r.maxBytes {
		return fmt.Errorf("%w: the batch has %d bytes, max.message.bytes is %d", broker.ErrBatchTooLarge, len(b), r.maxBytes)
	}
	if err := record.CheckHeader(b); err != nil {
		return err
	}
	if r.headerOnly {
		return b.VerifyCRC()
	}
	sum, err := record.Check(b, r.limits)
	if err != nil {
		return err
	}
	if r.after > 0 && sum.MaxTimestamp > now && sum.MaxTimestamp-now > r.after {
		return fmt.Errorf("%w: %d is too far ahead of the server's clock", broker.ErrTimestamp, sum.MaxTimestamp)
	}
	if r.before > 0 && sum.MinTimestamp < now && now-sum.MinTimestamp > r.before {
		return fmt.Errorf("%w: %d is too far behind the server's clock", broker.ErrTimestamp, sum.MinTimestamp)
	}
	return nil
}
