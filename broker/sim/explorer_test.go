package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// The explorer goes through every state that three real replicas and the real
// controller can get into within limits, breadth first, so that what it finds
// wrong is found on a shortest way. It knows no time but in steps of more than a
// lag, and no chance.
//
// A world is a few numbers of interned parts. What a step does to a part is a
// function of that part and of what comes to it: the cores compute it once, and
// from then on it is looked up. So a state takes some 30 bytes and a step about a
// microsecond, and nothing is taken to be the same by a hash alone.

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
	// flying is how many requests may be under way at once, 0 for as many as there
	// are.
	flying int
	// lagging lets one broker hear of new metadata at any later time, and not at
	// once; everybody lets all.
	lagging int32
}

// unlimited is a limit of what is not counted.
const unlimited = -1

const everybody = 4

// xused counts what is limited, and only that.
type xused struct{ records, restarts, losses, late, alters, ticks, fences int8 }

// spend takes one more of what is limited, if there is one.
func spend(used *int8, limit int) bool {
	if limit == unlimited {
		return true
	}
	if int(*used) >= limit {
		return false
	}
	*used++
	return true
}

// xworld is a state of everything.
type xworld struct {
	nodes [3]*xnode
	meta  *xmeta
	net   *xnet
	xrest
	// rest is the number that all but the nodes had in the state before.
	rest uint32
}

// xrest is what else there is in a world.
type xrest struct {
	used xused
	// committed is what any leader said is committed.
	committed xlog
	now       time.Duration
}

// restKey is all of a world but its nodes.
type restKey struct {
	meta, net uint32
	xrest
}

var explored = partID{Topic: storage.TopicID{7}}

// exploration is a search.
type exploration struct {
	limits exploreLimits
	// plain is to compute every step, and to reduce nothing to a normal form.
	plain bool
	// sparse has every n-th state healed.
	sparse int
	// most is how many states there may be, 0 for as many as there are.
	most uint32
	// progress, if not nil, is called now and then.
	progress func()

	states xset
	well   xset // which are known to get well
	parts
	memory memory
	renames
	decisions map[decisionKey]*xdecision

	// at is the place of the state that is expanded, step what is done to it.
	at   uint32
	step xstep
	// looking, if not nil, gets what steps lead to, in place of the search.
	looking func(w *xworld)

	// steps and healed count what was looked at; found is the first fault, with the
	// way to it.
	steps, healed int
	found         string
}

// parts are the interned parts of worlds.
type parts struct {
	nodes    []*xnode
	nodeOf   map[string]*xnode
	metas    []*xmeta
	metaOf   map[string]*xmeta
	msgs     []*xmsg
	msgOf    map[string]*xmsg
	nets     []*xnet
	netOf    map[[mostUnderWay]uint32]*xnet
	rests    []restKey
	restOf   map[restKey]uint32
	answers  uint32
	answerOf map[string]*xanswer
	replies  uint32
	replyOf  map[string]*xreply
}

func newExploration(limits exploreLimits) *exploration {
	return &exploration{
		limits: limits, sparse: 16,
		parts: parts{
			nodeOf: map[string]*xnode{}, metaOf: map[string]*xmeta{}, msgOf: map[string]*xmsg{}, netOf: map[[mostUnderWay]uint32]*xnet{},
			restOf: map[restKey]uint32{}, answerOf: map[string]*xanswer{}, replyOf: map[string]*xreply{},
		},
		memory: memory{extraOf: map[xextra]uint32{}}, renames: renames{map[metaRename]*xmeta{}, map[netRename]*xnet{}}, decisions: map[decisionKey]*xdecision{},
	}
}

// begin is three brokers of a fresh cluster with one partition.
func (x *exploration) begin() *xworld {
	records := []controller.Record{&controller.FeatureLevel{Level: controller.Level}, &controller.TopicCreated{ID: explored.Topic, Name: "t"}}
	for id := range int32(3) {
		id++
		b := controller.Broker{ID: id, UUID: fmt.Sprint(id), Incarnation: fmt.Sprint(id), Epoch: int64(id), MinLevel: 1, MaxLevel: controller.Level}
		records = append(records, &controller.BrokerRegistered{Broker: b})
	}
	records = append(records, &controller.PartitionChanged{Topic: explored.Topic, Partition: controller.Partition{
		Leader: 1, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3},
	}})
	state, err := controller.NewState().With(records)
	if err != nil {
		panic(err)
	}
	w := &xworld{meta: x.meta(state), net: x.net(nil)}
	for i := range w.nodes {
		n := &xnode{id: int32(i + 1), log: &xlog{}, epoch: int64(i + 1)}
		w.nodes[i] = x.started(x.node(n), w.meta)
		x.learn(w, i)
	}
	return w
}

// open starts the process of a node.
func (n *xnode) open() {
	n.r = replication.NewReplica(replication.Options{ID: explored, Self: n.id, MinInSync: 2}, n.log, n.hw)
	n.r.Lease(replication.Forever)
}

// pack is the numbers of a world.
func (x *exploration) pack(w *xworld) xstate {
	key := restKey{w.meta.num, w.net.num, w.xrest}
	if num := w.rest; int(num) < len(x.rests) && x.rests[num] == key {
		return xstate{w.nodes[0].num, w.nodes[1].num, w.nodes[2].num, num}
	}
	num, ok := x.restOf[key]
	if !ok {
		num = uint32(len(x.rests))
		x.rests = append(x.rests, key)
		x.restOf[key] = num
	}
	return xstate{w.nodes[0].num, w.nodes[1].num, w.nodes[2].num, num}
}

func (x *exploration) unpack(s xstate) (w xworld) {
	rest := &x.rests[s[3]]
	for i := range w.nodes {
		w.nodes[i] = x.nodes[s[i]]
	}
	w.rest = s[3]
	w.meta, w.net, w.xrest = x.metas[rest.meta], x.nets[rest.net], rest.xrest
	return w
}

// run explores what comes after some steps, until everything was seen or
// something is wrong.
func (x *exploration) run(after ...string) {
	w := x.begin()
	for _, step := range after {
		if w = x.only(w, step); w == nil {
			return
		}
	}
	x.visit(w)
	for x.at = 0; x.at < x.states.n && x.found == ""; x.at++ {
		w := x.unpack(x.states.at(x.at).state)
		x.expand(&w)
		if x.most > 0 && x.states.n > x.most {
			x.fail(&w, "there are more than %d states", x.most)
		}
		if x.progress != nil && x.at%(1<<18) == 0 {
			x.progress()
		}
	}
}

// only is the world after a step of that name.
func (x *exploration) only(from *xworld, step string) (to *xworld) {
	x.looking = func(w *xworld) {
		if x.step.describe(from) == step {
			c := *w
			to = &c
		}
	}
	x.expand(from)
	x.looking = nil
	if to == nil {
		x.fail(from, "there is no step %q here", step)
	}
	return to
}

// visit takes in a world unless it is known.
func (x *exploration) visit(w *xworld) {
	x.hear(w)
	if x.looking != nil {
		x.looking(w)
		return
	}
	x.steps++
	if x.found != "" || !x.states.add(x.pack(w), x.at) {
		return
	}
	if x.judge(w); x.found == "" && int(x.states.n)%x.sparse == 0 {
		x.heal(w)
	}
}

// hear has those hear of new metadata who do so at once.
func (x *exploration) hear(w *xworld) {
	if x.limits.lagging == 0 && !x.plain {
		x.settle(w)
		x.judgeLeaders(w)
		return
	}
	for i, n := range w.nodes {
		if n.r != nil && !w.meta.known(n) && x.limits.lagging != n.id && x.limits.lagging != everybody {
			x.learn(w, i)
		}
	}
	x.judgeLeaders(w)
	if !x.plain {
		x.normal(w)
	}
}

// fail notes the first fault and how it came about.
func (x *exploration) fail(w *xworld, format string, args ...any) {
	if x.found != "" || x.looking != nil {
		return
	}
	x.found = fmt.Sprintf(format, args...) + "\n" + strings.Join(x.way(), "\n") + "\n" + w.String()
}

// way is the steps to the state that is expanded, and the one that is done to it.
func (x *exploration) way() (way []string) {
	if x.states.n == 0 {
		return nil
	}
	last := x.unpack(x.states.at(x.at).state)
	way = append(way, "  "+x.step.describe(&last))
	for at := x.at; at > 0; {
		found := x.states.at(at)
		way = append(way, "  "+x.between(found.before, found.state))
		at = found.before
	}
	slices.Reverse(way)
	return way
}

// between is the step from a state to another.
func (x *exploration) between(from uint32, to xstate) (step string) {
	w, keep := x.unpack(x.states.at(from).state), x.step
	x.looking = func(c *xworld) {
		if step == "" && x.pack(c) == to {
			step = x.step.describe(&w)
		}
	}
	x.expand(&w)
	x.looking, x.step = nil, keep
	return step
}

func (w *xworld) String() string {
	out := fmt.Sprintf("%v\ncommitted %v, used %+v, now %v", w.meta, w.committed, w.used, w.now)
	for _, n := range w.nodes {
		out += "\n" + n.String()
	}
	for _, m := range w.net.msgs {
		out += "\n" + m.String()
	}
	return out
}
