package quorum

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// chunk is a whole chunk of a snapshot, from one member to node 2.
func chunk(from, term, index uint64, seq uint32) Message {
	ch := &Chunk{Term: term, Index: index, Seq: seq, Kind: ChunkData}
	if seq > 0 { // the first is of ids: there are none
		ch.Data = []byte{byte(from), byte(term), byte(index), byte(seq)}
	}
	ch.CRC = ch.sum()
	return Message{From: from, To: 2, Chunk: ch}
}

// joining is node 2, which has no log yet.
func joining(t *testing.T) *Core {
	t.Helper()
	c, err := Open(Options{ID: 2, MaxSnapshotBytes: 1 << 10}, noStore{}, &noMachine{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// said is what a Core has to say by now, as if it were saved.
func said(c *Core) (out []Message) {
	for _, ok := c.Work(); ok; _, ok = c.Work() {
		out = append(out, c.Done(0).Messages...)
	}
	return out
}

// TestEmptyChunksAreBounded proves that chunks without bytes are bounded too: a
// peer that never comes to the last one does not fill the memory.
func TestEmptyChunksAreBounded(t *testing.T) {
	c := joining(t)
	for seq := range uint32(1000) {
		ch := &Chunk{Term: 5, Index: 10, Seq: seq, Kind: ChunkData}
		ch.CRC = ch.sum()
		if err := c.Step(Message{From: 1, To: 2, Chunk: ch}); errors.Is(err, ErrMessage) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("%d chunks are held", len(c.incoming.data))
}

// TestChunksOfAnother proves that what is put together comes from one sender, of one
// term and one index, in order: whatever else comes between is answered and left out.
func TestChunksOfAnother(t *testing.T) {
	damaged := chunk(1, 5, 10, 2)
	damaged.Chunk.Data = []byte("else")
	elsewhere := chunk(1, 5, 10, 2)
	elsewhere.To = 3
	for _, tc := range []struct {
		name string
		m    Message
		kind ChunkKind // of the answer, 0 for none
		next uint32    // that it wants
		err  error
	}{
		{name: "the next", m: chunk(1, 5, 10, 2), kind: ChunkWanted, next: 3},
		{name: "the one before again", m: chunk(1, 5, 10, 1), kind: ChunkWanted, next: 2},
		{name: "one is missing before it", m: chunk(1, 5, 10, 3), kind: ChunkWanted, next: 2},
		{name: "of another sender", m: chunk(3, 5, 10, 2), kind: ChunkRefused},
		{name: "of a later term", m: chunk(1, 6, 10, 2), kind: ChunkRefused},
		{name: "of an earlier term", m: chunk(1, 4, 10, 2)},
		{name: "of another index", m: chunk(1, 5, 11, 2), kind: ChunkRefused},
		{name: "damaged", m: damaged, err: ErrMessage},
		{name: "to another", m: elsewhere, err: ErrMessage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := joining(t)
			// The term is heard of first, by a heartbeat.
			err := c.Step(Message{From: 1, To: 2, Raft: heartbeat(1, 5)})
			for seq := range uint32(2) {
				err = errors.Join(err, c.Step(chunk(1, 5, 10, seq)))
			}
			if err != nil {
				t.Fatal(err)
			}
			said(c)
			if err := c.Step(tc.m); !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
				t.Fatalf("%v, want %v", err, tc.err)
			}
			answers := said(c)
			if (len(answers) == 1) != (tc.kind != 0) || len(answers) > 1 {
				t.Fatalf("%d answers", len(answers))
			}
			for _, a := range answers {
				if a.To != tc.m.From || a.Chunk.Kind != tc.kind || a.Chunk.Seq != tc.next || a.Chunk.Term != tc.m.Chunk.Term || a.Chunk.Index != tc.m.Chunk.Index {
					t.Errorf("the answer to %d is %+v", a.To, a.Chunk)
				}
			}
			in := c.incoming
			if in == nil || in.from != 1 || in.term != 5 || in.index != 10 {
				t.Fatalf("%+v is being received", in)
			}
			for i, data := range in.data {
				if want := chunk(1, 5, 10, uint32(i+1)).Chunk.Data; !bytes.Equal(data, want) {
					t.Errorf("chunk %d is %v", i+1, data)
				}
			}
		})
	}
}

func heartbeat(from, term uint64) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: new(uint64(2)), Term: &term}
}

// TestHalfSnapshotIsDropped proves that what has come of a snapshot takes no room
// any more when the rest will not be taken: its leader's term has ended, or the log
// has gone past it.
func TestHalfSnapshotIsDropped(t *testing.T) {
	for name, end := range map[string]*raftpb.Message{
		"another term": heartbeat(3, 6),
		"the log itself": {
			Type: raftpb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(5)), Commit: new(uint64(2)),
			Entries: []*raftpb.Entry{{Index: new(uint64(1)), Term: new(uint64(5))}, {Index: new(uint64(2)), Term: new(uint64(5))}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := joining(t)
			if err := c.Step(chunk(1, 5, 2, 0)); err != nil || c.incoming == nil {
				t.Fatalf("%+v, %v", c.incoming, err)
			}
			said(c)
			if err := c.Step(Message{From: end.GetFrom(), To: 2, Raft: end}); err != nil {
				t.Fatal(err)
			}
			said(c)
			if c.incoming != nil {
				t.Errorf("%+v is held", c.incoming)
			}
		})
	}
}

// arrived is what arrives of a message.
func arrived(t *testing.T, m Message) Message {
	t.Helper()
	b, err := m.Append(nil)
	if err == nil {
		m, err = DecodeMessage(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// FuzzSnapshot proves that no snapshot ends the node that is sent it, whatever it
// says about members and proposals: it is refused, or installed as it is.
func FuzzSnapshot(f *testing.F) {
	add := func(ids []byte, m *raftpb.ConfState) {
		conf, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ids, conf, uint64(10))
	}
	add(nil, &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}})
	add(nil, &raftpb.ConfState{Voters: []uint64{1, 2, 2}})
	add(nil, &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{2}})
	add([]byte("no ids"), &raftpb.ConfState{Voters: []uint64{1, 2}})
	add(append(binary.BigEndian.AppendUint64(nil, 9), make([]byte, 16)...), &raftpb.ConfState{
		Voters: []uint64{1, 2}, VotersOutgoing: []uint64{2}, AutoLeave: new(true),
	})
	f.Add([]byte(nil), []byte("\b\x0200"), uint64(10)) // voter 2, and a field of a version to come
	f.Fuzz(func(t *testing.T, ids, conf []byte, index uint64) {
		members := &raftpb.ConfState{}
		if proto.Unmarshal(conf, members) != nil {
			return
		}
		first, last := chunk(1, 5, index, 0), chunk(1, 5, index, 1)
		first.Chunk.Data, last.Chunk.Data, last.Chunk.Last = ids, nil, true
		first.Chunk.CRC, last.Chunk.CRC = first.Chunk.sum(), last.Chunk.sum()
		last.Raft = &raftpb.Message{
			Type: raftpb.MsgSnap.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(5)),
			Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: new(uint64(4)), ConfState: members}},
		}
		c := joining(t)
		refused := errors.Join(c.Step(arrived(t, first)), c.Step(arrived(t, last)))
		said(c)
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		if refused == nil && index > 0 && isMember(members, 2) && (c.applied != index || !slices.Equal(c.log.members.Voters, members.Voters)) {
			t.Errorf("entry %d is applied of %d, the members are %v, in the snapshot %v", c.applied, index, c.log.members, members)
		}
	})
}

// TestAnswersOfAnother proves that an answer counts for the snapshot that it names, of
// one term and one index: one that comes late ends none that was begun since. Nor does
// a follower that has entries before it.
func TestAnswersOfAnother(t *testing.T) {
	answer := func(term, index uint64, kind ChunkKind) Message {
		ch := &Chunk{Term: term, Index: index, Seq: 1, Kind: kind}
		ch.CRC = ch.sum()
		return Message{From: 1, To: 2, Chunk: ch}
	}
	has := func(index uint64) Message {
		return Message{From: 1, To: 2, Raft: &raftpb.Message{
			Type: raftpb.MsgAppResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(6)), Index: &index,
		}}
	}
	for _, tc := range []struct {
		m      Message
		counts bool
	}{
		{answer(6, 10, ChunkWanted), true},
		{answer(6, 10, ChunkRefused), true},
		{answer(6, 10, ChunkHave), true},
		{answer(5, 10, ChunkWanted), false},
		{answer(5, 10, ChunkRefused), false},
		{answer(5, 10, ChunkHave), false},
		{answer(6, 9, ChunkHave), false},
		{has(10), true},
		{has(11), true},
		{has(9), false},
	} {
		c := joining(t)
		c.streams[1] = &stream{view: view{index: 10}, term: 6, sent: []*Chunk{{}, {Seq: 1}}}
		if err := c.Step(tc.m); err != nil {
			t.Fatal(err)
		}
		if s := c.streams[1]; (s == nil || len(s.sent) == 1) != tc.counts {
			t.Errorf("after %+v %+v: %+v", tc.m.Chunk, tc.m.Raft, s)
		}
	}
}

// TestRestoredIDs proves that the ids of a snapshot take the place of all that were
// remembered: a snapshot made of them in turn has no other.
func TestRestoredIDs(t *testing.T) {
	c := joining(t)
	c.remember(3, ProposalID{1})
	ids := []seenID{{index: 2000, id: ProposalID{2}}}
	c.restoreIDs(ids)
	c.applied = 2000
	if got, err := decodeIDs(c.applied, c.encodeIDs()); err != nil || !slices.Equal(got, ids) {
		t.Errorf("%v, %v", got, err)
	}
}
