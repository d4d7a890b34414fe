package broker

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"leat/broker/group"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/record"
)

const (
	// shardQueue is how many requests wait for a shard; beyond that their
	// callers wait to get in.
	shardQueue = 256
	// maxRounds is how many rounds of changes may be on their way to the disk.
	// While they are, requests gather for the next: many small commits share
	// one batch and one sync.
	maxRounds = 2
	// roundBytes ends a round.
	roundBytes = 256 << 10
	// storeSync is how long changes of the store may wait for the disk. The log
	// has them, so this only bounds what a start reads again.
	storeSync = time.Second
	// maxOperation is the most that one operation may add to the log: half of
	// the largest batch.
	maxOperation = offsetsBatch / 2
)

// shard runs a group.Shard, which coordinates the groups of one partition of the
// offsets topic: one goroutine, so that all that happens to a group happens in one
// order. It brings the requests and the news, and does what the core asks for.
type shard struct {
	broker *Broker
	id     storage.ID
	part   *partition // set by run
	store  *offsetStore
	core   *group.Shard // set by run
	config *group.Config
	log    *slog.Logger

	requests chan func(now time.Time)
	// loaded is closed once the shard has served, or will not; serves is nil while
	// it does, and else why not.
	loaded chan struct{}
	serves atomic.Pointer[error]
	// synced is the offset up to which the store is durable: compaction keeps
	// what is behind it.
	synced atomic.Int64

	// The rest is of the shard's goroutine.
	tokens  group.Token
	waiting map[group.Token]func(group.Answer)
	acking  map[group.Token]*acking // of takes that have brought acks
	builder record.Builder
	began   roundTimes
	lazy    bool             // the store has changes that are not durable
	full    bool             // that the store has no room was told
	shown   group.ShardStats // in the metrics
	wake    *sleeper
	place   place
	parked  bool
	target  int64 // that the place is parked for
	// watches are the partitions in which leased groups look for records, by the
	// index of their places; that of the shard's own is 0.
	watches   map[int32]*watch
	watching  map[string]map[group.Partition]*watch // by group
	lastWatch int32
}

// newShard makes the coordinator of a partition. run must be called.
func (b *Broker) newShard(id storage.ID, cfg *group.Config) *shard {
	s := &shard{
		broker: b, id: id, store: newOffsetStore(b.db, id.Topic, id.Partition), config: cfg,
		log:      b.log.With(slog.Int("offsets_partition", int(id.Partition))),
		requests: make(chan func(time.Time), shardQueue), loaded: make(chan struct{}),
		waiting: map[group.Token]func(group.Answer){}, acking: map[group.Token]*acking{},
		watches: map[int32]*watch{}, watching: map[string]map[group.Partition]*watch{}, wake: newSleeper(),
	}
	s.place.Waiter = &s.wake.waiter
	s.say(ErrCoordinatorLoading)
	return s
}

// say tells callers whether the shard serves.
func (s *shard) say(err error) { s.serves.Store(&err) }

// ready is nil while the shard serves. A leader that does not know it yet that
// there is another must not tell of what that has changed.
func (s *shard) ready() error {
	if err := *s.serves.Load(); err != nil {
		return err
	}
	if s.part.calm.Load() >= 0 {
		return nil
	}
	if err := s.part.readable(-1); err != nil {
		return fmt.Errorf("%w: %v", ErrNotCoordinator, err) //nolint:errorlint // the cause must not decide the code
	}
	return nil
}

// submit has fn called by the shard's goroutine; the error is why it never will
// be.
func (s *shard) submit(ctx context.Context, fn func(now time.Time)) error {
	if err := s.ready(); err != nil {
		return err
	}
	select {
	case s.requests <- fn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.broker.done.Done():
		return ErrShuttingDown
	}
}

// ask has an operation of the core begun, and waits for its answer. The error is
// why there is none: what becomes of the operation is not known then.
func (s *shard) ask(ctx context.Context, op func(now time.Time, t group.Token)) (group.Answer, error) {
	answered := make(chan group.Answer, 1)
	err := s.submit(ctx, func(now time.Time) {
		s.tokens++
		s.waiting[s.tokens] = func(a group.Answer) { answered <- a }
		op(now, s.tokens)
	})
	if err != nil {
		return group.Answer{}, err
	}
	select {
	case a := <-answered:
		return a, nil
	case <-ctx.Done():
		return group.Answer{}, context.Cause(ctx)
	case <-s.broker.done.Done():
		return group.Answer{}, ErrShuttingDown
	}
}

// call is ask for an operation whose value is a T.
func call[T any](ctx context.Context, s *shard, op func(now time.Time, t group.Token)) (value T, err error) {
	a, err := s.ask(ctx, op)
	if err != nil {
		return value, err
	}
	value, _ = a.Value.(T)
	return value, a.Err
}

// run serves until the broker closes.
func (s *shard) run() {
	if err := s.open(); err != nil {
		s.say(notAvailable(err))
		close(s.loaded)
		s.notServed(err)
		return
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	sync := time.NewTicker(storeSync)
	defer sync.Stop()
	s.work()
	for {
		for !s.wake.arm() {
			s.work()
		}
		requests, due := s.requests, s.untilDue()
		if s.core.Busy() {
			// Nothing is due meanwhile: the heartbeat may be among those that wait.
			requests, due = nil, time.Hour
		}
		timer.Reset(due)
		select {
		case <-s.broker.done.Done():
			s.stop(ErrShuttingDown)
			return
		case fn := <-requests:
			s.gather(fn)
		case <-s.wake.woken:
		case <-timer.C:
			s.serveThenTick()
		case <-sync.C:
			s.core.Retry()
			s.syncStore()
		}
		s.work()
	}
}

func (s *shard) notServed(err error) {
	if s.broker.done.Err() == nil {
		s.log.Error("groups of a partition are not served", slog.Any("err", err))
	}
}

// serveThenTick does what is due, but not before those are served that came in
// time and wait.
func (s *shard) serveThenTick() {
	select {
	case fn := <-s.requests:
		s.gather(fn)
	default:
	}
	if len(s.requests) == 0 && !s.core.Busy() {
		s.core.Tick(s.now())
	}
}

// now is the broker's clock.
func (s *shard) now() time.Time { return s.broker.opts.Now() }

func (s *shard) untilDue() time.Duration {
	due, ok := s.core.Deadline()
	if !ok {
		return time.Hour
	}
	return max(due.Sub(s.now()), 0)
}

// gather serves fn and those that wait behind it, as many as a round takes.
func (s *shard) gather(fn func(now time.Time)) {
	for served := 1; ; served++ {
		fn(s.now()) // the answers of others may be out, and what they made of them is asked here
		if served == shardQueue || s.core.Gathered() >= roundBytes || s.core.Busy() {
			return
		}
		select {
		case fn = <-s.requests:
		default:
			return
		}
	}
}

// open makes the core of what the store and the log have.
func (s *shard) open() error {
	t := s.broker.proposer.State().Topic(s.id.Topic)
	if t == nil {
		return ErrUnknownTopicID
	}
	part, err := s.broker.partition(t, s.id.Partition)
	if err != nil {
		return err
	}
	applied, err := s.store.applied()
	if err != nil {
		return err
	}
	s.part = part
	s.synced.Store(applied.Next)
	s.core = group.NewShard(group.ShardOptions{
		Groups: s.config, Leases: leaseConfig, MaxRounds: maxRounds, MaxBatch: maxOperation,
		View: s.store, Topics: topicsNow{s.broker.proposer}, Applied: applied,
	})
	return s.core.Check(s.now(), logOf{part.log})
}

// logOf is the log of a partition for the core.
type logOf struct{ *storage.Log }

// Bounds are the log's first offset and the one after its last.
func (l logOf) Bounds() (start, end int64) {
	o := l.Offsets()
	return o.Start, o.End
}

// EpochEnd is storage's, for a log that has all its records.
func (l logOf) EpochEnd(epoch int32) (found int32, end int64, err error) {
	if l.Fenced() {
		return -1, -1, group.ErrDamagedLog
	}
	return l.Log.EpochEnd(epoch)
}

// topicsNow is what the metadata say of topics at the moment.
type topicsNow struct{ proposer controller.Proposer }

// Topic is a topic's name and how many partitions it has.
func (t topicsNow) Topic(id [16]byte) (name string, partitions int32, ok bool) {
	topic := t.proposer.State().Topic(id)
	if topic == nil {
		return "", 0, false
	}
	return topic.Name, int32(topic.Partitions.Len()), true
}

// stop answers everybody with err; nothing that is on its way is known of.
func (s *shard) stop(err error) {
	if s.parked {
		s.part.unpark(&s.place)
		s.parked = false
	}
	s.core.Stop(s.now(), err)
	s.drive()
}

// notAvailable is err for clients, who look for the coordinator again: they
// know what to do then, and nothing of its disk.
func notAvailable(err error) error { return fmt.Errorf("%w: %v", ErrCoordinatorNotAvailable, err) } //nolint:errorlint // the cause must not decide the code

// syncStore makes the store durable if it has changed.
func (s *shard) syncStore() {
	if !s.lazy {
		return
	}
	if err := s.broker.db.Sync(); err == nil {
		s.lazy = false
		s.synced.Store(s.core.Applied().Next)
	}
}
