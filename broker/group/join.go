package group

import (
	"fmt"
	"slices"
	"time"
)

// JoinRequest is a member's wish to be in the next generation.
type JoinRequest struct {
	// Member has the id, empty for a new one, and what the member says of
	// itself; Metadata and Assignment are not used.
	Member
	ProtocolType string
	// Protocols are in the member's order of preference. The slice is the
	// group's from now on.
	Protocols []Protocol
	// IDFirst has a new dynamic member told its id, with which it joins again
	// (KIP-394, from version 4 of the request).
	IDFirst bool
	// MaySkip says that the client understands SkipAssignment (KIP-814, from
	// version 9).
	MaySkip bool
}

// JoinReply answers a JoinRequest.
type JoinReply struct {
	Token                  Token
	Err                    error
	Generation             int32
	ProtocolType, Protocol string
	Leader, MemberID       string
	// SkipAssignment tells a leader that the assignment stays.
	SkipAssignment bool
	// Members are all members, for the leader only.
	Members []Member
}

// Join lets a member in, and answers when the rebalance is over that this
// begins, or at once if there is no need for one.
func (g *Group) Join(now time.Time, t Token, r *JoinRequest) Effects {
	if err := g.join(now, t, r); err != nil {
		g.out.Joins = append(g.out.Joins, JoinReply{Token: t, Err: err, MemberID: r.ID, Generation: -1})
	}
	return g.done()
}

func (g *Group) join(now time.Time, t Token, r *JoinRequest) error {
	switch {
	case g.state == Dead:
		return ErrGone
	case g.protocolType == LeaseType || r.ProtocolType == LeaseType:
		return ErrTypeConflict
	case r.Session < g.cfg.MinSession || r.Session > g.cfg.MaxSession:
		return fmt.Errorf("%w: %v is not from %v to %v", ErrInvalidSession, r.Session, g.cfg.MinSession, g.cfg.MaxSession)
	case !g.hasRoom(r):
		return fmt.Errorf("%w: %d", ErrFull, g.cfg.MaxSize)
	case !g.fits(r):
		return ErrInconsistentProtocol
	}
	if r.ID == "" {
		return g.joinNew(now, t, r)
	}
	return g.joinKnown(now, t, r)
}

// hasRoom says whether the group may have the member.
func (g *Group) hasRoom(r *JoinRequest) bool {
	_, known := g.members[r.ID]
	if r.InstanceID != "" {
		_, known = g.instances[r.InstanceID]
	}
	return known || len(g.members) < g.cfg.MaxSize
}

// fits says whether the member knows a protocol that all others know.
func (g *Group) fits(r *JoinRequest) bool {
	if r.ProtocolType == "" || len(r.Protocols) == 0 {
		return false
	}
	if len(g.members) == 0 {
		return true
	}
	if r.ProtocolType != g.protocolType {
		return false
	}
	return slices.ContainsFunc(r.Protocols, func(p Protocol) bool {
		for _, m := range g.members {
			if _, ok := m.metadata(p.Name); !ok && m.ID != r.ID && (r.InstanceID == "" || m.InstanceID != r.InstanceID) {
				return false
			}
		}
		return true
	})
}

func (g *Group) joinNew(now time.Time, t Token, r *JoinRequest) error {
	name := r.ClientID
	if r.InstanceID != "" {
		name = r.InstanceID
	}
	r.ID = g.cfg.NewMemberID(name)
	if old, ok := g.instances[r.InstanceID]; ok && r.InstanceID != "" {
		g.replaceStatic(now, t, r, g.members[old])
		return nil
	}
	if r.IDFirst && r.InstanceID == "" {
		if len(g.members)+len(g.pending) >= g.cfg.MaxSize {
			r.ID = ""
			return fmt.Errorf("%w: %d", ErrFull, g.cfg.MaxSize)
		}
		until := now.Add(r.Session)
		g.pending[r.ID] = until
		g.by(until)
		return ErrMemberIDRequired
	}
	g.enlist(now, t, r, false)
	return nil
}

// joinKnown is the join of a member that has an id already.
func (g *Group) joinKnown(now time.Time, t Token, r *JoinRequest) error {
	if _, ok := g.pending[r.ID]; ok {
		delete(g.pending, r.ID)
		g.enlist(now, t, r, true)
		return nil
	}
	m, err := g.find(MemberRef{ID: r.ID, InstanceID: r.InstanceID})
	if err != nil {
		return err
	}
	same := sameProtocols(m.protocols, r.Protocols)
	switch {
	case g.state == Completing && same, g.state == Stable && same && m.ID != g.leader:
		// It has missed the answer, or asks for no reason.
		g.supersede(m)
		g.heard(m, now)
		g.out.Joins = append(g.out.Joins, g.welcome(m, t))
	default:
		g.update(m, r)
		g.await(now, m, t)
	}
	return nil
}

// enlist makes a new member wait for the rebalance that it causes.
func (g *Group) enlist(now time.Time, t Token, r *JoinRequest, told bool) {
	if len(g.members) == 0 {
		g.protocolType = r.ProtocolType
	}
	r.Metadata, r.Assignment = nil, nil
	m := g.add(r.Member, r.Protocols)
	m.told = told
	if g.state == Preparing && g.rebalance.initial {
		g.rebalance.newcomer = true
	}
	g.await(now, m, t)
}

// update takes over what a member says of itself now.
func (g *Group) update(m *member, r *JoinRequest) {
	m.protocols, m.ClientID, m.Host = r.Protocols, r.ClientID, r.Host
	m.Session, m.RebalanceTimeout = r.Session, r.RebalanceTimeout
}

// await has the member wait for the next generation.
func (g *Group) await(now time.Time, m *member, t Token) {
	g.supersede(m)
	m.join, m.rejoined = t, true
	g.heard(m, now)
	if g.state == Preparing {
		g.tryComplete(now)
	} else {
		g.prepare(now)
	}
}

// supersede answers what the member still waits for, because its client has
// given that up: it sends no two requests at a time.
func (g *Group) supersede(m *member) {
	g.answerJoin(m, JoinReply{Err: ErrRebalanceInProgress, MemberID: m.ID, Generation: -1})
	g.answerSync(m, SyncReply{Err: ErrRebalanceInProgress})
}

// replaceStatic gives the place of a static member to its next incarnation.
// Where nothing changes for the others there is no rebalance.
func (g *Group) replaceStatic(now time.Time, t Token, r *JoinRequest, old *member) {
	g.answerJoin(old, JoinReply{Err: ErrFencedInstance, MemberID: old.ID, Generation: -1})
	g.answerSync(old, SyncReply{Err: ErrFencedInstance})
	m := *old
	m.Member, m.protocols = r.Member, r.Protocols
	m.Metadata, m.Assignment = nil, old.Assignment
	delete(g.members, old.ID)
	g.members[m.ID], g.instances[m.InstanceID] = &m, m.ID
	led := g.leader == old.ID
	if led {
		g.leader = m.ID
	}
	if g.state != Stable || g.vote() != g.protocol {
		g.await(now, &m, t)
		return
	}
	g.heard(&m, now)
	g.persist()
	reply := g.welcome(&m, t)
	switch {
	case !led:
	case r.MaySkip:
		reply.SkipAssignment = true
	default:
		// An older client that is told to lead would assign anew, and nobody
		// else would hear of it: it is told that its former self leads.
		reply.Leader, reply.Members = old.ID, nil
	}
	g.out.Joins = append(g.out.Joins, reply)
}

// welcome answers a join with the current generation.
func (g *Group) welcome(m *member, t Token) JoinReply {
	r := JoinReply{
		Token: t, Generation: g.generation, ProtocolType: g.protocolType, Protocol: g.protocol, Leader: g.leader, MemberID: m.ID,
	}
	if m.ID == g.leader {
		r.Members = g.Members()
	}
	return r
}

// answerJoin answers the member's join if it waits for one.
func (g *Group) answerJoin(m *member, r JoinReply) {
	if m.join != 0 {
		r.Token, m.join = m.join, 0
		g.out.Joins = append(g.out.Joins, r)
	}
}

// Cancel forgets the request of a client that has gone. A new member goes with
// it if its client was never told the id and so cannot come back.
func (g *Group) Cancel(now time.Time, t Token) Effects {
	for _, m := range g.members {
		switch {
		case t == 0:
		case m.join == t:
			m.join = 0
			g.heard(m, now)
			if m.fresh && m.InstanceID == "" && !m.told {
				g.remove(m, nil)
				g.changed(now)
			}
			return g.done()
		case m.sync == t:
			m.sync = 0
			g.heard(m, now)
			return g.done()
		}
	}
	return Effects{}
}
