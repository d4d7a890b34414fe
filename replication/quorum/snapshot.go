package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// chunksAhead is how many chunks are sent before the first is answered.
	chunksAhead = 4
	// maxChunkBytes bounds one chunk; a machine should keep to a quarter of it.
	maxChunkBytes = 1 << 20
	// chunkRetries is how often an unanswered chunk is sent again, an election
	// timeout apart, before the snapshot is given up.
	chunkRetries = 5
)

// view is a snapshot that Raft has asked for: the machine's, and the ids that are
// remembered, which are the first chunk.
type view struct {
	index uint64
	ids   []byte
	snap  Snapshot
}

// makeView is what Raft asks when a follower needs a snapshot; it sends the
// message next.
func (c *Core) makeView() (*raftpb.Snapshot, error) {
	if c.noView || c.yielding {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	term, err := c.log.Term(c.applied)
	if err != nil {
		return nil, err
	}
	c.views = append(c.views, view{index: c.applied, ids: c.encodeIDs(), snap: c.machine.Snapshot()})
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(c.applied), Term: &term, ConfState: c.log.members,
	}}, nil
}

// encodeIDs writes the remembered ids as index u64 · id, in order.
func (c *Core) encodeIDs() []byte {
	b := make([]byte, 0, len(c.seen)*(8+len(ProposalID{})))
	for i := range uint64(dedupeWindow) {
		if s := c.window[(c.applied+1+i)%dedupeWindow]; s.index != 0 {
			b = append(binary.BigEndian.AppendUint64(b, s.index), s.id[:]...)
		}
	}
	return b
}

// stream is a snapshot on its way to a follower.
type stream struct {
	view
	snapMessage *raftpb.Message
	term        uint64
	sent        []*Chunk // without an answer, in order
	next        uint32   // the number of the next chunk to make
	ended       bool     // all chunks were made
	again       bool     // sent must be sent once more
	idle, tries int      // ticks since the last answer; times it was sent again
}

// startStream begins to send a snapshot in place of Raft's message.
func (c *Core) startStream(m *raftpb.Message) error {
	index := m.GetSnapshot().GetMetadata().GetIndex()
	i := slices.IndexFunc(c.views, func(v view) bool { return v.index == index })
	if i < 0 {
		return nil // leadership was lost in the meantime
	}
	c.streams[m.GetTo()] = &stream{view: c.views[i], snapMessage: m, term: m.GetTerm()}
	c.views = slices.Delete(c.views, i, i+1)
	return nil
}

// sendChunks sends what the followers have room for.
func (c *Core) sendChunks() {
	for _, to := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[to]
		if s.again {
			s.again = false
			for _, ch := range s.sent {
				c.sendChunk(to, s, ch)
			}
		}
		for !s.ended && len(s.sent) < chunksAhead {
			ch, err := s.make()
			if err != nil {
				c.o.Logger.Error("quorum snapshot failed", slog.Uint64("peer", to), slog.Any("err", err))
				c.dropStream(to)
				break
			}
			s.sent = append(s.sent, ch)
			c.sendChunk(to, s, ch)
		}
	}
}

func (c *Core) sendChunk(to uint64, s *stream, ch *Chunk) {
	m := Message{From: c.o.ID, To: to, Chunk: ch}
	if ch.Last {
		m.Raft = s.snapMessage
	}
	c.out.Messages = append(c.out.Messages, m)
}

// make makes the next chunk. The last one is empty: that there is no more is known
// only then.
func (s *stream) make() (*Chunk, error) {
	ch := &Chunk{Term: s.term, Index: s.index, Seq: s.next, Kind: ChunkData, Data: s.ids}
	if s.next > 0 {
		data, err := s.snap.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.ended, ch.Last, data = true, true, nil
		case err != nil:
			return nil, err
		case len(data) > maxChunkBytes:
			return nil, fmt.Errorf("a chunk of %d bytes", len(data))
		}
		ch.Data = data
	}
	s.next++
	ch.CRC = ch.sum()
	return ch, nil
}

// sum is what CRC must be.
func (ch *Chunk) sum() uint32 {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 22), ch.Term)
	b = binary.BigEndian.AppendUint64(b, ch.Index)
	b = binary.BigEndian.AppendUint32(b, ch.Seq)
	b = append(b, byte(ch.Kind), 0)
	if ch.Last {
		b[len(b)-1] = 1
	}
	return crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, ch.Data)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// dropStream gives a snapshot up; Raft begins anew.
func (c *Core) dropStream(peer uint64) {
	if c.streams[peer] != nil {
		delete(c.streams, peer)
		c.rn.ReportSnapshot(peer, raft.SnapshotFailure)
	}
}

// caughtUp says that a follower has the entries up to index. Raft finds out by
// itself that the snapshot has done its work, unless the log begins behind it by
// now: then it must be told, or it would wait for ever.
func (c *Core) caughtUp(peer, index uint64) {
	if s := c.streams[peer]; s != nil && index >= s.index {
		delete(c.streams, peer)
		c.rn.ReportSnapshot(peer, raft.SnapshotFinish)
	}
}

// tickStreams sends again what has had no answer for an election timeout.
func (c *Core) tickStreams() {
	for _, to := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[to]
		if s.idle++; s.idle < c.o.ElectionTicks {
			continue
		}
		s.idle, s.again = 0, true
		if s.tries++; s.tries > chunkRetries {
			c.dropStream(to)
		}
	}
}

// stepChunk takes a chunk, or an answer to one.
func (c *Core) stepChunk(m Message) error {
	ch := m.Chunk
	if ch.CRC != ch.sum() {
		return fmt.Errorf("%w: checksum of chunk %d", ErrMessage, ch.Seq)
	}
	if ch.Kind == ChunkData {
		return c.receive(m)
	}
	s := c.streams[m.From]
	if s == nil || s.term != ch.Term || s.index != ch.Index {
		return nil
	}
	switch ch.Kind {
	case ChunkWanted:
		for len(s.sent) > 0 && s.sent[0].Seq < ch.Seq {
			s.sent = s.sent[1:]
			s.idle, s.tries = 0, 0
		}
	case ChunkRefused:
		c.dropStream(m.From)
	case ChunkHave:
		delete(c.streams, m.From)
		c.rn.ReportSnapshot(m.From, raft.SnapshotFinish)
	default:
		return fmt.Errorf("%w: chunk of kind %d", ErrMessage, ch.Kind)
	}
	return nil
}

// incoming is a snapshot that is being received.
type incoming struct {
	from, term, index uint64
	ids               []seenID // what the first chunk says
	data              [][]byte // the chunks after it
	bytes             int
	next              uint32
}

// receive takes a chunk of a snapshot.
func (c *Core) receive(m Message) error {
	ch := m.Chunk
	if ch.Last != (m.Raft != nil) || ch.Last && ch.Seq == 0 || m.Raft != nil && (m.Raft.GetType() != raftpb.MsgSnap || m.Raft.GetTerm() != ch.Term ||
		m.Raft.GetSnapshot().GetMetadata().GetIndex() != ch.Index || m.Raft.GetSnapshot().GetMetadata().GetTerm() > ch.Term) {
		return fmt.Errorf("%w: chunk %d does not fit its message", ErrMessage, ch.Seq)
	}
	if ch.Last {
		if err := checkMembers(m.Raft.GetSnapshot().GetMetadata().GetConfState()); err != nil {
			return fmt.Errorf("%w: a snapshot: %w", ErrMessage, err)
		}
	}
	st := c.rn.BasicStatus()
	if ch.Term < st.GetTerm() || c.assembled != nil {
		return nil // out of date, or sent again while the same is installed
	}
	if ch.Index <= st.GetCommit() {
		c.answer(m, ChunkHave, 0)
		return nil
	}
	in := c.incoming
	if in == nil || in.from != m.From || in.term != ch.Term || in.index != ch.Index {
		if ch.Seq > 0 {
			c.answer(m, ChunkRefused, 0)
			return nil
		}
		in = &incoming{from: m.From, term: ch.Term, index: ch.Index}
		c.incoming = in
	}
	if ch.Seq == in.next {
		if err := in.add(ch, c.o.MaxSnapshotBytes); err != nil {
			c.incoming = nil
			return err
		}
	}
	if !ch.Last || ch.Seq != in.next-1 {
		c.answer(m, ChunkWanted, in.next)
		return nil
	}
	c.incoming, c.assembled = nil, in
	return c.step(m.Raft)
}

// add takes the next chunk.
func (in *incoming) add(ch *Chunk, maxBytes int) (err error) {
	if in.bytes += entryOverhead + len(ch.Data); in.bytes > maxBytes {
		return fmt.Errorf("%w: a snapshot of more than %d bytes", ErrMessage, maxBytes)
	}
	if ch.Seq == 0 {
		in.ids, err = decodeIDs(ch.Index, ch.Data)
	} else {
		in.data = append(in.data, ch.Data)
	}
	in.next++
	return err
}

// answer says how far a snapshot was received.
func (c *Core) answer(m Message, kind ChunkKind, next uint32) {
	ch := &Chunk{Term: m.Chunk.Term, Index: m.Chunk.Index, Seq: next, Kind: kind}
	ch.CRC = ch.sum()
	c.out.Messages = append(c.out.Messages, Message{From: c.o.ID, To: m.From, Chunk: ch})
}

// install makes a received snapshot the state, in one step with the log that is
// gone for it.
func (c *Core) install(snap *raftpb.Snapshot) error {
	md := snap.GetMetadata()
	in := c.assembled
	if in == nil || in.index != md.GetIndex() {
		return fmt.Errorf("a snapshot of entry %d that was not received", md.GetIndex())
	}
	c.restoreIDs(in.ids)
	if err := c.machine.Restore(&c.staged, slices.Values(in.data[:len(in.data)-1])); err != nil { // the last is empty
		return fmt.Errorf("restore the snapshot of entry %d: %w", in.index, err)
	}
	c.log.reset(md.GetIndex(), md.GetTerm())
	c.log.members = raftpb.EnsureConfState(md.GetConfState())
	c.applied, c.membersAt, c.dirty = md.GetIndex(), md.GetIndex(), 0
	c.hardDirty, c.membersDirty, c.appliedDirty, c.sync = true, true, true, true
	c.out.Members = true
	return nil
}

// decodeIDs reads what encodeIDs has made of a state at an index.
func decodeIDs(applied uint64, b []byte) (ids []seenID, err error) {
	const size = 8 + len(ProposalID{})
	if len(b)%size != 0 {
		return nil, fmt.Errorf("%w: ids in %d bytes of a snapshot", ErrMessage, len(b))
	}
	last := uint64(0)
	for ; len(b) > 0; b = b[size:] {
		s := seenID{index: binary.BigEndian.Uint64(b), id: ProposalID(b[8:])}
		if s.index <= last || s.index > applied || applied-s.index >= dedupeWindow {
			return nil, fmt.Errorf("%w: id of index %d in a snapshot of entry %d", ErrMessage, s.index, applied)
		}
		last = s.index
		ids = append(ids, s)
	}
	return ids, nil
}

// restoreIDs replaces the remembered ids.
func (c *Core) restoreIDs(ids []seenID) {
	for _, s := range c.window {
		if s.index != 0 {
			c.staged.Delete(indexKey(keyID, s.index))
		}
	}
	c.window = [dedupeWindow]seenID{}
	clear(c.seen)
	for _, s := range ids {
		c.window[s.index%dedupeWindow] = s
		c.seen[s.id] = s.index
		c.staged.Set(indexKey(keyID, s.index), s.id[:])
	}
}
