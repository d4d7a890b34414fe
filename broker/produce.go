package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/record"
)

// Acks says when a produce is answered, with Kafka's numbers.
type Acks int16

// The three promises: none, in the leader's page cache, and committed on every
// replica in sync (on disk, unless the topic says otherwise).
const (
	AcksNone   Acks = 0
	AcksLeader Acks = 1
	AcksAll    Acks = -1
)

// ProduceRequest is batches to append.
type ProduceRequest struct {
	Acks Acks
	// Timeout bounds the wait for acks=all; 0 or less means no wait beyond
	// what is already committed.
	Timeout time.Duration
	Batches []ProduceBatch
}

// ProduceBatch is one batch for one partition, whose topic is named by TopicID
// or, if that is zero, by Topic. The batch's bytes are patched in place and
// must stay untouched by others until Produce returns.
type ProduceBatch struct {
	Topic     string
	TopicID   TopicID
	Partition int32
	Batch     record.Batch
}

// ProduceResult is what became of one batch. The offsets are -1 if it failed.
type ProduceResult struct {
	Base, Last int64
	// Timestamp is the server's in ms, or -1 if the producer's times stand.
	Timestamp int64
	LogStart  int64
	// Duplicate says that an idempotent producer sent the batch again; the
	// offsets are those of the first time.
	Duplicate bool
	// epoch is the leader epoch in which it was appended.
	epoch int32
	Err   error
}

// Produced is a request whose batches are appended and may wait to be
// committed. It is used by one goroutine.
type Produced struct {
	broker  *Broker
	acks    Acks
	timeout time.Duration
	results []ProduceResult
	parts   []*partition
	began   time.Time
}

// Produce appends the batches in order, each by itself, and returns without
// waiting for any sync. A batch for a topic that does not exist makes the topic
// if auto.create.topics.enable is true.
func (b *Broker) Produce(ctx context.Context, p auth.Principal, req *ProduceRequest) *Produced {
	out := b.produced(req.Acks, req.Timeout, len(req.Batches))
	for i := range req.Batches {
		part, err := b.target(ctx, p, req.Acks, &req.Batches[i])
		if err != nil {
			out.results[i] = failed(err)
			continue
		}
		out.append(i, part, req.Batches[i].Batch, false)
	}
	return out
}

// target finds the partition that a batch is for.
func (b *Broker) target(ctx context.Context, p auth.Principal, acks Acks, in *ProduceBatch) (*partition, error) {
	if err := acks.check(); err != nil {
		return nil, err
	}
	var t *controller.Topic
	var err error
	if in.TopicID != (TopicID{}) {
		t, err = b.resolve(p, auth.Write, TopicRef{ID: in.TopicID})
	} else {
		t, err = b.ensure(ctx, p, auth.Write, in.Topic)
	}
	if err != nil {
		return nil, err
	}
	return b.partition(t, in.Partition)
}

func (a Acks) check() error {
	if a != AcksNone && a != AcksLeader && a != AcksAll {
		return fmt.Errorf("%w: %d is none of -1, 0, 1", ErrInvalidAcks, a)
	}
	return nil
}

func (b *Broker) produced(acks Acks, timeout time.Duration, batches int) *Produced {
	return &Produced{
		broker: b, acks: acks, timeout: timeout,
		results: make([]ProduceResult, batches), parts: make([]*partition, batches), began: time.Now(),
	}
}

// append appends batch i to its partition.
func (pr *Produced) append(i int, part *partition, batch record.Batch, trusted bool) {
	a, epoch, err := part.append(storage.Append{Batch: batch, Epoch: anyEpoch, Trusted: trusted}, pr.acks)
	if err == nil && pr.acks != AcksAll {
		err = part.answerable(epoch)
	}
	if err != nil {
		part.topic.counts.failed(err)
		pr.results[i] = failed(err)
		return
	}
	if !a.Duplicate {
		part.topic.counts.appended(len(batch), int(a.Last-a.Base)+1)
	}
	pr.parts[i] = part
	pr.results[i] = ProduceResult{Base: a.Base, Last: a.Last, Timestamp: a.Timestamp, LogStart: a.Start, Duplicate: a.Duplicate, epoch: epoch}
}

// recall makes batch i one that an earlier try has written.
func (pr *Produced) recall(i int, part *partition, was *earlier) {
	pr.parts[i] = part
	pr.results[i] = ProduceResult{
		Base: was.Base, Last: was.Base + int64(was.Count()) - 1, Timestamp: was.Timestamp,
		LogStart: part.log.Offsets().Start, Duplicate: true, epoch: part.leaderEpoch(),
	}
}

func failed(err error) ProduceResult {
	return ProduceResult{Base: -1, Last: -1, Timestamp: -1, LogStart: -1, Err: err}
}

// Wait waits as the acks ask and returns a result for each batch; result i
// belongs to batch i. An error after the append (ErrTimedOut, ctx's cause,
// ErrShuttingDown) leaves open whether the batch stays.
func (pr *Produced) Wait(ctx context.Context) []ProduceResult {
	if !pr.Committed() {
		pr.await(ctx)
	}
	for i := range pr.results {
		if pr.results[i].Err == nil {
			pr.broker.metrics.acknowledged(pr.acks, time.Since(pr.began))
			break
		}
	}
	return pr.results
}

// await waits until all is committed, as long as it may.
func (pr *Produced) await(ctx context.Context) {
	ctx, cancel := pr.broker.bound(ctx, pr.timeout, ErrTimedOut)
	defer cancel()
	for i, part := range pr.parts {
		if part == nil {
			continue
		}
		if err := part.await(ctx, pr.results[i].epoch, pr.results[i].Last+1); err != nil {
			pr.results[i] = failed(err)
		}
	}
}

// Committed reports whether Wait would return at once.
func (pr *Produced) Committed() bool {
	if pr.acks != AcksAll {
		return true
	}
	for i, part := range pr.parts {
		if part != nil && !part.plainly(pr.results[i].epoch, pr.results[i].Last+1) {
			return false
		}
	}
	return true
}

// bound is ctx with a time limit whose cause is why, ended also by Close.
func (b *Broker) bound(ctx context.Context, limit time.Duration, why error) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(why) })
	detach := context.AfterFunc(b.done, func() { cancel(context.Cause(b.done)) })
	return ctx, func() {
		timer.Stop()
		detach()
		cancel(context.Canceled)
	}
}

// ensure finds a topic that p may do op to, making it if it may be made.
func (b *Broker) ensure(ctx context.Context, p auth.Principal, op auth.Operation, name string) (*controller.Topic, error) {
	ref := TopicRef{Name: name}
	t, err := b.resolve(p, op, ref)
	if !errors.Is(err, ErrUnknownTopic) || !b.makesTopics() {
		return t, err
	}
	res := b.CreateTopics(ctx, p, []TopicSpec{{Name: name, Partitions: -1, ReplicationFactor: -1}}, false)
	// Somebody else may have made it meanwhile, which serves as well.
	if err := res[0].Err; err != nil && !errors.Is(err, ErrTopicExists) {
		return nil, err
	}
	return b.resolve(p, op, ref)
}

// makesTopics reports whether a produce makes a topic that is missing.
func (b *Broker) makesTopics() bool { return b.configs().value("auto.create.topics.enable") == "true" }
