package quorum_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/cryptotest"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

// node is a member of a cluster in one goroutine.
type node struct {
	id      uint64
	core    *quorum.Core
	machine *quorumtest.Machine
	store   *quorumtest.Store
	inbox   []quorum.Message
	out     quorum.Output // the last
	ended   map[quorum.ProposalID]quorum.Ended
	lost    bool // its process is gone
	took    int  // ticks that each save takes
}

// cluster is some nodes and the network between them.
type cluster struct {
	t     testing.TB
	o     quorum.Options
	nodes map[uint64]*node
	cut   map[[2]uint64]bool // from, to
	// sent sees each message when it leaves a node.
	sent func(m quorum.Message)
	// saving sees each Write before and after it is saved.
	saving func(n *node, w quorum.Write, after bool)
	// chunk is what arrives of a message with a chunk.
	chunk func(m quorum.Message) []quorum.Message
	// lossy, if it is not nil, makes a network that loses, repeats and delays.
	lossy  *rand.Rand
	late   []quorum.Message
	serial uint64
	// lose says that a process ends with a power cut.
	lose bool
}

// newCluster makes nodes with empty stores, voters with the ids of names.
func newCluster(t *testing.T, o quorum.Options, voters ...uint64) *cluster {
	t.Helper()
	cryptotest.SetGlobalRandom(t, 1)
	c := &cluster{t: t, o: o, nodes: map[uint64]*node{}, cut: map[[2]uint64]bool{}}
	for _, id := range voters {
		c.work(c.add(id, voters))
	}
	return c
}

// add makes a node with an empty store, one that is to join if voters is nil.
func (c *cluster) add(id uint64, voters []uint64) *node {
	c.t.Helper()
	n := &node{id: id, store: quorumtest.NewStore(), ended: map[quorum.ProposalID]quorum.Ended{}}
	c.nodes[id] = n
	c.open(n, voters)
	return n
}

func (c *cluster) open(n *node, voters []uint64) {
	c.t.Helper()
	o := c.o
	o.ID, o.Voters = n.id, voters
	var err error
	if n.machine, err = quorumtest.OpenMachine(n.store); err != nil {
		c.t.Fatal(err)
	}
	if n.core, err = quorum.Open(o, n.store, n.machine); err != nil {
		c.t.Fatalf("node %d: %v", n.id, err)
	}
	n.lost, n.inbox, n.out = false, nil, quorum.Output{}
}

// restart ends the process of a node and starts it with what is in store.
func (c *cluster) restart(n *node, store *quorumtest.Store) {
	c.t.Helper()
	n.store = store
	c.open(n, nil)
}

func (c *cluster) ids() []uint64 { return slices.Sorted(maps.Keys(c.nodes)) }

// work does what a node has to do.
func (c *cluster) work(n *node) {
	c.t.Helper()
	for !n.lost {
		w, ok := n.core.Work()
		if !ok {
			break
		}
		if c.saving != nil {
			c.saving(n, w, false)
		}
		if n.lost {
			return
		}
		if err := n.store.Save(w); err != nil {
			c.take(n, n.core.Failed(err))
			return
		}
		if c.saving != nil {
			c.saving(n, w, true)
		}
		if n.lost {
			return
		}
		c.take(n, n.core.Done(n.took))
	}
}

func (c *cluster) take(n *node, out quorum.Output) {
	c.t.Helper()
	n.out = out
	for _, e := range out.Ended {
		if old, ok := n.ended[e.ID]; ok && old.Outcome != quorum.Unknown {
			c.t.Fatalf("node %d: %x ends as %+v and %+v", n.id, e.ID, old, e)
		}
		n.ended[e.ID] = e
	}
	for _, m := range out.Messages {
		if c.sent != nil {
			c.sent(m)
		}
		if to := c.nodes[m.To]; to != nil && !c.cut[[2]uint64{m.From, m.To}] {
			ms := []quorum.Message{c.wire(m)}
			if c.chunk != nil && m.Chunk != nil {
				ms = c.chunk(ms[0])
			}
			to.inbox = append(to.inbox, c.weather(ms)...)
		}
	}
}

// weather is what arrives now of messages.
func (c *cluster) weather(ms []quorum.Message) []quorum.Message {
	if c.lossy == nil {
		return ms
	}
	switch c.lossy.IntN(16) {
	case 0:
		return nil
	case 1:
		return append(ms, ms...)
	case 2:
		c.late = append(c.late, ms...)
		return nil
	default:
		return ms
	}
}

// wire is what arrives of a message.
func (c *cluster) wire(m quorum.Message) quorum.Message {
	c.t.Helper()
	b, err := m.Append(nil)
	if err == nil {
		m, err = quorum.DecodeMessage(b)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// settle delivers messages until there are none.
func (c *cluster) settle() {
	c.t.Helper()
	for range 10_000 {
		busy := false
		for _, id := range c.ids() {
			n := c.nodes[id]
			inbox := n.inbox
			n.inbox = nil
			for _, m := range inbox {
				busy = true
				if !n.lost {
					_ = n.core.Step(m) // a node that has failed says so
				}
			}
			c.work(n)
		}
		if !busy && !slices.ContainsFunc(c.ids(), func(id uint64) bool { return len(c.nodes[id].inbox) > 0 }) {
			return
		}
	}
	c.t.Fatal("the cluster does not come to rest")
}

// tick lets n ticks pass.
func (c *cluster) tick(n int) {
	c.t.Helper()
	for range n {
		for _, id := range c.ids() {
			if node := c.nodes[id]; !node.lost {
				_ = node.core.Tick()
			}
		}
		if c.lossy != nil && c.lossy.IntN(4) == 0 {
			for _, m := range c.late {
				if to := c.nodes[m.To]; to != nil {
					to.inbox = append(to.inbox, m)
				}
			}
			c.late = nil
		}
		c.settle()
	}
}

// leader is the one node that acts as leader, nil if none does.
func (c *cluster) leader() (leader *node) {
	c.t.Helper()
	for _, id := range c.ids() {
		n := c.nodes[id]
		if !n.lost && n.out.Active && n.core.Status().Active && (leader == nil || n.out.Term > leader.out.Term) {
			leader = n
		}
	}
	return leader
}

// elect waits for a leader.
func (c *cluster) elect() *node {
	c.t.Helper()
	for range 200 {
		if l := c.leader(); l != nil {
			return l
		}
		c.tick(1)
	}
	c.t.Fatal("no leader after 200 ticks")
	return nil
}

func (c *cluster) id() (id quorum.ProposalID) {
	c.serial++
	binary.BigEndian.PutUint64(id[8:], c.serial)
	return id
}

// propose makes a proposal at n and settles.
func (c *cluster) propose(n *node, data string) quorum.ProposalID {
	c.t.Helper()
	id := c.id()
	if err := n.core.Propose(id, []byte(data)); err != nil {
		c.t.Fatalf("propose %q at %d: %v", data, n.id, err)
	}
	c.settle()
	return id
}

// committed fails unless the proposal was told to be committed.
func (c *cluster) committed(n *node, id quorum.ProposalID) {
	c.t.Helper()
	if e := n.ended[id]; e.Outcome != quorum.Committed {
		c.t.Fatalf("node %d: %x ended as %+v", n.id, id, e)
	}
}

// same fails unless the nodes have all applied the same.
func (c *cluster) same(nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes[1:] {
		if n.machine.Applied != nodes[0].machine.Applied || n.machine.Hash() != nodes[0].machine.Hash() {
			c.t.Fatalf("node %d has applied %d with %d entries, node %d %d with %d", n.id, n.machine.Applied,
				len(n.machine.Entries), nodes[0].id, nodes[0].machine.Applied, len(nodes[0].machine.Entries))
		}
	}
}

// isolate cuts a node off, or connects it again.
func (c *cluster) isolate(n *node, cut bool) {
	for id := range c.nodes {
		c.cut[[2]uint64{id, n.id}], c.cut[[2]uint64{n.id, id}] = cut, cut
	}
}

func texts(m *quorumtest.Machine) (texts []string) {
	for _, e := range m.Entries {
		texts = append(texts, string(e.Data))
	}
	return texts
}

// TestOne proves that a cluster of one leads at once, that nothing before its first
// proposal costs a sync, that each proposal is one synced save with its state, and
// that a restart goes on from there.
func TestOne(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 7)
	n := c.nodes[7]
	syncs := 0
	c.saving = func(_ *node, w quorum.Write, after bool) {
		if after && w.Sync {
			syncs++
		}
	}
	for run := range 3 {
		if err := n.core.Campaign(); err != nil {
			t.Fatal(err)
		}
		c.work(n)
		if !n.out.Active || n.out.Term != uint64(2+run) || n.out.Leader != 7 || syncs != 0 {
			t.Fatalf("run %d: %+v after %d syncs", run, n.out, syncs)
		}
		for i := range 3 {
			saves := n.store.Saves()
			c.committed(n, c.propose(n, fmt.Sprintf("%d.%d", run, i)))
			if n.store.Saves() != saves+1 || n.store.Unsynced() != 0 {
				t.Fatalf("%d saves, %d without a sync", n.store.Saves()-saves, n.store.Unsynced())
			}
		}
		if syncs != 3 {
			t.Fatalf("run %d: %d syncs", run, syncs)
		}
		syncs = 0
		c.restart(n, n.store.Crash(rand.New(rand.NewPCG(1, 1))))
	}
	if got := fmt.Sprint(texts(n.machine)); got != "[0.0 0.1 0.2 1.0 1.1 1.2 2.0 2.1 2.2]" {
		t.Errorf("applied %s", got)
	}
	if !n.core.Alone() || n.core.Status().Role != quorum.Follower {
		t.Errorf("status %+v", n.core.Status())
	}
}

// TestThree proves that three nodes elect one, that what it proposes is applied by
// all, that another is elected when it is cut off, which ends what the old leader
// has proposed as unknown, and that all agree when it is back.
func TestThree(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	old := c.elect()
	c.committed(old, c.propose(old, "a"))
	c.isolate(old, true)
	lost := c.propose(old, "lost")
	if _, ended := old.ended[lost]; ended {
		t.Fatal("a proposal without a quorum has ended")
	}
	c.tick(40)
	if e := old.ended[lost]; e.Outcome != quorum.Unknown {
		t.Fatalf("the lost proposal ended as %+v", e)
	}
	if old.out.Active || old.core.Propose(c.id(), nil) == nil {
		t.Fatal("a leader without a quorum goes on")
	}
	l := c.elect()
	if l == old || l.out.Term <= old.out.Term {
		t.Fatalf("node %d leads in term %d", l.id, l.out.Term)
	}
	c.committed(l, c.propose(l, "b"))
	c.isolate(old, false)
	c.tick(10)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])
	if got := fmt.Sprint(texts(old.machine)); got != "[a b]" {
		t.Errorf("applied %s", got)
	}
	for _, n := range c.nodes {
		if n.out.Leader != l.id || n.core.Status().Err != nil {
			t.Errorf("node %d follows %d: %v", n.id, n.out.Leader, n.core.Status().Err)
		}
	}
}

// TestBeginning proves that a member of a new cluster of several durably knows its
// fellows before it says anything: after a power cut it is no stranger to them.
func TestBeginning(t *testing.T) {
	c := newCluster(t, quorum.Options{}, 1, 2, 3)
	messages := 0
	c.sent = func(m quorum.Message) {
		messages++
		store := c.nodes[m.From].store
		core, err := quorum.Open(quorum.Options{ID: m.From}, store.Lose(store.Unsynced()), &quorumtest.Machine{})
		if err != nil || fmt.Sprint(core.Status().Voters) != "[1 2 3]" {
			t.Fatalf("node %d says %s and knows %v: %v", m.From, m.Raft.GetType(), core.Status().Voters, err)
		}
	}
	c.elect()
	if messages == 0 {
		t.Error("nothing was said")
	}
}
