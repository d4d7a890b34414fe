package sim

import (
	"cmp"
	"slices"
	"time"

	"leat/replication/controller"
)

// restarted is called when a process begins.
func (c *checker) restarted(node int32) {
	n := c.node(node)
	n.broken, n.index = false, 0
}

// replaced is called when a node is another member of the quorum, which has promised
// nothing yet.
func (c *checker) replaced(node int32) {
	n := c.node(node)
	n.term, n.vote = 0, 0
}

// stopped is called when a process has ended: who waited for it is told by the
// connection.
func (c *checker) stopped(node int32) { clear(c.node(node).parked) }

// ioFailed is called when a disk has failed a write or a sync of a process.
func (c *checker) ioFailed(node int32) { c.node(node).broken = true }

// parked is called when a request of a client begins to wait.
func (c *checker) parked(node int32, request uint64, deadline time.Duration) {
	c.node(node).parked[request] = deadline
}

// overtime is how much longer than its deadline a request may take.
const overtime = time.Second

func (c *checker) answered(node int32, request uint64) {
	n := c.node(node)
	if deadline, ok := n.parked[request]; ok {
		if !c.ask(23, c.v.now() <= deadline+overtime) {
			c.fail("node %d answers request %d at %v, its time was over at %v", node, request, c.v.now(), deadline)
		}
		delete(n.parked, request)
	}
}

// proposed is called when a controller has decided something in a term. barrier
// says that it had applied an entry of that term of its own.
func (c *checker) proposed(node int32, term uint64, barrier bool) {
	c.speaks(node, "decides")
	if !c.ask(26, barrier) {
		c.fail("node %d decides in term %d before it knows what was decided before", node, term)
	}
}

// promise is what a node tells another member of the quorum about itself.
type promise struct {
	term uint64
	// vote is who it votes for in that term, 0 for nobody; last the entry that it
	// says it has, 0 for none.
	vote, last uint64
	// replaced is the least entry that it says, in the same breath, it has of the
	// log of a leader of a later term; 0 if it says nothing of the kind.
	replaced uint64
}

// kept reports whether the entry that is promised is on a disk. A later leader
// may have replaced it before the promise left: what is said then is that it was
// there, in an order that the network could have made as well. That leader's log
// must be there instead, in a later term.
func (m promise) kept(disk promise) bool {
	if m.replaced > 0 && m.replaced < m.last {
		return disk.term > m.term && disk.last >= m.replaced
	}
	return disk.last >= m.last
}

// inOrder sorts the promises of one save by their terms, and notes with each what
// the later ones have replaced of it.
func inOrder(said []promise) {
	slices.SortStableFunc(said, func(a, b promise) int { return cmp.Compare(a.term, b.term) })
	for i := range said {
		for _, later := range said[i+1:] {
			if later.term > said[i].term && later.last > 0 && (said[i].replaced == 0 || later.last < said[i].replaced) {
				said[i].replaced = later.last
			}
		}
	}
}

// promised is called when such a message leaves, with what is on the disk then.
func (c *checker) promised(node int32, m, disk promise) {
	c.speaks(node, "votes")
	n := c.node(node)
	if !c.ask(27, disk.term >= m.term && m.kept(disk) && (m.vote == 0 || disk.term > m.term || disk.vote == m.vote)) {
		c.fail("node %d promises %+v, on its disk is %+v", node, m, disk)
	}
	// Also over restarts and power cuts.
	if !c.ask(2, m.term >= n.term) {
		c.fail("node %d is at term %d, it was at %d", node, m.term, n.term)
	}
	if !c.ask(27, m.vote == 0 || m.term > n.term || n.vote == 0 || n.vote == m.vote) {
		c.fail("node %d votes for %d in term %d, it voted for %d", node, m.vote, m.term, n.vote)
	}
	if m.term > n.term {
		n.term, n.vote = m.term, 0
	}
	if m.vote != 0 {
		n.vote = m.vote
	}
}

// folded is called when a replica of a group partition has applied it up to an
// offset; equal says that its state is the fold of the log up to there.
func (c *checker) folded(node int32, id partID, applied int64, equal bool) {
	r := c.v.replica(node, id)
	if !c.ask(19, r != nil && applied <= r.HighWatermark() && equal) {
		c.fail("%v: node %d has applied groups up to %d (the fold of its log: %v): %v", id, node, applied, equal, r)
	}
}

// quiesced is called when faults have been over for long enough that everything
// must be well again. It takes the logs into the history, and judges that.
func (c *checker) quiesced() {
	for _, node := range c.v.nodes() {
		n := c.node(node)
		for request, deadline := range n.parked {
			if !c.ask(23, c.v.now() <= deadline+overtime) {
				c.fail("node %d has not answered request %d, its time was over at %v", node, request, deadline)
			}
		}
	}
	for _, t := range c.newest.Topics() {
		for i := range t.Partitions.Len() {
			c.settled(partID{Topic: t.ID, Partition: int32(i)}, t.Partitions.At(i))
		}
	}
	anomalies := c.h.check()
	c.held[20] += c.h.judged
	for _, a := range anomalies {
		c.v.failed(a.name, a.String()+"\n"+c.h.around(a.id, a.offset))
	}
}

// settled asks whether a partition is well, and notes what it holds.
func (c *checker) settled(id partID, is *controller.Partition) {
	p := c.part(id)
	alive := func(node int32) bool {
		log := c.v.log(node, id)
		return c.newest.Eligible(node, -1) && (log == nil || !log.damaged)
	}
	if is.Leader < 0 {
		if !c.ask(24, !slices.ContainsFunc(slices.Concat(is.ISR, is.ELR), alive)) {
			c.fail("%v: nobody leads, %v were in sync, %v may lead", id, is.ISR, is.ELR)
		}
		return
	}
	if !alive(is.Leader) {
		return // it cannot tell from its disk what it has, nor can anybody else
	}
	leader := c.v.replica(is.Leader, id)
	if !c.ask(24, leader != nil && c.v.now() < c.v.lease(is.Leader)) {
		c.fail("%v: node %d does not lead", id, is.Leader)
	}
	hw := leader.HighWatermark()
	c.note(is.Leader, p, hw)
	for _, node := range is.Replicas {
		if node == is.Leader || !alive(node) {
			continue
		}
		r := c.v.replica(node, id)
		if !c.ask(24, r != nil && slices.Contains(is.ISR, node)) {
			c.fail("%v: node %d is not in sync: %v", id, node, is.ISR)
		}
		if !c.ask(24, r.HighWatermark() == hw) {
			c.fail("%v: node %d is at %d, the leader at %d", id, node, r.HighWatermark(), hw)
		}
		c.note(node, p, hw)
	}
	if !c.ask(7, p.end() <= hw) {
		c.fail("%v: at the end %d are committed, there were %d", id, hw, p.end())
	}
}

func (c *checker) note(node int32, p *partTrace, hw int64) {
	log := c.v.log(node, p.id)
	c.asFolded(node, p.id, log)
	c.asBatches(node, p.id)
	c.h.final(p.id, node, log.start, hw, slices.Clone(log.batches))
}
