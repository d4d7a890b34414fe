package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"leat/replication"
	"leat/replication/controller"
)

// The parts of a world are interned: what is equal is the same, with a number of
// its own, and is never changed.

// xbroker is what the metadata says about a broker beside its partition.
type xbroker struct {
	epoch  int64
	fenced bool
}

// xnode is a broker.
type xnode struct {
	id    int32
	log   *xlog
	r     *replication.Replica // nil while it is down
	hw    int64                // of the replica, or what it noted before it went down
	epoch int64                // of its registration
	// brokers are those of the metadata that it has applied.
	brokers [3]xbroker
	// lossy is set while it may lack what it acknowledged before a crash.
	lossy bool

	num  uint32
	part controller.Partition
	epochSets
	// written are the epochs of its log.
	written uint32
	// leads: the replica believes so; maximal are then those who may be in sync.
	// leader is who leads it else, -1 for nobody.
	leads   bool
	maximal []int32
	leader  int32
	failed  error
	// ask is the fetch that it makes, once it was asked for that.
	asked bool
	ask   *xmsg
}

func (n *xnode) clone() *xnode {
	c := *n
	log := *n.log
	c.log = &log
	if n.r != nil {
		c.r = cloneReplica(n.r, c.log)
	}
	return &c
}

// key is all that tells two nodes apart. A replica does not show who is eligible
// to lead, which counts too.
func (n *xnode) key() string {
	b := make([]byte, 0, 256)
	b = strconv.AppendInt(b, int64(n.id), 10)
	b = strconv.AppendInt(append(b, 'b'), n.epoch, 10)
	b = strconv.AppendBool(append(b, ' '), n.lossy)
	b = strconv.AppendUint(append(b, ' '), n.log.packed, 16)
	b = strconv.AppendInt(append(b, ' '), n.log.end(), 10)
	if n.r == nil {
		return string(strconv.AppendInt(append(b, " down "...), n.hw, 10))
	}
	for _, o := range n.brokers {
		b = strconv.AppendInt(append(b, ' '), o.epoch, 10)
		b = strconv.AppendBool(b, o.fenced)
	}
	for _, id := range n.r.Partition().ELR {
		b = strconv.AppendInt(append(b, " elr"...), int64(id), 10)
	}
	return string(append(append(b, ' '), n.r.String()...))
}

func (n *xnode) String() string {
	if n.r == nil {
		return fmt.Sprintf("%d: down, hw=%d, log %v", n.id, n.hw, *n.log)
	}
	return fmt.Sprintf("%d: broker=%d lossy=%v log %v %v", n.id, n.epoch, n.lossy, *n.log, n.r)
}

// node interns a node.
func (x *exploration) node(n *xnode) *xnode {
	if n.r != nil && !x.plain {
		x.forget(n.r)
	}
	key := n.key()
	if known := x.nodeOf[key]; known != nil {
		return known
	}
	n.num = uint32(len(x.nodes))
	n.leads, n.maximal, n.part, n.leader, n.failed, n.asked, n.ask = false, nil, controller.Partition{}, -1, nil, false, nil
	if n.r != nil {
		n.hw, n.part = n.r.HighWatermark(), n.r.Partition()
		if n.leads = n.r.Role() == replication.Leader; n.leads {
			n.maximal = n.r.Maximal()
		} else if n.r.Role() == replication.Follower {
			n.leader = n.r.Leader()
		}
		n.failed = n.r.Failed()
	}
	n.written = epochsOf(n.log)
	n.epochSets = n.epochs()
	x.nodes = append(x.nodes, n)
	x.nodeOf[key] = n
	return n
}

// xmeta is the metadata.
type xmeta struct {
	state   *controller.State
	part    controller.Partition
	brokers [3]xbroker
	num     uint32
}

// meta interns metadata.
func (x *exploration) meta(state *controller.State) *xmeta {
	m := &xmeta{state: state, part: *state.Topic(explored.Topic).Partitions.At(0)}
	for i := range m.brokers {
		b, _ := state.Broker(int32(i + 1))
		m.brokers[i] = xbroker{b.Epoch, b.Fenced}
	}
	key := m.String()
	if known := x.metaOf[key]; known != nil {
		return known
	}
	m.num = uint32(len(x.metas))
	x.metas = append(x.metas, m)
	x.metaOf[key] = m
	return m
}

func (m *xmeta) String() string { return fmt.Sprintf("%+v %v", m.part, m.brokers) }

// known says that a node has applied that metadata.
func (m *xmeta) known(n *xnode) bool { return n.part.Epoch == m.part.Epoch && n.brokers == m.brokers }

// xmsg is a request: to the controller, for another set in sync, or a fetch.
type xmsg struct {
	from  int32
	life  int64 // of the sender
	to    int32 // of a fetch, 0 for the controller
	late  bool  // nobody waits for it any more
	fetch replication.FetchRequest
	ask   controller.AlterPartition

	num uint32
	key string
}

func (m *xmsg) String() string {
	if m.to > 0 {
		return fmt.Sprintf("late fetch %d -> %d %+v", m.from, m.to, m.fetch)
	}
	return fmt.Sprintf("request of %d in its life %d for %v of epoch %d/%d late=%v", m.from, m.life, m.ask.ISR, m.ask.LeaderEpoch, m.ask.PartitionEpoch, m.late)
}

// msg interns a request.
func (x *exploration) msg(m xmsg) *xmsg {
	m.key = m.String()
	if known := x.msgOf[m.key]; known != nil {
		return known
	}
	m.num = uint32(len(x.msgs))
	x.msgs = append(x.msgs, &m)
	x.msgOf[m.key] = &m
	return &m
}

// xnet is the requests under way, by key.
type xnet struct {
	msgs []*xmsg
	num  uint32
	epochSets
}

// mostUnderWay is how many requests may be under way at once.
const mostUnderWay = 8

// net interns what is under way.
func (x *exploration) net(msgs []*xmsg) *xnet {
	slices.SortFunc(msgs, func(a, b *xmsg) int { return strings.Compare(a.key, b.key) })
	var key [mostUnderWay]uint32
	for i, m := range msgs {
		key[i] = m.num + 1
	}
	if known := x.netOf[key]; known != nil {
		return known
	}
	n := &xnet{msgs: msgs, num: uint32(len(x.nets))}
	for _, m := range msgs {
		s := m.epochs()
		n.parts |= s.parts
		n.leaders |= s.leaders
	}
	x.nets = append(x.nets, n)
	x.netOf[key] = n
	return n
}

func (x *exploration) sent(n *xnet, m *xmsg) *xnet {
	return x.net(append(slices.Clone(n.msgs), m))
}

func (x *exploration) arrived(n *xnet, i int) *xnet {
	return x.net(slices.Delete(slices.Clone(n.msgs), i, i+1))
}

// xanswer is what a leader answers to a fetch, with the records of that.
type xanswer struct {
	resp    replication.FetchResponse
	err     error
	records xlog // all of the leader's log
	num     uint32
}

// answer interns an answer.
func (x *exploration) answer(a xanswer) *xanswer {
	key := fmt.Sprint(a.resp.LeaderEpoch, a.resp.HW, a.resp.LogStart, a.resp.LeaderEnd, a.records.packed, a.records.n, a.err)
	if at := a.resp.Diverging; at != nil {
		key += fmt.Sprintf(" diverging %+v", *at)
	}
	if known := x.answerOf[key]; known != nil {
		return known
	}
	x.answers++
	a.num = x.answers
	x.answerOf[key] = &a
	return &a
}

// xreply is what the controller answers to an AlterPartition.
type xreply struct {
	part controller.Partition
	err  error
	num  uint32
}

// reply interns a reply.
func (x *exploration) reply(r xreply) *xreply {
	key := fmt.Sprintf("%+v %v", r.part, r.err)
	if known := x.replyOf[key]; known != nil {
		return known
	}
	x.replies++
	r.num = x.replies
	x.replyOf[key] = &r
	return &r
}
