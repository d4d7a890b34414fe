package sim

import (
	"errors"
	"time"

	"leat/replication"
	"leat/replication/controller"
)

// produceRequest is a batch for a partition.
type produceRequest struct {
	id    partID
	batch batch
	acks  int8 // 0, 1 or -1
}

// produceAnswer is what a node says to it. base and epoch are set where err is nil.
type produceAnswer struct {
	err   error
	base  int64
	epoch int32
}

// producer is a client that writes to one partition, idempotently: a batch is
// sent again, the same and in order, until it is answered or given up.
type producer struct {
	w       *world
	at      addr
	id      partID
	acks    int8
	window  int // batches under way at once
	pause   time.Duration
	patient time.Duration // how long it tries one batch

	process int // in the history; another one after an unknown outcome
	pid     int64
	seq     int32
	leader  int32
	// sending are the batches without an answer, in order.
	sending []*sending
	// flying counts calls under way, halted says that none is to be made until
	// they have ended, because one has failed.
	flying int
	halted bool
	done   bool // writes nothing new
}

type sending struct {
	batch batch
	op    int
	until time.Duration
	// maybe says that some attempt may have been written.
	maybe bool
	over  bool
}

func (w *world) addProducer(at addr, id partID, acks int8) *producer {
	p := &producer{
		w: w, at: at, id: id, acks: acks, pid: -1, window: 1 + w.rng.IntN(w.cfg.window), process: w.newProcess(),
		pause: w.between(w.cfg.pause/2, w.cfg.pause*3/2), patient: w.between(2*time.Second, 12*time.Second),
	}
	w.producers = append(w.producers, p)
	p.begin()
	return p
}

// begin gets a producer id.
func (p *producer) begin() {
	p.pid, p.seq, p.halted, p.flying = -1, 0, false, 0
	p.w.admin(p.at, &controller.AllocateProducerIDs{Count: 1}, func(reply controller.Reply, err error) {
		if err != nil || errors.Join(reply.Errs...) != nil {
			p.w.at(p.w.between(20*time.Millisecond, 200*time.Millisecond), nil, p.begin)
			return
		}
		p.pid = reply.First
		p.w.at(0, nil, p.step)
	})
}

// step writes something new, if there is room for it, and comes again.
func (p *producer) step() {
	if p.done || p.pid < 0 {
		return
	}
	if !p.halted && len(p.sending) < p.window {
		count := int32(1 + p.w.rng.IntN(4))
		b := batch{count: count, pid: p.pid, seq: p.seq, value: p.w.newValues(count)}
		p.seq += count
		s := &sending{batch: b, until: p.w.now + p.patient}
		s.op = p.w.hist.send(p.process, p.id, p.acks, b.value, count, true)
		p.sending = append(p.sending, s)
		p.try(s)
	}
	pid := p.pid
	p.w.at(p.w.between(p.pause/2, p.pause*3/2), nil, func() {
		if p.pid == pid {
			p.step()
		}
	})
}

// try makes one attempt at a batch.
func (p *producer) try(s *sending) {
	w, pid := p.w, p.pid
	p.flying++
	if p.leader == 0 {
		p.find(func() { p.failed(s, pid, replication.ErrNotLeader) })
		return
	}
	n := w.node(p.leader)
	req := produceRequest{id: p.id, batch: s.batch, acks: p.acks}
	if p.acks == 0 {
		// Nobody answers: what comes of it is not known.
		w.net.sendCopies(1, p.at, n.addr(), func() { n.produce(req, func(produceAnswer) {}) }, nil)
		w.hist.sent(s.op, unknown, -1, -1)
		p.flying--
		p.drop(s)
		if w.chance(0.1) {
			p.leader = 0
		}
		return
	}
	callOnce(w.net, p.at, n.addr(), w.cfg.timeout, func(answer func(produceAnswer)) { n.produce(req, answer) },
		func(a produceAnswer, err error) {
			if err == nil {
				err = a.err
			}
			if err != nil {
				p.failed(s, pid, err)
				return
			}
			if !s.over {
				w.counts.sent++
				w.hist.sent(s.op, okay, a.base, a.epoch)
				p.drop(s)
			}
			if p.pid == pid {
				p.flying--
				p.resume()
			}
		})
}

// certain reports that a batch was not written when that was the answer.
func certain(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, replication.ErrNotLeader) || errors.Is(err, errNotHere) ||
		errors.Is(err, replication.ErrNotEnoughReplicas) || errors.Is(err, replication.ErrLeaseExpired) ||
		errors.Is(err, errSequence) || errors.Is(err, errStaleEpoch) || errors.Is(err, errDamaged)
}

// failed is the end of an attempt without success. The batches behind it are
// stopped, so that all are tried again in order.
func (p *producer) failed(s *sending, pid int64, err error) {
	s.maybe = s.maybe || !certain(err)
	if p.pid != pid {
		return
	}
	p.flying--
	p.halted = true
	p.leader = 0
	if !s.over && errors.Is(err, errSequence) && s == p.sending[0] && p.flying == 0 && !s.maybe {
		// All before it was answered and is not there: records were lost that
		// may be, and the broker will never take this one.
		s.until = 0
	}
	p.resume()
}

// resume sends again what failed, when nothing is under way any more.
func (p *producer) resume() {
	if !p.halted || p.flying > 0 {
		return
	}
	if len(p.sending) > 0 && p.w.now >= p.sending[0].until {
		p.giveUp()
		return
	}
	pid := p.pid
	p.w.at(p.w.between(5*time.Millisecond, 60*time.Millisecond), nil, func() {
		if p.pid == pid && p.halted && p.flying == 0 {
			p.find(func() {
				if p.pid == pid && p.halted && p.flying == 0 {
					p.halted = p.leader == 0
					for _, s := range append([]*sending(nil), p.sending...) {
						p.try(s)
					}
				}
			})
		}
	})
}

// giveUp ends a life of the producer: what is under way has an unknown outcome,
// or a known one if no attempt can have been written.
func (p *producer) giveUp() {
	for _, s := range p.sending {
		s.over = true
		outcome := failed
		if s.maybe {
			outcome = unknown
		}
		p.w.hist.sent(s.op, outcome, -1, -1)
	}
	p.w.counts.gaveUp++
	p.sending = nil
	p.process = p.w.newProcess()
	p.leader = 0
	if !p.done {
		p.begin()
	}
}

func (p *producer) drop(s *sending) {
	s.over = true
	for i := range p.sending {
		if p.sending[i] == s {
			p.sending = append(p.sending[:i], p.sending[i+1:]...)
			return
		}
	}
}

// find asks some node who leads the partition.
func (p *producer) find(then func()) {
	p.w.describe(p.at, func(s *controller.State) {
		p.leader = leaderOf(s, p.id)
		then()
	})
}

// leaderOf is the leader of a partition as a state has it, 0 for none.
func leaderOf(s *controller.State, id partID) int32 {
	if p := partitionIn(s, id); p != nil {
		return max(p.Leader, 0)
	}
	return 0
}
