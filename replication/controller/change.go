package controller

import (
	"iter"
	"slices"

	"leat/storage"
)

// view is a state with one broker as it is about to be: decisions about the
// partitions of a broker are made with its new condition.
type view struct {
	*State
	// broker stands in for the one of its id, nil for none.
	broker *Broker
}

// viewOf is the state as it is.
func viewOf(s *State) view { return view{State: s} }

func (v *view) find(id int32) *Broker {
	if v.broker != nil && v.broker.ID == id {
		return v.broker
	}
	return v.brokers[id]
}

func (v *view) eligible(id int32) bool { return v.find(id).eligible(-1) }

// draining says that the broker is on its way out but still serves what nobody
// else can.
func (v *view) draining(id int32) bool {
	b := v.find(id)
	return b != nil && !b.Fenced && b.ShuttingDown
}

// mode says whom an election may choose.
type mode uint8

const (
	// online keeps the leader if it can.
	online mode = iota
	// preferred wants the first replica.
	preferred
	// unclean takes a replica out of sync where none is in sync.
	unclean
)

// change is one partition on its way to what it will be. Every change of a
// partition is built here, so that none forgets an epoch, the eligible leader
// replicas or a reassignment that can end (KAFKA-18106).
type change struct {
	v     *view
	topic *Topic
	old   Partition
	// next starts as old, with what is asked for; build makes the rest of it.
	next Partition
	mode mode
	// lost is a broker that has lost what it acknowledged, -1 for none; wiped says
	// that nothing at all is left of it.
	lost  int32
	wiped bool
	// restarted says that the leader may have lost the end of its log: it must not
	// write it again in the same epoch.
	restarted bool
	// touched asks for a new partition epoch even if nothing else changes.
	touched bool
}

// begin is a change of p to nothing else yet.
func (v *view) begin(t *Topic, p Partition) *change {
	m := online
	if uncleanEnabled(v.State, t.Configs) {
		m = unclean
	}
	return &change{v: v, topic: t, old: p, next: p, mode: m, lost: -1}
}

// build is the partition after the change; ok is false if it is as it was.
func (c *change) build() (next Partition, ok bool) {
	n := &c.next
	held := n.ISR
	n.ISR = c.insync()
	c.finish()
	c.elr(held)
	n.Leader = c.elect()
	if c.finish() { // the leader was the last that was missing, and is all that is left
		n.ELR = nil
	}
	bump := n.Leader != c.old.Leader || c.restarted || slices.ContainsFunc(c.old.Replicas, func(r int32) bool { return !slices.Contains(n.Replicas, r) })
	if bump {
		n.LeaderEpoch = c.old.LeaderEpoch + 1
	}
	if !bump && !c.touched && same(&c.old, n) {
		return c.old, false
	}
	n.Epoch = c.old.Epoch + 1
	return *n, true
}

// insync is who is in sync: of whom is asked for, the replicas that are eligible.
// A leader that shuts down stays as long as it is the only one.
func (c *change) insync() []int32 {
	n := &c.next
	out := pick(n.Replicas, func(r int32) bool { return slices.Contains(n.ISR, r) && c.v.eligible(r) && r != c.lost })
	if len(out) > 0 {
		return out
	}
	if l := c.old.Leader; l >= 0 && c.v.draining(l) && slices.Contains(n.ISR, l) && slices.Contains(n.Replicas, l) {
		return []int32{l}
	}
	return nil
}

// finish ends a reassignment whose targets are all in sync (KAFKA-15665). It reports
// whether there was one.
func (c *change) finish() bool {
	n := &c.next
	if len(n.Adding) == 0 && len(n.Removing) == 0 {
		return false
	}
	targets := without(n.Replicas, n.Removing)
	if len(targets) == 0 || len(without(targets, n.ISR)) > 0 {
		return false
	}
	n.Replicas, n.Adding, n.Removing = targets, nil, nil
	n.ISR = pick(n.ISR, func(r int32) bool { return slices.Contains(targets, r) })
	return true
}

// elr keeps as eligible leaders who leaves the ISR while it is too small for the
// high watermark to move (KIP-966). Below level 3 there are none, and the last in
// sync stays in the ISR.
func (c *change) elr(held []int32) {
	n := &c.next
	if c.v.level < clusterLevel {
		if len(n.ISR) == 0 {
			n.ISR = held
		}
		return
	}
	if len(n.ISR) >= c.required() {
		n.ELR = nil
		return
	}
	was := func(r int32) bool { return slices.Contains(c.old.ISR, r) || slices.Contains(c.old.ELR, r) }
	n.ELR = pick(n.Replicas, func(r int32) bool { return was(r) && r != c.lost && !slices.Contains(n.ISR, r) })
	// Where the one that lost the end of its log is the last, nobody holds more.
	if len(n.ISR) == 0 && len(n.ELR) == 0 && c.lost >= 0 && !c.wiped && was(c.lost) {
		n.ELR = []int32{c.lost}
		n.Recovering = n.Recovering || len(n.Replicas) > 1
	}
}

// required is how many must be in sync for the high watermark to move.
func (c *change) required() int { return c.v.MinInSync(c.topic, c.next.Factor()) }

// elect chooses the leader, and changes the ISR where that is not a member yet.
func (c *change) elect() int32 {
	n := &c.next
	valid := func(r int32) bool {
		return c.v.eligible(r) && (slices.Contains(n.ISR, r) || len(n.ISR) == 0 && slices.Contains(n.ELR, r))
	}
	leader := int32(-1)
	switch first := slices.IndexFunc(n.Replicas, valid); {
	case c.mode == preferred && len(n.Replicas) > 0 && valid(n.Replicas[0]):
		leader = n.Replicas[0]
	case c.old.Leader >= 0 && valid(c.old.Leader):
		leader = c.old.Leader
	case first >= 0:
		leader = n.Replicas[first]
	case c.old.Leader >= 0 && slices.Contains(n.ISR, c.old.Leader) && c.v.draining(c.old.Leader):
		return c.old.Leader
	case c.mode == unclean:
		return c.electUnclean()
	}
	if leader >= 0 && len(n.ISR) == 0 {
		n.ISR, n.ELR = []int32{leader}, without(n.ELR, []int32{leader})
		if c.required() <= 1 {
			n.ELR = nil
		}
	}
	return leader
}

// electUnclean lets the first replica that lives lead with what it has. What the
// others have more is lost. One that a reassignment brings, which may have nothing
// yet, comes after all others.
func (c *change) electUnclean() int32 {
	n := &c.next
	alive := pick(slices.Concat(without(n.Replicas, n.Adding), n.Adding), c.v.eligible)
	if len(alive) == 0 {
		return -1
	}
	n.ISR, n.ELR, n.Recovering = alive[:1], nil, true
	return alive[0]
}

// record is the change as a record, nil if there is none.
func (c *change) record(index int32) Record {
	p, ok := c.build()
	if !ok {
		return nil
	}
	return &PartitionChanged{Topic: c.topic.ID, Index: index, Partition: p}
}

// same compares all but the epochs.
func same(a, b *Partition) bool {
	return a.Leader == b.Leader && a.Recovering == b.Recovering && slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR) &&
		slices.Equal(a.ELR, b.ELR) && slices.Equal(a.Adding, b.Adding) && slices.Equal(a.Removing, b.Removing)
}

// partitions gives all partitions by topic id and index: the order of decisions.
func (s *State) partitions() iter.Seq2[*Topic, int] {
	return func(yield func(*Topic, int) bool) {
		for _, id := range s.topicIDs() {
			t := s.topics.get(id)
			for i := range t.Partitions.Len() {
				if !yield(t, i) {
					return
				}
			}
		}
	}
}

// find is the partition of that id, and its topic; nil if there is none.
func (s *State) find(id storage.ID) (*Topic, *Partition) {
	t := s.topics.get(id.Topic)
	if t == nil || id.Partition < 0 || int(id.Partition) >= t.Partitions.Len() {
		return nil, nil
	}
	return t, t.Partitions.At(int(id.Partition))
}

// pick is what keep says of in, nil if that is nothing; in stays as it is.
func pick(in []int32, keep func(int32) bool) (out []int32) {
	for _, v := range in {
		if keep(v) {
			out = append(out, v)
		}
	}
	return out
}

func without(in, gone []int32) []int32 {
	return pick(in, func(v int32) bool { return !slices.Contains(gone, v) })
}
