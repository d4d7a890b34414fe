package quorum

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Core is a member of the quorum without goroutine, clock, network and disk; see
// the package comment for how it is used. It is not safe for concurrent use.
// Inputs are allowed at any time; one Write is under way at a time.
type Core struct {
	o       Options
	rn      *raft.RawNode
	log     *memLog
	machine Machine

	// What is applied, in memory: the machine is there too.
	applied uint64
	// membersAt is the index of the entry that has made the members what they are, or
	// of a later one.
	membersAt uint64
	seen      map[ProposalID]uint64
	window    [dedupeWindow]seenID // by index

	// What goes into the next Write.
	staged       changes
	sync         bool
	owed         bool   // a term, a vote or an entry was written without a sync
	storedFirst  uint64 // the entries that the store has
	storedLast   uint64
	dirty        uint64 // from here on the entries are not in the store; 0: all are
	hardDirty    bool
	membersDirty bool
	appliedDirty bool
	bytes        int // of entries and applied entries, see maxWorkBytes

	saving bool // between Work and Done
	out    Output

	// term is the term that this node leads in, 0 if it does not. pending are its
	// proposals without an end, in the order they were made.
	term     uint64
	pending  []ProposalID
	reads    []pendingRead
	changing bool              // a change of members was proposed in term and is not applied
	settling []Ended           // changes that are applied, and not known to all yet
	others   map[uint64]*other // the other members, as far as they were heard of in term
	leaving  bool              // the removal of this node is in the log and not applied, see members.go
	yielding bool              // a slow disk has cost it its leadership, see guard.go
	yieldTo  uint64

	views    []view // snapshots that Raft has asked for and not sent yet
	streams  map[uint64]*stream
	incoming *incoming
	// assembled is a received snapshot on its way through Raft, nil if none is.
	assembled *incoming
	noView    bool // while members change no snapshot can be made

	err error
}

// Open makes a Core of what the store holds; it reads only. The machine must be in
// the state of the store's applied index. The errors are the store's, those of the
// options, ErrDamaged and ErrOtherNode.
func Open(o Options, s Store, m Machine) (*Core, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	st, err := load(s)
	if err != nil {
		return nil, err
	}
	c := &Core{o: o, machine: m, seen: map[ProposalID]uint64{}, streams: map[uint64]*stream{}, others: map[uint64]*other{}}
	if st.fresh {
		if err := c.begin(st); err != nil {
			return nil, err
		}
	}
	if st.node != o.ID {
		return nil, fmt.Errorf("%w: it is of node %x, and this is %x", ErrOtherNode, st.node, o.ID)
	}
	c.log = &memLog{
		hard:   &raftpb.HardState{Term: &st.term, Vote: &st.vote, Commit: &st.commit},
		before: st.before, beforeTerm: st.beforeTerm, members: st.members, snapshot: c.makeView,
	}
	if len(st.entries) > 0 {
		c.log.append(st.entries)
	}
	c.applied, c.membersAt = st.applied, st.applied
	c.storedFirst, c.storedLast = c.log.first(), c.log.last()
	for _, s := range st.ids {
		c.window[s.index%dedupeWindow] = s
		c.seen[s.id] = s.index
	}
	c.out.Applied = c.applied
	err = c.guard(func() (err error) {
		c.rn, err = raft.NewRawNode(o.config(c.log, c.applied))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return c, nil
}

// begin makes the log of a node that has none: the beginning of a new cluster, a
// snapshot of what was written before there was a quorum, or nothing, to be filled
// by a leader. It is saved with the first Write.
func (c *Core) begin(st *saved) error {
	st.node = c.o.ID
	if len(c.o.Voters) == 0 && st.applied > 0 {
		return fmt.Errorf("%w: there is metadata up to entry %d, but no log and no list of members", ErrDamaged, st.applied)
	}
	if len(c.o.Voters) > 0 {
		st.applied = max(st.applied, 1)
		st.before, st.beforeTerm, st.term, st.commit = st.applied, 1, 1, st.applied
		st.members.Voters = slices.Sorted(slices.Values(c.o.Voters))
	}
	c.sync, c.owed = len(c.o.Voters) != 1, true
	c.hardDirty, c.membersDirty, c.appliedDirty = true, true, true
	return nil
}

// guard calls into Raft, or what it calls: it panics where an invariant is broken.
func (c *Core) guard(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("raft: %v", r)
		}
	}()
	return fn()
}

// raft is guard for a Core that runs: a panic ends it.
func (c *Core) raft(fn func() error) error {
	if c.err != nil {
		return c.err
	}
	broken := true
	err := c.guard(func() error {
		err := fn()
		broken = false
		return err
	})
	if broken {
		return c.fail(err)
	}
	return err
}

// fail ends the Core.
func (c *Core) fail(err error) error {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", ErrFailed, err)
		c.resign()
	}
	return c.err
}

// Failed says that a save has failed. The Core votes, leads and acknowledges no
// more, and what it had to say is not said: what the disk has is not known.
func (c *Core) Failed(err error) Output {
	_ = c.fail(err)
	out := Output{Ended: c.out.Ended, Term: c.out.Term, Applied: c.out.Applied}
	for i := range out.Ended {
		out.Ended[i].Outcome = Unknown
	}
	c.out, c.saving = Output{}, false
	return out
}

// Tick says that a tick has passed.
func (c *Core) Tick() error {
	return c.raft(func() error {
		c.rn.Tick()
		c.tickStreams()
		c.tickOthers()
		if err := c.promote(); err != nil {
			return err
		}
		return c.replace()
	})
}

// Campaign stands for election at once.
func (c *Core) Campaign() error { return c.raft(c.rn.Campaign) }

// Forget says that the connection to a member is lost for good, as after a refused
// dial: a follower then does not wait for it before it votes for another.
func (c *Core) Forget(peer uint64) error {
	return c.raft(func() error {
		st := c.rn.BasicStatus()
		if st.RaftState == raft.StateLeader {
			c.dropStream(peer)
			c.rn.ReportUnreachable(peer)
			return nil
		}
		if st.Lead == peer {
			return c.rn.ForgetLeader()
		}
		return nil
	})
}

// Propose asks for data to be committed; the end comes as an Ended with the id.
// ErrNotLeader, ErrDropped and ErrTooLarge mean that it never will be.
// ErrUnknownOutcome means that a proposal with that id is under way already: there is
// one Ended for both. data must not be changed any more.
func (c *Core) Propose(id ProposalID, data []byte) error {
	if len(data) > c.o.MaxProposalBytes {
		return ErrTooLarge
	}
	return c.propose(id, func() error {
		entry := append(append(make([]byte, 0, len(id)+len(data)), id[:]...), data...)
		return c.rn.Propose(entry)
	})
}

// propose makes a proposal with fn and waits for its end.
func (c *Core) propose(id ProposalID, fn func() error) error {
	return c.raft(func() error {
		c.observe()
		switch {
		case c.term == 0 || c.yielding:
			return ErrNotLeader
		case c.leaving:
			return ErrDropped
		case id != ProposalID{} && slices.Contains(c.pending, id):
			return fmt.Errorf("%w: %x is under way already", ErrUnknownOutcome, id)
		case len(c.pending) >= maxPending:
			return ErrDropped
		}
		if err := fn(); err != nil {
			if errors.Is(err, raft.ErrProposalDropped) {
				return ErrDropped
			}
			return err
		}
		if id != (ProposalID{}) {
			c.pending = append(c.pending, id)
		}
		return nil
	})
}

// Applied says where the proposal was applied, if that is not longer ago than the
// window of ids that are remembered.
func (c *Core) Applied(id ProposalID) (index uint64, ok bool) {
	index, ok = c.seen[id]
	return index, ok
}

// pendingRead is a read that Raft has answered with an index, or not yet.
type pendingRead struct {
	id    ProposalID
	index uint64 // 0: not yet
}

// Read asks what may be read at this leader: when it ends as Committed, everything
// that was committed anywhere at the time of the call is applied here. ErrDropped
// says that too many wait, or one with that id.
func (c *Core) Read(id ProposalID) error {
	return c.raft(func() error {
		c.observe()
		switch {
		case c.term == 0 || c.yielding:
			return ErrNotLeader
		case len(c.reads) >= maxReads || slices.ContainsFunc(c.reads, func(r pendingRead) bool { return r.id == id }):
			return ErrDropped
		}
		c.rn.ReadIndex(slices.Clone(id[:]))
		c.reads = append(c.reads, pendingRead{id: id})
		return nil
	})
}

// allowed are the messages that members send each other. Proposals are not passed
// on, and a snapshot comes with its last chunk.
var allowed = []raftpb.MessageType{
	raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow,
	raftpb.MsgPreVote, raftpb.MsgPreVoteResp, raftpb.MsgVote, raftpb.MsgVoteResp,
}

// Step takes a message of another member. A message that is out of date or of no
// member is ignored; ErrMessage says that it is not even one.
func (c *Core) Step(m Message) error {
	if c.err != nil {
		return c.err
	}
	if m.To != c.o.ID || m.From == 0 || m.From == c.o.ID || m.Raft == nil && m.Chunk == nil {
		return fmt.Errorf("%w: from %x to %x", ErrMessage, m.From, m.To)
	}
	if m.Raft != nil && (m.Raft.GetFrom() != m.From || m.Raft.GetTo() != m.To) {
		return fmt.Errorf("%w: it says that it is from %x to %x", ErrMessage, m.Raft.GetFrom(), m.Raft.GetTo())
	}
	if m.Chunk != nil {
		return c.raft(func() error {
			c.heard(m)
			return c.stepChunk(m)
		})
	}
	if !slices.Contains(allowed, m.Raft.GetType()) {
		return fmt.Errorf("%w: %s", ErrMessage, m.Raft.GetType())
	}
	if err := checkEntries(m.Raft); err != nil {
		return err
	}
	return c.raft(func() error {
		c.heard(m)
		if m.Raft.GetType() == raftpb.MsgAppResp && !m.Raft.GetReject() {
			c.caughtUp(m.From, m.Raft.GetIndex())
		}
		return c.step(m.Raft)
	})
}

func (c *Core) step(m *raftpb.Message) error {
	err := c.rn.Step(m)
	if errors.Is(err, raft.ErrStepPeerNotFound) {
		return nil // it was a member once
	}
	return err
}

// checkEntries proves that the entries in a message follow one another.
func checkEntries(m *raftpb.Message) error {
	term := m.GetLogTerm()
	for i, e := range m.GetEntries() {
		if e.GetIndex() != m.GetIndex()+1+uint64(i) || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return fmt.Errorf("%w: entry %d of term %d", ErrMessage, e.GetIndex(), e.GetTerm())
		}
		if _, _, err := decodeChange(e); err != nil {
			return err
		}
		term = e.GetTerm()
	}
	return nil
}
