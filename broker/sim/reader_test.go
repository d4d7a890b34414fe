package sim

import (
	"errors"
	"testing"

	"leat/replication"
	"leat/replication/controller"
)

// reader is a client's place in a partition, and what it knows of who leads there
// (KIP-320). A leadership may move while the one that led has a lease yet: who
// would go back to that one, for it was told by a node that has not heard, could be
// told that its place is not in the log. So metadata that is older than what was
// heard before is not taken, each request names the leader epoch it is for, and
// after a change of leader the reader asks whether what it has read is there.
type reader struct {
	w    *world
	at   addr
	id   partID
	next int64
	// epoch is the leader epoch of the record before next, -1 if it is not known.
	epoch int32
	// leader is who leads, 0 for who is to be looked for, and current the newest
	// leader epoch that was heard of. By checked's leader next was found good.
	leader           int32
	current, checked int32
}

func newReader(w *world, at addr, id partID, next int64, epoch int32) *reader {
	return &reader{w: w, at: at, id: id, next: next, epoch: epoch, current: epoch, checked: -1}
}

// readRequest asks a leader of an epoch for what is committed from an offset on.
type readRequest struct {
	id      partID
	from    int64
	current int32
}

// readAnswer is what a node says to it.
type readAnswer struct {
	err       error
	batches   []batch
	start, hw int64
}

// endRequest asks a leader of an epoch where another one ends in its log.
type endRequest struct {
	id             partID
	current, epoch int32
}

// endAnswer is the largest epoch that is not above it, and where that ends.
type endAnswer struct {
	err   error
	epoch int32
	end   int64
}

// ready reports whether the reader may read, and has nothing to find out before.
func (r *reader) ready() bool {
	return r.leader > 0 && (r.epoch < 0 || r.checked == r.current)
}

// step does what comes next: it looks for the leader, asks it whether the place
// is good, or reads. still says whether there is anybody to tell when the answer
// comes: then got is called with what was read, before the reader goes on to behind
// it. done is called at last.
func (r *reader) step(process int, still func() bool, got func(*readAnswer), done func()) {
	switch {
	case r.ready():
		r.poll(process, still, got, done)
	case r.leader > 0:
		r.check(process, still, done)
	default:
		r.w.describe(r.at, func(s *controller.State) {
			r.learn(s)
			done()
		})
	}
}

// learn takes from metadata who leads, unless it is old news.
func (r *reader) learn(s *controller.State) {
	switch p := partitionIn(s, r.id); {
	case p == nil:
	case p.LeaderEpoch < r.current:
		r.w.counts.outdated++
	default:
		r.leader, r.current = max(p.Leader, 0), p.LeaderEpoch
	}
}

// partitionIn is a partition as a state has it, nil for none.
func partitionIn(s *controller.State, id partID) *controller.Partition {
	if s != nil {
		if t := s.Topic(id.Topic); t != nil && int(id.Partition) < t.Partitions.Len() {
			return t.Partitions.At(int(id.Partition))
		}
	}
	return nil
}

// check asks who leads where the epoch ends of what was read last.
func (r *reader) check(process int, still func() bool, done func()) {
	n, current := r.w.node(r.leader), r.current
	req := endRequest{id: r.id, current: current, epoch: r.epoch}
	call(r.w.net, nil, r.at, n.addr(), r.w.cfg.timeout, func(answer func(endAnswer)) { n.epochEnd(req, answer) },
		func(a endAnswer, err error) {
			switch {
			case !still():
			case errors.Join(err, a.err) != nil:
				r.leader = 0
			default:
				r.checked = current
				r.ends(process, a)
			}
			done()
		})
}

// ends has the reader go back to where the log of who leads parts from what it
// has read.
func (r *reader) ends(process int, a endAnswer) {
	if a.end >= r.next {
		r.w.counts.placesGood++
		return
	}
	r.w.counts.placesCut++
	r.next, r.epoch = a.end, a.epoch
	r.w.hist.reset(process, r.id, r.next)
}

// poll reads once.
func (r *reader) poll(process int, still func() bool, got func(*readAnswer), done func()) {
	w, n := r.w, r.w.node(r.leader)
	req := readRequest{id: r.id, from: r.next, current: r.current}
	op := w.hist.poll(process, r.id, r.next)
	call(w.net, nil, r.at, n.addr(), w.cfg.timeout, func(answer func(readAnswer)) { n.read(req, answer) },
		func(a readAnswer, err error) {
			if err == nil {
				err = a.err
			}
			outside := errors.Is(err, errOutOfRange)
			switch mine := still(); {
			case err == nil && mine:
				w.hist.polled(op, a.batches, a.hw, okay)
				got(&a)
				if k := len(a.batches); k > 0 {
					r.next, r.epoch = a.batches[k-1].next(), a.batches[k-1].epoch
				}
			case outside && mine:
				w.hist.polled(op, nil, a.hw, failed)
				got(&a)
				r.enter(process, &a)
			default:
				w.hist.polled(op, nil, -1, failed)
				r.leader = 0
			}
			done()
		})
}

// enter has a reader whose place is not in the log go on at the nearest that is.
func (r *reader) enter(process int, a *readAnswer) {
	to := min(max(r.next, a.start), a.hw)
	if r.next < a.start {
		r.w.hist.seek(process, r.id, to) // the records were deleted
	} else {
		r.w.hist.reset(process, r.id, to)
	}
	r.next, r.epoch = to, -1
}

// readable says whether consumers may read here who know a leader epoch, -1 for
// any.
func (r *replica) readable(current int32) error {
	switch ours := r.core.LeaderEpoch(); {
	case current >= 0 && current < ours:
		r.p.w.counts.epochsRefused++
		return replication.ErrFencedLeaderEpoch
	case current > ours:
		r.p.w.counts.epochsRefused++
		return replication.ErrUnknownLeaderEpoch
	default:
		return r.core.CheckRead(r.p.now())
	}
}

// epochEnd is a consumer's OffsetForLeaderEpoch.
func (n *node) epochEnd(req endRequest, answer func(endAnswer)) {
	p := n.p
	if p == nil {
		return
	}
	r := p.replicas[req.id]
	if r == nil {
		answer(endAnswer{err: errNotHere})
		return
	}
	if err := r.readable(req.current); err != nil {
		answer(endAnswer{err: err})
		return
	}
	found, end, err := r.log.EpochEnd(req.epoch)
	switch {
	case req.epoch == r.core.LeaderEpoch():
		found, end = req.epoch, r.log.end // also before its first record
	case found < 0:
		found = req.epoch // below every epoch of the log
	}
	answer(endAnswer{epoch: found, end: max(end, r.log.start), err: err})
}

// A reader takes no metadata that is older than what it has read or heard of, asks
// again after each change of leader, and goes back to where the logs part.
func TestReader(t *testing.T) {
	w := newWorld(1, nil)
	id := partID{Topic: w.newTopicID()}
	state := func(leader, epoch int32) *controller.State {
		s, err := controller.NewState().With([]controller.Record{
			&controller.FeatureLevel{Level: controller.Level}, &controller.TopicCreated{ID: id.Topic, Name: "t"},
			&controller.PartitionChanged{Topic: id.Topic, Partition: controller.Partition{Leader: leader, LeaderEpoch: epoch, Replicas: []int32{1, 2}, ISR: []int32{1, 2}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	r := newReader(w, clientBase, id, 7, 3)
	expect := func(what string, leader, current int32, ready bool) {
		t.Helper()
		if r.leader != leader || r.current != current || r.ready() != ready {
			t.Errorf("%s: leader %d, epoch %d, ready %v", what, r.leader, r.current, r.ready())
		}
	}
	r.learn(nil)
	expect("no answer", 0, 3, false)
	r.learn(state(1, 2))
	expect("older than what was read", 0, 3, false)
	r.learn(state(1, 4))
	expect("newer", 1, 4, false)
	r.checked = 4
	r.ends(1, endAnswer{epoch: 3, end: 7})
	expect("the place is good", 1, 4, true)
	r.learn(state(2, 3))
	expect("older than what was heard", 1, 4, true)
	r.learn(state(2, 5))
	expect("another leader", 2, 5, false)
	r.checked = 5
	r.ends(1, endAnswer{epoch: 2, end: 4})
	expect("what was read is cut off", 2, 5, true)
	if r.next != 4 || r.epoch != 2 {
		t.Errorf("at %d of epoch %d", r.next, r.epoch)
	}
	r.enter(1, &readAnswer{start: 6, hw: 9})
	r.learn(state(1, 6))
	expect("nothing read yet in the log as it is", 1, 6, true)
	if r.next != 6 || r.epoch != -1 {
		t.Errorf("at %d of epoch %d", r.next, r.epoch)
	}
}
