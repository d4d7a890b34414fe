package sim

import (
	"fmt"
	"slices"
	"time"

	"leat/replication"
	"leat/replication/controller"
)

// Worlds that go on alike are one in their normal form. What makes no difference,
// and why:
//
//   - How long ago something was: it is less than a lag ago, or more, as time only
//     passes in steps of more than a lag. Now is always 0. "Never" stays what it is.
//   - Since when a peer is known to lack something that was caught up less than a lag
//     ago, if no lag can pass any more.
//   - A backoff: whoever tries again has waited longer than any.
//   - What number a partition epoch has: the cores compare them, and the next one
//     is above all. They are numbered anew, in their order, the newest as newestEpoch.
//     So are leader epochs, from 0 on, if elections are not counted.
//   - What value a record has: it is compared to those at the same offset with the
//     same epoch, so it is the lowest that none of them has.
//
// Nothing else is reduced. The replicas cannot be exchanged for one another, as
// an election goes by their order; and no step is left out for the sake of
// another that it commutes with, as what lies between them is judged too.

// newestEpoch is the newest partition epoch in a normal form.
const newestEpoch = 8

// xepochs is what leader epochs become.
type xepochs [mostEpochs]uint8

// forget takes out of a replica what makes no difference.
func (x *exploration) forget(r *replication.Replica) {
	refusedField.of(r).SetZero()
	backoffField.of(r).SetZero()
	if asked := askedField.of(r); !asked.IsNil() {
		opened(asked.Elem().FieldByName("backoff")).SetZero()
	}
	if x.limits.ticks != 0 {
		return
	}
	peers := peersField.of(r)
	for i := range peers.Len() {
		if p := peers.Index(i); p.FieldByName("caughtUp").Int() >= 0 {
			opened(p.FieldByName("mark")).SetInt(-1)
			opened(p.FieldByName("markAt")).SetInt(0)
		}
	}
}

// pass has time pass.
func (x *exploration) pass(w *xworld, by time.Duration) {
	if x.plain {
		w.now += by
		return
	}
	for i, n := range w.nodes {
		if n.leads {
			w.nodes[i] = x.waited(n, by)
		}
	}
}

// waited is a leader after some time.
func (x *exploration) waited(n *xnode, by time.Duration) *xnode {
	key := changeKey{waits, n.num, uint64(by)}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	peers := peersField.of(c.r)
	for i := range peers.Len() {
		for _, name := range []string{"caughtUp", "markAt"} {
			at := opened(peers.Index(i).FieldByName(name))
			at.SetInt(int64(past(time.Duration(at.Int()), by)))
		}
	}
	return x.remember(key, c, xextra{}).node
}

// past is when something was, seen from later on: all that is longer ago than a
// lag is equally long ago.
func past(at, by time.Duration) time.Duration {
	const lag = 10 * time.Second
	switch {
	case at < -longer: // never
		return at
	case at-by < -lag:
		return -longer
	default:
		return at - by
	}
}

// value is that of the next record that a node appends in its epoch.
func (x *exploration) value(w *xworld, n *xnode) uint8 {
	if x.plain {
		return uint8(w.used.records)
	}
	at, next := n.log.end(), xrec{uint8(n.part.LeaderEpoch), 0}
	taken := func(l *xlog) bool { return l.end() > at && l.at(at) == next }
	for taken(&w.committed) || slices.ContainsFunc(w.nodes[:], func(o *xnode) bool { return taken(o.log) }) {
		next.value++
	}
	return next.value
}

// normal brings a world to its normal form.
func (x *exploration) normal(w *xworld) {
	all := w.epochs()
	for _, n := range w.nodes {
		all.parts |= n.parts
		all.leaders |= n.leaders
	}
	var to renaming
	if to.all(all, x.limits.elections == unlimited); to.nothing(all) {
		return
	}
	for i, n := range w.nodes {
		w.nodes[i] = x.renamed(n, &to)
	}
	x.rename(w, &to)
}

// settle has all nodes learn of the newest metadata, and brings the world to its
// normal form: the same as one after the other, but by one change of a node.
func (x *exploration) settle(w *xworld) {
	all := w.epochs()
	for _, n := range w.nodes {
		all.leaders |= n.written
	}
	var to renaming
	to.all(all, x.limits.elections == unlimited)
	same := to.nothing(all)
	for i, n := range w.nodes {
		switch {
		case n.r == nil && !same:
			w.nodes[i] = x.renamed(n, &to)
		case n.r != nil && (!same || !w.meta.known(n)):
			out := x.settled(n, w.meta, &to)
			x.judgeElected(w, n, &out)
			w.nodes[i] = out.node
		}
	}
	if !same {
		x.rename(w, &to)
	}
}

// settled is a node that has learned of metadata and then got other epochs.
func (x *exploration) settled(n *xnode, m *xmeta, to *renaming) xchange {
	code := uint64(to.parts[m.part.Epoch])<<4 | uint64(to.leaders[m.part.LeaderEpoch])
	key := changeKey{settles, n.num, uint64(m.num)<<(8+4*mostRecords) | to.code(code, n.log)}
	if out, ok := x.recall(key); ok {
		return out
	}
	c, extra := n.learn(m, 0)
	to.node(c)
	return x.remember(key, c, extra)
}

// rename gives all of a world but its nodes other epochs.
func (x *exploration) rename(w *xworld, to *renaming) {
	w.meta = x.renamedMeta(w.meta, to)
	w.committed = w.committed.renamed(&to.leaders)
	if len(w.net.msgs) == 0 {
		return
	}
	key := netRename{w.net.num, *to}
	out := x.netRenames[key]
	if out == nil {
		msgs := slices.Clone(w.net.msgs)
		for i, m := range msgs {
			msgs[i] = x.msg(to.msg(m))
		}
		out = x.net(msgs)
		x.netRenames[key] = out
	}
	w.net = out
}

// epochSets are the partition epochs and leader epochs that are somewhere, a bit
// each.
type epochSets struct{ parts, leaders uint32 }

// epochs are those of a world but its nodes.
func (w *xworld) epochs() epochSets {
	return epochSets{parts: w.net.parts | 1<<w.meta.part.Epoch, leaders: w.net.leaders | 1<<w.meta.part.LeaderEpoch | epochsOf(&w.committed)}
}

// epochs are those of a node.
func (n *xnode) epochs() (s epochSets) {
	s.leaders = n.written
	if n.r != nil {
		s.parts |= 1 << n.part.Epoch
		s.leaders |= 1 << n.part.LeaderEpoch
	}
	return s
}

// epochs are those of a request.
func (m *xmsg) epochs() (s epochSets) {
	if m.to == 0 {
		return epochSets{1 << m.ask.PartitionEpoch, 1 << m.ask.LeaderEpoch}
	}
	s.leaders |= 1 << m.fetch.LeaderEpoch
	if m.fetch.LastEpoch >= 0 {
		s.leaders |= 1 << m.fetch.LastEpoch
	}
	return s
}

func epochsOf(l *xlog) (set uint32) {
	for i := range l.end() {
		set |= 1 << l.at(i).epoch
	}
	return set
}

// renaming gives epochs other numbers, in the same order.
type renaming struct {
	parts, leaders xepochs
}

func (to *renaming) all(s epochSets, anyElections bool) {
	if s.parts >= 1<<mostEpochs || s.leaders >= 1<<mostEpochs {
		panic(fmt.Sprintf("too many epochs: %b", s))
	}
	for i, next := mostEpochs-1, uint8(newestEpoch); i >= 0; i-- {
		if s.parts>>i&1 != 0 {
			to.parts[i] = next
			next--
		}
	}
	next := uint8(0)
	for i := range to.leaders {
		if to.leaders[i] = uint8(i); anyElections && s.leaders>>i&1 != 0 {
			to.leaders[i] = next
			next++
		}
	}
}

// nothing says that nothing of that changes.
func (to *renaming) nothing(s epochSets) bool {
	for i := range uint8(mostEpochs) {
		if s.parts>>i&1 != 0 && to.parts[i] != i || s.leaders>>i&1 != 0 && to.leaders[i] != i {
			return false
		}
	}
	return true
}

// renamed is a node with other epochs.
func (x *exploration) renamed(n *xnode, to *renaming) *xnode {
	code := uint64(0)
	if n.r != nil {
		code = uint64(to.parts[n.part.Epoch])<<4 | uint64(to.leaders[n.part.LeaderEpoch])
	}
	key := changeKey{isRenamed, n.num, to.code(code, n.log)}
	if out, ok := x.recall(key); ok {
		return out.node
	}
	c := n.clone()
	to.node(c)
	return x.remember(key, c, xextra{}).node
}

// code adds to a number what becomes of the epochs of a log.
func (to *renaming) code(code uint64, l *xlog) uint64 {
	for i := range l.end() {
		code = code<<4 | uint64(to.leaders[l.at(i).epoch])
	}
	return code
}

func (to *renaming) node(n *xnode) {
	*n.log = n.log.renamed(&to.leaders)
	if n.r == nil {
		return
	}
	to.part(partField.of(n.r).Addr().Interface().(*controller.Partition))
	if asked := askedField.of(n.r); !asked.IsNil() {
		to.ask(opened(asked.Elem().FieldByName("ask")).Addr().Interface().(*controller.AlterPartition))
	}
}

func (to *renaming) part(p *controller.Partition) {
	p.Epoch, p.LeaderEpoch = int32(to.parts[p.Epoch]), int32(to.leaders[p.LeaderEpoch])
}

func (to *renaming) ask(a *controller.AlterPartition) {
	a.PartitionEpoch, a.LeaderEpoch = int32(to.parts[a.PartitionEpoch]), int32(to.leaders[a.LeaderEpoch])
}

func (to *renaming) msg(m *xmsg) xmsg {
	out := *m
	if m.to == 0 {
		to.ask(&out.ask)
		return out
	}
	out.fetch.LeaderEpoch = int32(to.leaders[out.fetch.LeaderEpoch])
	if out.fetch.LastEpoch >= 0 {
		out.fetch.LastEpoch = int32(to.leaders[out.fetch.LastEpoch])
	}
	return out
}

// renamedMeta is metadata with other epochs.
func (x *exploration) renamedMeta(m *xmeta, to *renaming) *xmeta {
	p := m.part
	if to.part(&p); p.Epoch == m.part.Epoch && p.LeaderEpoch == m.part.LeaderEpoch {
		return m
	}
	key := metaRename{m.num, p.Epoch, p.LeaderEpoch}
	if out := x.metaRenames[key]; out != nil {
		return out
	}
	state, err := m.state.With([]controller.Record{&controller.PartitionChanged{Topic: explored.Topic, Partition: p}})
	if err != nil {
		panic(err)
	}
	out := x.meta(state)
	x.metaRenames[key] = out
	return out
}

// renames are what renamed parts have come to.
type renames struct {
	metaRenames map[metaRename]*xmeta
	netRenames  map[netRename]*xnet
}

type metaRename struct {
	meta         uint32
	part, leader int32
}

type netRename struct {
	net uint32
	renaming
}
