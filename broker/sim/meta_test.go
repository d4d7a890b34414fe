package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage/meta"
)

// metaStore is the quorum's store on a disk: what was saved with a sync, and all
// before it, stays; of the rest a power cut keeps the first part. The write that
// is under way is there after a crash or not, as a whole.
type metaStore struct {
	n       *node
	kv      map[string][]byte
	pending []quorum.Write
	flying  *quorum.Write
	// What is durable of the promises of the quorum.
	term, vote, last uint64
}

func newMetaStore(n *node) *metaStore { return &metaStore{n: n, kv: map[string][]byte{}} }

// Get implements quorum.Store.
func (s *metaStore) Get(key []byte) ([]byte, error) {
	if v, ok := s.kv[string(key)]; ok {
		return v, nil
	}
	return nil, meta.ErrNotFound
}

// Scan implements quorum.Store.
func (s *metaStore) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(s.kv)) {
		if bytes.HasPrefix([]byte(k), prefix) {
			if err := fn([]byte(k), s.kv[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Save implements quorum.Store.
func (s *metaStore) Save(w quorum.Write) error {
	s.flying = nil
	s.pending = append(s.pending, w)
	if w.Sync {
		s.settle(len(s.pending))
	}
	return nil
}

// settle makes the first n writes durable.
func (s *metaStore) settle(n int) {
	for i := range n {
		w := &s.pending[i]
		w.Apply(s)
		s.term, s.vote, s.last = w.Term, w.Vote, w.Last
	}
	s.pending = slices.Delete(s.pending, 0, n)
}

// Set, Delete and DeleteRange implement quorum.Writer.
func (s *metaStore) Set(key, value []byte) { s.kv[string(key)] = value }

func (s *metaStore) Delete(key []byte) { delete(s.kv, string(key)) }

func (s *metaStore) DeleteRange(from, to []byte) {
	maps.DeleteFunc(s.kv, func(k string, _ []byte) bool { return k >= string(from) && k < string(to) })
}

// crash leaves what the end of the process leaves, or a power cut.
func (s *metaStore) crash(power bool) {
	if s.flying != nil && s.n.w.rng.IntN(2) == 0 {
		s.pending = append(s.pending, *s.flying)
	}
	s.flying = nil
	n := len(s.pending)
	if power {
		n = s.n.w.rng.IntN(n + 1)
	}
	s.settle(n)
	s.pending = nil
}

// steps is a Machine that notes the state after each entry.
type steps struct {
	*replication.Machine
	steps    []appliedStep
	restored int
	// snapshot is the state of the last one.
	snapshot *controller.State
}

type appliedStep struct {
	index uint64
	state *controller.State
}

// Restore implements quorum.Machine.
func (s *steps) Restore(w quorum.Writer, chunks iter.Seq[[]byte]) error {
	s.restored++
	s.steps = nil
	err := s.Machine.Restore(w, chunks)
	s.snapshot = s.State()
	return err
}

// Apply implements quorum.Machine.
func (s *steps) Apply(w quorum.Writer, es []quorum.Entry) error {
	for i := range es {
		if err := s.Machine.Apply(w, es[i:i+1]); err != nil {
			return err
		}
		s.steps = append(s.steps, appliedStep{es[i].Index, s.State()})
	}
	return nil
}

// proposals is the quorum as the desk sees it; each that it takes is checked.
type proposals struct {
	*quorum.Core
	p *process
}

// Propose implements replication.Proposals.
func (c *proposals) Propose(id quorum.ProposalID, data []byte) error {
	err := c.Core.Propose(id, data)
	if err == nil {
		st := c.Status()
		c.p.w.checks.proposed(c.p.n.id, st.Term, st.Active)
	}
	return err
}

// metadata is a node's part in the quorum: the shell of Core and Desk.
type metadata struct {
	p       *process
	core    *quorum.Core
	machine *steps
	desk    *replication.Desk
	shown   *controller.State
	applied uint64
	// saving says that a Write is on its way to the disk, pumping that Work is
	// being done.
	saving, pumping bool
	asked           map[quorum.ProposalID]func(replication.Answer)
	timer           time.Duration // of the desk, 0 for none
	deciding        bool
}

// member is the node's id in the quorum.
func (n *node) member() uint64 {
	if n.memberID == 0 {
		n.memberID = quorum.NodeID(n.id, n.uuid())
	}
	return n.memberID
}

// uuid names the directory on the node's disk.
func (n *node) uuid() string { return firstUUID(n.id) + strings.Repeat("'", n.disks) }

func firstUUID(node int32) string { return fmt.Sprintf("disk-%d", node) }

func (w *world) newProposalID() (id quorum.ProposalID) {
	binary.BigEndian.PutUint64(id[:], w.rng.Uint64())
	binary.BigEndian.PutUint64(id[8:], w.rng.Uint64())
	return id
}

// openMetadata starts the quorum on what the disk has.
func openMetadata(p *process) (*metadata, error) {
	w, n := p.w, p.n
	machine, err := replication.OpenMachine(n.store)
	if err != nil {
		return nil, err
	}
	o := quorum.Options{ID: n.member(), QuorumSize: 3, KeepEntries: w.cfg.keepEntries}
	if int(n.id) <= w.cfg.voters && n.disks == 0 {
		for _, v := range w.nodes[:w.cfg.voters] {
			o.Voters = append(o.Voters, quorum.NodeID(v.id, firstUUID(v.id)))
		}
	}
	traced := &steps{Machine: machine}
	core, err := quorum.Open(o, n.store, traced)
	if err != nil {
		return nil, err
	}
	m := &metadata{p: p, core: core, machine: traced, shown: machine.State(), asked: map[quorum.ProposalID]func(replication.Answer){}}
	m.desk = replication.NewDesk(replication.DeskOptions{
		Active: controller.ActiveOptions{Session: w.cfg.session, Rebalance: 2 * w.cfg.session, Stable: 3 * w.cfg.session},
		NewID:  w.newProposalID, PartBytes: w.partBytes(), Room: func(int64) error { return n.disk.room() },
	}, &proposals{core, p}, machine)
	st := core.Status()
	m.applied = st.Applied
	w.checks.knows(n.id, m.applied, m.shown)
	n.noteMembers(st)
	return m, nil
}

// partBytes has each record of a decision about a broker be a proposal of its own
// in a third of the seeds.
func (w *world) partBytes() int {
	if w.seed%3 == 0 {
		return 1
	}
	return 0
}

// run begins the ticks.
func (m *metadata) run() {
	if m.core.Alone() && (m.p.w.cfg.company || m.p.w.cfg.nodes == 1) {
		m.fatal(m.core.Campaign())
	}
	if m.p.w.cfg.nodes > 1 {
		m.p.in(m.p.w.between(0, m.p.w.cfg.tick), m.tick)
	}
	m.pump()
	m.join()
}

func (m *metadata) tick() {
	m.fatal(m.core.Tick())
	m.pump()
	m.p.in(m.p.w.cfg.tick, m.tick)
}

// fatal is an error that the quorum may not give.
func (m *metadata) fatal(err error) {
	if err != nil {
		m.p.w.failed("quorum", err.Error())
	}
}

// pump saves what there is to save and passes on what may leave then.
func (m *metadata) pump() {
	if m.pumping {
		return
	}
	m.pumping = true
	defer func() { m.pumping = false }()
	for !m.saving && !m.p.over {
		work, ok := m.core.Work()
		if !ok {
			break
		}
		if !work.Sync {
			m.fatal(m.p.n.store.Save(work))
			m.done(0)
			continue
		}
		m.saving = true
		m.p.n.store.flying = &work
		m.p.n.disk.sync(m.p.life, func(took time.Duration, err error) {
			if err != nil {
				m.tell(m.desk.Failed(m.core.Failed(err)))
				m.p.failed()
				return
			}
			m.saving = false
			m.fatal(m.p.n.store.Save(work))
			m.pumping = true
			m.done(int(took / m.p.w.cfg.tick))
			m.pumping = false
			m.pump()
		})
	}
	m.arm()
}

// done passes on what a save lets out.
func (m *metadata) done(took int) {
	w := m.p.w
	out := m.core.Done(took)
	m.promise(out.Messages)
	for _, msg := range out.Messages {
		if msg.Chunk != nil {
			w.counts.chunks++
		}
		if to := w.memberNode(msg.To); to != nil {
			w.net.send(m.p.n.addr(), to.addr(), func() { to.step(msg) }, m.lost(msg.To))
		}
	}
	if out.Members {
		m.p.n.noteMembers(m.core.Status())
	}
	m.end(out)
	old := m.shown
	m.shown = m.desk.State()
	m.applied = max(m.applied, out.Applied)
	last := old
	if m.machine.restored > 0 {
		w.counts.installed += m.machine.restored
		m.machine.restored = 0
		at := out.Applied
		if len(m.machine.steps) > 0 {
			at = m.machine.steps[0].index - 1
		}
		w.checks.knows(m.p.n.id, at, m.machine.snapshot)
	}
	for _, s := range m.machine.steps {
		w.countStep(s.index, last, s.state)
		w.checks.applied(m.p.n.id, s.index, last, s.state)
		last = s.state
	}
	m.machine.steps = nil
	m.p.session.company()
	if m.shown != old {
		m.p.apply(m.shown)
	}
	if m.desk.Deciding() && !m.deciding {
		w.counts.controllers++
		if w.tracing() {
			w.trace("node %d is the controller, term %d", m.p.n.id, out.Term)
		}
	}
	m.deciding = m.desk.Deciding()
}

// lost is what is done when a message did not arrive, nil for nothing: who refuses
// a connection is forgotten.
func (m *metadata) lost(peer uint64) func(error) {
	if !m.p.w.cfg.forget {
		return nil
	}
	return func(err error) {
		if errors.Is(err, errRefused) && !m.p.over {
			m.p.w.counts.forgotten++
			m.fatal(m.core.Forget(peer))
			m.pump()
		}
	}
}

// promise has the promises of messages checked that leave at this moment. They
// are not in the order of their terms.
func (m *metadata) promise(msgs []quorum.Message) {
	st := m.p.n.store
	disk := promise{term: st.term, vote: st.vote, last: st.last}
	said := make([]promise, 0, len(msgs))
	for _, msg := range msgs {
		if p, ok := promiseOf(msg); ok {
			said = append(said, p)
		}
	}
	inOrder(said)
	for _, p := range said {
		m.p.w.checks.promised(m.p.n.id, p, disk)
	}
}

// end takes what a save lets out, and tells who asked what became of it.
func (m *metadata) end(out quorum.Output) {
	m.tell(m.desk.Done(out, m.p.now()))
}

func (m *metadata) tell(answers []replication.Answer) {
	for _, a := range answers {
		if fn := m.asked[a.ID]; fn != nil {
			delete(m.asked, a.ID)
			fn(a)
		}
	}
}

// arm has the desk's timer run.
func (m *metadata) arm() {
	at, ok := m.desk.Next()
	if !ok || m.timer != 0 && m.timer <= at {
		return
	}
	m.timer = min(max(at, m.p.now()+time.Millisecond), m.p.now()+time.Hour)
	want := m.timer
	m.p.in(want-m.p.now(), func() {
		if m.timer != want {
			return
		}
		m.timer = 0
		m.desk.Tick(m.p.now())
		m.pump()
	})
}

// propose has the controller decide, if it is here.
func (m *metadata) propose(id quorum.ProposalID, ev controller.Event, answer func(controller.Reply, error)) {
	a, later := m.desk.Propose(id, ev, m.p.now())
	if later {
		m.asked[id] = func(a replication.Answer) { answer(a.Reply, a.Err) }
		m.pump()
		return
	}
	answer(a.Reply, a.Err)
}

// memberNode is the node with an id in the quorum.
func (w *world) memberNode(id uint64) *node {
	for _, n := range w.nodes {
		if n.member() == id {
			return n
		}
	}
	return nil
}

// step is a message of the quorum that arrives.
func (n *node) step(msg quorum.Message) {
	if n.p == nil || msg.To != n.member() {
		return // or it has another disk by now
	}
	m := n.p.meta
	m.fatal(m.core.Step(msg))
	m.pump()
}

// join asks to become a member, until this node is one.
func (m *metadata) join() {
	w := m.p.w
	if m.member() || m.removed() {
		return
	}
	to := w.anyNode()
	id := m.p.n.member()
	w.net.send(m.p.n.addr(), to.addr(), func() { to.addMember(id) }, nil)
	m.p.in(w.between(200*time.Millisecond, 400*time.Millisecond), m.join)
}

// removed reports whether this directory was of a member: it is never one again, and
// an operator has to give the node another.
func (m *metadata) removed() bool {
	return m.p.w.cfg.company && len(m.core.Status().Voters) > 0
}

func (m *metadata) member() bool {
	st := m.core.Status()
	return isMember(&st, st.ID)
}

// addMember is a node's wish to be a member.
func (n *node) addMember(id uint64) {
	if n.p == nil {
		return
	}
	m := n.p.meta
	st := m.core.Status()
	if !st.Active || isMember(&st, id) {
		return
	}
	// It may be refused while another change is under way: the node asks again.
	err := m.core.AddLearner(n.w.newProposalID(), id)
	if err == nil {
		n.w.counts.joined++
	} else if !errors.Is(err, quorum.ErrDropped) && !errors.Is(err, quorum.ErrNotLeader) && !errors.Is(err, quorum.ErrRefused) {
		m.fatal(err)
	}
	m.pump()
}

// transfer hands the leadership of the quorum to another node.
func (n *node) transfer(to int32) {
	if n.p != nil {
		m := n.p.meta
		if err := m.core.Transfer(n.w.node(to).member()); err == nil {
			n.w.counts.transfers++
		}
		m.pump()
	}
}

// campaign has the node stand for election.
func (n *node) campaign() {
	if n.p != nil && n.p.meta.member() {
		n.w.counts.campaigns++
		n.p.meta.fatal(n.p.meta.core.Campaign())
		n.p.meta.pump()
	}
}

// errNoController says that nobody is known to decide.
var errNoController = errors.New("no controller")

// ask has the controller decide about an event, by a call if it is elsewhere. An
// error leaves the outcome open.
func (p *process) ask(ev controller.Event, done func(controller.Reply, error)) {
	type answer struct {
		reply controller.Reply
		err   error
	}
	id := p.w.newProposalID()
	l := p.meta.desk.Leader()
	if p.meta.desk.Deciding() {
		l = p.n.id
	}
	if l < 0 {
		p.in(10*time.Millisecond, func() { done(controller.Reply{}, errNoController) })
		return
	}
	to, sent := p.w.node(l), p.w.now
	call(p.w.net, p.life, p.n.addr(), to.addr(), p.w.cfg.session/2, func(give func(answer)) {
		if to.p != nil {
			p.w.stale(ev, sent)
			to.p.meta.propose(id, ev, func(r controller.Reply, err error) { give(answer{r, err}) })
		}
	}, func(a answer, err error) {
		if err == nil {
			err = a.err
		}
		done(a.reply, err)
	})
}

// admin is a client's request to the controller, by way of some node.
func (w *world) admin(at addr, ev controller.Event, done func(controller.Reply, error)) {
	type answer struct {
		reply controller.Reply
		err   error
	}
	n := w.anyNode()
	call(w.net, nil, at, n.addr(), w.cfg.session, func(give func(answer)) {
		if n.p != nil {
			n.p.ask(ev, func(r controller.Reply, err error) { give(answer{r, err}) })
		}
	}, func(a answer, err error) {
		if err == nil {
			err = a.err
		}
		done(a.reply, err)
	})
}

// describe asks some node for its metadata; nil if it does not answer.
func (w *world) describe(at addr, done func(*controller.State)) {
	n := w.anyNode()
	call(w.net, nil, at, n.addr(), w.cfg.timeout, func(give func(*controller.State)) {
		if n.p != nil {
			give(n.p.meta.shown)
		}
	}, func(s *controller.State, _ error) { done(s) })
}
