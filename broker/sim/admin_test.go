package sim

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"leat/replication/controller"
	"leat/storage"
)

// adminAt is the end of the network where an operator works.
const adminAt = clientBase

// createTopic makes a topic, however long it takes, and then calls done with its
// partitions.
func (w *world) createTopic(id storage.TopicID, name string, partitions int, rf int, done func([]partID)) {
	configs := map[string]string{
		"min.insync.replicas":            strconv.Itoa(w.cfg.minISR),
		"unclean.leader.election.enable": strconv.FormatBool(w.cfg.unclean),
	}
	var try func()
	try = func() {
		ev := &controller.CreateTopics{Topics: []controller.NewTopic{{
			ID: id, Name: name, Partitions: int32(partitions), Replication: int16(rf), Configs: configs,
		}}}
		w.admin(adminAt, ev, func(reply controller.Reply, err error) {
			if err == nil {
				err = errors.Join(reply.Errs...)
			}
			if err != nil && !errors.Is(err, controller.ErrTopicExists) {
				w.at(w.between(50*time.Millisecond, 150*time.Millisecond), nil, try)
				return
			}
			ids := make([]partID, partitions)
			for i := range ids {
				ids[i] = partID{Topic: id, Partition: int32(i)}
			}
			done(ids)
		})
	}
	try()
}

// adminKind is something that an operator does.
type adminKind uint8

const (
	adminReassign adminKind = iota
	adminPreferred
	adminUnclean
	adminGrow
	adminDelete
	adminKinds
)

var adminNames = [adminKinds]string{"reassignment", "preferred election", "unclean election", "more partitions", "deletion of records"}

func (k adminKind) String() string { return adminNames[k] }

// operate has the operator do something now and then.
func (w *world) operate() {
	if w.phase != phaseFaults {
		return
	}
	if len(w.partitions) > 0 {
		kind, id := adminKind(w.rng.IntN(int(adminKinds))), pick(w.rng, w.partitions...)
		if w.crew != nil && kind <= adminPreferred && w.chance(0.4) {
			id = w.crew.id // the coordinator moves
		}
		w.operation(kind, id)
	}
	w.at(w.between(w.cfg.admin/2, w.cfg.admin*3/2), nil, w.operate)
}

// rescue has the operator give up records where nobody leads and somebody could.
func (w *world) rescue() {
	if w.phase != phaseFaults {
		return
	}
	for _, n := range w.nodes {
		if n.p == nil || !n.p.meta.desk.Deciding() {
			continue
		}
		s := n.p.meta.shown
		alive := func(r int32) bool { return s.Eligible(r, -1) }
		if i := slices.IndexFunc(w.partitions, func(id partID) bool {
			p, ok := w.checks.partition(id)
			return ok && p.Leader < 0 && slices.ContainsFunc(p.Replicas, alive)
		}); i >= 0 {
			w.operation(adminUnclean, w.partitions[i])
			break
		}
	}
	w.at(w.between(100*time.Millisecond, 800*time.Millisecond), nil, w.rescue)
}

// operation is one thing that an operator does.
func (w *world) operation(kind adminKind, id partID) {
	var ev controller.Event
	switch kind {
	case adminReassign:
		n := 1 + w.rng.IntN(min(3, len(w.nodes)))
		target := w.someNodes(max(n, w.leastReplicas(id)))
		if w.chance(0.2) {
			target = nil // cancels what is under way
		}
		ev = &controller.Reassign{Partitions: []controller.Reassignment{{ID: id, Replicas: target}}}
	case adminPreferred:
		ev = &controller.Elect{IDs: []storage.ID{id}, Kind: controller.Preferred}
	case adminUnclean:
		if !w.cfg.unclean && !w.cfg.lastResort {
			return
		}
		ev = &controller.Elect{IDs: []storage.ID{id}, Kind: controller.Unclean}
	case adminGrow:
		w.grow(id.Topic)
		return
	case adminDelete:
		w.deleteRecords(id)
		return
	case adminKinds:
	}
	w.counts.admin[kind]++
	w.admin(adminAt, ev, func(reply controller.Reply, err error) {
		if w.tracing() {
			w.trace("admin: %T of %s: %v %v", ev, short(id), reply.Errs, err)
		}
		if err == nil && errors.Join(reply.Errs...) == nil {
			w.counts.adminDone[kind]++
		}
	})
}

// leastReplicas is to how many replicas an operator moves a partition at least: with
// fewer than min.insync.replicas no group could ever change.
func (w *world) leastReplicas(id partID) int {
	if id.Topic == w.groupTopic {
		return w.cfg.minISR
	}
	return 1
}

// anyPartition is one of those that clients use, also of groups.
func (w *world) anyPartition() partID {
	ids := w.partitions
	if w.cfg.groups > 0 || w.cfg.members > 0 {
		ids = append(slices.Clone(ids), partID{Topic: w.groupTopic})
	}
	return pick(w.rng, ids...)
}

// move gives a leadership to another replica: it comes first in the order of
// preference, and then the preferred one is elected. Nobody is fenced, so that the
// broker that led has a lease until it hears of it.
func (w *world) move(id partID) {
	p, ok := w.checks.partition(id)
	others := slices.DeleteFunc(slices.Clone(p.ISR), func(r int32) bool { return r == p.Leader || slices.Contains(p.Removing, r) })
	if !ok || len(others) == 0 {
		return
	}
	first := pick(w.rng, others...)
	order := []int32{first}
	for _, r := range p.Replicas {
		if r != first && !slices.Contains(p.Removing, r) {
			order = append(order, r)
		}
	}
	w.admin(adminAt, &controller.Reassign{Partitions: []controller.Reassignment{{ID: id, Replicas: order}}}, func(controller.Reply, error) {
		w.admin(adminAt, &controller.Elect{IDs: []storage.ID{id}, Kind: controller.Preferred}, func(reply controller.Reply, err error) {
			if err == nil && errors.Join(reply.Errs...) == nil {
				w.counts.moved++
			}
		})
	})
}

// grow gives a topic a partition more.
func (w *world) grow(topic storage.TopicID) {
	n := 0
	for _, id := range w.partitions {
		if id.Topic == topic {
			n++
		}
	}
	if n >= 4 {
		return
	}
	id := partID{Topic: topic, Partition: int32(n)}
	w.counts.admin[adminGrow]++
	w.admin(adminAt, &controller.AddPartitions{Topics: []controller.MorePartitions{{ID: topic, Count: int32(n + 1)}}}, func(reply controller.Reply, err error) {
		if err == nil && errors.Join(reply.Errs...) == nil && w.phase == phaseFaults {
			w.counts.adminDone[adminGrow]++
			w.partitions = append(w.partitions, id)
		}
	})
}

// someNodes are n different nodes.
func (w *world) someNodes(n int) []int32 {
	var out []int32
	for _, i := range w.rng.Perm(len(w.nodes))[:n] {
		out = append(out, w.nodes[i].id)
	}
	return out
}

// deleteRecords raises the start of a log at its leader, as DeleteRecords and
// retention do.
func (w *world) deleteRecords(id partID) {
	w.counts.admin[adminDelete]++
	for _, n := range w.nodes {
		if n.p == nil {
			continue
		}
		r := n.p.replicas[id]
		if r == nil || r.cutting || r.core.CheckAppend(false, n.p.now()) != nil {
			continue
		}
		// The batches that producers may send again stay: a replica that begins
		// behind them would not know them.
		hw := r.core.HighWatermark()
		for _, p := range r.log.state() {
			hw = min(hw, p.last[0].base)
		}
		if hw <= r.log.start {
			continue
		}
		w.counts.adminDone[adminDelete]++
		w.counts.deleted++
		r.log.raise(r.log.start + 1 + w.rng.Int64N(hw-r.log.start))
		r.core.Advance(n.p.now())
		r.moved()
		return
	}
}
