package group

import (
	"bytes"
	"slices"
	"time"
)

// Member is what others may know of a member.
type Member struct {
	ID string
	// InstanceID is that of a static member, else empty.
	InstanceID       string
	ClientID, Host   string
	Session          time.Duration
	RebalanceTimeout time.Duration
	// Metadata is what the member says of itself for the protocol in force, and
	// Assignment what the leader gave it. The bytes are the clients' own and
	// must not be changed.
	Metadata, Assignment []byte
}

// Protocol is a way to assign that a member knows, with what it says for it.
type Protocol struct {
	Name     string
	Metadata []byte
}

// MemberRef says who a request is from.
type MemberRef struct {
	ID         string
	InstanceID string // empty for none
	Generation int32  // -1 for none
}

// newMemberTimeout is how long a member waits in its first join at most, for
// its client may be gone and cannot be heard of while it waits.
const newMemberTimeout = 5 * time.Minute

// member is a member of the group.
type member struct {
	Member
	number    int64
	protocols []Protocol // in the member's order of preference
	// join and sync are its requests that wait. A member that joins again has
	// rejoined even if the request was canceled.
	join, sync Token
	rejoined   bool
	synced     bool
	// fresh says that its first join was not answered yet, told that its client
	// knows the id all the same.
	fresh, told bool
	deadline    time.Time
}

// waits says that the member waits for the others and cannot be heard of. The
// fresh one's wait is bounded.
func (m *member) waits() bool { return !m.fresh && (m.join != 0 || m.sync != 0) }

func (m *member) expired(now time.Time) bool { return !m.waits() && !now.Before(m.deadline) }

func (m *member) metadata(protocol string) ([]byte, bool) {
	i := slices.IndexFunc(m.protocols, func(p Protocol) bool { return p.Name == protocol })
	if i < 0 {
		return nil, false
	}
	return m.protocols[i].Metadata, true
}

func sameProtocols(a, b []Protocol) bool {
	return slices.EqualFunc(a, b, func(x, y Protocol) bool { return x.Name == y.Name && bytes.Equal(x.Metadata, y.Metadata) })
}

// add makes a new member.
func (g *Group) add(d Member, protocols []Protocol) *member {
	g.joined++
	m := &member{Member: d, number: g.joined, protocols: protocols, fresh: true}
	g.members[m.ID] = m
	if m.InstanceID != "" {
		g.instances[m.InstanceID] = m.ID
	}
	if g.leader == "" {
		g.leader = m.ID
	}
	return m
}

// heard gives the member another session.
func (g *Group) heard(m *member, now time.Time) {
	timeout := m.Session
	if m.fresh {
		timeout = max(newMemberTimeout, m.Session)
	}
	m.deadline = now.Add(timeout)
	g.by(m.deadline)
}

// remove takes a member out; what it waits for is answered with err.
func (g *Group) remove(m *member, err error) {
	g.answerJoin(m, JoinReply{Err: err, MemberID: m.ID, Generation: -1})
	g.answerSync(m, SyncReply{Err: err})
	delete(g.members, m.ID)
	if g.instances[m.InstanceID] == m.ID {
		delete(g.instances, m.InstanceID)
	}
	if g.leader == m.ID {
		g.leader = ""
		if order := g.inOrder(); len(order) > 0 {
			g.leader = order[0].ID
		}
	}
}

// find looks a member up for a request and tells why it is none.
func (g *Group) find(ref MemberRef) (*member, error) {
	if g.state == Dead {
		return nil, ErrGone
	}
	if ref.InstanceID != "" {
		switch id, ok := g.instances[ref.InstanceID]; {
		case !ok:
			return nil, ErrUnknownMember
		case id != ref.ID:
			return nil, ErrFencedInstance
		}
	}
	m := g.members[ref.ID]
	if m == nil {
		return nil, ErrUnknownMember
	}
	return m, nil
}

// current is find for a request that must be of the current generation.
func (g *Group) current(ref MemberRef) (*member, error) {
	m, err := g.find(ref)
	if err == nil && ref.Generation != g.generation {
		return nil, ErrIllegalGeneration
	}
	return m, err
}

// Heartbeat takes note that a member lives. ErrRebalanceInProgress tells it to
// join again.
func (g *Group) Heartbeat(now time.Time, ref MemberRef) error {
	m, err := g.current(ref)
	if err != nil {
		return err
	}
	g.heard(m, now)
	if g.state == Preparing {
		return ErrRebalanceInProgress
	}
	return nil
}

// MayCommit says whether offsets may be committed for the group: by members of
// the current generation, and by anybody who claims no generation while there
// are no members. Since a rebalance is announced by heartbeats, members may
// commit while it is prepared, but not while the assignment is awaited.
func (g *Group) MayCommit(now time.Time, ref MemberRef) error {
	switch {
	case g.state == Dead:
		return ErrGone
	case ref.Generation < 0 && ref.ID == "" && ref.InstanceID == "" && g.state != Empty:
		return ErrUnknownMember
	case ref.Generation < 0 && g.state == Empty:
		return nil
	}
	m, err := g.current(ref)
	if err != nil {
		return err
	}
	if g.state == Completing {
		return ErrRebalanceInProgress
	}
	g.heard(m, now)
	return nil
}

// Leave takes a member out: by its id, or a static one by its instance id alone.
func (g *Group) Leave(now time.Time, ref MemberRef) (Effects, error) {
	if g.state == Dead {
		return Effects{}, ErrGone
	}
	if ref.InstanceID != "" && ref.ID == "" {
		ref.ID = g.instances[ref.InstanceID]
	}
	if _, ok := g.pending[ref.ID]; ok && ref.InstanceID == "" {
		delete(g.pending, ref.ID)
		if g.state == Preparing {
			g.tryComplete(now)
		}
		return g.done(), nil
	}
	m, err := g.find(ref)
	if err != nil {
		return Effects{}, err
	}
	g.remove(m, ErrUnknownMember)
	g.changed(now)
	return g.done(), nil
}

// changed begins a rebalance because a member came, went or changed, or goes on
// with the one that is being prepared.
func (g *Group) changed(now time.Time) {
	switch g.state {
	case Stable, Completing:
		g.prepare(now)
	case Preparing:
		g.tryComplete(now)
	case Empty, Dead:
	}
}
