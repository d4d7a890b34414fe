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

// TestSnapshotForgetsIDs proves that a snapshot takes the place of the ids that a
// node has stored: one that all others have forgotten by then is applied again, on
// that node too, also after a restart.
func TestSnapshotForgetsIDs(t *testing.T) {
	c := newCluster(t, quorum.Options{KeepEntries: 4}, 1, 2, 3)
	l := c.elect()
	lags := c.nodes[l.id%3+1]
	old := c.propose(l, "again")
	c.tick(4)
	c.same(l, lags)
	c.isolate(lags, true)
	for range 1100 {
		if err := l.core.Propose(c.id(), nil); err != nil {
			t.Fatal(err)
		}
	}
	c.settle()
	c.isolate(lags, false)
	c.tick(40)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])
	if ids := countPrefix(lags.store, "QD"); ids > 1024 {
		t.Errorf("%d ids are stored", ids)
	}
	c.restart(lags, lags.store.Kill())
	c.tick(4)
	delete(l.ended, old)
	if err := l.core.Propose(old, []byte("again")); err != nil {
		t.Fatal(err)
	}
	c.settle()
	c.committed(l, old)
	c.tick(4)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])
}

// TestSnapshotIsFollowed proves that the log keeps what has to follow a snapshot on
// its way: a follower that has got it goes on from there, and needs no second one.
func TestSnapshotIsFollowed(t *testing.T) {
	c, l := lagging(t)
	begun := map[uint64]bool{}
	c.chunk = func(m quorum.Message) []quorum.Message {
		if m.Chunk.Kind == quorum.ChunkData {
			begun[m.Chunk.Index] = true
			return []quorum.Message{m}
		}
		return nil // it waits for an answer
	}
	c.isolate(c.nodes[3], false)
	c.tick(4)
	for i := range 8 {
		c.committed(l, c.propose(l, fmt.Sprint("more ", i)))
	}
	c.chunk = func(m quorum.Message) []quorum.Message {
		begun[m.Chunk.Index] = true
		return []quorum.Message{m}
	}
	c.tick(40)
	c.same(c.nodes[1], c.nodes[2], c.nodes[3])
	if len(begun) != 1 {
		t.Errorf("%d snapshots were sent", len(begun))
	}
}

// TestSlowSnapshot proves that a snapshot is sent once, however long it takes, as long
// as the follower takes one chunk after the other.
func TestSlowSnapshot(t *testing.T) {
	c, l := lagging(t)
	for i := range 60 {
		c.committed(l, c.propose(l, fmt.Sprint("more ", i)))
	}
	begun := 0
	var answers []quorum.Message
	c.chunk = func(m quorum.Message) []quorum.Message {
		switch {
		case m.Chunk.Kind == quorum.ChunkWanted:
			answers = append(answers, m)
			return nil
		case m.Chunk.Kind == quorum.ChunkData && m.Chunk.Seq == 0:
			begun++
		}
		return []quorum.Message{m}
	}
	c.isolate(c.nodes[3], false)
	ticks := 0
	for c.nodes[3].machine.Applied < 80 {
		if ticks += 9; ticks > 1000 {
			t.Fatal("the snapshot does not arrive")
		}
		c.tick(9)
		if len(answers) > 0 {
			l.inbox, answers = append(l.inbox, answers[0]), answers[1:]
			c.settle()
		}
	}
	if begun != 1 || ticks < 70 {
		t.Errorf("it was begun %d times in %d ticks", begun, ticks)
	}
}
