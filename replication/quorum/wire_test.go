package quorum

import (
	"bytes"
	"errors"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func wireMessages() []Message {
	app := &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(3)), Index: new(uint64(4)),
		LogTerm: new(uint64(2)), Commit: new(uint64(4)),
		Entries: []*raftpb.Entry{{Index: new(uint64(5)), Term: new(uint64(3)), Data: bytes.Repeat([]byte("x"), 20)}},
	}
	snap := &raftpb.Message{
		Type: raftpb.MsgSnap.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(3)),
		Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
			Index: new(uint64(9)), Term: new(uint64(3)), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}, AutoLeave: new(false)},
		}},
	}
	data := &Chunk{Term: 3, Index: 9, Seq: 1, Kind: ChunkData, Data: []byte("abc")}
	last := &Chunk{Term: 3, Index: 9, Seq: 2, Kind: ChunkData, Last: true}
	data.CRC, last.CRC = data.sum(), last.sum()
	return []Message{{From: 1, To: 2, Applied: 7, Raft: app}, {From: 1, To: 2, Chunk: data}, {From: 1, To: 2, Raft: snap, Chunk: last}}
}

// TestWire proves that a message is read as it was written, that none of its bytes
// is one of the buffer's, and that cut or lengthened ones are refused.
func TestWire(t *testing.T) {
	for _, m := range wireMessages() {
		b, err := m.Append([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		b = b[len("before"):]
		got, err := DecodeMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			if _, err := DecodeMessage(b[:i]); !errors.Is(err, ErrMessage) {
				t.Errorf("%d of %d bytes: %v", i, len(b), err)
			}
		}
		if _, err := DecodeMessage(append(bytes.Clone(b), 0)); !errors.Is(err, ErrMessage) {
			t.Errorf("a byte too many: %v", err)
		}
		clear(b)
		if got.From != m.From || got.To != m.To || got.Applied != m.Applied || !proto.Equal(got.Raft, m.Raft) || (got.Chunk == nil) != (m.Chunk == nil) ||
			m.Chunk != nil && (got.Chunk.sum() != m.Chunk.CRC || got.Chunk.CRC != m.Chunk.CRC) {
			t.Errorf("%+v was read as %+v", m, got)
		}
	}
}

// addMessages begins a fuzz test with messages of every kind.
func addMessages(f *testing.F) {
	for _, m := range wireMessages() {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// FuzzDecodeMessage proves that no bytes break the decoder, and that what it reads
// it writes again.
func FuzzDecodeMessage(f *testing.F) {
	addMessages(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMessage(b)
		if err != nil {
			return
		}
		again, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		second, err := DecodeMessage(again)
		if err != nil || second.From != m.From || second.To != m.To || second.Applied != m.Applied || !proto.Equal(second.Raft, m.Raft) || !sameChunk(second.Chunk, m.Chunk) {
			t.Errorf("%+v, again %+v: %v", m, second, err)
		}
	})
}

func sameChunk(a, b *Chunk) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.sum() == b.sum() && a.CRC == b.CRC
}

// leading is node 2 as the only voter, with a snapshot on its way to node 1, a
// learner.
func leading(t *testing.T) *Core {
	t.Helper()
	c, err := Open(Options{ID: 2, Voters: []uint64{2}, KeepEntries: 1}, noStore{}, &noMachine{})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Campaign()
	said(c)
	err = errors.Join(err, c.AddLearner(ProposalID{1}, 1))
	said(c)
	for i := range byte(4) {
		err = errors.Join(err, c.Propose(ProposalID{2, i}, nil))
	}
	said(c)
	err = errors.Join(err, c.Step(Message{From: 1, To: 2, Raft: &raftpb.Message{
		Type: raftpb.MsgAppResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(c.term), Index: new(uint64(2)), Reject: new(true),
	}}))
	said(c)
	if err != nil || len(c.streams) != 1 {
		t.Fatalf("%d snapshots: %v", len(c.streams), err)
	}
	return c
}

// FuzzStep proves that no message ends a node that can be read at all, neither a
// follower nor a leader, unless it says that entries are committed which the node
// does not have.
func FuzzStep(f *testing.F) {
	addMessages(f)
	ack := func(kind raftpb.MessageType, index uint64, reject bool) *raftpb.Message {
		return &raftpb.Message{
			Type: kind.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(2)), Index: &index, Reject: &reject, RejectHint: &index,
		}
	}
	wanted := &Chunk{Term: 2, Index: 7, Seq: 3, Kind: ChunkWanted}
	wanted.CRC = wanted.sum()
	for _, m := range []Message{
		{From: 1, To: 2, Raft: ack(raftpb.MsgAppResp, 7, false)},
		{From: 1, To: 2, Raft: ack(raftpb.MsgAppResp, 99, false)},
		{From: 1, To: 2, Raft: ack(raftpb.MsgAppResp, 99, true)},
		{From: 1, To: 2, Raft: ack(raftpb.MsgHeartbeatResp, 0, false)},
		{From: 1, To: 2, Raft: ack(raftpb.MsgVoteResp, 0, true)},
		{From: 1, To: 2, Raft: ack(raftpb.MsgTimeoutNow, 0, false)},
		{From: 1, To: 2, Chunk: wanted},
	} {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMessage(b)
		if err != nil {
			return
		}
		follower, err := Open(Options{ID: 2, Voters: []uint64{1, 2, 3}}, noStore{}, &noMachine{})
		if err != nil {
			t.Fatal(err)
		}
		m.To = 2
		if m.Raft != nil {
			m.Raft.To = new(uint64(2))
		}
		for _, c := range []*Core{follower, leading(t)} {
			err := c.Step(m)
			said(c)
			for range 15 {
				err = errors.Join(err, c.Tick())
				said(c)
			}
			commit := m.Raft != nil && m.Raft.GetCommit() > c.log.last()
			if c.Err() != nil && !commit {
				t.Errorf("%v; Step: %v", c.Err(), err)
			}
		}
	})
}

// FuzzDecodeStored proves that no bytes in a store break Open's decoders, and that
// what they read is written as it was.
func FuzzDecodeStored(f *testing.F) {
	f.Add(encodeHard(1, 2, 3, 4))
	f.Add(encodeMembers(5, 6, &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}, AutoLeave: new(true)}))
	f.Add(encodeEntry(&raftpb.Entry{Term: new(uint64(1)), Data: make([]byte, 20)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s saved
		if s.decodeHard(b) == nil && !bytes.Equal(encodeHard(s.node, s.term, s.vote, s.commit), b) {
			t.Errorf("term and vote %+v", s)
		}
		if s.decodeMembers(b) == nil && !bytes.Equal(encodeMembers(s.before, s.beforeTerm, s.members), b) {
			t.Errorf("members %+v", s.members)
		}
		if e, err := decodeEntry(7, b); err == nil && !bytes.Equal(encodeEntry(e), b) {
			t.Errorf("entry %v", e)
		}
	})
}

// TestMembersStored proves that every part of the members is stored.
func TestMembersStored(t *testing.T) {
	want := &raftpb.ConfState{
		Voters: []uint64{1, 2}, Learners: []uint64{3}, VotersOutgoing: []uint64{4, 5}, LearnersNext: []uint64{6}, AutoLeave: new(true),
	}
	var s saved
	if err := s.decodeMembers(encodeMembers(7, 8, want)); err != nil || !proto.Equal(s.members, want) || s.before != 7 || s.beforeTerm != 8 {
		t.Errorf("%+v, %v", s, err)
	}
}
