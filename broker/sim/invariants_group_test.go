package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/broker/group"
)

// Invariants of groups with members, beside I1 to I28:
//
//	G1  the generations of committed group records never fall
//	G2  nor do those of the answers to syncs: none is older than one that was given
//	    before its sync came. A sync that waits for its commit when another takes
//	    over is answered when its old coordinator learns that it is committed, as
//	    late as any answer may be
//	G3  a partition is given to one member in a generation
//	G4  a commit is refused whose generation is older than one that was committed
//	    when it came
//	G5  who leads the coordinator's partition takes over the members: until the
//	    first session can be over, and nobody has joined or left, each member's
//	    heartbeat is answered well
//
// What a partition was allowed to lose is no longer known of.
type groupTrace struct {
	id     partID // of the coordinator
	losses int    // that were allowed when this began
	// next is the offset behind the newest record, which has a generation and members.
	next       int64
	generation int32
	members    []group.Member
	synced     int32
	given      map[int32]map[int32]string
}

// names of the invariants, by index in groupHeld.
var groupInvariants = [...]string{"G1", "G2", "G3", "G4", "G5"}

func (c *checker) group(id partID, name string) *groupTrace {
	g := c.groups[name]
	if losses := len(c.h.losses[id]); g == nil || g.losses != losses {
		g = &groupTrace{id: id, losses: losses, given: map[int32]map[int32]string{}}
		c.groups[name] = g
	}
	return g
}

func (c *checker) askGroup(number int, holds bool, format string, args ...any) {
	c.groupHeld[number-1]++
	if !holds {
		c.v.failed(groupInvariants[number-1], fmt.Sprintf(format, args...))
	}
}

// recorded is called with each change of a group that a replica applies.
func (c *checker) recorded(node int32, id partID, offset int64, epoch int32, change *group.Change) {
	if !change.OfGroup() || change.Members == nil {
		return
	}
	g := c.group(id, change.Group)
	if offset < g.next || c.h.killer(id, epoch, offset) < len(c.h.losses[id]) {
		return // known, or lost, which this node has not heard of
	}
	r := change.Members
	c.askGroup(1, r.Generation >= g.generation, "node %d: %q is in generation %d at %d, it was in %d", node, change.Group, r.Generation, offset, g.generation)
	g.next, g.generation, g.members = offset+1, r.Generation, slices.Clone(r.Members)
}

// gave is called when a sync is answered well.
func (c *checker) gave(node int32, r *memberRequest, parts []partID) {
	if c.lostSince(r) {
		return
	}
	g := c.group(r.id, r.group)
	c.askGroup(2, r.ref.Generation >= r.synced, "node %d answers a sync of generation %d, there was one of %d before it came", node, r.ref.Generation, r.synced)
	g.synced = max(g.synced, r.ref.Generation)
	given := g.given[r.ref.Generation]
	if given == nil {
		given = map[int32]string{}
		g.given[r.ref.Generation] = given
	}
	who := r.ref.ID
	if r.ref.InstanceID != "" {
		who = r.ref.InstanceID
	}
	for _, id := range parts {
		other, known := given[id.Partition]
		c.askGroup(3, !known || other == who, "node %d gives partition %d to %q in generation %d, it was given to %q", node, id.Partition, who, r.ref.Generation, other)
		given[id.Partition] = who
	}
}

// mayCommit is called when a commit is answered well; newest is the generation
// that was committed when it came.
func (c *checker) mayCommit(node int32, r *memberRequest, newest int32) {
	c.askGroup(4, r.ref.Generation >= newest, "node %d commits for %q of generation %d, %d was committed before", node, r.ref.ID, r.ref.Generation, newest)
}

// beaten is called with the answer to a heartbeat by who has led since an instant,
// without anybody having joined or left.
func (c *checker) beaten(node int32, r *memberRequest, since time.Duration, err error) {
	if c.lostSince(r) {
		return
	}
	g := c.group(r.id, r.group)
	i := slices.IndexFunc(g.members, func(m group.Member) bool { return m.ID == r.ref.ID })
	if i < 0 || r.ref.Generation != g.generation {
		return
	}
	for _, m := range g.members {
		if c.v.now() >= since+m.Session {
			return
		}
	}
	bad := errors.Is(err, group.ErrUnknownMember) || errors.Is(err, group.ErrIllegalGeneration) || errors.Is(err, group.ErrRebalanceInProgress) || errors.Is(err, group.ErrFencedInstance)
	c.askGroup(5, !bad, "node %d coordinates since %v and tells %q of generation %d: %v", node, since, r.ref.ID, r.ref.Generation, err)
}

// lostSince reports whether a coordinator answers from what was lost after it led.
func (c *checker) lostSince(r *memberRequest) bool {
	losses := c.h.losses[r.id]
	return len(losses) > 0 && r.epoch < losses[len(losses)-1].epoch
}
