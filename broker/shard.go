package broker

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
}

// held is a group in memory: one that has members, or whose newest change is on
// its way.
type held struct {
	*group.Group
	// end is the offset after its newest record in the log, as far as it was
	// appended since the group came into memory.
	end int64
	// changed says that the round being filled has a record of it.
	changed bool

	due   time.Time
	index int // in timers, -1 for none
	tally tally
}

// round is changes that become one batch, and the answers that wait for it.
type round struct {
	changes []change
	bytes   int
	touched []*held
	answers []answer
	end     int64
	began   time.Time // when it was appended
}

// answer tells a caller what became of its request.
type answer struct {
	h  *held // whose changes must be committed before; may be nil
	fn func(err error)
}

// newShard makes the coordinator of a partition. run must be called.
func (b *Broker) newShard(id storage.ID, cfg *group.Config) *shard {
	s := &shard{
		broker: b, id: id, store: newOffsetStore(b.db, id.Topic, id.Partition), config: cfg,
		log:      b.log.With(slog.Int("offsets_partition", int(id.Partition))),
		requests: make(chan func(time.Time), shardQueue), loaded: make(chan struct{}),
		groups: map[string]*held{}, joins: map[group.Token]func(group.JoinReply){}, syncs: map[group.Token]func(group.SyncReply){},
		wake: newSleeper(),
	}
	s.place.w = &s.wake.waiter
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
		requests := s.requests
		if len(s.rounds) >= maxRounds || len(s.quiet) > 0 {
			requests = nil
		}
		timer.Reset(s.untilDue())
		select {
		case <-s.broker.done.Done():
			s.stop(ErrShuttingDown)
			return
		case fn := <-requests:
			s.gather(fn)
		case <-s.wake.woken:
		case <-timer.C:
			s.tick()
		case <-sync.C:
			s.syncStore()
		}
		s.settle()
		s.append()
		s.settle()
		s.beQuiet()
	}
}

// now is the broker's clock.
func (s *shard) now() time.Time { return s.broker.opts.Now() }

// gather serves fn and those that wait behind it, as many as a round takes.
func (s *shard) gather(fn func(now time.Time)) {
	now := s.now()
	for range shardQueue {
		fn(now)
		if s.filling.bytes >= roundBytes || len(s.quiet) > 0 {
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
	if h.Idle() && !h.changed && h.end <= s.settled && s.groups[h.ID()] == h {
		s.drop(h)
	}
}

// drop takes a group out of memory.
func (s *shard) drop(h *held) {
	s.broker.metrics.groups.forget(h)
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

// change puts a change into the round.
func (s *shard) change(h *held, c change) {
	s.filling.changes = append(s.filling.changes, c)
	s.filling.bytes += c.size()
	if h != nil && !h.changed {
		h.changed = true
		s.filling.touched = append(s.filling.touched, h)
	}
}

// answer has fn called when all that the group has changed is committed, or
// with the reason why that is not known.
func (s *shard) answer(h *held, fn func(err error)) {
	s.filling.answers = append(s.filling.answers, answer{h, fn})
}

// append makes a batch of the round and appends it. Answers that need no change
// go out, or join the round that they wait for.
func (s *shard) append() {
	r := s.filling
	s.filling = round{}
	if len(r.changes) == 0 {
		s.reply(r.answers)
		return
	}
	for _, h := range r.touched {
		h.changed = false
	}
	for {
		n := r.fit()
		base, err := s.write(r.changes[:n])
		if err != nil {
			s.refuse(&r, err)
			return
		}
		end := base + int64(n)
		for _, h := range r.touched {
			h.end = end
		}
		if n == len(r.changes) {
			r.end, r.began = end, time.Now()
			s.rounds = append(s.rounds, r)
			return
		}
		s.rounds = append(s.rounds, round{changes: r.changes[:n], touched: r.touched, end: end, began: time.Now()})
		r.changes = r.changes[n:]
	}
}

// fit is how many of the changes fit one batch: all, as a rule. Only the removal
// of very many offsets does not, which need not be one.
func (r *round) fit() int {
	bytes := 0
	for i := range r.changes {
		if bytes += r.changes[i].size(); bytes > maxOperation && i > 0 {
			return i
		}
	}
	return len(r.changes)
}

func (s *shard) write(changes []change) (base int64, err error) {
	s.builder.Reset(record.Options{})
	now := s.now().UnixMilli()
	for i := range changes {
		s.builder.Add(now, changes[i].key(), changes[i].value(), nil)
	}
	batch, err := s.builder.Finish()
	if err != nil {
		return 0, err
	}
	a, err := s.part.append(storage.Append{Batch: batch, Trusted: true, Essential: true}, AcksAll)
	return a.Base, err
}

// reply sends answers, or keeps those whose group has changes on their way.
func (s *shard) reply(answers []answer) {
	for _, a := range answers {
		if a.h != nil && a.h.end > s.settled {
			last := &s.rounds[len(s.rounds)-1]
			last.answers = append(last.answers, a)
			continue
		}
		a.fn(nil)
	}
}

// refuse answers a round that could not be appended. Groups whose members had
// changed go back to what was appended before, and their members join again.
func (s *shard) refuse(r *round, err error) {
	s.log.Warn("changes of groups were refused", slog.Any("err", err))
	err = notAvailable(err)
	answers := r.answers
	for i := range r.changes {
		if r.changes[i].topic != "" {
			continue
		}
		if h := s.groups[r.changes[i].group]; h != nil && slices.Contains(r.touched, h) {
			s.take(h, h.Kill(s.now(), err))
			answers = append(answers, s.filling.answers...)
			s.filling = round{}
			s.goBack(h)
		}
	}
	for _, a := range answers {
		a.fn(err)
	}
	for _, h := range r.touched {
		s.forget(h)
	}
}

// notAvailable is err for clients, who look for the coordinator again: they
// know what to do then, and nothing of its disk.
func notAvailable(err error) error { return fmt.Errorf("%w: %v", ErrCoordinatorNotAvailable, err) } //nolint:errorlint // the cause must not decide the code

// goBack puts what was appended last of a group in its place.
func (s *shard) goBack(h *held) {
	s.drop(h)
	before, onItsWay := s.lastAppended(h.ID())
	again := &held{end: h.end, index: -1}
	switch {
	case before != nil:
		again.Group = group.Restore(h.ID(), s.config, before, s.now())
	case onItsWay: // its removal
		again.Group = group.New(h.ID(), s.config, s.now())
	default: // the store has it, and a group with members is kept in memory
		if _, err := s.group(h.ID(), false, s.now()); err != nil {
			s.log.Error("group cannot be read", slog.Any("err", err))
		}
		return
	}
	s.keep(again)
}

// lastAppended is the newest record of a group that is on its way, nil for one
// that removes it.
func (s *shard) lastAppended(id string) (r *group.Record, found bool) {
	for _, r := range slices.Backward(s.rounds) {
		for _, c := range slices.Backward(r.changes) {
			if c.group == id && c.topic == "" {
				return c.members, true
			}
		}
	}
	return nil, false
}

// settle takes the committed rounds into the store and sends their answers, and
// waits for the next.
func (s *shard) settle() {
	if told, _ := s.wake.collect(); told != nil {
		s.parked = false
	}
	for len(s.rounds) > 0 && s.rounds[0].end <= s.part.hw.Load() {
		if !s.applyFirst() {
			return
		}
	}
	if len(s.rounds) == 0 || s.parked {
		return
	}
	if err := s.part.err(); err != nil {
		s.stop(err)
		return
	}
	s.wake.arm()
	s.parked = true
	s.part.park(&s.place, s.rounds[0].end)
}

// applyFirst takes the oldest round into the store and sends its answers. On a
// full disk it reports false, and is tried again with the next tick: the log has
// the round already, so it is not refused, and who waits for it waits.
func (s *shard) applyFirst() bool {
	r := s.rounds[0]
	err := s.store.apply(r.changes, r.end, false)
	if errors.Is(err, storage.ErrFull) {
		if !s.full {
			s.log.Warn("groups wait for room on the disk", slog.Any("err", err))
		}
		s.full = true
		return false
	}
	s.full, s.lazy = false, true
	s.rounds = s.rounds[1:]
	if err == nil {
		s.settled = r.end
		s.broker.metrics.groups.applied(&r)
	} else {
		err = notAvailable(err) // the store has failed, and the process ends
	}
	for _, a := range r.answers {
		a.fn(err)
	}
	for _, h := range r.touched {
		s.forget(h)
	}
	return true
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
