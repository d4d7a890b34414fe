package sim

import (
	"errors"
	"fmt"
	"slices"

	"leat/replication/controller"
)

// gone reports whether a broker will not come back.
func (w *world) gone(id int32) bool { return w.node(id).gone }

// gonePartly reports whether some of the brokers will not come back.
func (w *world) gonePartly(ids []int32) bool { return slices.ContainsFunc(ids, w.gone) }

// here is how many machines there are or will be.
func (w *world) here() (n int) {
	for _, o := range w.nodes {
		if !o.gone {
			n++
		}
	}
	return n
}

// anyNode is one that somebody asks who does not know better. When the faults are
// over nobody tries machines that are gone.
func (w *world) anyNode() *node {
	nodes := w.nodes
	if w.phase != phaseFaults && w.here() < len(nodes) {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n.gone })
	}
	return pick(w.rng, nodes...)
}

// present are those of the brokers that are there or will be.
func (w *world) present(ids []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(ids), w.gone)
}

// retire has the cluster do without a broker that does not come back: its
// partitions move, and it is unregistered before that or afterwards.
func (l *mishap) retire(s *controller.State) {
	w, id := l.w, l.n.id
	named := false
	_, registered := s.Broker(id)
	for _, t := range s.Topics() {
		for i := range t.Partitions.Len() {
			if p := t.Partitions.At(i); slices.Contains(p.Replicas, id) {
				named = true
				if !registered || !l.first {
					l.move(partID{Topic: t.ID, Partition: int32(i)}, p, s)
				}
			}
		}
	}
	if !registered || named && !l.first {
		return
	}
	if w.chance(0.2) {
		id = pick(w.rng, w.nodes...).id // the operator errs
	}
	b, _ := s.Broker(id)
	w.admin(adminAt, &controller.Unregister{ID: id, Epoch: b.Epoch}, func(reply controller.Reply, err error) {
		if err == nil {
			err = errors.Join(reply.Errs...)
		}
		switch {
		case err == nil && id == l.n.id:
			w.counts.unregistered++
		case errors.Is(err, controller.ErrBrokerInService):
			w.counts.notUnregistered++
		}
	})
}

// move asks for other replicas of a partition in place of the one that is gone.
func (l *mishap) move(id partID, p *controller.Partition, s *controller.State) {
	w := l.w
	target := w.present(p.Replicas)
	holders := slices.Concat(p.ISR, p.ELR)
	orphan := len(w.present(holders)) == 0
	if slices.Contains(p.Removing, l.n.id) || orphan && len(target) > 0 {
		return // it is on its way, or somebody is to lead before that
	}
	least := w.leastReplicas(id) // there may be fewer, in a cluster that has been small
	for _, other := range w.someNodes(len(w.nodes)) {
		_, registered := s.Broker(other)
		if registered && !w.gone(other) && !slices.Contains(target, other) && len(target) < max(p.Factor(), least) {
			target = append(target, other)
		}
	}
	if len(target) < least {
		return // others come back before that
	}
	ev := &controller.Reassign{Partitions: []controller.Reassignment{{ID: id, Replicas: target}}}
	w.admin(adminAt, ev, func(reply controller.Reply, err error) {
		if w.tracing() {
			w.trace("operator: %s moves to %v: %v %v", short(id), target, reply.Errs, err)
		}
		if err == nil && errors.Join(reply.Errs...) == nil {
			w.counts.evacuated++
		}
	})
}

// named is where the cluster still counts on a broker that is gone, "" for nowhere.
func (l *mishap) named() string {
	s := l.w.checks.newest
	for _, t := range s.Topics() {
		for i := range t.Partitions.Len() {
			if p := t.Partitions.At(i); slices.Contains(p.Replicas, l.n.id) {
				return fmt.Sprintf("%s is to move: %+v", short(partID{Topic: t.ID, Partition: int32(i)}), *p)
			}
		}
	}
	if _, registered := s.Broker(l.n.id); registered {
		return "it is to be unregistered"
	}
	return ""
}

// succeed puts another machine in the place of one of which nothing is left.
func (l *mishap) succeed() {
	w := l.w
	l.n.gone, l.succeeded = false, true
	w.counts.successors++
	w.startAfter(l.n, 0)
}
