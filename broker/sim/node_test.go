package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// errNotHere says that a node has no replica of the partition.
var errNotHere = errors.New("no replica here")

// node is a machine with a disk and, while it runs, a process.
type node struct {
	w    *world
	id   int32
	disk *disk
	// What is on the disk: the metadata store, logs, and how far they were
	// committed at the last checkpoint.
	store *metaStore
	logs  map[partID]*diskLog
	p     *process // nil: down
	// off says that the machine has no power.
	off    bool
	starts int
	cuts   int // power cuts
	disks  int // that it has had before
	// gone says that it does not start any more.
	gone bool
	// crashed says that the last process did not end by itself, powerless that what
	// was not synced may be gone: the next start finds out.
	crashed, powerless bool
	// memberID is the node's id in the quorum, once it was asked for.
	memberID uint64
	// voters are those of the quorum as the node told last.
	voters []uint64
}

// diskLog is a log and what the broker keeps beside it.
type diskLog struct {
	*simLog
	hw int64 // checkpointed
	// view is the committed view of a group partition, saved what of it is durable.
	view, saved *groupView
}

// crash is simLog's, and leaves of the view what was durable, or more.
func (l *diskLog) crash(power bool, rng *rand.Rand, c *counts) {
	l.simLog.crash(power, rng, c)
	if l.view != nil && rng.IntN(2) == 0 {
		l.view = l.saved.clone()
	}
}

func newNode(w *world, id int32) *node {
	n := &node{w: w, id: id, disk: newDisk(w.kernel, &w.counts), logs: map[partID]*diskLog{}}
	n.disk.run = runFile{clean: true, epoch: -1}
	n.store = newMetaStore(n)
	return n
}

func (n *node) addr() addr { return addr(n.id) }

// presence is what stands at an end of the network.
func (w *world) presence(a addr) (p presence, stopped time.Duration) {
	if a >= clientBase {
		return listening, 0
	}
	switch n := w.node(int32(a)); {
	case n.p != nil:
		return listening, max(n.p.paused-w.now, 0)
	case n.off:
		return silent, 0
	default:
		return refusing, 0
	}
}

// process is one run of a broker.
type process struct {
	n *node
	w *world
	*life
	began    time.Duration
	meta     *metadata
	session  *session
	replicas map[partID]*replica
	order    []*replica // by id
	fetchers map[int32]*fetcher
	flushing bool
	stopping bool
	parked   uint64 // requests that ever waited
}

// now is the clock of the process.
func (p *process) now() replication.Instant {
	if p.w.cfg.drift == nil {
		return p.w.now - p.began
	}
	return replication.Instant(float64(p.w.now-p.began) * p.w.cfg.drift[p.n.id-1])
}

// told is the time of the world at an instant of the process's clock.
func (p *process) told(at replication.Instant) time.Duration {
	if p.w.cfg.drift == nil {
		return p.began + at
	}
	return p.began + time.Duration(float64(at)/p.w.cfg.drift[p.n.id-1])
}

// in has run called by the process after d.
func (p *process) in(d time.Duration, run func()) { p.w.at(d, p.life, run) }

// start runs the process: logs are recovered, then it registers.
func (n *node) start() {
	w := n.w
	if n.p != nil || n.gone {
		return
	}
	n.off = false
	n.starts++
	p := &process{n: n, w: w, life: &life{}, began: w.now, replicas: map[partID]*replica{}, fetchers: map[int32]*fetcher{}}
	run := n.disk.run
	power := n.disk.lossPossible()
	n.disk.run.clean = false // before anything else (KAFKA-10471)
	if w.tracing() {
		w.trace("node %d starts, clean %v, loss possible %v", n.id, run.clean, power)
	}
	var unclean, lost []storage.ID // lost of what was acknowledged
	for _, id := range n.logIDs() {
		l := n.logs[id]
		before := l.end
		if n.crashed {
			l.crash(n.powerless, w.rng, &w.counts)
		}
		l.recover()
		if l.damaged {
			// The operator gives the log up, to be fetched anew.
			n.logs[id] = &diskLog{simLog: newLog(id)}
			w.counts.damaged++
			w.checks.wiped(n.id, id, diskReplaced)
			run.epoch, n.disk.run.epoch = -1, -1 // what it had acknowledged is lost
			unclean = append(unclean, id)
			continue
		}
		cached := power && !w.cfg.durable(id.Topic)
		if cached {
			lost = append(lost, id)
		}
		if w.cfg.mixed && cached && l.end < before {
			w.counts.shortened++
		}
		w.checks.recovered(n.id, id, before, cached)
		if power {
			unclean = append(unclean, id)
		}
	}
	n.crashed, n.powerless = false, false
	n.p = p
	// A loss is owed to the controller until it knows, over any number of starts.
	n.disk.run.boot, n.disk.run.io, n.disk.run.owed = n.disk.boots, false, len(unclean) > 0 || power
	w.checks.restarted(n.id)
	p.open(run, unclean, lost)
}

func (n *node) logIDs() []partID {
	ids := make([]partID, 0, len(n.logs))
	for id := range n.logs {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func compareIDs(a, b partID) int {
	if c := slices.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.Partition, b.Partition)
}

// end ends the process without a word.
func (n *node) end(how string) {
	n.p.over = true
	n.p = nil
	n.w.checks.stopped(n.id)
	if n.w.tracing() {
		n.w.trace("node %d ends: %s", n.id, how)
	}
}

// crash is kill -9, a power cut, or the end after an I/O error, for which what was
// not synced may be lost too. It reports whether there was something to end.
func (n *node) crash(power, io bool) bool {
	if n.p == nil && (!power || n.off) {
		return false
	}
	if n.p != nil {
		n.end(map[bool]string{false: "killed", true: "power cut"}[power])
	}
	n.disk.run.io = n.disk.run.io || io
	if power {
		n.off = true
		n.disk.boots++
		n.cuts++
	}
	n.store.crash(power || io)
	n.crashed = true
	n.powerless = n.powerless || power || io
	return true
}

// failed is a disk that has failed for good: the process stops acknowledging and
// ends (exit 74); its supervisor starts it again.
func (p *process) failed() {
	p.w.checks.ioFailed(p.n.id)
	p.n.crash(false, true)
	p.w.startAfter(p.n, p.w.between(100*time.Millisecond, time.Second))
}

// pause is SIGSTOP and, later, SIGCONT.
func (n *node) pause(d time.Duration) {
	if n.p == nil {
		return
	}
	n.p.paused = max(n.p.paused, n.w.now+d)
	for _, r := range n.p.order { // who waits, waits so much longer
		for i := range r.waiting {
			q := &r.waiting[i]
			q.deadline += d
			n.w.checks.parked(n.id, q.request, q.deadline)
			n.p.in(q.deadline-n.w.now, r.answerWaiting)
		}
	}
}

// apply is called with each state that the process has applied.
func (p *process) apply(next *controller.State) {
	self := p.n.id
	if b, ok := next.Broker(self); !ok || p.epoch() < 0 || b.Epoch != p.epoch() {
		// Until it knows of its own registration it knows nothing about who leads.
		return
	}
	for _, t := range next.Topics() {
		for i := range t.Partitions.Len() {
			id := partID{Topic: t.ID, Partition: int32(i)}
			if r := p.replicas[id]; r != nil || slices.Contains(t.Partitions.At(i).Replicas, self) {
				p.decide(id, t.Partitions.At(i), next)
			}
		}
	}
	for _, r := range slices.Clone(p.order) {
		if next.Topic(r.id.Topic) == nil {
			p.remove(r, "topic deleted")
		}
	}
	p.fetchAll()
}

// decide has the replica follow what is decided about its partition.
func (p *process) decide(id partID, part *controller.Partition, s *controller.State) {
	r := p.replicas[id]
	if !slices.Contains(part.Replicas, p.n.id) {
		if r != nil {
			p.remove(r, "unassigned")
		}
		return
	}
	if r == nil {
		r = p.openReplica(id)
	}
	r.decide(*part, s)
}

// remove ends a replica and its log: a committed record says so.
func (p *process) remove(r *replica, why string) {
	r.closed = true
	r.release(errNotHere)
	delete(p.replicas, r.id)
	p.order = slices.DeleteFunc(p.order, func(o *replica) bool { return o == r })
	delete(p.n.logs, r.id)
	p.w.checks.wiped(p.n.id, r.id, why)
}

func (p *process) openReplica(id partID) *replica {
	l := p.n.logs[id]
	if l == nil {
		l = &diskLog{simLog: newLog(id)}
		p.n.logs[id] = l
	}
	r := newReplica(p, l)
	p.replicas[id] = r
	if id.Topic == p.w.groupTopic {
		r.coordinate()
	}
	i, _ := slices.BinarySearchFunc(p.order, id, func(o *replica, id partID) int { return compareIDs(o.id, id) })
	p.order = slices.Insert(p.order, i, r)
	return r
}

// String names a partition shortly, for traces.
func short(id partID) string { return fmt.Sprintf("%x-%d", id.Topic[:2], id.Partition) }
