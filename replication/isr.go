package replication

import (
	"fmt"
	"slices"
	"strings"

	"leat/replication/controller"
)

// isrChange is a change of the set in sync that the controller was asked for.
// It ends with a decision of a higher partition epoch and with nothing else: an
// error, or no answer, leaves open whether a copy of the request still comes into
// force. Until then the replicas of both sets count.
type isrChange struct {
	ask controller.AlterPartition
	// flying says that the answer is still to come.
	flying bool
	backoff
}

// maximal says whether a replica may be in sync by what the controller may have
// decided: a shrink is not assumed, an expansion is (KIP-497).
func (r *Replica) maximal(id int32) bool {
	return slices.Contains(r.part.ISR, id) || r.leader.asked != nil && r.leader.asked.names(id)
}

func (c *isrChange) names(id int32) bool {
	return slices.ContainsFunc(c.ask.ISR, func(m controller.Member) bool { return m.ID == id })
}

// Maximal lists the replicas that may be in sync.
func (r *Replica) Maximal() []int32 {
	out := slices.Clone(r.part.ISR)
	for i := range r.leader.peers {
		if id := r.leader.peers[i].id; r.maximal(id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// inSync is how many replicas may be in sync.
func (r *Replica) inSync() int {
	n := 1 // the leader
	for i := range r.leader.peers {
		if r.maximal(r.leader.peers[i].id) {
			n++
		}
	}
	return n
}

// Alter is the change that the controller is to be asked for now, if any. Each
// that it hands out must come back to Altered once; before that there is no
// other. It is to be called when a fetch came in and from time to time, for who
// falls behind does so silently.
func (r *Replica) Alter(now Instant) (controller.AlterPartition, bool) {
	if r.role != Leader {
		return controller.AlterPartition{}, false
	}
	l := &r.leader
	if l.asked == nil && l.refused.over(now) {
		if ask, ok := r.wanted(now); ok {
			l.asked = &isrChange{ask: ask}
		}
	}
	if l.asked == nil || l.asked.flying || !l.asked.over(now) {
		return controller.AlterPartition{}, false
	}
	l.asked.flying = true
	return l.asked.ask, true
}

// wanted is the change that the replicas' progress calls for.
func (r *Replica) wanted(now Instant) (controller.AlterPartition, bool) {
	ask := controller.AlterPartition{ID: r.o.ID, LeaderEpoch: r.part.LeaderEpoch, PartitionEpoch: r.part.Epoch}
	if r.part.Recovering {
		// The leader of an unclean election is as it will be; others join later.
		ask.ISR, ask.Recovered = []controller.Member{{ID: r.o.Self, Epoch: -1}}, true
		return ask, true
	}
	end, changed := r.log.Offsets().End, false
	for _, id := range r.part.ISR {
		p := r.peer(id)
		switch {
		case p == nil:
			ask.ISR = append(ask.ISR, controller.Member{ID: id, Epoch: -1})
		case r.lags(p, end, now):
			changed = true
		default:
			ask.ISR = append(ask.ISR, controller.Member{ID: id, Epoch: p.epoch})
		}
	}
	for i := range r.leader.peers {
		if p := &r.leader.peers[i]; !slices.Contains(r.part.ISR, p.id) && r.mayJoin(p, end, now) {
			ask.ISR = append(ask.ISR, controller.Member{ID: p.id, Epoch: p.epoch})
			changed = true
		}
	}
	return ask, changed
}

// mayJoin says whether a peer may come into sync: it holds all that is committed
// and all that was there when the leadership began, some of which may have been
// committed before without this leader knowing it (KAFKA-7128).
func (r *Replica) mayJoin(p *peer, end int64, now Instant) bool {
	return p.ack >= r.hw && p.ack >= r.leader.start && !r.lags(p, end, now) && r.eligible(p)
}

// Altered takes the controller's answer to what Alter asked for: the partition
// as it is after, or an error; any error for a request that was lost. Refused
// requests bring the partition too. It reports whether the high watermark rose.
func (r *Replica) Altered(asked controller.AlterPartition, got controller.Partition, err error, now Instant) (rose bool) {
	if r.role != Leader {
		return false
	}
	l := &r.leader
	ours := l.asked != nil && l.asked.ask.LeaderEpoch == asked.LeaderEpoch && l.asked.ask.PartitionEpoch == asked.PartitionEpoch
	switch {
	case got.Epoch > r.part.Epoch && got.LeaderEpoch == r.part.LeaderEpoch && r.check(&got) == nil:
		r.part = got
		r.reseat(now)
		if err == nil {
			l.refused = backoff{}
		} else {
			l.refused.next(now)
		}
	case ours:
		// The metadata will tell if it says that something newer is decided.
		l.asked.flying = false
		l.asked.next(now)
	}
	return r.Advance(now)
}

func (c *isrChange) describe(s *strings.Builder) {
	fmt.Fprintf(s, " asked=%v", c.ask.ISR)
	if c.ask.Recovered {
		s.WriteString(" recovered")
	}
	if c.flying {
		s.WriteString(" flying")
	}
	c.backoff.describe(s)
}
