package sim

import (
	"time"

	"leat/broker/group"
)

// askKind is what a member asks of its coordinator.
type askKind uint8

const (
	askJoin askKind = iota
	askSync
	askHeartbeat
	askLeave
	askCommit
	askFetch
)

// memberRequest is a request of a member.
type memberRequest struct {
	kind  askKind
	group string
	id    partID // of the coordinator
	ref   group.MemberRef
	run   groupRequest
	// ended is called, if it is given, when the member does not live any more that
	// was to be told.
	ended func(group.Answer)
	// synced is the newest generation of an answer to a sync when this came.
	synced int32
	// What the coordinator notes: itself, its leader epoch and the token.
	by    *coordinator
	epoch int32
	token group.Token
}

// ofMember is a request of a member that has come. What is answered is checked
// here, before the network has a hand in it.
func (n *node) ofMember(r *memberRequest, answer func(group.Answer)) {
	if n.p == nil {
		return
	}
	w := n.w
	g := w.checks.group(r.id, r.group)
	newest := g.generation
	r.synced = g.synced
	n.coordinated(r.id, r.kind == askFetch, func(s *group.Shard, now time.Time, t group.Token) {
		c := n.p.replicas[r.id].groups
		r.by, r.token, r.epoch = c, t, c.r.core.LeaderEpoch()
		if r.kind == askJoin || r.kind == askLeave {
			c.changed = true
		}
		r.run(s, now, t)
	}, func(a group.Answer) {
		if w.tracing() {
			w.trace("node %d answers member: kind %d %q of generation %d: %+v %v", n.id, r.kind, r.ref.ID, r.ref.Generation, a.Value, a.Err)
		}
		switch {
		case r.by == nil:
		case r.kind == askHeartbeat && !r.by.changed:
			w.checks.beaten(n.id, r, r.by.led, a.Err)
		case a.Err != nil:
		case r.kind == askSync:
			w.checks.gave(n.id, r, w.crew.assigned(a.Value.(group.SyncReply).Assignment))
		case r.kind == askCommit:
			w.checks.mayCommit(n.id, r, newest)
		}
		answer(a)
	})
}

// cancel is the end of the connection that a request came by.
func (n *node) cancel(r *memberRequest) {
	if n.p == nil || r.by == nil || r.by.r.closed || r.by.r.p != n.p {
		return
	}
	r.by.shard.Cancel(n.w.wall(), r.group, r.token)
	r.by.pump()
}
