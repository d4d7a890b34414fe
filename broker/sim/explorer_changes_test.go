package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// A change is what the core makes of a node and of what comes to it. All changes
// and all decisions of the controller are remembered, by the numbers of both.

type changeKind uint8

const (
	learns changeKind = iota + 1
	appends
	givesFetchUp
	serves
	takesAnswer
	asksAlter
	takesReply
	regains
	crashes
	starts
	waits
	isRenamed
	settles
)

// xchange is what became of a node, nil if it is nothing that it does.
type xchange struct {
	node *xnode
	xextra
}

// xextra is what else a change brings.
type xextra struct {
	// msg is the request that the node makes, answer what it answers.
	msg    *xmsg
	answer *xanswer
	// elected says that it leads a new epoch, fault what is wrong.
	elected bool
	fault   string
}

// xevent is what the controller decides about.
type xevent struct {
	kind  eventKind
	id    int32
	epoch int64
	lossy bool
	msg   uint32
}

type eventKind uint8

const (
	fenceIt eventKind = iota
	unfenceIt
	registerIt
	alterIt
)

type decisionKey struct {
	meta uint32
	ev   xevent
}

// xdecision is what the controller decided.
type xdecision struct {
	meta  *xmeta
	reply *xreply // to a request for another set in sync
	fault string
}

var errGivenUp = errors.New("no answer in time")

// longer is more than a replica may lag, pause more than any backoff.
const (
	longer = 20 * time.Second
	pause  = 2 * time.Second
)

// patience is what a node waits until it tries again. A normal form knows of no
// backoff.
func (x *exploration) patience() time.Duration {
	if x.plain {
		return pause
	}
	return 0
}

// learned is the node once it has applied metadata.
func (x *exploration) learned(n *xnode, m *xmeta, now time.Duration) xchange {
	key := changeKey{learns, n.num, uint64(m.num)}
	if out, ok := x.recall(key); ok {
		return out
	}
	c, extra := n.learn(m, now)
	return x.remember(key, c, extra)
}

// learn is a copy of the node that applies metadata.
func (n *xnode) learn(m *xmeta, now time.Duration) (c *xnode, extra xextra) {
	c = n.clone()
	c.brokers = m.brokers
	change, err := c.r.Decide(m.part, m.state, now)
	if err != nil {
		extra.fault = fmt.Sprintf("node %d refuses the metadata: %v", n.id, err)
	}
	extra.elected = change.NewEpoch && change.Role == replication.Leader
	return c, extra
}

func (x *exploration) appended(n *xnode, value uint8, now time.Duration) xchange {
	key := changeKey{appends, n.num, uint64(value)}
	if out, ok := x.recall(key); ok {
		return out
	}
	c := n.clone()
	c.log.append(xrec{uint8(c.r.LeaderEpoch()), value})
	c.r.Advance(now)
	return x.remember(key, c, xextra{})
}

// asks is the fetch that a node makes now, nil for none.
func (x *exploration) asks(n *xnode, now time.Duration) *xmsg {
	if n.asked && !x.plain {
		return n.ask
	}
	n.asked, n.ask = true, nil
	if ask, ok := n.clone().r.NextFetch(now + x.patience()); ok {
		ask.BrokerEpoch = n.epoch
		n.ask = x.msg(xmsg{from: n.id, life: n.epoch, to: n.r.Leader(), late: true, fetch: ask})
	}
	return n.ask
}

// unanswered is a node once it has given up a fetch.
func (x *exploration) unanswered(n *xnode, now time.Duration) *xnode {
	key := changeKey{givesFetchUp, n.num, 0}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	ask, _ := c.r.NextFetch(now + x.patience())
	c.r.Fetched(&ask, nil, errGivenUp, now)
	return x.remember(key, c, xextra{}).node
}

// served is a leader once it has answered a fetch, and its answer.
func (x *exploration) served(n *xnode, m *xmsg, now time.Duration) xchange {
	key := changeKey{serves, n.num, uint64(m.num)}
	if out, ok := x.recall(key); ok {
		return out
	}
	c, a := n.clone(), xanswer{}
	a.resp, _, a.err = c.r.Fetch(&m.fetch, now)
	if a.err == nil && a.resp.Diverging == nil {
		a.records = *c.log
	}
	return x.remember(key, c, xextra{answer: x.answer(a)})
}

// fetched is a follower once it has taken an answer and done what it decides.
func (x *exploration) fetched(n *xnode, a *xanswer, now time.Duration) xchange {
	key := changeKey{takesAnswer, n.num, uint64(a.num)}
	if out, ok := x.recall(key); ok {
		return out
	}
	c, out := n.clone(), xextra{}
	hw := c.r.HighWatermark()
	ask, _ := c.r.NextFetch(now + x.patience())
	act := c.r.Fetched(&ask, &a.resp, a.err, now)
	switch act.Kind {
	case replication.Append:
		for i := ask.Offset; i < a.records.end(); i++ {
			c.log.append(a.records.at(i))
		}
	case replication.Truncate, replication.Restart:
		if act.BelowHW || act.Offset < hw {
			out.fault = fmt.Sprintf("I15: node %d cuts at %d, its high watermark is %d", n.id, act.Offset, hw)
		}
		c.log.cut(act.Offset)
	case replication.Raise:
		out.fault = fmt.Sprintf("node %d empties its log at %d, and all logs begin at 0", n.id, act.Offset)
	case replication.Ignore, replication.Fail:
		return x.remember(key, c, out)
	}
	c.r.Did(act, &a.resp, now)
	return x.remember(key, c, out)
}

// alters is the change of the set in sync that a leader asks for now, if any.
func (x *exploration) alters(n *xnode, wait, now time.Duration) xchange {
	key := changeKey{asksAlter, n.num, 0}
	if out, ok := x.recall(key); ok {
		return out
	}
	c := n.clone()
	ask, ok := c.r.Alter(now + wait)
	if !ok {
		return x.remember(key, nil, xextra{})
	}
	return x.remember(key, c, xextra{msg: x.msg(xmsg{from: n.id, life: n.epoch, ask: ask})})
}

// altered is a leader once it has the answer to that.
func (x *exploration) altered(n *xnode, m *xmsg, r *xreply, now time.Duration) *xnode {
	key := changeKey{takesReply, n.num, uint64(m.num)<<32 | uint64(r.num)}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	c.r.Altered(m.ask, r.part, r.err, now)
	return x.remember(key, c, xextra{}).node
}

// givenUp is the answer that does not come.
func (x *exploration) givenUp() *xreply { return x.reply(xreply{err: errGivenUp}) }

// regained is a node that has again what it lost.
func (x *exploration) regained(n *xnode) *xnode {
	key := changeKey{regains, n.num, 0}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	c.lossy = false
	return x.remember(key, c, xextra{}).node
}

// crashed is a node that is down, with some of its records.
func (x *exploration) crashed(n *xnode, keep int64) *xnode {
	key := changeKey{crashes, n.num, uint64(keep)}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	c.hw = n.r.HighWatermark()
	c.r, c.brokers = nil, [3]xbroker{}
	if keep < c.log.end() {
		c.log.cut(keep)
		c.lossy = true
	}
	return x.remember(key, c, xextra{}).node
}

// started is a node that was down, in a new life that the metadata knows.
func (x *exploration) started(n *xnode, m *xmeta) *xnode {
	key := changeKey{starts, n.num, uint64(m.num)}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	c.epoch = m.brokers[n.id-1].epoch
	c.open()
	return x.remember(key, c, xextra{}).node
}

// decided is what the controller makes of an event.
func (x *exploration) decided(m *xmeta, ev xevent) *xdecision {
	key := decisionKey{m.num, ev}
	if out := x.decisions[key]; out != nil && !x.plain {
		return out
	}
	reply, records := controller.Step(m.state, x.event(ev))
	out := &xdecision{meta: m}
	if err := reply.Errs[0]; err != nil && ev.kind == registerIt {
		out.fault = fmt.Sprintf("node %d cannot register: %v", ev.id, err)
	}
	if ev.kind == alterIt {
		out.reply = x.reply(xreply{part: reply.Partitions[0], err: reply.Errs[0]})
	}
	if len(records) > 0 {
		next, err := m.state.With(records)
		if err != nil {
			out.fault = fmt.Sprintf("the controller's records do not fit: %v", err)
		} else {
			out.meta = x.meta(next)
		}
	}
	if fault := judgeDecision(m, out.meta); fault != "" {
		out.fault = fault
	}
	x.decisions[key] = out
	return out
}

func (x *exploration) event(ev xevent) controller.Event {
	switch ev.kind {
	case fenceIt:
		return &controller.Fence{ID: ev.id, Epoch: ev.epoch}
	case unfenceIt:
		return &controller.Unfence{ID: ev.id, Epoch: ev.epoch}
	case registerIt:
		r := &controller.Register{
			ID: ev.id, UUID: fmt.Sprint(ev.id), Incarnation: fmt.Sprint(ev.id, ev.epoch+100), PreviousEpoch: ev.epoch, Known: ev.epoch,
			MinLevel: 1, MaxLevel: controller.Level,
		}
		if ev.lossy {
			r.PreviousEpoch, r.Unclean = -1, []storage.ID{explored}
		}
		return r
	default:
		m := x.msgs[ev.msg]
		return &controller.AlterPartitions{Broker: m.from, BrokerEpoch: m.life, Partitions: []controller.AlterPartition{m.ask}}
	}
}

// judgeDecision asks the invariants of a decision.
func judgeDecision(was, is *xmeta) (fault string) {
	p := is.part
	if p.Leader >= 0 && !slices.Contains(p.ISR, p.Leader) {
		fault = fmt.Sprintf("I9: %+v", p)
	}
	for _, id := range p.ISR {
		if slices.Contains(p.ELR, id) || !slices.Contains(was.part.ISR, id) && !is.state.Eligible(id, -1) {
			fault = fmt.Sprintf("I10, I11: %+v after %+v", p, was.part)
		}
	}
	if p.LeaderEpoch < was.part.LeaderEpoch || p.Epoch < was.part.Epoch {
		fault = fmt.Sprintf("I2: %+v after %+v", p, was.part)
	}
	return fault
}
