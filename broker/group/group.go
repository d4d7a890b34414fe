package group

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// State is where a group is in a rebalance.
type State int8

// The states; see the package comment. A Dead group takes no more requests.
const (
	Empty State = iota
	Preparing
	Completing
	Stable
	Dead
)

// String is the state as Kafka's tools print it.
func (s State) String() string {
	switch s {
	case Empty:
		return "Empty"
	case Preparing:
		return "PreparingRebalance"
	case Completing:
		return "CompletingRebalance"
	case Stable:
		return "Stable"
	default:
		return "Dead"
	}
}

// Config is what is the same for all groups of a coordinator.
type Config struct {
	// MinSession and MaxSession bound the session timeouts that members ask
	// for (group.min.session.timeout.ms, group.max.session.timeout.ms).
	MinSession, MaxSession time.Duration
	// InitialDelay is how long the first rebalance of an empty group waits for
	// more members to come (group.initial.rebalance.delay.ms).
	InitialDelay time.Duration
	// MaxSize is how many members a group may have (group.max.size).
	MaxSize int
	// NewMemberID makes the id of a new member: the name given, which is the
	// instance id or the client id, and something unique.
	NewMemberID func(name string) string
}

// Token names a request that waits for its answer. The caller chooses it; 0 is
// nobody's.
type Token uint64

// Effects is what a step asks for, in this order: Record must be committed
// before any of the answers goes out. The slices are the caller's.
type Effects struct {
	Record *Record
	Joins  []JoinReply
	Syncs  []SyncReply
}

// Group is one consumer group. It is not safe for concurrent use.
type Group struct {
	id  string
	cfg *Config

	state        State
	since        time.Time // when it came into the state
	generation   int32
	protocolType string // of its members; empty if it never had any
	protocol     string // voted for in the last rebalance
	leader       string

	members map[string]*member
	// instances has the member ids of static members.
	instances map[string]string
	// pending are ids that were handed out and not used yet, and until when.
	pending map[string]time.Time
	joined  int64 // counts members, so that they can be kept in order

	// The rebalance that is under way; zero once everybody has an assignment.
	rebalance rebalance

	// next is no later than any deadline; zero if there is none.
	next time.Time
	out  Effects // of the step that runs
}

// rebalance is the timing of a rebalance.
type rebalance struct {
	deadline time.Time
	// initial says that the group was empty before: the deadline is that of
	// the delay, and every newcomer moves it, by what is left of the time.
	initial  bool
	newcomer bool
	left     time.Duration
}

// New makes an empty group. cfg must stay unchanged.
func New(id string, cfg *Config, now time.Time) *Group {
	return &Group{
		id: id, cfg: cfg, since: now,
		members: make(map[string]*member), instances: make(map[string]string), pending: make(map[string]time.Time),
	}
}

// ID is the group's name.
func (g *Group) ID() string { return g.id }

// State is where the group is now, and since when.
func (g *Group) State() (State, time.Time) { return g.state, g.since }

// Generation counts the rebalances.
func (g *Group) Generation() int32 { return g.generation }

// ProtocolType is what kind of members the group has, "consumer" as a rule;
// empty if it never had any.
func (g *Group) ProtocolType() string { return g.protocolType }

// Size is the number of members.
func (g *Group) Size() int { return len(g.members) }

// Idle reports whether the group holds nothing that is not in its Record: it
// may be forgotten and restored.
func (g *Group) Idle() bool {
	return len(g.members) == 0 && len(g.pending) == 0 && (g.state == Empty || g.state == Dead)
}

func (g *Group) enter(s State, now time.Time) { g.state, g.since = s, now }

// done hands out the effects of a step.
func (g *Group) done() Effects {
	out := g.out
	g.out = Effects{}
	return out
}

// inOrder lists the members in the order in which they came.
func (g *Group) inOrder() []*member {
	return slices.SortedFunc(maps.Values(g.members), func(a, b *member) int { return cmp.Compare(a.number, b.number) })
}

// Deadline is when Tick is to be called at the latest; false for never. It may
// be too early, which costs an empty Tick.
func (g *Group) Deadline() (time.Time, bool) { return g.next, !g.next.IsZero() }

// by has the group looked at no later than t.
func (g *Group) by(t time.Time) {
	if g.next.IsZero() || t.Before(g.next) {
		g.next = t
	}
}

// Tick does what is due by now: members that were not heard of in time go, and
// a rebalance does not wait longer.
func (g *Group) Tick(now time.Time) Effects {
	if g.next.IsZero() || now.Before(g.next) {
		return Effects{}
	}
	for id, until := range g.pending {
		if !now.Before(until) {
			delete(g.pending, id)
		}
	}
	for _, m := range g.inOrder() {
		if m.expired(now) {
			g.remove(m, ErrUnknownMember)
			g.changed(now)
		}
	}
	switch {
	case g.state == Preparing && !now.Before(g.rebalance.deadline):
		g.timeIsUp(now)
	case g.state == Preparing:
		g.tryComplete(now) // an id that was awaited may have expired
	case !g.rebalance.deadline.IsZero() && !now.Before(g.rebalance.deadline):
		g.dropUnsynced(now)
	}
	g.findNext()
	return g.done()
}

// findNext looks for the earliest deadline.
func (g *Group) findNext() {
	g.next = time.Time{}
	for _, until := range g.pending {
		g.by(until)
	}
	for _, m := range g.members {
		if !m.waits() {
			g.by(m.deadline)
		}
	}
	if !g.rebalance.deadline.IsZero() {
		g.by(g.rebalance.deadline)
	}
}

// Kill ends the group: all who wait are answered with err, and every later
// request with ErrGone.
func (g *Group) Kill(now time.Time, err error) Effects {
	for _, m := range g.inOrder() {
		g.remove(m, err)
	}
	clear(g.pending)
	g.rebalance = rebalance{}
	g.enter(Dead, now)
	g.findNext()
	return g.done()
}

// Lease makes it a group of leases, for good, unless it has members. That it is
// still one is persisted when that was done longer than every ago.
func (g *Group) Lease(now time.Time, every time.Duration) (Effects, error) {
	switch {
	case g.state == Dead:
		return Effects{}, ErrGone
	case g.state != Empty || len(g.members) > 0:
		return Effects{}, ErrTypeConflict
	case g.protocolType == LeaseType && now.Sub(g.since) < every:
		return Effects{}, nil
	}
	g.protocolType, g.protocol, g.leader, g.since = LeaseType, "", "", now
	g.persist()
	return g.done(), nil
}

// Members describes the members, in the order in which they came.
func (g *Group) Members() []Member {
	out := make([]Member, 0, len(g.members))
	for _, m := range g.inOrder() {
		d := m.Member
		d.Metadata, _ = m.metadata(g.protocol)
		out = append(out, d)
	}
	return out
}

// Protocol is what the members voted for, and Leader who assigned; both are
// empty until the first rebalance is over and once nobody is left.
func (g *Group) Protocol() string { return g.protocol }

// Leader is the id of the member that assigns.
func (g *Group) Leader() string { return g.leader }

// Record is a group as it is persisted, what Kafka's GroupMetadataValue has.
type Record struct {
	ProtocolType, Protocol, Leader string
	Generation                     int32
	Since                          time.Time // when the group came into its state
	Members                        []Member
}

// persist asks for the group to be written down as it is.
func (g *Group) persist() {
	g.out.Record = &Record{
		ProtocolType: g.protocolType, Protocol: g.protocol, Leader: g.leader, Generation: g.generation,
		Since: g.since, Members: g.Members(),
	}
}

// Restore makes the group of what was persisted. Every member has a whole
// session from now on, so that nobody is out because the coordinator was.
func Restore(id string, cfg *Config, r *Record, now time.Time) *Group {
	g := New(id, cfg, now)
	g.protocolType, g.protocol, g.leader, g.generation = r.ProtocolType, r.Protocol, r.Leader, r.Generation
	if !r.Since.IsZero() {
		g.since = r.Since
	}
	for _, d := range r.Members {
		m := g.add(d, []Protocol{{Name: r.Protocol, Metadata: d.Metadata}})
		m.fresh, m.synced = false, true
		m.Assignment = d.Assignment
		g.heard(m, now)
	}
	if len(g.members) > 0 {
		g.state = Stable
	}
	return g
}
