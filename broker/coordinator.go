package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/replication/controller"
	"leat/storage"
)

// coordinators are the shards of this node: none until the first group comes or
// the offsets topic is there at the start.
type coordinators struct {
	// making is the turn of who makes the offsets topic.
	making turn
	// purge has room for the word that offsets of topics that are gone are to be
	// removed.
	purge chan struct{}
	mu    struct {
		sync.RWMutex
		shards []*shard // by partition
	}
}

func newCoordinators() coordinators {
	return coordinators{making: newTurn(), purge: make(chan struct{}, 1)}
}

func (c *coordinators) all() []*shard {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.shards
}

// startShards begins to coordinate if the offsets topic is there. With fresh
// there is nothing to load, and nobody finds the shards before they serve.
func (b *Broker) startShards(fresh bool) {
	t := b.proposer.State().TopicNamed(offsetsTopic)
	if t == nil || len(b.groups.all()) > 0 {
		return
	}
	cfg := b.groupConfig()
	var shards []*shard
	for i := range t.Partitions.Len() {
		shards = append(shards, b.newShard(storage.ID{Topic: t.ID, Partition: int32(i)}, cfg))
	}
	for _, s := range shards {
		b.loops.Go(s.run)
		if fresh {
			<-s.loaded
		}
	}
	b.groups.mu.Lock()
	b.groups.mu.shards = shards
	b.groups.mu.Unlock()
}

func (b *Broker) groupConfig() *group.Config {
	c := b.configs()
	return &group.Config{
		MinSession:   millis(c.number("group.min.session.timeout.ms")),
		MaxSession:   millis(c.number("group.max.session.timeout.ms")),
		InitialDelay: millis(c.number("group.initial.rebalance.delay.ms")),
		MaxSize:      int(c.number("group.max.size")),
		NewMemberID:  func(name string) string { return name + "-" + rand.Text() },
	}
}

// shard is the coordinator of a group; nil if nobody ever made a group and none
// is to be made.
func (b *Broker) shard(ctx context.Context, id string, create bool) (*shard, error) {
	shards := b.groups.all()
	if len(shards) == 0 {
		if !create {
			return nil, nil
		}
		if err := b.makeOffsetsTopic(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCoordinatorNotAvailable, err)
		}
		shards = b.groups.all()
	}
	return shards[offsetsPartition(id, int32(len(shards)))], nil
}

// offsetsBatch is the largest batch of the offsets topic: one operation is one
// batch, whatever it commits.
const offsetsBatch = 64 << 20

// offsetsConfigs are the configs of the offsets topic that are its own.
func (b *Broker) offsetsConfigs() map[string]string {
	return map[string]string{
		"cleanup.policy": "compact", "segment.bytes": b.configs().value("offsets.topic.segment.bytes"),
		"max.message.bytes": strconv.Itoa(offsetsBatch), "compression.type": "producer", "flush.messages": "1",
	}
}

func (b *Broker) makeOffsetsTopic(ctx context.Context) error {
	if err := b.take(ctx, b.groups.making); err != nil {
		return err
	}
	defer b.groups.making.give()
	if b.proposer.State().TopicNamed(offsetsTopic) == nil {
		ev := &controller.CreateTopics{Topics: []controller.NewTopic{{
			ID: storage.NewTopicID(), Name: offsetsTopic, Partitions: int32(b.configs().number("offsets.topic.num.partitions")),
			Replication: 1, Configs: b.offsetsConfigs(),
		}}}
		if errs, _ := b.create(ctx, ev, false); errs[0] != nil {
			return errs[0]
		}
	}
	b.startShards(true)
	return nil
}

// allowedGroup is nil if p may do op to a group.
func (b *Broker) allowedGroup(p auth.Principal, op auth.Operation, id string) error {
	if !b.opts.Authorizer.Allowed(p, op, auth.Resource{Type: auth.Group, Name: id}) {
		return fmt.Errorf("%w: %q", ErrGroupAuthorization, id)
	}
	return nil
}

// sweepAfterStart is when a start looks for offsets of topics that are gone. They
// are not told to anybody, and clients that come back are served first: to look
// through a million offsets takes a processor a good part of a second.
const sweepAfterStart = 10 * time.Second

// keepOffsets removes the offsets that nobody needs any more, until the broker
// closes: those of topics that are gone at once, and those of groups that were
// left alone for offsets.retention.minutes.
func (b *Broker) keepOffsets() {
	interval := func() time.Duration { return millis(b.configs().number("offsets.retention.check.interval.ms")) }
	timer, start := time.NewTimer(interval()), time.NewTimer(sweepAfterStart)
	defer timer.Stop()
	defer start.Stop()
	for {
		expire := false
		select {
		case <-b.done.Done():
			return
		case <-b.groups.purge:
		case <-start.C: // a crash may have come between the end of a topic and that of its offsets
		case <-timer.C:
			expire = true
			timer.Reset(interval())
		}
		for _, s := range b.groups.all() {
			if err := s.sweep(b.done, expire); err != nil && b.done.Err() == nil {
				b.log.Warn("offsets that are not needed were kept", slog.Any("err", err))
			}
		}
	}
}

// purgeSoon has the offsets removed of topics that are gone.
func (b *Broker) purgeSoon() {
	select {
	case b.groups.purge <- struct{}{}:
	default: // it is due already
	}
}

// sweepChunk is how many groups are looked at while the others wait.
const sweepChunk = 100

// sweep looks through the store for groups with offsets that may go, and for
// those that have none, and has the shard look at each of those.
func (s *shard) sweep(ctx context.Context, expire bool) error {
	select {
	case <-s.loaded:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	due, err := s.due(expire)
	if err != nil {
		return err
	}
	for chunk := range slices.Chunk(due, sweepChunk) {
		a, err := s.ask(ctx, func(now time.Time, t group.Token) { s.core.Expire(now, t, chunk, s.broker.retention(), expire) })
		if err = errors.Join(err, a.Err); err != nil {
			return err
		}
	}
	return nil
}

// due lists the groups to look at, which need not all have something to let go.
func (s *shard) due(expire bool) (due []string, err error) {
	now, keep, state := s.now().UnixMilli(), s.broker.retention().Milliseconds(), s.broker.proposer.State()
	has := map[string]bool{} // the groups with offsets, and whether they are due
	err = s.store.offsets("", true, func(id, _ string, _ int32, o *group.Offset) error {
		old := expire && (o.Expires >= 0 && now >= o.Expires || o.Expires < 0 && now-o.At >= keep)
		has[id] = has[id] || old || state.Topic(o.Topic) == nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.store.leases("", true, func(id string, at group.Partition, _ []byte) error {
		if state.Topic(at.Topic) == nil {
			has[id] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.store.EachGroup(func(id string) error {
		if late, some := has[id]; late || !some && expire {
			due = append(due, id)
		}
		return nil
	})
	return due, err
}

// retention is how long offsets are kept.
func (b *Broker) retention() time.Duration {
	minutes := b.configs().number("offsets.retention.minutes")
	return time.Duration(min(minutes, int64(math.MaxInt64/time.Minute))) * time.Minute
}
