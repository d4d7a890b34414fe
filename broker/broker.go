package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"leat/auth"
	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/meta"
)

// TopicID is a topic's identity: a topic made again under the same name has
// another.
type TopicID = storage.TopicID

// Broker is one node: its data directory and what it serves from it. Its
// methods are safe for concurrent use.
type Broker struct {
	opts Options
	log  *slog.Logger
	// static is what the operator set at the start, by server name.
	static   map[string]string
	dir      *storage.Dir
	db       *meta.DB
	proposer *replication.Metadata
	metrics  *metrics
	ids      producerIDs
	groups   coordinators
	quotas   *quotas
	filters  *filters
	// done ends with ErrShuttingDown when Close begins, and wakes every wait.
	done context.Context
	stop context.CancelCauseFunc
	// admin is the turn of who changes topics or configs.
	admin turn
	// recheck has room for the word that the next check for expired records is
	// to come at once.
	recheck chan struct{}
	// loops are the goroutines that Open starts and Close waits for.
	loops sync.WaitGroup
	mu    struct {
		sync.RWMutex
		topics map[TopicID]*topic
		parts  map[storage.ID]*partition
	}
}

// Open opens the data directory, recovers every log, and serves. Errors:
// storage.ErrBusy, *storage.DamagedError, *meta.CorruptError, ErrInvalidConfig.
// A damaged partition opens fenced. ctx bounds the
// opening only.
func Open(ctx context.Context, opts Options) (*Broker, error) {
	opts.setDefaults()
	static, err := checkServerConfigs(opts.Configs)
	if err != nil {
		return nil, err
	}
	b := &Broker{opts: opts, log: opts.Logger.With(slog.String("component", "broker")), static: static, admin: newTurn(), recheck: make(chan struct{}, 1)}
	b.ids.turn, b.groups, b.filters = newTurn(), newCoordinators(), newFilters()
	b.done, b.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	b.mu.topics, b.mu.parts = map[TopicID]*topic{}, map[storage.ID]*partition{}
	b.metrics = newMetrics(opts.Registerer, b)
	b.quotas = newQuotas(opts.Now, b.metrics)
	if err := b.open(ctx); err != nil {
		if b.dir != nil {
			b.dir.Refuse()
		}
		return nil, errors.Join(err, b.Close())
	}
	b.dir.SetScrubRate(b.configs().number(scrubRate))
	b.dir.SetLowWater(b.configs().number(diskLow))
	b.quotas.configure(b.configs())
	b.loops.Go(b.retain)
	b.loops.Go(b.compact)
	b.loops.Go(b.keepOffsets)
	b.startShards(false)
	return b, nil
}

func (b *Broker) open(ctx context.Context) (err error) {
	b.dir, err = storage.Open(ctx, storage.Options{
		FS: b.opts.FS, Path: b.opts.Path, NodeID: b.opts.NodeID, Now: b.opts.Now,
		Logger: b.opts.Logger, Registerer: b.opts.Registerer,
		OnFlush: b.flushed, OnDamage: b.holeFound, OnFailure: b.failed, OnRoom: b.checkSoon, Ballast: true,
		Before: func(d *storage.Dir) error { return b.checkMeta(ctx, d) },
	})
	if err != nil {
		return err
	}
	b.db, err = meta.Open(meta.Options{
		FS: b.dir.FS(), Dir: b.dir.MetaPath(), Logger: b.opts.Logger, OnFatal: b.failed,
		Room: b.dir.CommitRoom, OnFull: b.dir.ReleaseBallast, Patience: commitPatience,
	})
	if err != nil {
		return err
	}
	if err := b.claim(); err != nil {
		return err
	}
	who := b.dir.Identity()
	b.proposer, err = replication.OpenMetadata(ctx, b.db, replication.MetadataOptions{
		NodeID: who.NodeID, NodeUUID: who.NodeUUID, Logger: b.opts.Logger, Registerer: b.opts.Registerer,
	})
	if err != nil {
		return damagedMetadata(b.dir.MetaPath(), err)
	}
	if err := b.tidy(ctx); err != nil {
		return err
	}
	logs, err := b.openLogs(ctx)
	if err != nil {
		return err
	}
	return b.lead(ctx, logs)
}

// commitPatience is how long a write of metadata that was begun waits for room
// on a full disk before the server ends.
const commitPatience = 30 * time.Second

// tidy sets unknown directories aside and finishes removals that a crash cut
// short.
func (b *Broker) tidy(ctx context.Context) error {
	state := b.proposer.State()
	err := b.dir.SetAside(func(id storage.ID) storage.Fate {
		switch t := state.Topic(id.Topic); {
		case t != nil && int(id.Partition) < t.Partitions.Len():
			return storage.Keep
		case state.Dying(id.Topic):
			return storage.Trash
		default:
			return storage.Unknown
		}
	})
	if err != nil {
		return err
	}
	if dying := state.DyingTopics(); len(dying) > 0 {
		_, err = b.proposer.Propose(ctx, &controller.ForgetTopics{IDs: dying})
	}
	return err
}

// openLogs opens the logs of all partitions side by side.
func (b *Broker) openLogs(ctx context.Context) (map[storage.ID]*storage.Log, error) {
	var mu sync.Mutex
	logs := map[storage.ID]*storage.Log{}
	starts, err := b.readStarts()
	if err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(openers())
	configs := b.configs()
	for _, t := range b.proposer.State().Topics() {
		cfg := configs.settings(t.Configs).log
		for i := range t.Partitions.Len() {
			id := storage.ID{Topic: t.ID, Partition: int32(i)}
			g.Go(func() error {
				l, err := b.dir.OpenLog(ctx, id, t.Name, cfg, starts[id])
				if err != nil {
					return fmt.Errorf("open %s/%d: %w", t.Name, i, err)
				}
				b.tellHoles(t.Name, l)
				mu.Lock()
				logs[id] = l
				mu.Unlock()
				return nil
			})
		}
	}
	return logs, g.Wait()
}

// lead registers this start with the controller, so that epochs grow where a
// log's end may have gone back, and then opens the partitions for traffic. A log
// without records is no exception: it may have lost all that it had.
func (b *Broker) lead(ctx context.Context, logs map[storage.ID]*storage.Log) error {
	who := b.dir.Identity()
	join := &controller.Register{
		ID: who.NodeID, UUID: who.NodeUUID, Incarnation: storage.NewTopicID().String(), PreviousEpoch: -1, Known: b.proposer.State().BrokerEpoch(who.NodeID),
		Endpoints: []controller.Endpoint{{Name: "kafka", Host: b.opts.Host, Port: b.opts.Port}},
		MinLevel:  1, MaxLevel: controller.Level, ReadyNow: true,
	}
	if b.dir.Unclean() {
		b.log.Info("the last run did not end with a clean stop: logs were recovered, and get a new leader epoch")
		join.Unclean = slices.Collect(maps.Keys(logs))
	} else {
		join.PreviousEpoch = join.Known
	}
	reply, err := b.proposer.Propose(ctx, join)
	if err = errors.Join(append(reply.Errs, err)...); err != nil {
		return err
	}
	state := b.proposer.State()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range state.Topics() {
		b.addTopicLocked(t.ID, t.Name)
	}
	configs := b.configs()
	for id, l := range logs {
		t := state.Topic(id.Topic)
		p, err := newPartition(id, b.mu.topics[id.Topic], who.NodeID, l, *t.Partitions.At(int(id.Partition)), configs.settings(t.Configs))
		if err != nil {
			return &storage.DamagedError{Path: b.dir.MetaPath(), Err: err}
		}
		b.mu.parts[id] = p
	}
	return nil
}

// Close wakes every wait, makes everything durable and closes the directory.
// Calls in flight end with an error; no other method may be called after it.
func (b *Broker) Close() error {
	b.stop(ErrShuttingDown)
	b.endAll(ErrShuttingDown)
	// Who makes the offsets topic begins its loops before they are waited for.
	<-b.groups.making
	defer b.groups.making.give()
	b.loops.Wait()
	// Who changes metadata comes to an end before the store closes; nobody
	// begins any more.
	<-b.admin
	defer b.admin.give()
	<-b.ids.turn
	defer b.ids.turn.give()
	var errs []error
	if b.proposer != nil {
		b.proposer.Close()
	}
	if b.db != nil {
		errs = append(errs, b.db.Close())
	}
	if b.dir != nil {
		errs = append(errs, b.dir.Close())
	}
	return errors.Join(errs...)
}

// endAll stops every partition and wakes all who wait.
func (b *Broker) endAll(why error) {
	b.mu.RLock()
	topics := slices.Collect(maps.Values(b.mu.topics))
	b.mu.RUnlock()
	for _, t := range topics {
		t.end(why)
	}
	for _, p := range b.partitions() {
		p.end(why)
	}
}

// partitions lists the partitions that this node serves.
func (b *Broker) partitions() []*partition {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Values(b.mu.parts))
}

// failed is told once by each store when its disk has failed: what waits to be
// committed never will be, so nobody is left waiting while the process ends.
func (b *Broker) failed(err error) {
	b.endAll(ErrStorageFailed)
	b.opts.OnFailure(err)
}

// flushed is told by storage that a log's durable end rose.
func (b *Broker) flushed(l *storage.Log) {
	b.mu.RLock()
	p := b.mu.parts[l.ID()]
	b.mu.RUnlock()
	if p != nil {
		p.advance()
	}
}

// ClusterID names the cluster, in 22 characters as Kafka's.
func (b *Broker) ClusterID() string { return b.dir.Identity().ClusterID }

// NodeID is this node's id.
func (b *Broker) NodeID() int32 { return b.dir.Identity().NodeID }

// Controller is the id of the node that decides about metadata, -1 if there is
// none at the moment.
func (b *Broker) Controller() int32 { return b.proposer.Controller() }

// Node is one node of the cluster and the address of its Kafka door.
type Node struct {
	ID   int32
	Host string
	Port int32
}

// Nodes lists the nodes that live, by id.
func (b *Broker) Nodes() []Node {
	return []Node{{ID: b.NodeID(), Host: b.opts.Host, Port: b.opts.Port}}
}

// Ready reports nil when every request can be served, or why not.
func (b *Broker) Ready() error {
	if b.done.Err() != nil {
		return ErrShuttingDown
	}
	if err := b.dir.Failed(); err != nil {
		return err
	}
	if d := b.dir.Stalled(); d >= storage.StallAfter {
		return fmt.Errorf("stalled: the disk has not answered for %v", d.Round(time.Second))
	}
	return nil
}

// allowedCluster is nil if p may do op to the cluster.
func (b *Broker) allowedCluster(p auth.Principal, op auth.Operation) error {
	if !b.opts.Authorizer.Allowed(p, op, auth.Resource{Type: auth.Cluster, Name: auth.ClusterName}) {
		return ErrClusterAuthorization
	}
	return nil
}

// allowed reports whether p may do op to a topic.
func (b *Broker) allowed(p auth.Principal, op auth.Operation, topic string) bool {
	return b.opts.Authorizer.Allowed(p, op, auth.Resource{Type: auth.Topic, Name: topic})
}

// resolve finds a topic that p may do op to, by name or id. Whoever may not
// even describe a topic is not told whether it exists.
func (b *Broker) resolve(p auth.Principal, op auth.Operation, ref TopicRef) (*controller.Topic, error) {
	state := b.proposer.State()
	if ref.ID != (TopicID{}) {
		t := state.Topic(ref.ID)
		if t == nil || !b.allowed(p, auth.Describe, t.Name) {
			return nil, fmt.Errorf("%w: %s", ErrUnknownTopicID, ref.ID)
		}
		if !b.allowed(p, op, t.Name) {
			return nil, fmt.Errorf("%w: %q", ErrTopicAuthorization, t.Name)
		}
		return t, checkReserved(op, t.Name)
	}
	if err := CheckTopicName(ref.Name); err != nil {
		return nil, err
	}
	if !b.allowed(p, op, ref.Name) {
		return nil, fmt.Errorf("%w: %q", ErrTopicAuthorization, ref.Name)
	}
	t := state.TopicNamed(ref.Name)
	if t == nil {
		return nil, fmt.Errorf("%w: %q", ErrUnknownTopic, ref.Name)
	}
	return t, checkReserved(op, t.Name)
}

// partition finds a partition that this node serves.
func (b *Broker) partition(t *controller.Topic, index int32) (*partition, error) {
	if index < 0 || int(index) >= t.Partitions.Len() {
		return nil, fmt.Errorf("%w: topic %q has no partition %d, it has %d", ErrUnknownPartition, t.Name, index, t.Partitions.Len())
	}
	id := storage.ID{Topic: t.ID, Partition: index}
	b.mu.RLock()
	p := b.mu.parts[id]
	b.mu.RUnlock()
	switch {
	case p != nil:
		return p, nil
	case b.done.Err() != nil:
		return nil, ErrShuttingDown
	default: // after t was looked up
		return nil, deleted(t.Name)
	}
}
