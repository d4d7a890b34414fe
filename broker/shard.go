package broker

import (
	"container/heap"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"leat/broker/group"
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

// shard is the coordinator of the groups of one partition of the offsets topic:
// one goroutine, so that all that happens to a group happens in one order. What
// requests change is gathered into rounds; a round is one batch of the log, and
// its answers go out when the batch is committed and the store has it.
type shard struct {
	broker *Broker
	id     storage.ID
	part   *partition // set by run
	store  *offsetStore
	config *group.Config
	log    *slog.Logger

	requests chan func(now time.Time)
	// loaded is closed once the shard serves; failed is then why it does not.
	loaded chan struct{}
	failed error
	// synced is the offset up to which the store is durable: compaction keeps
	// what is behind it.
	synced atomic.Int64

	// The rest is of the shard's goroutine.
	groups map[string]*held
	timers timers
	tokens group.Token
	joins  map[group.Token]func(group.JoinReply)
	takes  map[group.Token]func(group.Handout)
	syncs  map[group.Token]func(group.SyncReply)

	filling round   // not appended yet
	rounds  []round // appended, oldest first
	settled int64   // the offset up to which the store has the log
	quiet   []func(now time.Time)
	builder record.Builder
	lazy    bool // the store has changes that are not durable
	full    bool // the store has no room for the oldest round
	wake    *sleeper
	place   place
	parked  bool
	// watches are the partitions in which leased groups look for records, by the
	// index of their places; that of the shard's own is 0.
	watches   map[int32]*watch
	lastWatch int32
}

// held is a group in memory: one that has members or leases, or whose newest
// change is on its way.
type held struct {
	*group.Group
	// end is the offset after its newest record in the log, as far as it was
	// appended since the group came into memory.
	end int64
	// changed says that the round being filled has a record of it.
	changed bool

	// leases are those of a group of them, nil until they are needed.
	leases  *group.Leases
	watches map[group.Partition]*watch
	arrived []group.Partition // that places have told of, while they are collected

	due        time.Time
	index      int // in timers, -1 for none
	tally      tally
	leaseTally leaseTally
}

// newShard makes the coordinator of a partition. run must be called.
func (b *Broker) newShard(id storage.ID, cfg *group.Config) *shard {
	s := &shard{
		broker: b, id: id, store: newOffsetStore(b.db, id.Topic, id.Partition), config: cfg,
		log:      b.log.With(slog.Int("offsets_partition", int(id.Partition))),
		requests: make(chan func(time.Time), shardQueue), loaded: make(chan struct{}),
		groups: map[string]*held{}, joins: map[group.Token]func(group.JoinReply){}, syncs: map[group.Token]func(group.SyncReply){},
		takes: map[group.Token]func(group.Handout){}, watches: map[int32]*watch{}, wake: newSleeper(),
	}
	s.place.Waiter = &s.wake.waiter
	return s
}

// submit has fn called by the shard's goroutine; the error is why it never will
// be.
func (s *shard) submit(ctx context.Context, fn func(now time.Time)) error {
	select {
	case <-s.loaded:
		if s.failed != nil {
			return s.failed
		}
	default:
		return ErrCoordinatorLoading
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

// run serves until the broker closes.
func (s *shard) run() {
	err := s.load()
	if err != nil {
		s.failed = notAvailable(err)
	}
	close(s.loaded)
	if err != nil {
		if s.broker.done.Err() == nil {
			s.log.Error("groups of a partition are not served", slog.Any("err", err))
		}
		return
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	sync := time.NewTicker(storeSync)
	defer sync.Stop()
	for {
		for !s.wake.arm() {
			s.work()
		}
		requests, due := s.requests, s.untilDue()
		if s.held() {
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
			s.syncStore()
		}
		s.work()
	}
}

// work gets on with what was asked for and with what was told.
func (s *shard) work() {
	s.settle()
	s.append()
	s.settle()
	s.beQuiet()
}

// held says that requests must wait, for the disk as a rule.
func (s *shard) held() bool { return len(s.rounds) >= maxRounds || len(s.quiet) > 0 }

// serveThenTick does what is due, but not before those are served that came in
// time and waited: a slow coordinator is no reason to lose a member.
func (s *shard) serveThenTick() {
	select {
	case fn := <-s.requests:
		s.gather(fn)
	default:
	}
	if len(s.requests) == 0 && !s.held() {
		s.tick()
	}
}

// now is the broker's clock.
func (s *shard) now() time.Time { return s.broker.opts.Now() }

// gather serves fn and those that wait behind it, as many as a round takes.
func (s *shard) gather(fn func(now time.Time)) {
	for served := 1; ; served++ {
		fn(s.now()) // the answers of others may be out, and what they made of them is asked here
		if served == shardQueue || s.filling.bytes >= roundBytes || len(s.quiet) > 0 {
			return
		}
		select {
		case fn = <-s.requests:
		default:
			return
		}
	}
}

// whenQuiet has fn called once nothing is on its way, so that the store has all
// that there is.
func (s *shard) whenQuiet(fn func(now time.Time)) { s.quiet = append(s.quiet, fn) }

func (s *shard) beQuiet() {
	for len(s.quiet) > 0 && len(s.rounds) == 0 && len(s.filling.changes) == 0 {
		fn := s.quiet[0]
		s.quiet = s.quiet[1:]
		fn(s.now())
		s.append()
		s.settle()
	}
}

// group finds a group, from the store if need be; nil if there is none and it is
// not to be made.
func (s *shard) group(id string, create bool, now time.Time) (*held, error) {
	if h := s.groups[id]; h != nil {
		return h, nil
	}
	v, err := s.store.members(id)
	if err != nil {
		return nil, err
	}
	h := &held{index: -1}
	switch {
	case v != nil:
		r, err := decodeMembers(v)
		if err != nil {
			return nil, err
		}
		h.Group = group.Restore(id, s.config, r, now)
	case create:
		h.Group = group.New(id, s.config, now)
	default:
		has, err := s.store.has(id)
		if err != nil || !has {
			return nil, err
		}
		h.Group = group.New(id, s.config, now)
	}
	s.keep(h)
	return h, nil
}

// keep takes a group into memory.
func (s *shard) keep(h *held) {
	h.tally.generation = h.Generation()
	s.groups[h.ID()] = h
	s.schedule(h)
}

// forget lets a group go that is in the store as it is.
func (s *shard) forget(h *held) {
	unused := h.Idle() && (h.leases == nil || h.leases.Idle(s.now()))
	if unused && !h.changed && h.end <= s.settled && s.groups[h.ID()] == h {
		s.drop(h)
	}
}

// drop takes a group out of memory.
func (s *shard) drop(h *held) {
	s.broker.metrics.groups.forget(h)
	s.unwatch(h)
	h.leases = nil
	s.broker.metrics.leases.count(h)
	delete(s.groups, h.ID())
	if h.index >= 0 {
		heap.Remove(&s.timers, h.index)
	}
}

// take does what a step of a group asks for.
func (s *shard) take(h *held, e group.Effects) {
	if e.Record != nil {
		s.change(h, change{group: h.ID(), members: e.Record})
	}
	for _, r := range e.Joins {
		reply := s.joins[r.Token]
		delete(s.joins, r.Token)
		if reply != nil {
			s.answer(h, func(err error) {
				if err != nil {
					r = group.JoinReply{Err: err, MemberID: r.MemberID, Generation: -1}
				}
				reply(r)
			})
		}
	}
	for _, r := range e.Syncs {
		reply := s.syncs[r.Token]
		delete(s.syncs, r.Token)
		if reply != nil {
			s.answer(h, func(err error) {
				if err != nil {
					r = group.SyncReply{Err: err}
				}
				reply(r)
			})
		}
	}
	s.schedule(h)
}

// stop answers everybody with err; nothing that is on its way is known of.
func (s *shard) stop(err error) {
	if s.parked {
		s.part.unpark(&s.place)
		s.parked = false
	}
	for _, r := range s.rounds {
		for _, a := range r.answers {
			a.fn(err)
		}
	}
	s.rounds = nil
	for _, h := range s.groups {
		s.take(h, h.Kill(s.now(), err))
		s.lapse(h, err)
		s.drop(h)
	}
	for _, a := range s.filling.answers {
		a.fn(err)
	}
	s.filling = round{}
}

// syncStore makes the store durable if it has changed.
func (s *shard) syncStore() {
	if !s.lazy {
		return
	}
	applied, err := s.store.applied()
	if err == nil {
		err = s.broker.db.Sync()
	}
	if err == nil {
		s.lazy = false
		s.synced.Store(applied)
	}
}
