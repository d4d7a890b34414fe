package quorum

import (
	"cmp"
	"errors"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// promoteLag is how many entries behind a learner may be that becomes a voter.
const promoteLag = 64

// other is another member, as far as this leader has heard of it in its term.
type other struct {
	silent  int    // ticks since it has answered
	applied uint64 // what it says that it has applied
}

func (c *Core) other(id uint64) *other {
	if c.others[id] == nil {
		c.others[id] = &other{}
	}
	return c.others[id]
}

// tickOthers counts how long the other members are silent.
func (c *Core) tickOthers() {
	if c.observe(); c.term == 0 {
		return
	}
	m := c.log.members
	for _, ids := range [][]uint64{m.Voters, m.Learners} {
		for _, id := range ids {
			c.other(id).silent++
		}
	}
	c.endChanges()
}

// heard notes what a message to this leader says about the member that it is from.
// Only answers are a sign of life: a node that stands for election sends messages too,
// and does not hear the leader.
func (c *Core) heard(m Message) {
	if c.observe(); c.term == 0 || !isMember(c.log.members, m.From) {
		return
	}
	o := c.other(m.From)
	o.applied = max(o.applied, m.Applied)
	if k := m.Raft.GetType(); m.Raft.GetTerm() == c.term && (k == raftpb.MsgAppResp || k == raftpb.MsgHeartbeatResp) {
		o.silent = 0
	}
	c.endChanges()
}

// settled reports whether all voters that answer know, durably, who the members are.
// Raft goes by the members that a node has applied. If the leader is lost while it alone
// has applied that some are voters, or are none any more, the others look for a majority
// of the members of before: perhaps for ever.
func (c *Core) settled() bool {
	return !joint(c.log.members) && !slices.ContainsFunc(c.log.members.Voters, func(id uint64) bool {
		o := c.others[id]
		return id != c.o.ID && (o == nil || o.silent < c.o.ElectionTicks && o.applied < c.membersAt)
	})
}

// endChanges ends the changes of members that are applied, once all know of them.
func (c *Core) endChanges() {
	if len(c.settling) == 0 || c.term == 0 || !c.settled() {
		return
	}
	for _, e := range c.settling {
		c.end(e.ID, e.Index)
	}
	c.settling = nil
}

// peers are the members as this leader sees them, by id, without itself.
func (c *Core) peers() (peers []Peer) {
	c.rn.WithProgress(func(id uint64, kind raft.ProgressType, p tracker.Progress) {
		if id == c.o.ID {
			return
		}
		peer := Peer{
			ID: id, Learner: kind == raft.ProgressTypeLearner, Match: p.Match, Active: p.RecentActive,
			Snapshot: p.State == tracker.StateSnapshot,
		}
		if o := c.others[id]; o != nil {
			peer.Applied, peer.Silent = o.applied, o.silent
		}
		peers = append(peers, peer)
	})
	slices.SortFunc(peers, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	return peers
}

// mayChange reports whether this leader may change the members by itself.
func (c *Core) mayChange() bool {
	return c.o.QuorumSize > 0 && len(c.log.members.Learners) > 0 && !c.changing && c.active() && c.settled()
}

// promote makes voters of learners while there are fewer than QuorumSize. An even
// number of voters is only passed, in the one change that makes two voters of
// learners at once, or left.
func (c *Core) promote() error {
	voters := len(c.log.members.Voters)
	want := 2 - (voters+1)%2
	if voters+want > c.o.QuorumSize || !c.mayChange() {
		return nil
	}
	ready := readyLearners(c.peers(), c.log.last())
	if len(ready) < want {
		return nil
	}
	return ignoreDropped(c.Promote(ProposalID{}, ready[:want]...))
}

// replace has a learner take the place of a voter that is dead, see ReplaceTicks. The
// dead one stays a member: when it is back it gets the log, which says that it is a
// learner, and may take the place of another. Until then it cannot be elected, for a
// majority of those that it takes for voters has the change in its log.
func (c *Core) replace() error {
	if c.o.ReplaceTicks < 0 || !c.mayChange() {
		return nil
	}
	gone, by, ok := replacement(c.peers(), c.log.last(), c.o.ElectionTicks, c.o.ReplaceTicks)
	if !ok {
		return nil
	}
	return ignoreDropped(c.Replace(ProposalID{}, gone, by))
}

func ignoreDropped(err error) error {
	if errors.Is(err, ErrDropped) {
		return nil // too much is under way; the next tick asks again
	}
	return err
}

// readyLearners are the learners that are fit to be voters, by id.
func readyLearners(peers []Peer, last uint64) (ready []uint64) {
	for _, p := range peers {
		// Raft takes a new member for active before anything was heard of it.
		if p.Learner && p.Active && !p.Snapshot && p.Match > 0 && p.Match+promoteLag >= last {
			ready = append(ready, p.ID)
		}
	}
	return ready
}

// replacement finds the voter that has been silent for longest, if for replaceTicks or
// more, and the learner that takes its place. There is none unless a majority of the
// voters answers: this leader, and those that have been silent for less than
// answerTicks.
func replacement(peers []Peer, last uint64, answerTicks, replaceTicks int) (gone, by uint64, ok bool) {
	voters, here, longest := 1, 1, -1
	for i, p := range peers {
		if p.Learner {
			continue
		}
		voters++
		if p.Silent < answerTicks {
			here++
		}
		if p.Silent >= replaceTicks && (longest < 0 || p.Silent > peers[longest].Silent) {
			longest = i
		}
	}
	ready := readyLearners(peers, last)
	if longest < 0 || len(ready) == 0 || 2*here <= voters {
		return 0, 0, false
	}
	return peers[longest].ID, ready[0], true
}
