package sim

import (
	"io"
	"math/rand/v2"
	"time"

	"leat/replication/quorum"
	"leat/storage"
)

// phase is where a run is.
type phase uint8

const (
	phaseStart  phase = iota // nodes start, topics are made
	phaseFaults              // clients work, things go wrong
	phaseHeal                // everything is put right, clients end what they began
	phaseQuiet               // nobody asks for anything
)

// world is a cluster with its clients, on one kernel.
type world struct {
	*kernel
	seed  uint64
	cfg   simConfig
	net   *network
	nodes []*node
	// checks judges each step, hist at the end what clients were told.
	checks *checker
	hist   *history
	counts counts
	phase  phase
	broken string // what was found wrong first
	// counted is the newest entry of the metadata that was counted.
	counted uint64

	partitions []partID
	producers  []*producer
	// groupTopic is __consumer_offsets.
	groupTopic storage.TopicID
	committers []*committer
	memberIDs  int
	commits    int64
	consumers  []*consumer
	crew       *crew // nil for none
	processes  int
	values     uint64
	losses     []*mishap
	shrunk     []*shrink
	// quorum is what is known of the members, by who has applied most so far.
	quorum quorum.Status
}

func (w *world) node(id int32) *node { return w.nodes[id-1] }

func (w *world) newProcess() int {
	w.processes++
	return w.processes
}

// newValues takes as many values as there are records; none is ever given again.
func (w *world) newValues(count int32) uint64 {
	first := w.values + 1
	w.values += uint64(count)
	return first
}

// ends are all ends of the network, nodes first.
func (w *world) ends() []addr {
	var out []addr
	for _, n := range w.nodes {
		out = append(out, n.addr())
	}
	for i := range w.cfg.clients() {
		out = append(out, clientBase+addr(i))
	}
	return out
}

func (c *simConfig) clients() int {
	n := 1 + c.producers + c.consumers + c.groups + c.members
	if c.renew > 0 {
		n += 2
	}
	return n
}

// newTopicID draws an id from the seed.
func (w *world) newTopicID() (id storage.TopicID) {
	for i := range id {
		id[i] = byte(w.rng.Uint32())
	}
	return id
}

// newTopicOf is an id of a topic of that mode.
func (w *world) newTopicOf(durable bool) storage.TopicID {
	id := w.newTopicID()
	if w.cfg.mixed {
		id[0] &^= 1
		if durable {
			id[0] |= 1
		}
	}
	return id
}

func newWorld(seed uint64, log io.Writer) *world {
	k := newKernel(seed)
	k.log = log
	w := &world{kernel: k, seed: seed, cfg: swarm(k)}
	w.cfg.losing(rand.New(rand.NewPCG(seed, 0x1ea9)))
	w.cfg.shrinking(rand.New(rand.NewPCG(seed, 0x1eaa)))
	w.cfg.troubled(rand.New(rand.NewPCG(seed, 0x1eab)))
	w.net = newNetwork(k, &w.counts)
	w.net.there = w.presence
	w.hist = newHistory()
	w.checks = newChecker(worldView{w}, w.hist)
	for i := range w.cfg.nodes {
		w.nodes = append(w.nodes, newNode(w, int32(i+1)))
		if w.cfg.apart > 0 {
			for j := range w.cfg.nodes {
				if j != i {
					w.net.links[i+1][j+1].far = time.Duration(k.more.Int64N(int64(w.cfg.apart)))
				}
			}
		}
	}
	return w
}

// failed notes what was found wrong; the first ends the run.
func (w *world) failed(invariant, what string) {
	if w.broken == "" {
		w.broken = invariant + ": " + what
		w.trace("FAILED %s", w.broken)
		w.dump()
	}
}

// dump tells how every replica is.
func (w *world) dump() {
	if !w.tracing() {
		return
	}
	for _, n := range w.nodes {
		if n.p == nil {
			continue
		}
		w.trace("node %d: %+v", n.id, n.p.meta.core.Status())
		for _, r := range n.p.order {
			w.trace("node %d %s: %+v epochs %v cutting %v %v: %v", n.id, short(r.id), r.log.Offsets(), r.log.epochs, r.cutting, r.core.Failed(), r.core)
		}
	}
}

func (w *world) over() bool { return w.broken != "" }

// simulate runs a seed to its end. It returns what was found wrong, "" if nothing
// was.
func (w *world) simulate() string {
	w.trace("seed %d: %v", w.seed, &w.cfg)
	for _, n := range w.nodes {
		w.at(w.between(0, 100*time.Millisecond), nil, n.start)
	}
	ready := false
	w.at(0, nil, func() { w.whenReady(func() { ready = true }) })
	w.run(time.Minute, func() bool { return ready || w.over() })
	if !ready {
		w.failed("start", "no cluster after a minute")
		return w.broken
	}
	w.work()
	w.phase = phaseFaults
	w.net.faults = w.cfg.net
	for _, n := range w.nodes {
		n.disk.faults = w.cfg.disk
	}
	w.at(w.cfg.every, nil, w.faults)
	w.at(w.cfg.admin, nil, w.operate)
	if w.cfg.lastResort {
		w.at(w.cfg.every, nil, w.rescue)
	}
	if w.cfg.losses > 0 {
		w.at(w.cfg.lossEvery, nil, w.lose)
	}
	if w.cfg.shrinks > 0 {
		w.at(w.cfg.shrinkEvery, nil, w.shrinks)
	}
	w.run(w.now+w.cfg.faulty, w.over)
	w.heal()
	w.run(w.now+w.between(0, 2*time.Second), w.over)
	w.quiet()
	// By then everything must be well; most often it is much earlier.
	limit := w.now + w.cfg.session + w.cfg.lag + 20*time.Second
	for calm := 0; w.now < limit && calm < 3 && !w.over(); {
		w.run(w.now+200*time.Millisecond, w.over)
		if calm++; !w.well() {
			calm = 0
		}
	}
	if w.crew != nil && !w.over() {
		if what := w.crew.behind(); what != "" {
			w.failed("group", what+w.crew.String())
		}
	}
	if what := w.unsettled(); what != "" && !w.over() {
		w.failed("quorum", what)
	}
	if !w.over() {
		w.checks.quiesced()
	}
	w.countVoters()
	w.counts.seeds, w.counts.steps = 1, w.steps
	w.counts.groupAsked = w.checks.groupHeld
	if w.cfg.drift != nil {
		w.counts.drifting = 1
	}
	if w.cfg.mixed {
		w.counts.mixed = 1
	}
	if w.cfg.apart > 0 {
		w.counts.apart = 1
	}
	if w.cfg.faulty > 20*time.Second {
		w.counts.long = 1
	}
	return w.broken
}

// whenReady calls done once every broker is registered and in service.
func (w *world) whenReady(done func()) {
	for _, n := range w.nodes {
		if n.p != nil && n.p.meta.desk.Deciding() {
			s := n.p.meta.shown
			all := true
			for _, n := range w.nodes {
				all = all && s.Eligible(n.id, -1)
			}
			if all {
				done()
				return
			}
		}
	}
	w.at(20*time.Millisecond, nil, func() { w.whenReady(done) })
}

var topicNames = []string{"topic", "other"}

// work makes the topics, and the clients that use them.
func (w *world) work() {
	missing := 0
	end := clientBase
	next := func() addr {
		end++
		return end
	}
	modes := []bool{w.cfg.fsync}
	if w.cfg.mixed {
		modes = append(modes, !w.cfg.fsync)
	}
	for t, durable := range modes {
		missing++
		w.createTopic(w.newTopicOf(durable), topicNames[t], w.cfg.partitions, w.cfg.rf, func(ids []partID) {
			missing--
			w.partitions = append(w.partitions, ids...)
			for i := t; i < w.cfg.producers; i += len(modes) {
				w.addProducer(next(), ids[i/len(modes)%len(ids)], pick(w.rng, w.cfg.acks...))
			}
			for i := t; i < w.cfg.consumers; i += len(modes) {
				w.addConsumer(next(), ids[i/len(modes)%len(ids)])
			}
		})
	}
	var groups partID
	if w.cfg.groups > 0 || w.cfg.members > 0 {
		missing++
		w.groupTopic = w.newTopicOf(true)
		w.createTopic(w.groupTopic, "__consumer_offsets", 1, w.cfg.rf, func(ids []partID) {
			missing--
			groups = ids[0]
			for range w.cfg.groups {
				w.addCommitter(next(), ids[0], partID{Topic: w.newTopicID()})
			}
		})
	}
	w.run(w.now+time.Minute, func() bool { return missing == 0 || w.over() })
	if missing == 0 && w.cfg.members > 0 {
		w.addCrew(next, groups, w.partitions[0])
	}
	if missing == 0 && w.cfg.renew > 0 {
		w.addRenewal(next)
	}
}

// heal puts everything right.
func (w *world) heal() {
	w.phase = phaseHeal
	w.trace("healed")
	w.net.heal()
	for _, n := range w.nodes {
		n.disk.faults, n.disk.stalled, n.disk.crawl, n.disk.full = soundDisk, 0, 0, 0
		if n.p != nil {
			n.p.paused = 0
		}
		// The scrub finds every bit that has flipped, and what was found before it was
		// deleted.
		for _, id := range n.logIDs() {
			if l := n.logs[id]; l.damaged || !l.intact() {
				n.crash(false, false)
			}
		}
		n.start()
	}
}

// quiet has the clients end what they began.
func (w *world) quiet() {
	w.phase = phaseQuiet
	for _, p := range w.producers {
		p.done = true
	}
	for _, c := range w.committers {
		c.done = true
	}
}

// well reports whether clients have ended, and every partition is led and wholly
// in sync.
func (w *world) well() bool {
	for _, p := range w.producers {
		if len(p.sending) > 0 {
			return false
		}
	}
	if w.crew != nil && w.crew.behind() != "" {
		return false
	}
	var m *metadata
	for _, n := range w.nodes {
		if n.gone {
			continue
		}
		if n.p == nil || m != nil && n.p.meta.applied != m.applied {
			return false
		}
		m = n.p.meta
	}
	if w.unsettled() != "" {
		return false
	}
	s := m.shown
	for _, t := range s.Topics() {
		for i := range t.Partitions.Len() {
			id, part := partID{Topic: t.ID, Partition: int32(i)}, t.Partitions.At(i)
			if part.Leader < 0 || len(part.ISR) < len(part.Replicas) || len(part.Adding) > 0 || w.gonePartly(part.Replicas) {
				return false
			}
			leader := w.node(part.Leader).p.replicas[id]
			if leader == nil || leader.core.CheckAppend(false, leader.p.now()) != nil {
				return false
			}
			for _, r := range part.Replicas {
				other := w.node(r).p.replicas[id]
				if leader == nil || other == nil || other.core.HighWatermark() != leader.log.end {
					return false
				}
			}
		}
	}
	return true
}
