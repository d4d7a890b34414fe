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
	return []Message{{From: 1, To: 2, Raft: app}, {From: 1, To: 2, Chunk: data}, {From: 1, To: 2, Raft: snap, Chunk: last}}
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
		if got.From != m.From || got.To != m.To || !proto.Equal(got.Raft, m.Raft) || (got.Chunk == nil) != (m.Chunk == nil) ||
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
		if err != nil || second.From != m.From || second.To != m.To || !proto.Equal(second.Raft, m.Raft) || !sameChunk(second.Chunk, m.Chunk) {
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

// FuzzStep proves that no message ends a node that can be read at all, unless it
// says that entries are committed which the node does not have.
func FuzzStep(f *testing.F) {
	addMessages(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMessage(b)
		if err != nil {
			return
		}
		c, err := Open(Options{ID: 2, Voters: []uint64{1, 2, 3}}, noStore{}, &noMachine{})
		if err != nil {
			t.Fatal(err)
		}
		m.To = 2
		if m.Raft != nil {
			m.Raft.To = new(uint64(2))
		}
		err = c.Step(m)
		for range 10 {
			if _, ok := c.Work(); !ok {
				break
			}
			c.Done(0)
		}
		commit := m.Raft != nil && m.Raft.GetCommit() > c.log.last()
		if c.Err() != nil && !commit {
			t.Errorf("%v; Step: %v", c.Err(), err)
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
