package sim

import (
	"slices"

	"leat/replication"
	"leat/replication/controller"
)

// moved is called after each call of a replica that may have changed its high
// watermark, its role or who is in sync.
func (c *checker) moved(node int32, id partID) {
	r := c.v.replica(node, id)
	log := c.v.log(node, id)
	if r == nil || log == nil {
		return
	}
	p := c.part(id)
	c.regained(node, p, log)
	was := p.replica(node)
	part := r.Partition()
	epoch, hw, leads := r.LeaderEpoch(), r.HighWatermark(), r.Role() == replication.Leader
	if !c.ask(2, epoch >= was.leaderEpoch && part.Epoch >= was.epoch) {
		c.fail("%v: node %d is at epochs %d/%d, it was at %d/%d", id, node, epoch, part.Epoch, was.leaderEpoch, was.epoch)
	}
	// A cut lowers the high watermark before it shortens the log.
	if !c.ask(6, log.start <= hw && hw <= log.end) {
		c.fail("%v: node %d has a high watermark of %d and a log of %d to %d", id, node, hw, log.start, log.end)
	}
	if leads {
		same := was.leads && was.leaderEpoch == epoch
		if !c.ask(7, !same || hw >= was.hw) {
			c.fail("%v: the high watermark of node %d, which leads epoch %d, fell from %d to %d", id, node, epoch, was.hw, hw)
		}
		if same && hw > was.hw && hw > log.start {
			// That there are more replicas, which all must be in sync then, may be news to it.
			want := min(c.v.minISR(id), part.Factor())
			if !c.ask(12, len(part.ISR) >= want) {
				c.fail("%v: node %d raised the high watermark from %d to %d with %v in sync, there must be %d", id, node, was.hw, hw, part.ISR, want)
			}
		}
		c.commit(node, p, log, hw)
		c.holders(node, p, r, hw)
	}
	c.prefix(node, p, was, log, hw)
	was.leaderEpoch, was.epoch, was.hw, was.leads = epoch, part.Epoch, hw, leads
}

// commit takes into the truth what a leader says is committed, and asks whether
// all who may lead next have it: whatever the leader believes about them.
func (c *checker) commit(node int32, p *partTrace, log *simLog, hw int64) {
	before := p.end()
	c.believe(node, p, log, hw)
	now, exists := c.partition(p.id)
	if p.end() == before || !exists || p.unclean[now.LeaderEpoch] {
		return
	}
	epoch := c.v.replica(node, p.id).LeaderEpoch()
	for _, member := range now.ISR {
		c.holds(8, p, member, node, epoch, p.end())
	}
	for _, member := range now.ELR {
		c.holds(11, p, member, node, epoch, p.end())
	}
}

func (c *checker) believe(node int32, p *partTrace, log *simLog, hw int64) {
	for i := log.find(p.end()); i < len(log.batches) && log.batches[i].next() <= hw; i++ {
		b := log.batches[i]
		if c.buried(p, &b) {
			return
		}
		if !c.ask(7, b.base == p.end() || b.base > p.end() && b.base <= log.start && c.mayBegin(p)) {
			c.fail("%v: node %d commits %+v, all before ends at %d", p.id, node, b, p.end())
		}
		c.held[16]++
		if b.pid >= 0 {
			s := sequence{b.pid, b.pepoch, b.seq}
			at, twice := p.seqs[s]
			if twice && log.forgot(&b, at) {
				c.h.again[b.value] = true
			} else if !c.ask(17, !twice) {
				c.fail("%v: node %d commits %+v, which is at %d already", p.id, node, b, at)
			}
			p.seqs[s] = b.base
		}
		p.committed = append(p.committed, b)
	}
}

// mayBegin reports whether the truth may go on where a log begins: it has none, or
// its end was lost, and the log begins within the first batch of that.
func (c *checker) mayBegin(p *partTrace) bool {
	return len(p.committed) == 0 || slices.ContainsFunc(c.h.losses[p.id], func(l loss) bool { return l.from == p.end() })
}

// buried reports whether a batch is of a log that was given up as lost: who has
// not heard of it yet may go on.
func (c *checker) buried(p *partTrace, b *batch) bool {
	return c.h.killer(p.id, b.epoch, b.base) < len(c.h.losses[p.id])
}

// knew reports whether a batch that was given up is with a leader again, who may have
// to commit it anew, and a replica knows from before that it was committed.
func (c *checker) knew(node int32, p *partTrace, was *replicaTrace, b *batch, hw int64) bool {
	again, kept := c.h.keeper(p.id, b.epoch, b.base)
	heard := was.leaderEpoch >= 0 && c.v.replica(node, p.id).LeaderEpoch() >= again
	return kept && (hw <= was.hw || !heard)
}

// prefix asks whether a replica's log below its own high watermark is the
// committed one.
func (c *checker) prefix(node int32, p *partTrace, was *replicaTrace, log *simLog, hw int64) {
	if was.compared >= hw {
		return
	}
	for i := log.find(was.compared); i < len(log.batches) && log.batches[i].next() <= hw; i++ {
		b := &log.batches[i]
		if c.buried(p, b) || b.base >= p.end() && c.knew(node, p, was, b, hw) {
			return
		}
		if !c.ask(7, p.has(b)) {
			c.fail("%v: below the high watermark %d of node %d is %+v, committed are %v", p.id, hw, node, *b, p.committed)
		}
	}
	was.compared = hw
}

// holders asks whether those who may be in sync hold what is committed.
func (c *checker) holders(node int32, p *partTrace, r replicaView, hw int64) {
	for _, member := range r.Maximal() { // itself too: in fsync mode it is on its disk
		c.holds(8, p, member, node, r.LeaderEpoch(), hw)
	}
	for _, member := range r.Partition().ELR {
		c.holds(11, p, member, node, r.LeaderEpoch(), hw)
	}
}

// holds asks whether a node holds all below an offset, as far as a crash or a
// disk has not taken it, by what the leader of an epoch believes.
func (c *checker) holds(number int, p *partTrace, member, leader, epoch int32, hw int64) {
	log, was := c.v.log(member, p.id), p.replica(member)
	if log == nil || log.damaged || was.lossy || epoch < was.since || c.v.replica(member, p.id) == nil {
		return // or it is down, and nobody knows yet what it lost
	}
	// To the records of a leader that was deposed an unclean election may have put an end.
	over := func(l loss) bool { return epoch < l.epoch && l.from < hw }
	if !c.ask(number, c.acknowledged(log) >= hw || slices.ContainsFunc(c.h.losses[p.id], over)) {
		c.fail("%v: node %d has acknowledged %d, and must hold what node %d had committed or began with, up to %d", p.id, member, c.acknowledged(log), leader, hw)
	}
}

// acknowledged is what a replica may say it holds.
func (c *checker) acknowledged(log *simLog) int64 {
	if c.v.durable(log.id) {
		return log.durable
	}
	return log.end
}

// acked is called when a broker answers a producer that its batch is written.
func (c *checker) acked(node int32, id partID, b *batch, acks int8) {
	c.speaks(node, "acknowledges")
	if acks != -1 {
		c.leased(node, "acknowledges without waiting for others")
		return
	}
	p := c.part(id)
	holders := 0
	for _, host := range c.v.nodes() {
		log := c.v.log(host, id)
		was := p.replica(host)
		// One that has lost it meanwhile had it when it counted; with its disk the log is
		// gone, too. So had one that was taken away, or has removed it as asked, which
		// the leader has not heard.
		gone := log == nil && b.epoch < was.since && b.next() <= was.dropped
		if was.lossy || gone || log != nil && (log.damaged || c.has(log, b) || b.next() <= log.start && p.has(b)) {
			holders++
		}
	}
	r := c.v.replica(node, id)
	// Who has heard that the topic is deleted has removed what it held.
	_, exists := c.partition(id)
	if !c.ask(13, r != nil && b.next() <= r.HighWatermark() && (!exists || holders >= c.v.minISR(id))) {
		c.fail("%v: node %d acknowledges %+v, which %d nodes hold, there must be %d: %v", id, node, *b, holders, c.v.minISR(id), r)
	}
}

// has reports whether a batch is among the committed ones.
func (p *partTrace) has(b *batch) bool {
	i, found := slices.BinarySearchFunc(p.committed, b.base, func(b batch, base int64) int { return int(b.base - base) })
	return found && alike(&p.committed[i], b)
}

// has reports whether a log holds a batch so that it counts.
func (c *checker) has(log *simLog, b *batch) bool {
	i := log.find(b.base)
	return i < len(log.batches) && alike(&log.batches[i], b) && b.next() <= c.acknowledged(log)
}

// served is called when a node has given [from, next) to a consumer, or next as
// the latest offset.
func (c *checker) served(node int32, id partID, from, next int64) {
	c.speaks(node, "serves")
	r := c.v.replica(node, id)
	if !c.ask(14, r != nil && next <= r.HighWatermark()) {
		c.fail("%v: node %d serves %d to %d: %v", id, node, from, next, r)
	}
	c.leased(node, "serves")
}

func (c *checker) leased(node int32, what string) {
	if !c.ask(28, c.v.now() < c.v.lease(node)) {
		c.fail("node %d %s at %v, its lease ended at %v", node, what, c.v.now(), c.v.lease(node))
	}
	// Nobody may hold a lease whom the controller has taken for dead.
	b, registered := c.newest.Broker(node)
	if !c.ask(28, registered && !b.Fenced) {
		c.fail("node %d %s at %v by a lease to %v, it is fenced or unregistered", node, what, c.v.now(), c.v.lease(node))
	}
}

// applied is called when a node has applied metadata up to an index.
func (c *checker) applied(node int32, index uint64, old, next *controller.State) {
	n := c.node(node)
	if !c.ask(2, index >= n.index) {
		c.fail("node %d applies index %d behind %d", node, index, n.index)
	}
	n.index = index
	c.knows(node, index, next)
	if old == next || index <= c.index {
		return // the same change as with the node that was first, by I21
	}
	for _, id := range next.Brokers() {
		was, known := old.Broker(id)
		is, _ := next.Broker(id)
		if !c.ask(2, !known || is.Epoch > was.Epoch || is.Epoch == was.Epoch && is.Incarnation == was.Incarnation) {
			c.fail("broker %d went from epoch %d in life %s to %d in life %s", id, was.Epoch, was.Incarnation, is.Epoch, is.Incarnation)
		}
		_, known = c.newest.Broker(id) // one that comes back has an epoch that it never had
		if n := c.node(id); !c.ask(2, is.Epoch > n.epoch || known && is.Epoch == n.epoch) {
			c.fail("broker %d is at epoch %d, it was at %d", id, is.Epoch, n.epoch)
		} else {
			n.epoch = is.Epoch
		}
	}
	for _, t := range next.Topics() {
		before := old.Topic(t.ID)
		if before == t {
			continue
		}
		for i := range t.Partitions.Len() {
			was := controller.Partition{Leader: -1, LeaderEpoch: -1, Epoch: -1}
			if before != nil && i < before.Partitions.Len() {
				was = *before.Partitions.At(i)
			}
			id := partID{Topic: t.ID, Partition: int32(i)}
			c.decided(id, &was, t.Partitions.At(i), next)
			for _, member := range t.Partitions.At(i).Replicas {
				if !slices.Contains(was.Replicas, member) {
					c.part(id).replica(member).assigned = index
				}
			}
		}
	}
	c.index, c.newest = index, next
}

// knows asks whether the state that a node has at an index is that of all others: of
// entries that it applied, of a snapshot, and of its disk when it starts.
func (c *checker) knows(node int32, index uint64, s *controller.State) {
	n := c.node(node)
	if n.state != s {
		n.state, n.hash = s, s.Hash()
	}
	seen, known := c.applies[index]
	if !c.ask(21, !known || seen == n.hash) {
		c.fail("node %d has another state at index %d than the one that was there first", node, index)
	}
	c.applies[index] = n.hash
}

// decided asks about a partition as the controller made it.
func (c *checker) decided(id partID, was, is *controller.Partition, s *controller.State) {
	if !c.ask(2, is.LeaderEpoch >= was.LeaderEpoch && is.Epoch >= was.Epoch) {
		c.fail("%v: from epochs %d/%d to %d/%d", id, was.LeaderEpoch, was.Epoch, is.LeaderEpoch, is.Epoch)
	}
	if !c.ask(9, is.Leader < 0 || slices.Contains(is.ISR, is.Leader)) {
		c.fail("%v: leader %d is not in sync: %v", id, is.Leader, is.ISR)
	}
	p := c.part(id)
	for _, member := range is.ISR {
		if !slices.Contains(was.ISR, member) {
			if !c.ask(10, s.Eligible(member, -1)) {
				c.fail("%v: node %d comes into sync, it is not eligible", id, member)
			}
			if was.Epoch >= 0 && member != is.Leader && !slices.Contains(was.ELR, member) {
				if b, _ := s.Broker(member); b.Epoch > p.replica(member).life {
					// What it lost in an earlier life it must have got back.
					p.replica(member).lossy = false
				}
				// It may lead next, whatever its leader knows to be committed: that is not
				// behind where its leadership began (KAFKA-7128).
				c.holds(8, p, member, is.Leader, is.LeaderEpoch, max(p.end(), p.begins[is.LeaderEpoch]))
			}
		}
		if !c.ask(11, !slices.Contains(is.ELR, member)) {
			c.fail("%v: node %d is in sync and eligible without: %v, %v", id, member, is.ISR, is.ELR)
		}
		if !c.ask(9, slices.Contains(is.Replicas, member)) {
			c.fail("%v: node %d is in sync and no replica: %v", id, member, is.Replicas)
		}
	}
	if !c.ask(11, len(is.ELR) == 0 || len(is.ISR) < s.MinInSync(s.Topic(id.Topic), is.Factor())) {
		c.fail("%v: %v are eligible though %v are in sync", id, is.ELR, is.ISR)
	}
	if is.Leader < 0 || is.LeaderEpoch == was.LeaderEpoch {
		return
	}
	// One that comes into sync may lead by the same decision: that is a clean election.
	p.unclean[is.LeaderEpoch] = is.Recovering
}
