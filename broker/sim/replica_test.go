package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/replication"
	"leat/replication/controller"
)

// replica is the shell of a replication.Replica: it moves the bytes and answers
// who waits.
type replica struct {
	p    *process
	id   partID
	log  *diskLog
	core *replication.Replica
	// waiting are acks=all requests, fetches of followers.
	waiting []waiting
	fetches []*pendingFetch
	// dirty says that there is something to sync, cutting that a truncation is on
	// its way to the disk.
	dirty, cutting bool
	closed         bool
	// groups is the coordinator of a group partition, else nil.
	groups *coordinator
	// before is the high watermark before the answer that is being acted on.
	before int64
	// later is what was decided during a truncation.
	later *decision
}

type decision struct {
	part  controller.Partition
	state *controller.State
}

// waiting is an append that is answered when it is committed.
type waiting struct {
	epoch    int32
	base     int64
	next     int64
	request  uint64
	deadline time.Duration
	answer   func(produceAnswer)
}

func newReplica(p *process, l *diskLog) *replica {
	c := &p.w.cfg
	r := &replica{p: p, id: l.id, log: l}
	// What was noted about a log that has got shorter must not come back into
	// force when it has grown again.
	l.hw = min(l.hw, l.end)
	r.core = replication.NewReplica(replication.Options{
		ID: l.id, Self: p.n.id, MinInSync: c.minISR, Durable: c.durable(l.id.Topic), Lag: c.lag, LagMessages: c.lagMessages,
	}, l, l.hw)
	r.core.Lease(p.lease())
	return r
}

// decide has the core take over what is decided.
func (r *replica) decide(part controller.Partition, s *controller.State) {
	if r.cutting {
		r.later = &decision{part, s}
		return
	}
	w := r.p.w
	change, err := r.core.Decide(part, s, r.p.now())
	if err != nil {
		w.failed("Decide", err.Error())
		return
	}
	if change.NewEpoch && change.Role == replication.Leader {
		w.counts.elections++
		if w.tracing() {
			w.trace("node %d leads %s in epoch %d from %d", r.p.n.id, short(r.id), part.LeaderEpoch, r.log.end)
		}
		w.checks.took(r.p.n.id, r.id, part.LeaderEpoch)
	}
	if change.Resigned {
		w.counts.resigned++
	}
	if r.groups != nil {
		r.groups.decided(change, r.core.LeaderEpoch())
	}
	if change.NewEpoch || change.Resigned {
		r.answerFetches(true)
	}
	r.moved()
}

// moved is called when the core has been called: who waits may be answered, and
// the controller may be to be asked.
func (r *replica) moved() {
	if r.closed {
		return
	}
	r.p.w.checks.moved(r.p.n.id, r.id)
	r.answerWaiting()
	r.answerFetches(false)
	if r.groups != nil {
		r.groups.pump()
	}
	r.alter()
}

func (r *replica) answerWaiting() {
	kept := r.waiting[:0]
	for _, q := range r.waiting {
		err := r.core.Committed(q.epoch, q.next)
		switch {
		case errors.Is(err, replication.ErrPending) && r.p.w.now < q.deadline:
			kept = append(kept, q)
			continue
		case errors.Is(err, replication.ErrPending):
			err = errTimeout
		}
		r.answer(q, err)
	}
	clear(r.waiting[len(kept):])
	r.waiting = kept
}

func (r *replica) answer(q waiting, err error) {
	w := r.p.w
	w.checks.answered(r.p.n.id, q.request)
	if err == nil {
		r.acked(q.base, -1)
		switch {
		case !w.cfg.mixed:
		case w.cfg.durable(r.id.Topic):
			w.counts.ackedDurable++
		default:
			w.counts.ackedCached++
		}
	}
	q.answer(produceAnswer{err: unsure(err), base: q.base, epoch: q.epoch})
}

// acked has the checks look at a batch that is answered, as it was written: the
// leader does not read it again, so bits may have flipped meanwhile.
func (r *replica) acked(base int64, acks int8) {
	if base < r.log.start {
		return // deleted meanwhile
	}
	i := r.log.find(base)
	if i == len(r.log.batches) || r.log.batches[i].base != base {
		r.p.w.failed("I13", fmt.Sprintf("%v: node %d answers for offset %d, which is not there", r.id, r.p.n.id, base))
		return
	}
	b := r.log.batches[i]
	b.crc = b.sum()
	r.p.w.checks.acked(r.p.n.id, r.id, &b, acks)
}

// unsure makes of an error behind an append one that leaves the outcome open.
func unsure(err error) error {
	if err == nil {
		return nil
	}
	return errUnsure
}

// errUnsure answers an append that may have come into force.
var errUnsure = errors.New("unknown outcome")

// release ends all that waits at a replica that goes.
func (r *replica) release(err error) {
	for _, q := range r.waiting {
		r.answer(q, err)
	}
	r.waiting = nil
	for _, f := range slices.Clone(r.fetches) {
		f.finish()
	}
}

// produce is a producer's request.
func (n *node) produce(req produceRequest, answer func(produceAnswer)) {
	p := n.p
	if p == nil {
		return
	}
	r := p.replicas[req.id]
	if r == nil {
		answer(produceAnswer{err: errNotHere})
		return
	}
	if err := r.core.CheckAppend(req.acks == -1, p.now()); err != nil {
		answer(produceAnswer{err: err})
		return
	}
	b := req.batch
	base, duplicate, err := r.log.judge(&b)
	if err == nil && !duplicate {
		err = n.disk.write()
	}
	epoch := r.core.LeaderEpoch()
	if err == nil && !duplicate {
		var at *batch
		if at, err = r.log.lead(b, epoch); err == nil {
			b, base = *at, at.base
			r.appended(at)
		}
	} else if duplicate {
		p.w.counts.duplicates++
	}
	if err != nil {
		answer(produceAnswer{err: err})
		return
	}
	next := base + int64(b.count)
	if req.acks != -1 {
		p.in(p.w.between(0, 200*time.Microsecond), func() { r.answerAtOnce(req.acks, base, epoch, answer) })
		r.moved()
		return
	}
	r.park(waiting{epoch: epoch, base: base, next: next, answer: answer})
	r.moved()
}

func (r *replica) park(q waiting) {
	p := r.p
	p.parked++
	q.request = p.parked
	q.deadline = p.w.now + p.w.cfg.timeout
	p.w.checks.parked(p.n.id, q.request, q.deadline)
	r.waiting = append(r.waiting, q)
	p.in(p.w.cfg.timeout, func() {
		if !r.closed {
			r.answerWaiting()
		}
	})
}

// answerAtOnce answers acks 0 and 1, if the lease still holds.
func (r *replica) answerAtOnce(acks int8, base int64, epoch int32, answer func(produceAnswer)) {
	if r.closed || r.core.CheckAck(epoch, r.p.now()) != nil {
		answer(produceAnswer{err: errUnsure})
		return
	}
	if acks == 1 {
		r.acked(base, acks)
	}
	answer(produceAnswer{base: base, epoch: epoch})
}

// appended is called for each batch that is new in the log.
func (r *replica) appended(b *batch) {
	w := r.p.w
	w.mix(uint64(b.base)<<16 ^ uint64(b.epoch) ^ b.value<<32)
	w.checks.appended(r.p.n.id, r.id, b)
	if r.core.Role() == replication.Leader {
		r.core.Advance(r.p.now())
	}
	r.dirty = true
	if w.cfg.durable(r.id.Topic) {
		r.p.flush(false)
	}
}

// flush syncs what is dirty, and again what became so meanwhile: of the fsync mode,
// or all.
func (p *process) flush(all bool) {
	if p.flushing {
		return
	}
	var round []flushing
	var of []*replica
	for _, r := range p.order {
		if r.dirty && (all || p.w.cfg.durable(r.id.Topic)) {
			r.dirty = false
			round, of = append(round, r.log.flush()), append(of, r)
		}
	}
	if len(round) == 0 {
		return
	}
	p.flushing = true
	p.n.disk.sync(p.life, func(_ time.Duration, err error) {
		if err != nil {
			p.failed()
			return
		}
		p.flushing = false
		for i, f := range round {
			if f.done() && !of[i].closed {
				of[i].core.Advance(p.now())
				of[i].moved()
			}
		}
		p.fetchAll()
		p.flush(all)
	})
}

// tick is once a second: the high watermarks are checkpointed, who lags is looked
// at.
func (p *process) tick() {
	for _, r := range p.order {
		if p.w.chance(0.2) {
			r.log.hw = r.core.HighWatermark()
		}
		r.alter()
	}
	p.in(time.Second, p.tick)
}

// writeBack syncs what is dirty in page-cache mode, now and then.
func (p *process) writeBack() {
	p.flush(true)
	p.in(p.w.cfg.writeBack, p.writeBack)
}

// read is a consumer's request.
func (n *node) read(req readRequest, answer func(readAnswer)) {
	p := n.p
	if p == nil {
		return
	}
	r := p.replicas[req.id]
	if r == nil {
		answer(readAnswer{err: errNotHere})
		return
	}
	if err := r.readable(req.current); err != nil {
		answer(readAnswer{err: err})
		return
	}
	hw := r.core.HighWatermark()
	a := readAnswer{start: r.log.start, hw: hw}
	if req.from < r.log.start || req.from > r.log.end {
		a.err = errOutOfRange
		answer(a)
		return
	}
	if a.err = n.disk.read(); a.err == nil {
		a.batches, a.err = r.log.read(req.from, hw, 50)
	}
	if k := len(a.batches); k > 0 {
		p.w.checks.served(n.id, r.id, req.from, a.batches[k-1].next())
	}
	answer(a)
	p.damaged(a.err)
}

// damaged is a log whose bits have flipped: the broker is stopped, and the log is
// given up when it starts again. What found it goes on to its end, which must not
// happen without a process.
func (p *process) damaged(err error) {
	if !errors.Is(err, errDamaged) {
		return
	}
	p.in(0, func() {
		p.n.crash(false, false)
		p.w.startAfter(p.n, p.w.between(50*time.Millisecond, 500*time.Millisecond))
	})
}

// alter asks the controller for the ISR change that the core wants.
func (r *replica) alter() {
	if r.closed {
		return
	}
	ask, ok := r.core.Alter(r.p.now())
	if !ok {
		return
	}
	p := r.p
	p.w.counts.alters++
	ev := &controller.AlterPartitions{Broker: p.n.id, BrokerEpoch: p.epoch(), Partitions: []controller.AlterPartition{ask}}
	p.ask(ev, func(reply controller.Reply, err error) {
		var got controller.Partition
		if err == nil {
			err = reply.Errs[0]
			if len(reply.Partitions) > 0 {
				got = reply.Partitions[0]
			}
		}
		if r.closed || r.cutting {
			return
		}
		r.core.Altered(ask, got, err, p.now())
		r.moved()
		if err != nil {
			p.in(20*time.Millisecond, r.alter)
		}
	})
}
