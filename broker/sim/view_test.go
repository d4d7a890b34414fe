package sim

import (
	"time"

	"leat/replication"
	"leat/replication/quorum"
)

// worldView is a world as the checks see it.
type worldView struct{ w *world }

func (v worldView) now() time.Duration { return v.w.now }

func (v worldView) nodes() []int32 {
	out := make([]int32, len(v.w.nodes))
	for i, n := range v.w.nodes {
		out[i] = n.id
	}
	return out
}

// lease is in the time of the world.
func (v worldView) lease(node int32) time.Duration {
	p := v.w.node(node).p
	switch {
	case p == nil:
		return 0
	case p.lease() == replication.Forever:
		return replication.Forever
	}
	return p.told(p.lease())
}

func (v worldView) log(node int32, id partID) *simLog {
	if l := v.w.node(node).logs[id]; l != nil {
		return l.simLog
	}
	return nil
}

func (v worldView) replica(node int32, id partID) replicaView {
	if p := v.w.node(node).p; p != nil {
		if r := p.replicas[id]; r != nil {
			return r.core
		}
	}
	return nil
}

func (v worldView) minISR(id partID) int {
	replicas := v.w.cfg.rf
	if t := v.w.checks.newest.Topic(id.Topic); t != nil && int(id.Partition) < t.Partitions.Len() {
		replicas = t.Partitions.At(int(id.Partition)).Factor()
	}
	return min(v.w.cfg.minISR, replicas)
}

func (v worldView) durable(id partID) bool { return v.w.cfg.durable(id.Topic) }

func (v worldView) failed(invariant, what string) { v.w.failed(invariant, what) }

// promiseOf is what a message of the quorum promises.
func promiseOf(m quorum.Message) (promise, bool) {
	if m.Raft == nil {
		return promise{}, false
	}
	p := promise{term: m.Raft.GetTerm()}
	switch m.Raft.GetType().String() {
	case "MsgVoteResp":
		if !m.Raft.GetReject() {
			p.vote = m.To
		}
	case "MsgVote":
		p.vote = m.From
	case "MsgAppResp":
		if !m.Raft.GetReject() {
			p.last = m.Raft.GetIndex()
		}
	case "MsgPreVote", "MsgPreVoteResp":
		return promise{}, false // of a term that may never be
	}
	return p, true
}
