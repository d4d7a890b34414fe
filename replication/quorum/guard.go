package quorum

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Transfer hands leadership to a voter, 0: to the one that is furthest. Until that
// is done, for at most an election timeout, proposals are dropped.
func (c *Core) Transfer(to uint64) error {
	return c.raft(func() error {
		c.observe()
		if c.term == 0 {
			return ErrNotLeader
		}
		if to == 0 {
			to = c.heir()
		}
		if to == 0 || !slices.Contains(c.log.members.Voters, to) {
			return ErrRefused
		}
		c.rn.TransferLeader(to)
		return nil
	})
}

// heir is the voter that leadership is best given to, 0 if none was heard of lately.
func (c *Core) heir() uint64 {
	best := Peer{}
	for _, p := range c.peers() {
		if !p.Learner && p.Active && (best.ID == 0 || p.Match > best.Match) {
			best = p
		}
	}
	return best.ID
}

// slow gives leadership up if a save has taken longer than the followers wait. To
// lead from a disk that hangs would hold everybody up for as long as it hangs.
// Until another leads, or Raft notices that no quorum answers, this node is silent
// as a leader; its proposals have no known outcome.
func (c *Core) slow(took int) {
	c.observe()
	if c.term == 0 || c.yielding || took <= c.o.ElectionTicks || len(c.log.members.Voters)+len(c.log.members.VotersOutgoing) < 2 {
		return
	}
	c.yieldTo = c.heir()
	if c.yieldTo != 0 {
		_ = c.raft(func() error {
			c.rn.TransferLeader(c.yieldTo)
			return nil
		})
	}
	c.yielding = true
	c.abandon()
	clear(c.streams)
}

// silenced says that a leader that gives up says no such thing: it hands over, and
// sends its heir what that lacks, and is no leader to anybody else.
func (c *Core) silenced(m Message) bool {
	if m.Raft == nil {
		return m.Chunk.Kind == ChunkData
	}
	switch m.Raft.GetType() {
	case raftpb.MsgHeartbeat, raftpb.MsgSnap:
		return true
	case raftpb.MsgApp:
		return m.To != c.yieldTo
	default:
		return false
	}
}

// Err is why the Core has ended, nil while it has not.
func (c *Core) Err() error { return c.err }

// Alone says that this node is the only member: then nothing comes of ticks once it
// leads.
func (c *Core) Alone() bool { return c.alone() }

// Status is the state in memory: it may be ahead of what is saved.
func (c *Core) Status() Status {
	st := c.rn.BasicStatus()
	s := Status{
		ID: c.o.ID, Term: st.GetTerm(), Vote: st.GetVote(), Leader: st.Lead, Role: Follower, Active: c.active(),
		Commit: st.GetCommit(), Applied: c.applied, First: c.log.first(), Last: c.log.last(),
		Voters: slices.Clone(c.log.members.Voters), Learners: slices.Concat(c.log.members.Learners, c.log.members.LearnersNext),
		Joint: joint(c.log.members), Yielding: c.yielding, Err: c.err,
	}
	switch st.RaftState {
	case raft.StateLeader:
		s.Role, s.Peers, s.Settled = Leader, c.peers(), c.settled()
	case raft.StateCandidate, raft.StatePreCandidate:
		s.Role = Candidate
	case raft.StateFollower:
	}
	return s
}
