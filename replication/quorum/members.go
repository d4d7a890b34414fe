package quorum

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// AddLearner makes node, which is no member, one that gets the log and has no vote.
// One change of members is made at a time: ErrDropped until the last is applied. A
// change ends as Committed when every voter that answers has applied it: from then on
// a node that it removes can be thrown away, and the cluster survives the loss of as
// many voters as its new members say. ErrRefused says that it makes no sense for these
// members, perhaps because it was made before.
func (c *Core) AddLearner(id ProposalID, node uint64) error {
	return c.change(id, single(raftpb.ConfChangeAddLearnerNode, node))
}

// Promote makes voters of learners, several in one step: two voters can do less
// than one. The rest is as for AddLearner.
func (c *Core) Promote(id ProposalID, nodes ...uint64) error {
	changes := make([]*raftpb.ConfChangeSingle, len(nodes))
	for i, n := range nodes {
		changes[i] = single(raftpb.ConfChangeAddNode, n)
	}
	return c.change(id, changes...)
}

// Replace makes a voter of the learner by and a learner of the voter gone, in one
// step, so that the number of voters stays. The rest is as for AddLearner.
func (c *Core) Replace(id ProposalID, gone, by uint64) error {
	return c.change(id, single(raftpb.ConfChangeAddNode, by), single(raftpb.ConfChangeAddLearnerNode, gone))
}

// Remove makes node no member any more. A leader that is removed proposes nothing
// more, and steps down when its removal is committed; it cannot see that all others
// know, so the outcome is Unknown. Ask the next leader: ErrRefused there says that it
// is done. Before that the vote of the removed node may still be needed. The rest is as
// for AddLearner.
func (c *Core) Remove(id ProposalID, node uint64) error {
	return c.change(id, single(raftpb.ConfChangeRemoveNode, node))
}

func single(kind raftpb.ConfChangeType, node uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: &node}
}

func (c *Core) change(id ProposalID, changes ...*raftpb.ConfChangeSingle) error {
	cc := &raftpb.ConfChangeV2{Changes: changes}
	if id != (ProposalID{}) {
		cc.Context = slices.Clone(id[:])
	}
	return c.propose(id, func() error {
		switch {
		case c.changing || !c.active() || joint(c.log.members):
			return ErrDropped
		case len(changes) > 0 && permitted(c.log.members, cc):
		case !c.settled():
			return ErrDropped // perhaps it was made before, and not all know of that yet
		default:
			return ErrRefused
		}
		if err := c.rn.ProposeConfChange(cc); err != nil {
			return err
		}
		c.changing, c.leaving = true, removes(cc, c.o.ID)
		return nil
	})
}

// removes reports whether a change takes away the vote of a node.
func removes(cc *raftpb.ConfChangeV2, id uint64) bool {
	return slices.ContainsFunc(cc.Changes, func(ch *raftpb.ConfChangeSingle) bool {
		return ch.GetType() != raftpb.ConfChangeAddNode && ch.GetNodeId() == id
	})
}

// removesSelf reports whether the log has a removal of this node, or of its vote, that
// is not applied. The leader that it removes must append nothing behind it. Others may
// not know yet that it is committed, and then need this node's vote: they would not get
// it with logs that are shorter, and this node cannot stand for election any more.
func (c *Core) removesSelf() bool {
	if slices.Contains(c.log.members.LearnersNext, c.o.ID) {
		return true // half done: the entry that makes this node a learner is to come
	}
	for i := c.applied + 1; i <= c.log.last(); i++ {
		if cc, _, err := decodeChange(c.log.at(i)); err == nil && cc != nil && removes(cc, c.o.ID) {
			return true
		}
	}
	return false
}

// decodeChange is the change of members in an entry, if it is one, and the id of
// the proposal. It fails for what no Core proposes.
func decodeChange(e *raftpb.Entry) (cc *raftpb.ConfChangeV2, id ProposalID, err error) {
	data := e.GetData()
	switch e.GetType() {
	case raftpb.EntryNormal:
		if len(data) == 0 {
			return nil, id, nil
		}
	case raftpb.EntryConfChangeV2:
		cc = &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(data, cc); err != nil {
			return nil, id, fmt.Errorf("%w: entry %d: %w", ErrMessage, e.GetIndex(), err)
		}
		if data = cc.GetContext(); len(data) == 0 {
			return cc, id, nil
		}
		if len(data) != len(id) {
			data = nil
		}
	default:
		data = nil
	}
	if copy(id[:], data) < len(id) {
		return nil, id, fmt.Errorf("%w: entry %d of type %d has no id", ErrMessage, e.GetIndex(), e.GetType())
	}
	return cc, id, nil
}

// checkMembers refuses members that no changes lead to; Raft panics for them.
func checkMembers(m *raftpb.ConfState) error {
	for _, ids := range [][]uint64{m.GetVoters(), m.GetLearners(), m.GetVotersOutgoing(), m.GetLearnersNext()} {
		for i, id := range ids {
			if id == 0 || raft.IsLocalMsgTarget(id) || slices.Contains(ids[:i], id) {
				return fmt.Errorf("member %x is there twice, or its id is reserved", id)
			}
		}
	}
	voter := func(id uint64) bool {
		return slices.Contains(m.GetVoters(), id) || slices.Contains(m.GetVotersOutgoing(), id)
	}
	switch {
	case len(m.GetVoters()) == 0:
		return errors.New("no member has a vote")
	case slices.ContainsFunc(m.GetLearners(), voter):
		return errors.New("a learner has a vote")
	case slices.ContainsFunc(m.GetLearnersNext(), func(id uint64) bool {
		return !slices.Contains(m.GetVotersOutgoing(), id) || slices.Contains(m.GetVoters(), id)
	}):
		return errors.New("a learner to be has no vote to lose, or keeps it")
	case m.GetAutoLeave() && len(m.GetVotersOutgoing()) == 0:
		return errors.New("a change of members is to be ended, and none is under way")
	}
	return nil
}

func joint(m *raftpb.ConfState) bool { return len(m.VotersOutgoing) > 0 }

// permitted says that a change makes sense for the members. Raft panics for some
// that do not; all nodes decide alike, for they apply it to the same members.
func permitted(m *raftpb.ConfState, cc *raftpb.ConfChangeV2) bool {
	if len(cc.Changes) == 0 {
		return joint(m)
	}
	if joint(m) {
		return false
	}
	voters, learners := slices.Clone(m.Voters), slices.Clone(m.Learners)
	gone := 0 // voters that become learners, less those that take their place
	for _, ch := range cc.Changes {
		id := ch.GetNodeId()
		v, l := slices.Index(voters, id), slices.Index(learners, id)
		switch kind := ch.GetType(); {
		case id == 0 || raft.IsLocalMsgTarget(id):
			return false
		case kind == raftpb.ConfChangeAddLearnerNode && v < 0 && l < 0:
			learners = append(learners, id)
		case kind == raftpb.ConfChangeAddNode && l >= 0:
			learners, voters, gone = slices.Delete(learners, l, l+1), append(voters, id), gone-1
		case kind == raftpb.ConfChangeAddLearnerNode && v >= 0 && gone < 0:
			voters, learners, gone = slices.Delete(voters, v, v+1), append(learners, id), gone+1
		case kind == raftpb.ConfChangeRemoveNode && v >= 0:
			voters = slices.Delete(voters, v, v+1)
		case kind == raftpb.ConfChangeRemoveNode && l >= 0:
			learners = slices.Delete(learners, l, l+1)
		default:
			return false
		}
	}
	return len(voters) > 0
}

// applyChange changes the members. One that makes no sense by now is passed over,
// as nil is, which stands for one that was made before. That it is applied is made
// durable before anybody hears of it: who throws away what was removed, or loses
// what the new voters can do without, must not meet the old ones after a power cut.
func (c *Core) applyChange(index uint64, cc *raftpb.ConfChangeV2) {
	c.changing, c.leaving = false, false
	if cc == nil || !permitted(c.log.members, cc) {
		return
	}
	// A snapshot now would be of the state after this entry with the members
	// before it.
	c.noView = true
	members := c.rn.ApplyConfChange(cc)
	c.noView = false
	c.log.members = raftpb.EnsureConfState(members)
	c.leaving = slices.Contains(members.LearnersNext, c.o.ID)
	c.membersAt = index
	c.membersDirty, c.sync, c.out.Members = true, true, true
	for id := range c.streams {
		if !isMember(members, id) {
			delete(c.streams, id)
		}
	}
	maps.DeleteFunc(c.others, func(id uint64, _ *other) bool { return !isMember(members, id) })
}

func isMember(m *raftpb.ConfState, id uint64) bool {
	return slices.Contains(m.Voters, id) || slices.Contains(m.Learners, id) ||
		slices.Contains(m.VotersOutgoing, id) || slices.Contains(m.LearnersNext, id)
}

// alone says that this node is the only member.
func (c *Core) alone() bool {
	m := c.log.members
	return len(m.Voters) == 1 && m.Voters[0] == c.o.ID && len(m.Learners) == 0 && !joint(m) && len(m.LearnersNext) == 0
}
