package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"leat/replication"
	"leat/replication/controller"
)

// view is what the invariants see of a world.
type view interface {
	now() time.Duration
	nodes() []int32
	lease(node int32) time.Duration
	// log is a node's log of a partition, nil for none; a node that is down has
	// its logs.
	log(node int32, id partID) *simLog
	// replica is nil for none, and while the node is down.
	replica(node int32, id partID) replicaView
	// minISR is the effective min.insync.replicas, durable says that the mode is fsync.
	minISR(id partID) int
	durable(id partID) bool
	// failed ends the run.
	failed(invariant, what string)
}

// replicaView is what is asked of a replication.Replica.
type replicaView interface {
	Role() replication.Role
	LeaderEpoch() int32
	Partition() controller.Partition
	HighWatermark() int64
	Maximal() []int32
}

// checker asks the invariants I1 to I28 of a world, each
// where something happens that could break it. The world calls a method of it
// right after the thing, so that the first fault is reported and not what comes
// of it. Nothing is asked twice of what has not changed.
//
//	I1  took                I8  moved             I15 cut             I22 ioFailed, then what speaks
//	I2  moved, applied      I9  applied           I16 moved, history  I23 parked, answered
//	I3  appended            I10 applied           I17 moved           I24 quiesced
//	I4  appended            I11 applied, moved    I18 took, quiesced  I25 wiped
//	I5  appended, recovered I12 moved             I19 folded          I26 proposed
//	I6  moved               I13 acked             I20 history         I27 promised
//	I7  took, moved         I14 served            I21 applied         I28 acked, served
//
// What a simulated log cannot show of I5 and I18 is proven in package storage:
// there the epochs and the producers of a real log are compared with its batches
// (TestEpochs…, the model test and the crash tests).
type checker struct {
	v       view
	h       *history
	parts   map[partID]*partTrace
	nodes   map[int32]*nodeTrace
	applies map[uint64]uint64 // by index, the hash of the state
	newest  *controller.State // of the highest index that any node applied
	index   uint64
	// held counts how often each invariant was asked, by number, for the proof
	// that it is.
	held  [29]int
	asked int        // the last one
	last  *partTrace // what part gave last
	// groups and groupHeld are the same for groups with members.
	groups    map[string]*groupTrace
	groupHeld [len(groupInvariants)]int
}

func newChecker(v view, h *history) *checker {
	return &checker{
		v: v, h: h, parts: map[partID]*partTrace{}, nodes: map[int32]*nodeTrace{}, applies: map[uint64]uint64{}, newest: controller.NewState(),
		groups: map[string]*groupTrace{},
	}
}

// partTrace is what is known of a partition over all nodes and times.
type partTrace struct {
	id      partID
	leaders map[int32]int32 // by leader epoch
	begins  map[int32]int64 // by leader epoch, where its leader's log ended then
	// written has every batch that any log ever held, by where it was written.
	written map[place]trail
	// committed is the log below the highest high watermark of any leader: the
	// truth. It only grows, but for losses with an excuse.
	committed []batch
	seqs      map[sequence]int64 // where in it a producer's batch is
	unclean   map[int32]bool     // leader epochs that began with an unclean election
	// gone says what nodes lost of what they had acknowledged.
	gone     []forgotten
	replicas map[int32]*replicaTrace
}

// place is where a batch was written. No two batches ever have the same.
type place struct {
	epoch int32
	base  int64
}

// trail is a batch and the place of the one before it.
type trail struct {
	b      batch
	before place
	known  bool // before is
}

type sequence struct {
	pid    int64
	pepoch int16
	seq    int32
}

// forgotten is a part of a log that a node lost though it had acknowledged it.
type forgotten struct {
	node     int32
	from, to int64
}

// replicaTrace is what was last seen of a replica.
type replicaTrace struct {
	// assigned is the index at which it became a replica.
	assigned           uint64
	leaderEpoch, epoch int32
	leads              bool
	hw                 int64
	// compared is how far its log was found to be the committed one.
	compared int64
	// lossy is set while the log lacks what the node had acknowledged, all below
	// had, in the life with that broker epoch.
	lossy bool
	had   int64
	life  int64
	end   int64 // of its log
	// since is the leader epoch in which the node's last log went, for it was no
	// replica any more, and dropped where that ended. What leaders of earlier epochs
	// believe is of that log.
	since   int32
	dropped int64
}

// nodeTrace is what was last seen of a node.
type nodeTrace struct {
	broken bool // an I/O error: it must not speak until it starts again
	term   uint64
	vote   uint64
	index  uint64
	epoch  int64 // of the broker, 0 if it never had one
	// state is the newest metadata, and hash its.
	state  *controller.State
	hash   uint64
	parked map[uint64]time.Duration
}

func (c *checker) part(id partID) *partTrace {
	if c.last != nil && c.last.id == id {
		return c.last
	}
	p := c.parts[id]
	if p == nil {
		p = &partTrace{
			id: id, leaders: map[int32]int32{}, begins: map[int32]int64{}, written: map[place]trail{}, seqs: map[sequence]int64{},
			unclean: map[int32]bool{}, replicas: map[int32]*replicaTrace{},
		}
		c.parts[id] = p
	}
	c.last = p
	return p
}

func (p *partTrace) replica(node int32) *replicaTrace {
	r := p.replicas[node]
	if r == nil {
		r = &replicaTrace{leaderEpoch: -1, epoch: -1}
		p.replicas[node] = r
	}
	return r
}

func (p *partTrace) end() int64 {
	if n := len(p.committed); n > 0 {
		return p.committed[n-1].next()
	}
	return 0
}

func (c *checker) node(id int32) *nodeTrace {
	n := c.nodes[id]
	if n == nil {
		n = &nodeTrace{parked: map[uint64]time.Duration{}}
		c.nodes[id] = n
	}
	return n
}

// ask notes that an invariant was asked, and says whether it holds; if it does not,
// call fail. What fail says costs much to put together, and mostly nobody reads it.
func (c *checker) ask(number int, holds bool) bool {
	c.held[number]++
	c.asked = number
	return holds
}

// fail fails the run by the invariant that was asked last.
func (c *checker) fail(format string, args ...any) {
	c.v.failed(fmt.Sprint("I", c.asked), fmt.Sprintf(format, args...))
}

// took is called when a replica has become leader of an epoch.
func (c *checker) took(node int32, id partID, epoch int32) {
	p := c.part(id)
	other, known := p.leaders[epoch]
	if !c.ask(1, !known || other == node) {
		c.fail("%v: nodes %d and %d lead epoch %d", id, other, node, epoch)
	}
	p.leaders[epoch] = node
	c.h.election(id)
	c.h.taken[id] = max(c.h.taken[id], epoch)
	if p.unclean[epoch] {
		c.h.unclean[id] = max(c.h.unclean[id], epoch)
	}
	log := c.v.log(node, id)
	p.begins[epoch] = log.end
	c.asFolded(node, id, log)
	// One that learns so late that it led may lack what leaders after it committed.
	late := slices.Max(slices.Collect(maps.Keys(p.leaders))) > epoch
	from, complete := p.missing(log)
	if at, parted := c.parted(p, log); parted {
		from, complete = min(from, at), false
	}
	if !complete && !late {
		// The log may begin within a batch that was lost with all behind it.
		if !c.ask(7, c.mayLose(p, epoch, max(from, log.start))) {
			c.fail("%v: node %d leads epoch %d without what is committed from %d to %d: it has %v", id, node, epoch, from, p.end(), log.batches)
		}
		c.forgive(p, epoch, from, log)
		return
	}
	c.held[7]++
	gone := func(b batch) bool { return c.buried(p, &b) }
	at := p.end()
	again := slices.ContainsFunc(log.batches[log.find(at):], gone) || c.goesAgain(p, at, log)
	if !late && (p.unclean[epoch] || c.mayLose(p, epoch, at) && again) {
		// What was given up is back, or gone again; or the leader before goes on for a
		// while, and what it commits behind that is lost.
		c.forgive(p, epoch, at, log)
	}
}

// goesAgain reports whether a log lacks what a leader had kept of what was given up
// behind an offset.
func (c *checker) goesAgain(p *partTrace, at int64, log *simLog) bool {
	return slices.ContainsFunc(c.h.losses[p.id], func(l loss) bool {
		return slices.ContainsFunc(l.kept, func(b batch) bool {
			j := log.find(b.base)
			return b.base >= at && !c.buried(p, &b) && (j == len(log.batches) || !alike(&log.batches[j], &b))
		})
	})
}

// parted is where a log left the committed one, if it begins behind that: what comes
// in front of it was not deleted, it is lost.
func (c *checker) parted(p *partTrace, log *simLog) (at int64, parted bool) {
	if len(log.batches) == 0 {
		return 0, false
	}
	losses, b := c.h.losses[p.id], &log.batches[0]
	if k := c.h.killer(p.id, b.epoch, b.base); k < len(losses) {
		return losses[k].from, true
	}
	return 0, false
}

// missing is the first committed offset that a log does not hold.
func (p *partTrace) missing(log *simLog) (from int64, complete bool) {
	for i := range p.committed {
		b := &p.committed[i]
		if b.next() <= log.start {
			continue
		}
		j := log.find(b.base)
		if j == len(log.batches) || !alike(&log.batches[j], b) {
			return b.base, false
		}
	}
	return p.end(), true
}

// alike compares batches but for damage, which a replica finds when it reads.
func alike(a, b *batch) bool {
	return same(a, b) || (!a.sound() || !b.sound()) && a.base == b.base && a.epoch == b.epoch
}

// mayLose reports whether committed data from an offset may be missing with the
// leader of an epoch: after an unclean election, or when so many of those who
// held it lost it that fewer than min.insync.replicas are no promise.
func (c *checker) mayLose(p *partTrace, epoch int32, from int64) bool {
	if p.unclean[epoch] {
		return true
	}
	var nodes []int32
	for _, g := range p.gone {
		if g.from <= from && from < g.to && !slices.Contains(nodes, g.node) {
			nodes = append(nodes, g.node)
		}
	}
	return len(nodes) >= c.v.minISR(p.id)
}

// forgive takes what was lost out of the truth.
func (c *checker) forgive(p *partTrace, epoch int32, from int64, log *simLog) {
	c.h.excuse(p.id, epoch, from, slices.Clone(log.batches[log.find(from):])...)
	for len(p.committed) > 0 && p.end() > from {
		b := &p.committed[len(p.committed)-1]
		delete(p.seqs, sequence{b.pid, b.pepoch, b.seq})
		p.committed = p.committed[:len(p.committed)-1]
	}
	for _, r := range p.replicas {
		r.compared, r.had = min(r.compared, from), min(r.had, from)
	}
}

// appended is called when a leader or a follower has appended a batch.
func (c *checker) appended(node int32, id partID, b *batch) {
	p := c.part(id)
	c.speaks(node, "appends")
	log := c.v.log(node, id)
	at := place{b.epoch, b.base}
	t, known := p.written[at]
	if !c.ask(3, !known || same(&t.b, b)) {
		c.fail("%v: node %d has %+v, written before as %+v", id, node, *b, t.b)
	}
	if n := len(log.batches); n > 1 {
		before := place{log.batches[n-2].epoch, log.batches[n-2].base}
		if !c.ask(4, !t.known || t.before == before) {
			c.fail("%v: node %d has %+v behind %+v, another log has it behind %+v", id, node, *b, before, t.before)
		}
		if !c.ask(5, before.epoch <= b.epoch && log.batches[n-2].next() == b.base) {
			c.fail("%v: node %d appends %+v behind %+v", id, node, *b, log.batches[n-2])
		}
		t.before, t.known = before, true
	}
	t.b = *b
	p.written[at] = t
	last := log.epochs[len(log.epochs)-1]
	if !c.ask(5, last.epoch == b.epoch && last.start <= b.base) {
		c.fail("%v: node %d appended %+v, its newest epoch is %+v", id, node, *b, last)
	}
	r := p.replica(node)
	r.end = log.end
	c.regained(node, p, log)
}

// regained notes that a node has again what it had lost, on its disk if that is
// what acknowledges. What is committed is not enough: a leader that has not heard
// of the loss may commit more by what it was told before.
func (c *checker) regained(node int32, p *partTrace, log *simLog) {
	if r := p.replica(node); r.lossy && c.acknowledged(log) >= max(p.end(), r.had) {
		r.lossy = false
	}
}

// cut is called when a follower has cut its log off, or dropped it; hwBefore is
// the high watermark that it had.
func (c *checker) cut(node int32, id partID, end, hwBefore int64) {
	p := c.part(id)
	lost := slices.ContainsFunc(c.h.losses[id], func(l loss) bool { return l.from < hwBefore })
	if !c.ask(15, end >= hwBefore || lost || c.v.log(node, id).start >= hwBefore) {
		c.fail("%v: node %d cut to %d, committed were %d", id, node, end, hwBefore)
	}
	c.asBatches(node, id)
	r := p.replica(node)
	r.end, r.compared = end, min(r.compared, end)
}

// recovered is called when a process has opened a log again. mayLose says that
// the disk may have lost what the replica had acknowledged.
func (c *checker) recovered(node int32, id partID, endBefore int64, mayLose bool) {
	p := c.part(id)
	log := c.v.log(node, id)
	c.asBatches(node, id)
	was := p.replica(node)
	p.replicas[node] = &replicaTrace{leaderEpoch: -1, epoch: -1, end: log.end, lossy: was.lossy, had: was.had, life: was.life, since: was.since}
	if mayLose && (log.end < endBefore || log.damaged) {
		c.forget(node, p, log.end, endBefore)
	}
}

func (c *checker) forget(node int32, p *partTrace, from, to int64) {
	p.gone = append(p.gone, forgotten{node, from, to})
	b, _ := c.newest.Broker(node)
	r := p.replica(node)
	if r.lossy {
		to = max(to, r.had)
	}
	r.lossy, r.had, r.life = true, to, b.Epoch
}

// wiped is called when a node no longer has a log: its assignment ended, or its
// disk was replaced.
func (c *checker) wiped(node int32, id partID, why string) {
	p := c.part(id)
	if why == diskReplaced {
		was := p.replica(node)
		c.forget(node, p, 0, was.end)
		p.replicas[node] = &replicaTrace{leaderEpoch: -1, epoch: -1, lossy: true, had: was.had, life: was.life, since: was.since}
		return
	}
	now, exists := c.partition(id)
	// One that was taken away and is to come again may not have heard of the latter.
	// Nobody counts on it before it has.
	late := c.node(node).index < p.replica(node).assigned && !slices.Contains(now.ISR, node) && !slices.Contains(now.ELR, node)
	if !c.ask(25, !exists || !slices.Contains(now.Replicas, node) || late) {
		c.fail("%v: node %d, a replica of %v, dropped its log: %s", id, node, now.Replicas, why)
	}
	p.replicas[node] = &replicaTrace{leaderEpoch: -1, epoch: -1, since: now.LeaderEpoch, dropped: p.replica(node).end}
}

// diskReplaced is why a log is gone that nobody removed.
const diskReplaced = "disk replaced"

// partition is what the newest metadata says.
func (c *checker) partition(id partID) (controller.Partition, bool) {
	t := c.newest.Topic(id.Topic)
	if t == nil || int(id.Partition) >= t.Partitions.Len() {
		return controller.Partition{}, false
	}
	return *t.Partitions.At(int(id.Partition)), true
}

// asBatches asks whether the epochs of a log are those of its batches.
func (c *checker) asBatches(node int32, id partID) {
	log := c.v.log(node, id)
	var want []epochStart
	for i := range log.batches {
		b := &log.batches[i]
		if n := len(want); n == 0 || want[n-1].epoch < b.epoch {
			want = append(want, epochStart{b.epoch, b.base})
		}
	}
	if !c.ask(5, slices.Equal(log.epochs, want)) {
		c.fail("%v: node %d has the epochs %v, its batches say %v", id, node, log.epochs, want)
	}
}

// asFolded asks whether what a log knows of producers is what its batches say.
func (c *checker) asFolded(node int32, id partID, log *simLog) {
	want, got := log.refold(), log.state()
	equal := len(want) == len(got)
	for pid, w := range want {
		g := got[pid]
		equal = equal && g != nil && g.epoch == w.epoch && slices.Equal(g.last, w.last)
	}
	if !c.ask(18, equal) {
		c.fail("%v: node %d knows the producers %v, its batches say %v", id, node, got, want)
	}
}

// speaks asks that a node with an I/O error is silent.
func (c *checker) speaks(node int32, what string) {
	if !c.ask(22, !c.node(node).broken) {
		c.fail("node %d %s after an I/O error", node, what)
	}
}
