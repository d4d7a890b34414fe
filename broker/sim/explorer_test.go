package sim

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// The explorer goes through every state that three real replicas and the real
// controller can get into with few records, elections and crashes, breadth
// first, so that what it finds wrong is found on a shortest way. It knows no
// time but in steps of more than a lag, and no chance.

// exploreLimits bound an exploration: what is counted over a whole way.
type exploreLimits struct {
	records   int // appended
	elections int // leader epochs after the first
	restarts  int // of processes
	losses    int // restarts that lose records of the page cache
	late      int // requests that arrive when their sender has given them up
	alters    int // changes of who is in sync that are asked for
	ticks     int // times in which a replica that does not fetch falls behind
	fences    int // of brokers that are not down
	// lagging lets one broker hear of new metadata at any later time, and not at
	// once; everybody lets all.
	lagging int32
}

const everybody = 4

// xrec is a record of one: the epoch it was written in, and its value.
type xrec struct {
	epoch int32
	value int8
}

// xlog is a log of single records from offset 0, in a page cache.
type xlog struct{ records []xrec }

func (l *xlog) append(r xrec)  { l.records = append(slices.Clip(l.records), r) }
func (l *xlog) cut(end int64)  { l.records = slices.Clip(l.records[:end]) }
func (l *xlog) end() int64     { return int64(len(l.records)) }
func (l *xlog) String() string { return fmt.Sprint(l.records) }

// Offsets implements replication.Log.
func (l *xlog) Offsets() storage.Offsets { return storage.Offsets{Durable: l.end(), End: l.end()} }

// EpochEnd implements replication.Log.
func (l *xlog) EpochEnd(epoch int32) (found int32, end int64, err error) {
	for end = l.end(); end > 0; end-- {
		if e := l.records[end-1].epoch; e <= epoch {
			return e, end, nil
		}
	}
	return -1, 0, nil
}

// xnode is a broker. What is reached from it is never changed: a step makes a
// new one.
type xnode struct {
	id    int32
	log   *xlog
	r     *replication.Replica // nil while it is down
	hw    int64                // what it noted before it went down
	epoch int64                // of its registration
	state *controller.State    // the metadata that it has applied
	// lossy is set while it may lack what it acknowledged before a crash.
	lossy bool
	key   string
}

func (n *xnode) clone() *xnode {
	c := *n
	c.key = ""
	c.log = &xlog{records: n.log.records}
	if n.r != nil {
		c.r = cloneReplica(n.r, c.log)
	}
	return &c
}

// has reports whether the log begins with that.
func (n *xnode) has(records []xrec) bool {
	return len(n.log.records) >= len(records) && slices.Equal(n.log.records[:len(records)], records)
}

// describe is all that tells two nodes apart.
func (n *xnode) describe() {
	b := make([]byte, 0, 256)
	b = strconv.AppendInt(append(b, 'b'), n.epoch, 10)
	b = strconv.AppendBool(append(b, ' '), n.lossy)
	for _, r := range n.log.records {
		b = strconv.AppendInt(append(b, ' '), int64(r.epoch), 10)
		b = strconv.AppendInt(append(b, ':'), int64(r.value), 10)
	}
	if n.r == nil {
		b = strconv.AppendInt(append(b, " down "...), n.hw, 10)
	} else {
		b = append(append(b, ' '), n.r.String()...)
	}
	n.key = string(b)
}

// xmsg is a request under way: to the controller, for another set in sync, or a
// fetch that nobody waits for any more.
type xmsg struct {
	from  int32
	life  int64 // of the sender
	to    int32 // of a fetch, 0 for the controller
	late  bool
	fetch replication.FetchRequest
	ask   controller.AlterPartition
	key   string
}

func (m *xmsg) String() string {
	if m.to > 0 {
		return fmt.Sprintf("late fetch %d -> %d %+v", m.from, m.to, m.fetch)
	}
	return fmt.Sprintf("request of %d for %+v late=%v", m.from, m.ask, m.late)
}

// xworld is a state of everything.
type xworld struct {
	nodes [3]*xnode
	meta  *controller.State
	part  controller.Partition // in meta
	facts string               // what of meta tells worlds apart
	net   []*xmsg              // by key
	now   time.Duration
	// committed is what any leader said is committed.
	committed []xrec
	used      exploreLimits
	way       *xway
}

// xway is how a world came about: by a step, after others.
type xway struct {
	before *xway
	step   string
}

var explored = partID{Topic: storage.TopicID{7}}

// exploration is a search.
type exploration struct {
	limits exploreLimits
	seed   maphash.Seed
	seen   map[uint64]struct{}
	queue  []*xworld
	// states, steps and healed count what was looked at; found is the first
	// fault, with the way to it.
	states, steps, healed int
	found                 string
	// sparse has every n-th state healed.
	sparse int
}

func newExploration(limits exploreLimits) *exploration {
	return &exploration{limits: limits, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}, sparse: 16}
}

// begin is three brokers of a fresh cluster with one partition.
func (x *exploration) begin() *xworld {
	w := &xworld{meta: controller.NewState()}
	records := []controller.Record{&controller.FeatureLevel{Level: controller.Level}, &controller.TopicCreated{ID: explored.Topic, Name: "t"}}
	for i := range w.nodes {
		id := int32(i + 1)
		b := controller.Broker{ID: id, UUID: fmt.Sprint(id), Incarnation: fmt.Sprint(id), Epoch: int64(id), MinLevel: 1, MaxLevel: controller.Level}
		records = append(records, &controller.BrokerRegistered{Broker: b})
	}
	records = append(records, &controller.PartitionChanged{Topic: explored.Topic, Partition: controller.Partition{
		Leader: 1, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3},
	}})
	x.commit(w, records)
	for i := range w.nodes {
		n := &xnode{id: int32(i + 1), log: &xlog{}, epoch: int64(i + 1)}
		x.open(n)
		x.learn(w, n)
		w.nodes[i] = n
	}
	return w
}

// open starts the process of a node.
func (x *exploration) open(n *xnode) {
	n.r = replication.NewReplica(replication.Options{ID: explored, Self: n.id, MinInSync: 2}, n.log, n.hw)
	n.r.Lease(replication.Forever)
}

// step is the controller that decides about an event.
func (x *exploration) step(w *xworld, ev controller.Event) controller.Reply {
	reply, records := controller.Step(w.meta, ev)
	x.commit(w, records)
	return reply
}

func (x *exploration) commit(w *xworld, records []controller.Record) {
	if len(records) == 0 {
		return
	}
	next, err := w.meta.With(records)
	if err != nil {
		x.fail(w, "the controller's records do not fit: %v", err)
		return
	}
	w.meta = next
	was := w.part
	w.part = *next.Topic(explored.Topic).Partitions.At(0)
	w.facts = fmt.Sprintf("%+v", w.part)
	for _, id := range next.Brokers() {
		b, _ := next.Broker(id)
		w.facts += fmt.Sprint(" ", b.Epoch, b.Fenced)
	}
	if p := w.part; p.Leader >= 0 && !slices.Contains(p.ISR, p.Leader) {
		x.fail(w, "I9: %+v", p)
	}
	for _, id := range w.part.ISR {
		if slices.Contains(w.part.ELR, id) || !slices.Contains(was.ISR, id) && !next.Eligible(id, -1) {
			x.fail(w, "I10, I11: %+v after %+v", w.part, was)
		}
	}
	for i, n := range w.nodes {
		if n != nil && n.lossy && n.r != nil && slices.Contains(w.part.ISR, n.id) && !slices.Contains(was.ISR, n.id) && w.part.Leader != n.id {
			w.own(i).lossy = false // in another life than lost it, so it must have got it back
		}
	}
	if w.part.LeaderEpoch < was.LeaderEpoch || w.part.Epoch < was.Epoch {
		x.fail(w, "I2: %+v after %+v", w.part, was)
	}
}

// fail notes the first fault and how it came about.
func (x *exploration) fail(w *xworld, format string, args ...any) {
	if x.found != "" {
		return
	}
	var way []string
	for at := w.way; at != nil; at = at.before {
		way = append(way, "  "+at.step)
	}
	slices.Reverse(way)
	x.found = fmt.Sprintf(format, args...) + "\n" + strings.Join(way, "\n") + "\n" + w.describe()
}

// describe is all that tells two worlds apart.
func (w *xworld) describe() string {
	b := make([]byte, 0, 1024)
	b = append(b, w.facts...)
	for _, r := range w.committed {
		b = append(b, byte(r.epoch), byte(r.value))
	}
	u := &w.used
	for _, n := range []int{u.records, u.elections, u.restarts, u.losses, u.late, u.alters, u.ticks, u.fences, int(w.now / time.Second)} {
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(n), 10)
	}
	for _, n := range w.nodes {
		if n.key == "" {
			n.describe()
		}
		b = append(append(b, '\n'), n.key...)
		if n.r == nil || n.state == w.meta {
			continue
		}
		b = append(b, " behind:"...)
		for _, o := range w.nodes {
			b = strconv.AppendBool(b, n.state.Eligible(o.id, o.epoch))
		}
	}
	for _, m := range w.net {
		b = append(append(b, '\n'), m.key...)
	}
	return string(b)
}

// child is the world after a step that has not been done yet.
func (w *xworld) child(step string) *xworld {
	c := *w
	c.way = &xway{w.way, step}
	c.net = slices.Clone(w.net)
	return &c
}

// own makes a node of a child its own.
func (w *xworld) own(i int) *xnode {
	n := w.nodes[i].clone()
	w.nodes[i] = n
	return n
}

func (w *xworld) send(m *xmsg) {
	m.key = m.String()
	i, _ := slices.BinarySearchFunc(w.net, m.key, func(m *xmsg, key string) int { return strings.Compare(m.key, key) })
	w.net = slices.Insert(w.net, i, m)
}

// run explores what comes after some steps, until everything was seen or
// something is wrong.
func (x *exploration) run(after ...string) {
	x.visit(x.begin())
	for _, step := range after {
		first := x.queue[0]
		x.queue = nil
		x.expand(first)
		x.queue = slices.DeleteFunc(x.queue, func(w *xworld) bool { return w.way.step != step })
		if len(x.queue) != 1 {
			x.fail(first, "there is no step %q here", step)
			return
		}
		x.seen = map[uint64]struct{}{} // the other steps may lead there again
	}
	for len(x.queue) > 0 && x.found == "" {
		w := x.queue[0]
		x.queue[0] = nil
		x.queue = x.queue[1:]
		x.expand(w)
	}
}

// visit takes in a world unless it is known.
func (x *exploration) visit(w *xworld) {
	x.steps++
	for i, n := range w.nodes {
		if n.r != nil && n.state != w.meta && x.limits.lagging != n.id && x.limits.lagging != everybody {
			x.learn(w, w.own(i))
		}
	}
	h := maphash.String(x.seed, w.describe())
	if _, known := x.seen[h]; known || x.found != "" {
		return
	}
	x.seen[h] = struct{}{}
	x.states++
	if x.judge(w); x.found == "" && x.states%x.sparse == 0 {
		x.heal(w)
	}
	x.queue = append(x.queue, w)
}

// judge asks the invariants of a world. It takes what leaders have committed
// into it.
func (x *exploration) judge(w *xworld) {
	x.judgeLeaders(w)
	for i, n := range w.nodes {
		x.judgeNode(w, n)
		if candidate := slices.Contains(w.part.ISR, n.id) || slices.Contains(w.part.ELR, n.id); candidate && !n.lossy && !n.has(w.committed) {
			x.fail(w, "I7: node %d, which may lead, has %v, committed is %v", n.id, n.log, w.committed)
		}
		for _, o := range w.nodes[i+1:] {
			x.judgePair(w, n.log.records, o.log.records)
		}
	}
}

func (x *exploration) judgeNode(w *xworld, n *xnode) {
	if n.r == nil {
		return
	}
	hw := n.r.HighWatermark()
	switch {
	case hw > n.log.end():
		x.fail(w, "I6: node %d has the high watermark %d and a log to %d", n.id, hw, n.log.end())
	case int(hw) > len(w.committed) || !slices.Equal(n.log.records[:hw], w.committed[:hw]):
		x.fail(w, "I7: node %d believes that %v is committed, committed is %v", n.id, n.log.records[:hw], w.committed)
	case n.r.Failed() != nil:
		x.fail(w, "node %d has failed: %v", n.id, n.r.Failed())
	}
}

func (x *exploration) judgeLeaders(w *xworld) {
	for _, n := range w.nodes {
		if n.r != nil && n.r.Role() == replication.Leader && n.r.HighWatermark() <= n.log.end() {
			x.judgeLeader(w, n)
		}
	}
}

func (x *exploration) judgeLeader(w *xworld, n *xnode) {
	mine := n.log.records[:n.r.HighWatermark()]
	if len(mine) > len(w.committed) && slices.Equal(mine[:len(w.committed)], w.committed) {
		if len(n.r.Partition().ISR) < 2 {
			x.fail(w, "I12: node %d commits with %v in sync", n.id, n.r.Partition().ISR)
		}
		w.committed = slices.Clone(mine)
	}
	for _, id := range n.r.Maximal() {
		if m := w.nodes[id-1]; m.log.end() < n.r.HighWatermark() && !m.lossy {
			x.fail(w, "I8: node %d, in sync, ends at %d, the high watermark of node %d is %d", id, m.log.end(), n.id, n.r.HighWatermark())
		}
	}
}

// judgePair is the log matching property.
func (x *exploration) judgePair(w *xworld, a, b []xrec) {
	equal := true
	for i := range min(len(a), len(b)) {
		switch {
		case a[i].epoch != b[i].epoch:
			equal = false
		case a[i] != b[i]:
			x.fail(w, "I3: offset %d of epoch %d has two values: %v %v", i, a[i].epoch, a, b)
		case !equal:
			x.fail(w, "I4: equal at %d and not before: %v %v", i, a, b)
		}
	}
}

var errGivenUp = errors.New("no answer in time")

// learn has a node apply the newest metadata.
func (x *exploration) learn(w *xworld, n *xnode) {
	n.state = w.meta
	change, err := n.r.Decide(w.part, w.meta, w.now)
	if err != nil {
		x.fail(w, "node %d refuses the metadata: %v", n.id, err)
	}
	if change.NewEpoch && change.Role == replication.Leader {
		if !n.has(w.committed) {
			x.fail(w, "I7: node %d leads epoch %d with %v, committed is %v", n.id, w.part.LeaderEpoch, n.log, w.committed)
		}
	}
}
