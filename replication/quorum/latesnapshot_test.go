package quorum_test

import (
	"fmt"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"leat/replication/quorum"
)

// A follower that has installed a snapshot, and says so only when the leader's log
// begins behind it, gets another one: Raft does not take the first for done by
// itself then, and waited for it for ever.
func TestSnapshotAnsweredLate(t *testing.T) {
	c, l := lagging(t)
	var late []quorum.Message
	c.sent = func(m quorum.Message) {
		if m.From == 3 && m.Raft != nil && m.Raft.GetType() == raftpb.MsgAppResp && !m.Raft.GetReject() {
			late = append(late, c.wire(m))
		}
	}
	c.chunk = func(m quorum.Message) []quorum.Message {
		if m.Chunk.Last {
			c.cut[[2]uint64{3, l.id}] = true
		}
		return []quorum.Message{m}
	}
	c.isolate(c.nodes[3], false)
	for i := 0; len(late) == 0; i++ {
		if i == 100 {
			t.Fatal("no snapshot is installed")
		}
		c.tick(1)
	}
	for i := range 20 {
		c.committed(l, c.propose(l, fmt.Sprint("more ", i)))
	}
	c.cut[[2]uint64{3, l.id}] = false
	l.inbox = append(l.inbox, late[0])
	c.settle()
	c.tick(100)
	c.same(l, c.nodes[2], c.nodes[3])
}
