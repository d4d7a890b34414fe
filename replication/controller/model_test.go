package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"leat/storage"
)

// Whatever happens to whatever cluster, after each step the invariants hold, the
// state comes back from its records, from the log by key and through Active, and
// who is elected cleanly holds all that is committed.
func TestModel(t *testing.T) {
	covered := map[string]int{}
	for seed := range uint64(60) {
		m := newModel(t, seed, covered)
		for range 250 {
			m.step()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		m.readBack()
	}
	t.Log(covered)
	for _, what := range []string{"leader", "leaderless", "elr led", "unclean", "recovered", "isr grew", "ineligible", "reassigned", "cancelled", "drained", "last kept", ErrNotController.Error(), ErrInvalidUpdateVersion.Error(), ErrNewLeaderElected.Error(), ErrDuplicateBroker.Error()} {
		if covered[what] == 0 {
			t.Errorf("nothing was seen of %q in %v", what, covered)
		}
	}
}

type model struct {
	*testing.T
	rng     *rand.Rand
	state   *State
	active  *Active
	index   uint64
	now     Instant
	topics  byte
	lives   int
	kept    map[string][]byte
	covered map[string]int
	// holds says who certainly holds all that is committed of a partition.
	holds map[storage.ID][]int32
}

func newModel(t *testing.T, seed uint64, covered map[string]int) *model {
	m := &model{T: t, rng: rand.New(rand.NewPCG(seed, 7)), state: NewState(), kept: map[string][]byte{}, holds: map[storage.ID][]int32{}, covered: covered}
	m.active = Activate(m.state, 0, ActiveOptions{}, 0)
	for i := range 1 + m.rng.Int32N(5) {
		ev := register(i + 1)
		ev.UUID, ev.Incarnation, ev.Rack = fmt.Sprint("u", i+1), fmt.Sprint("first", i+1), fmt.Sprint("r", m.rng.IntN(3))
		m.commit(ev)
		m.commit(&Unfence{ID: i + 1, Epoch: int64(i + 1)})
	}
	return m
}

func (m *model) step() {
	if m.rng.IntN(40) == 0 { // another controller, at what is committed
		m.index++
		m.active = Activate(m.state, m.index, ActiveOptions{}, m.now)
	}
	m.now += Instant(m.rng.IntN(1e9))
	m.commit(m.event())
}

// commit decides about ev and compares all ways to the next state.
func (m *model) commit(ev Event) {
	m.Helper()
	reply, records := Step(m.state, ev)
	next, err := m.state.With(records)
	if err != nil {
		m.Fatalf("%T%+v: %v", ev, ev, err)
	}
	checkStep(m.T, m.state, ev, records, next)
	if m.rng.IntN(4) == 0 {
		_, records := m.active.Step(ev, m.now)
		part := 0
		if len(records) > 0 && m.rng.IntN(2) == 0 {
			part = m.rng.IntN(len(records))
		}
		if part > 0 && !Divisible(ev, records, part) {
			part = 0
		}
		m.active.Undo(records[:part])
		if after, err := m.state.With(records[:part]); err != nil || after.Hash() != m.active.State().Hash() {
			m.Errorf("%T%+v: after %d of %d records the overlay is another state: %v", ev, ev, part, len(records), err)
		}
		m.active.Undo(nil)
	}
	if got, rs := m.active.Step(ev, m.now); !reflect.DeepEqual(rs, records) || len(got.Errs) != len(reply.Errs) {
		m.Errorf("%T%+v: the active controller decides %v, want %v", ev, ev, rs, records)
	}
	if m.rng.IntN(3) == 0 {
		m.index++
		m.active.Committed(next, m.index)
	}
	if m.active.State().Hash() != next.Hash() {
		m.Errorf("%T%+v: the overlay is another state", ev, ev)
	}
	m.hold(ev, reply, next)
	m.cover(reply, next)
	for _, r := range records {
		if key, removes := Key(r); removes {
			delete(m.kept, string(key))
		} else {
			m.kept[string(key)] = Encode(r)
		}
	}
	m.state = next
}

// readBack reads the log by key.
func (m *model) readBack() {
	keys := make([]string, 0, len(m.kept))
	for k := range m.kept {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var records []Record
	for _, k := range keys {
		r, err := Decode(m.kept[k])
		if err != nil {
			m.Fatal(err)
		}
		records = append(records, r)
	}
	read, err := NewState().With(records)
	if err != nil || !alike(read, m.state) || read.nextEpoch != m.state.nextEpoch {
		m.Errorf("read by key it is another state: %v", err)
	}
}

// hold follows who holds what is committed: those in sync while the high watermark
// may move, and no less than those while it may not.
func (m *model) hold(ev Event, reply Reply, next *State) {
	lost := int32(-1)
	if r, ok := ev.(*Register); ok && next.brokers[r.ID].Epoch >= m.state.nextEpoch {
		if old := m.state.brokers[r.ID]; old == nil || old.UUID != r.UUID || r.PreviousEpoch != old.Epoch {
			lost = r.ID
		}
	}
	elected, _ := ev.(*Elect)
	// Whom a leader wants in the ISR has caught up, by its word.
	joined := map[storage.ID][]int32{}
	if a, ok := ev.(*AlterPartitions); ok && (reply.Errs[0] == nil || errors.Is(reply.Errs[0], ErrNewLeaderElected)) {
		joined[a.Partitions[0].ID] = members(a.Partitions[0].ISR)
	}
	for t, i := range next.partitions() {
		id, p := storage.ID{Topic: t.ID, Partition: int32(i)}, t.Partitions.At(i)
		_, old := m.state.find(id)
		if old == nil {
			m.holds[id] = p.ISR
			continue
		}
		h := slices.Concat(without(m.holds[id], []int32{lost}), joined[id])
		if len(h) == 0 && len(old.Replicas) == 1 && len(p.ISR)+len(p.ELR) > 0 {
			h = old.Replicas // what the only one has is all there is
		}
		unclean := uncleanEnabled(next, t.Configs) || elected != nil && elected.Kind == Unclean
		switch {
		case p.Leader >= 0 && p.Leader != old.Leader && !p.Recovering && !slices.Contains(h, p.Leader):
			m.Errorf("I7: %d is elected cleanly, %v hold all: %s, it was %s", p.Leader, h, showPartition(p), showPartition(old))
		case p.Recovering && !old.Recovering && len(h) > 0 && !unclean:
			m.Errorf("an unclean election that nobody allowed, %v hold all: %s", h, showPartition(p))
		case p.Leader < 0 && slices.ContainsFunc(h, func(r int32) bool {
			return next.Eligible(r, -1) && slices.Contains(p.Replicas, r) && slices.Contains(p.ELR, r)
		}):
			m.Errorf("nobody leads, %v hold all: %s", h, showPartition(p))
		}
		for _, r := range p.ELR {
			if !slices.Contains(h, r) && len(h) > 0 {
				m.Errorf("I11: %d may lead, %v hold all: %s", r, h, showPartition(p))
			}
		}
		if p.Recovering && p.Leader != old.Leader {
			h = nil
		}
		h = pick(p.Replicas, func(r int32) bool { return slices.Contains(h, r) || slices.Contains(p.ISR, r) })
		if len(p.ISR) > 0 && len(p.ISR) >= next.MinInSync(t, p.Factor()) {
			h = p.ISR
		}
		m.holds[id] = h
	}
}

func (m *model) cover(reply Reply, next *State) {
	for _, err := range []error{
		ErrNotController, ErrFencedLeaderEpoch, ErrInvalidRequest, ErrInvalidUpdateVersion, ErrIneligibleReplica, ErrNewLeaderElected,
		ErrStaleBrokerEpoch, ErrElectionNotNeeded, ErrPreferredNotAvailable, ErrNobodyEligible, ErrNoReassignment, ErrDuplicateBroker,
	} {
		if errors.Is(errors.Join(reply.Errs...), err) {
			m.covered[err.Error()]++
		}
	}
	for t, i := range next.partitions() {
		p := t.Partitions.At(i)
		_, old := m.state.find(storage.ID{Topic: t.ID, Partition: int32(i)})
		if old == nil || old.Epoch == p.Epoch {
			continue
		}
		leader := next.brokers[p.Leader]
		for what, is := range map[string]bool{
			"leader": p.Leader >= 0 && p.Leader != old.Leader, "leaderless": p.Leader < 0 && old.Leader >= 0,
			"elr led": p.Leader >= 0 && old.Leader < 0 && slices.Contains(old.ELR, p.Leader),
			"unclean": p.Recovering && p.Leader >= 0 && !old.Recovering, "recovered": !p.Recovering && old.Recovering && p.Leader == old.Leader,
			"isr grew": len(p.ISR) > len(old.ISR), "ineligible": p.Leader == old.Leader && same(p, old),
			"reassigned": len(old.Removing) > 0 && len(p.Removing) == 0 && len(p.Replicas) < len(old.Replicas) && len(reply.Partitions) > 0,
			"cancelled":  len(old.Adding) > 0 && len(p.Adding) == 0 && len(reply.Partitions) == 0,
			"drained":    leader != nil && leader.ShuttingDown, "last kept": p.Recovering && p.Leader < 0 && !old.Recovering,
		} {
			if is {
				m.covered[what]++
			}
		}
	}
}
