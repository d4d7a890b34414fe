package group

import "time"

// SyncRequest asks for a member's assignment; the leader's brings everybody's.
type SyncRequest struct {
	MemberRef
	// ProtocolType and Protocol must be the group's, if they are given (from
	// version 5 of the request).
	ProtocolType, Protocol string
	// Assignments are by member id. The bytes are the group's from now on.
	Assignments map[string][]byte
}

// SyncReply answers a SyncRequest.
type SyncReply struct {
	Token                  Token
	Err                    error
	ProtocolType, Protocol string
	Assignment             []byte
}

// leastTimeout is how often at most a group looks for who has come, whatever
// rebalance timeout its members ask for.
const leastTimeout = time.Second

// prepare begins a rebalance.
func (g *Group) prepare(now time.Time) {
	for _, m := range g.inOrder() {
		if m.sync != 0 {
			g.answerSync(m, SyncReply{Err: ErrRebalanceInProgress})
			g.heard(m, now) // nobody could hear of it while it waited
		}
	}
	longest := g.rebalanceTimeout()
	g.rebalance = rebalance{deadline: now.Add(longest)}
	if delay := min(g.cfg.InitialDelay, longest); g.state == Empty && delay > 0 {
		g.rebalance = rebalance{initial: true, deadline: now.Add(delay), left: longest - delay}
	}
	g.enter(Preparing, now)
	g.by(g.rebalance.deadline)
	g.tryComplete(now)
}

// rebalanceTimeout is how long the others wait for the slowest member.
func (g *Group) rebalanceTimeout() time.Duration {
	var longest time.Duration
	for _, m := range g.members {
		longest = max(longest, m.RebalanceTimeout)
	}
	return longest
}

// tryComplete ends the preparation once everybody has joined. The first
// rebalance waits for its delay in any case, unless nobody is left.
func (g *Group) tryComplete(now time.Time) {
	if len(g.members) > 0 && (g.rebalance.initial || len(g.pending) > 0) {
		return
	}
	for _, m := range g.members {
		if !m.rejoined {
			return
		}
	}
	g.complete(now)
}

// timeIsUp ends the preparation, or lengthens the delay of the first rebalance
// because somebody came meanwhile.
func (g *Group) timeIsUp(now time.Time) {
	if r := &g.rebalance; r.initial && r.newcomer && r.left > 0 {
		more := min(g.cfg.InitialDelay, r.left)
		r.newcomer, r.left, r.deadline = false, r.left-more, now.Add(more)
		return
	}
	g.complete(now)
}

// complete begins the next generation with those who have joined. Static
// members stay until their session is over.
func (g *Group) complete(now time.Time) {
	for _, m := range g.inOrder() {
		if !m.rejoined && m.InstanceID == "" {
			g.remove(m, ErrUnknownMember)
		}
	}
	if len(g.members) == 0 {
		g.generation++
		g.protocol, g.leader, g.rebalance = "", "", rebalance{}
		g.enter(Empty, now)
		g.persist()
		return
	}
	g.rebalance = rebalance{deadline: now.Add(max(g.rebalanceTimeout(), leastTimeout))}
	g.by(g.rebalance.deadline)
	if !g.electJoined() {
		return // only static members are left, and none of them is there to lead
	}
	g.generation++
	g.protocol = g.vote()
	g.enter(Completing, now)
	for _, m := range g.members {
		m.Assignment = nil
	}
	for _, m := range g.inOrder() {
		g.begin(now, m)
	}
}

// begin takes a member into the generation that begins. One that has not joined
// keeps its place, and nobody waits for it.
func (g *Group) begin(now time.Time, m *member) {
	m.synced = !m.rejoined
	if !m.rejoined {
		return
	}
	waited := m.join
	m.join, m.rejoined, m.fresh = 0, false, false
	g.heard(m, now)
	if waited != 0 {
		g.out.Joins = append(g.out.Joins, g.welcome(m, waited))
	}
}

// electJoined sees to it that the leader is one who has joined; false if nobody
// has.
func (g *Group) electJoined() bool {
	if g.members[g.leader].rejoined {
		return true
	}
	for _, m := range g.inOrder() {
		if m.rejoined {
			g.leader = m.ID
			return true
		}
	}
	return false
}

// vote is the protocol that most members like best among those that all know;
// of equals, the one that the leader likes better. What all know, the leader
// knows.
func (g *Group) vote() string {
	votes := make(map[string]int)
	ballot := g.members[g.leader].protocols
	for _, p := range ballot {
		if g.common(p.Name) {
			votes[p.Name] = 0
		}
	}
	for _, m := range g.members {
		for _, p := range m.protocols {
			if n, ok := votes[p.Name]; ok {
				votes[p.Name] = n + 1
				break
			}
		}
	}
	best := ""
	for _, p := range ballot {
		if n, ok := votes[p.Name]; ok && (best == "" || n > votes[best]) {
			best = p.Name
		}
	}
	return best
}

// common says whether all members know the protocol.
func (g *Group) common(protocol string) bool {
	for _, m := range g.members {
		if _, ok := m.metadata(protocol); !ok {
			return false
		}
	}
	return true
}

// Sync answers with the member's assignment, once the leader has sent it.
func (g *Group) Sync(now time.Time, t Token, r *SyncRequest) Effects {
	m, err := g.current(r.MemberRef)
	switch {
	case err != nil:
	case r.ProtocolType != "" && r.ProtocolType != g.protocolType, r.Protocol != "" && r.Protocol != g.protocol:
		err = ErrInconsistentProtocol
	case g.state == Preparing:
		err = ErrRebalanceInProgress
	}
	if err != nil {
		g.out.Syncs = append(g.out.Syncs, SyncReply{Token: t, Err: err})
		return g.done()
	}
	g.answerSync(m, SyncReply{Err: ErrRebalanceInProgress}) // given up by its client
	m.sync, m.synced = t, true
	g.heard(m, now)
	if g.state == Completing && m.ID == g.leader {
		g.assign(now, r.Assignments)
	}
	if g.state == Stable {
		g.settle(now, m)
		g.relax()
	}
	return g.done()
}

// assign ends the rebalance with the leader's assignment; who is not in it gets
// nothing.
func (g *Group) assign(now time.Time, to map[string][]byte) {
	for id, m := range g.members {
		m.Assignment = to[id]
	}
	g.enter(Stable, now)
	g.persist()
	for _, m := range g.inOrder() {
		g.settle(now, m)
	}
}

// relax ends the rebalance once nobody is left who has not asked for an
// assignment.
func (g *Group) relax() {
	for _, m := range g.members {
		if !m.synced {
			return
		}
	}
	g.rebalance = rebalance{}
}

// settle answers a member that waits for its assignment.
func (g *Group) settle(now time.Time, m *member) {
	if m.sync != 0 {
		g.answerSync(m, SyncReply{ProtocolType: g.protocolType, Protocol: g.protocol, Assignment: m.Assignment})
		g.heard(m, now)
	}
}

// dropUnsynced takes out those who joined and did not ask for their assignment
// in time: what is theirs would be read by nobody.
func (g *Group) dropUnsynced(now time.Time) {
	for _, m := range g.inOrder() {
		if !m.synced {
			g.remove(m, ErrUnknownMember)
		}
	}
	g.prepare(now)
}

// answerSync answers the member's sync if it waits for one.
func (g *Group) answerSync(m *member, r SyncReply) {
	if m.sync != 0 {
		r.Token, m.sync = m.sync, 0
		g.out.Syncs = append(g.out.Syncs, r)
	}
}
