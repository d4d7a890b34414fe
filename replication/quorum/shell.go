package quorum

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	// maxCalls is how many calls of Do wait for their turn; more wait to wait.
	maxCalls = 256
	// maxMessages and maxMessageQueue are how many messages wait, and of how many
	// bytes; more are dropped, which Raft takes for the network's doing.
	maxMessages     = 1024
	maxMessageQueue = 64 << 20
)

// Quorum runs a Core: it owns one goroutine, which saves and sends. Its methods are
// safe for concurrent use.
type Quorum struct {
	o     ShellOptions
	store Store
	core  *Core // the goroutine's

	calls    chan *call
	messages chan Message
	queued   atomic.Int64 // bytes in messages
	stop     chan struct{}
	stopOnce sync.Once
	done     chan struct{}
	lead     atomic.Pointer[Lead]
	// stalled says that a save takes longer than the others wait for a leader.
	stalled atomic.Bool

	mu struct {
		sync.Mutex
		waiters map[ProposalID]chan Ended
	}

	// The goroutine's own.
	ticker     *time.Ticker
	campaignIn int  // ticks until it stands for election; 0: it does not
	ended      bool // the Core has failed, and everybody was told
}

// call is a function that waits for its turn. It is claimed once: by the goroutine
// that runs it, or by the caller that gives up.
type call struct {
	fn      func(*Core) error
	claimed atomic.Bool
	err     error
	done    chan struct{}
}

// OpenQuorum opens a Core and runs it. An only voter stands for election at once.
// The errors are those of Open.
func OpenQuorum(o ShellOptions, s Store, m Machine) (*Quorum, error) {
	core, err := Open(o.Options, s, m)
	if err != nil {
		return nil, err
	}
	o.Options = core.o
	o.Tick = cmp.Or(o.Tick, 25*time.Millisecond)
	q := &Quorum{
		o: o, store: s, core: core, calls: make(chan *call, maxCalls), messages: make(chan Message, maxMessages),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	q.mu.waiters = map[ProposalID]chan Ended{}
	q.lead.Store(&Lead{})
	go q.run()
	return q, nil
}

// Lead is who leads as far as is known. A leader whose disk hangs is none.
func (q *Quorum) Lead() Lead {
	l := *q.lead.Load()
	if q.stalled.Load() && l.Active {
		return Lead{Term: l.Term}
	}
	return l
}

// Step takes a message from the transport; it does not wait, and says whether
// there was room. From is proven by the transport.
func (q *Quorum) Step(m Message) bool {
	size := messageBytes(m)
	if q.queued.Add(size) > maxMessageQueue {
		q.queued.Add(-size)
		return false
	}
	select {
	case q.messages <- m:
		return true
	default:
		q.queued.Add(-size)
		return false
	}
}

func messageBytes(m Message) int64 {
	n := int64(64)
	if m.Chunk != nil {
		n += int64(len(m.Chunk.Data))
	}
	if m.Raft != nil {
		n += int64(proto.Size(m.Raft))
	}
	return n
}

// Do runs fn with the Core on the Quorum's goroutine and returns its error. All
// that wait are run before the next save. When ctx ends first, fn is not run. The
// other errors are ErrClosed and ErrFailed. fn must not wait.
func (q *Quorum) Do(ctx context.Context, fn func(*Core) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := &call{fn: fn, done: make(chan struct{})}
	select {
	case q.calls <- c:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-q.done:
		return ErrClosed
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if c.claimed.CompareAndSwap(false, true) {
			return context.Cause(ctx)
		}
	case <-q.done:
		if c.claimed.CompareAndSwap(false, true) {
			return ErrClosed
		}
	}
	<-c.done
	return c.err
}

// Propose makes a proposal and waits for its end. ErrNotLeader, ErrDropped,
// ErrTooLarge, ErrClosed and ErrFailed mean that it never will be committed, unless
// it is ErrUnknownOutcome too, which is also the error when ctx ends: then it may.
func (q *Quorum) Propose(ctx context.Context, id ProposalID, data []byte) (index uint64, err error) {
	return q.await(ctx, id, func(c *Core) error { return c.Propose(id, data) })
}

// Barrier waits until everything is applied here that was committed at the call;
// only at the leader. The errors are those of Propose.
func (q *Quorum) Barrier(ctx context.Context, id ProposalID) (index uint64, err error) {
	return q.await(ctx, id, func(c *Core) error { return c.Read(id) })
}

// Change changes the members by fn, which calls AddLearner, Promote, Replace or
// Remove with id, and waits for the end. The errors are those of fn and of Propose.
func (q *Quorum) Change(ctx context.Context, id ProposalID, fn func(*Core) error) (index uint64, err error) {
	return q.await(ctx, id, fn)
}

func (q *Quorum) await(ctx context.Context, id ProposalID, start func(*Core) error) (uint64, error) {
	switch {
	case id == ProposalID{}:
		return 0, fmt.Errorf("%w: it has no id", ErrDropped) // its end could not be told
	case q.stalled.Load():
		return 0, ErrNotLeader
	}
	ended := make(chan Ended, 1)
	err := q.Do(ctx, func(c *Core) error {
		if err := start(c); err != nil {
			return err
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		q.mu.waiters[id] = ended
		return nil
	})
	if err != nil {
		return 0, err
	}
	select {
	case e := <-ended:
		if e.Outcome != Committed {
			return 0, ErrUnknownOutcome
		}
		return e.Index, nil
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.mu.waiters, id)
		return 0, fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx))
	}
}

// Lost says that the connection to a member is lost and a new one was refused, and
// that nothing comes from it any more. If it led, this node stands for election
// soon.
func (q *Quorum) Lost(ctx context.Context, peer uint64) error {
	return q.Do(ctx, func(c *Core) error {
		// What it has said before would make it the leader again.
		for range len(q.messages) {
			q.step(<-q.messages)
		}
		st := c.Status()
		if err := c.Forget(peer); err != nil {
			return err
		}
		if st.Leader == peer && q.campaignIn == 0 {
			// Not all at once: those that ask for votes together may all lose.
			q.campaignIn = 1 + 2*rank(st.Voters, c.o.ID, peer)
		}
		return nil
	})
}

// rank is how many of the voters but peer are before id.
func rank(voters []uint64, id, peer uint64) (n int) {
	for _, v := range voters {
		if v < id && v != peer {
			n++
		}
	}
	return n
}

// Close ends the goroutine and waits for it, also for a save that is under way.
// What has not ended by then has an unknown outcome.
func (q *Quorum) Close() {
	q.stopOnce.Do(func() { close(q.stop) })
	<-q.done
}

func (q *Quorum) run() {
	defer close(q.done)
	defer q.abandon()
	if q.core.Alone() {
		_ = q.core.Campaign() // its failure is found below
	}
	q.work()
	defer q.tick(false)
	for {
		// One that is alone and does not lead was left by its leader: it has to
		// stand for election.
		q.tick(q.core.Err() == nil && (!q.core.Alone() || !q.lead.Load().Active))
		var ticks <-chan time.Time
		if q.ticker != nil {
			ticks = q.ticker.C
		}
		select {
		case <-q.stop:
			return
		case <-ticks:
			q.onTick()
		case c := <-q.calls:
			q.call(c)
		case m := <-q.messages:
			q.step(m)
		}
		q.drain()
		q.work()
	}
}

// drain takes what waits beside the first, so that one save is for all of it, up to
// about as much as a save should be.
func (q *Quorum) drain() {
	bytes := int64(0)
	for i := 0; i < maxCalls && bytes < maxWorkBytes; i++ {
		select {
		case c := <-q.calls:
			q.call(c)
		case m := <-q.messages:
			bytes += messageBytes(m)
			q.step(m)
		default:
			return
		}
	}
}

// tick starts or stops the ticker.
func (q *Quorum) tick(on bool) {
	switch {
	case on && q.ticker == nil:
		q.ticker = time.NewTicker(q.o.Tick)
	case !on && q.ticker != nil:
		q.ticker.Stop()
		q.ticker = nil
	}
}

func (q *Quorum) onTick() {
	_ = q.core.Tick() // its failure is found by work
	if q.campaignIn > 0 {
		if q.campaignIn--; q.campaignIn == 0 && q.core.Status().Leader == 0 {
			_ = q.core.Campaign()
		}
	}
}

func (q *Quorum) call(c *call) {
	if !c.claimed.CompareAndSwap(false, true) {
		return
	}
	if c.err = q.core.Err(); c.err == nil {
		c.err = c.fn(q.core)
	}
	close(c.done)
}

func (q *Quorum) step(m Message) {
	q.queued.Add(-messageBytes(m))
	if err := q.core.Step(m); err != nil && q.core.Err() == nil {
		q.o.Logger.Warn("quorum message refused", slog.Uint64("peer", m.From), slog.Any("err", err))
	}
}

// work saves and sends what there is.
func (q *Quorum) work() {
	for w, ok := q.core.Work(); ok; w, ok = q.core.Work() {
		began := time.Now()
		if err := q.save(w); err != nil {
			_ = q.core.fail(err) // what comes of it is below
			break
		}
		q.said(q.core.Done(int(time.Since(began) / q.o.Tick)))
		q.stalled.Store(false)
	}
	if err := q.core.Err(); err != nil && !q.ended {
		q.ended = true
		q.said(q.core.Failed(err))
		q.abandon()
		if q.o.OnFatal != nil {
			q.o.OnFatal(err)
		}
	}
}

// save saves w. A leader that others could replace is watched meanwhile: when that
// takes longer than they wait, it leads no more, whatever the disk does.
func (q *Quorum) save(w Write) error {
	if l := q.lead.Load(); !l.Active || q.core.Alone() {
		return q.store.Save(w)
	}
	fired := make(chan struct{})
	timer := time.AfterFunc(time.Duration(q.o.ElectionTicks)*q.o.Tick, func() {
		defer close(fired)
		q.stalled.Store(true)
		q.abandon()
	})
	err := q.store.Save(w)
	if !timer.Stop() {
		<-fired
	}
	return err
}

// said sends and tells what a save allows.
func (q *Quorum) said(out Output) {
	q.lead.Store(&Lead{Term: out.Term, Leader: out.Leader, Active: out.Active})
	for _, m := range out.Messages {
		if q.o.Transport != nil {
			q.o.Transport.Send(m)
		}
	}
	q.mu.Lock()
	for _, e := range out.Ended {
		if w := q.mu.waiters[e.ID]; w != nil {
			delete(q.mu.waiters, e.ID)
			w <- e // it has room for one
		}
	}
	q.mu.Unlock()
	if q.o.After != nil {
		q.o.After(q.core, out)
	}
}

// abandon ends all waiting, without knowing how.
func (q *Quorum) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, w := range q.mu.waiters {
		delete(q.mu.waiters, id)
		w <- Ended{ID: id, Outcome: Unknown}
	}
}
