package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
	"leat/storage/record"
)

// Produce (key 0), versions 3 to 11; 0 to 2 are advertised and refused, see
// newHandlers.
//
// Each partition carries exactly one batch of format v2, which is appended from
// the frame's own bytes before the next frame is read. The wait for
// acknowledgement happens in the order of answers. acks=0 has no answer at all;
// if a batch failed the connection is closed, so that the client notices.
//
//	v5  log start offset in the answer
//	v7  zstd allowed
//	v8  error text, and the records at fault
//	v9  flexible
//
// Left out: transactions (INVALID_TXN_STATE, since none can be open), and the
// tags of v10 that name the current leader (KIP-951): clients that miss them
// ask Metadata. Version 12 begins transactions by itself (KIP-890); version 13
// has ids in the place of names, and every client that knows it goes down to 11.

// maxParts bounds the topics and partitions of one request, and maxTags the
// tagged fields, because each costs more memory than it has bytes.
const (
	maxParts = 100_000
	maxTags  = 1_000
	// partCost is what a partition's result counts in the queue.
	partCost = 256
)

type produceCall struct {
	req kmsg.ProduceRequest
	// batches go to the broker. The i-th partition of the request is
	// batches.Batches[places[i]], or was refused with errs[i] if that is -1.
	batches  broker.ProduceRequest
	places   []int
	errs     []error
	produced *broker.Produced
	resp     kmsg.ProduceResponse
}

var produceCalls = sync.Pool{New: func() any { return new(produceCall) }}

func decodeProduce(_ *conn, cl *call, body []byte) error {
	if err := guardProduce(body, cl.version >= cl.h.flexible); err != nil {
		return err
	}
	pc := produceCalls.Get().(*produceCall)
	cl.state = pc
	pc.req.SetVersion(cl.version)
	if err := pc.req.ReadFrom(body); err != nil {
		endProduce(cl)
		return err
	}
	return nil
}

// guardProduce walks a request without keeping anything and refuses one that
// would decode into far more memory than it has bytes. The size limit alone
// bounds the other APIs, but a produce may be large.
func guardProduce(body []byte, flexible bool) error {
	s := scan{p: body}
	str, array, bytes := s.nullableString, s.int32, func() []byte { return s.take(max(s.int32(), 0)) }
	if flexible {
		str, array, bytes = s.compact, func() int { return s.uvarint() - 1 }, s.compact
	}
	parts, tags := 0, 0
	end := func() {
		if flexible {
			tags += s.tags()
		}
	}
	str()
	s.skip(2 + 4)
	for topics := array(); topics > 0 && !s.bad && parts <= maxParts; topics-- {
		str()
		parts++
		for n := array(); n > 0 && !s.bad && parts <= maxParts; n-- {
			s.skip(4)
			bytes()
			end()
			parts++
		}
		end()
	}
	end()
	switch {
	case parts > maxParts || tags > maxTags:
		return fmt.Errorf("more than %d partitions or %d tags", maxParts, maxTags)
	case s.bad:
		return errCut
	}
	return nil
}

// endProduce gives the call back. Nothing of the frame may stay in it.
func endProduce(cl *call) {
	pc := cl.state.(*produceCall)
	clear(pc.req.Topics)
	clear(pc.batches.Batches)
	clear(pc.errs)
	clear(pc.resp.Topics)
	pc.batches.Batches, pc.places, pc.errs = pc.batches.Batches[:0], pc.places[:0], pc.errs[:0]
	pc.resp.Topics, pc.produced = pc.resp.Topics[:0], nil
	if cap(pc.places) <= 1024 {
		produceCalls.Put(pc)
	}
}

func startProduce(ctx context.Context, c *conn, cl *call) {
	pc := cl.state.(*produceCall)
	pc.batches.Acks = broker.Acks(pc.req.Acks)
	pc.batches.Timeout = time.Duration(pc.req.TimeoutMillis) * time.Millisecond
	bytes := 0
	for i := range pc.req.Topics {
		t := &pc.req.Topics[i]
		for j := range t.Partitions {
			bytes += len(t.Partitions[j].Records)
			b, err := batchOf(cl.version, &pc.req, t.Partitions[j].Records)
			place := -1
			if err == nil {
				place = len(pc.batches.Batches)
				pc.batches.Batches = append(pc.batches.Batches, broker.ProduceBatch{
					Topic: t.Topic, Partition: t.Partitions[j].Partition, Batch: b,
				})
			}
			pc.places, pc.errs = append(pc.places, place), append(pc.errs, err)
			// The frame's buffer goes back when this returns.
			t.Partitions[j].Records = nil
		}
	}
	c.meter(cl, broker.QuotaProduce, int64(bytes))
	cl.cost = int64(len(pc.places)) * partCost
	if len(pc.batches.Batches) > 0 {
		pc.produced = c.srv.opts.Broker.Produce(ctx, c.principal, &pc.batches)
	}
}

// batchOf is the one batch of a partition's records, or why there is none.
func batchOf(version int16, req *kmsg.ProduceRequest, records []byte) (record.Batch, error) {
	if a := broker.Acks(req.Acks); a != broker.AcksNone && a != broker.AcksLeader && a != broker.AcksAll {
		return nil, fmt.Errorf("%w: %d is none of -1, 0, 1", broker.ErrInvalidAcks, req.Acks)
	}
	const magicAt = 16
	if len(records) > magicAt && records[magicAt] != 2 {
		return nil, fmt.Errorf("%w: magic %d, only batches of magic 2 are taken", broker.ErrInvalidRecord, int8(records[magicAt]))
	}
	b, rest, err := record.Next(records)
	switch {
	case req.TransactionID != nil && (err != nil || !b.Transactional()):
		return nil, broker.ErrTransactionState
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: no batch for the partition", broker.ErrInvalidRecord)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: %w", broker.ErrCorruptBatch, err)
	case err != nil:
		return nil, err
	case len(rest) > 0:
		return nil, fmt.Errorf("%w: more than one batch for the partition", broker.ErrInvalidRecord)
	case b.Codec() == record.Zstd && version < 7:
		return nil, fmt.Errorf("%w: zstd needs Produce version 7", broker.ErrUnsupportedCodec)
	}
	return b, nil
}

// produceReady reports that nobody is to be waited for.
func produceReady(_ context.Context, _ *conn, cl *call) bool {
	pc := cl.state.(*produceCall)
	return pc.produced == nil || pc.produced.Committed()
}

func answerProduce(ctx context.Context, c *conn, cl *call) error {
	pc := cl.state.(*produceCall)
	var results []broker.ProduceResult
	if pc.produced != nil {
		results = pc.produced.Wait(ctx)
	}
	for i, place := range pc.places {
		if place >= 0 {
			pc.errs[i] = results[place].Err
		}
	}
	if pc.batches.Acks == broker.AcksNone {
		for _, err := range pc.errs {
			if err != nil {
				cl.code(ctx, err)
				return errDropped
			}
		}
		return nil
	}
	n := 0
	for i := range pc.req.Topics {
		in := &pc.req.Topics[i]
		t := kmsg.NewProduceResponseTopic()
		t.Topic = in.Topic
		t.Partitions = make([]kmsg.ProduceResponseTopicPartition, len(in.Partitions))
		for j := range in.Partitions {
			var res broker.ProduceResult
			if pc.places[n] >= 0 {
				res = results[pc.places[n]]
			}
			t.Partitions[j] = producePartition(ctx, cl, in.Partitions[j].Partition, &res, pc.errs[n])
			n++
		}
		pc.resp.Topics = append(pc.resp.Topics, t)
	}
	return c.respond(cl, &pc.resp)
}

func producePartition(ctx context.Context, cl *call, index int32, res *broker.ProduceResult, err error) kmsg.ProduceResponseTopicPartition {
	p := kmsg.NewProduceResponseTopicPartition()
	p.Partition = index
	if err == nil {
		p.BaseOffset, p.LogAppendTime, p.LogStartOffset = res.Base, res.Timestamp, res.LogStart
		return p
	}
	p.BaseOffset, p.LogAppendTime, p.LogStartOffset = -1, -1, -1
	p.ErrorCode, p.ErrorMessage = cl.code(ctx, err), message(err)
	if e, ok := errors.AsType[*record.Error](err); ok && e.Record >= 0 {
		at := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		at.RelativeOffset, at.ErrorMessage = int32(e.Record), &e.Reason
		p.ErrorRecords = append(p.ErrorRecords, at)
	}
	return p
}
