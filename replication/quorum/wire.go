package quorum

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// What a message has after its addresses.
const (
	wireVersion  = 2
	wireRaft     = 1
	wireChunk    = 2
	wireHead     = 1 + 1 + 8 + 8 + 8
	wireChunkLen = 8 + 8 + 4 + 1 + 1 + 4 + 4
)

// Append adds the encoding of m to b:
//
//	version u8 = 2 · parts u8 (1: Raft, 2: chunk) · from u64 · to u64 · applied u64
//	Raft    size u32 · Raft's protobuf
//	chunk   term u64 · index u64 · seq u32 · last u8 · kind u8 · crc u32 · size u32 · data
//
// All numbers are big endian. The transport says how long it is.
func (m Message) Append(b []byte) ([]byte, error) {
	parts := byte(0)
	if m.Raft != nil {
		parts |= wireRaft
	}
	if m.Chunk != nil {
		parts |= wireChunk
	}
	b = append(b, wireVersion, parts)
	b = binary.BigEndian.AppendUint64(b, m.From)
	b = binary.BigEndian.AppendUint64(b, m.To)
	b = binary.BigEndian.AppendUint64(b, m.Applied)
	if m.Raft != nil {
		at := len(b)
		var err error
		if b, err = (proto.MarshalOptions{}).MarshalAppend(append(b, 0, 0, 0, 0), m.Raft); err != nil {
			return nil, fmt.Errorf("encode a quorum message: %w", err)
		}
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	if ch := m.Chunk; ch != nil {
		b = binary.BigEndian.AppendUint64(b, ch.Term)
		b = binary.BigEndian.AppendUint64(b, ch.Index)
		b = binary.BigEndian.AppendUint32(b, ch.Seq)
		last := byte(0)
		if ch.Last {
			last = 1
		}
		b = append(b, last, byte(ch.Kind))
		b = binary.BigEndian.AppendUint32(b, ch.CRC)
		b = binary.BigEndian.AppendUint32(b, uint32(len(ch.Data)))
		b = append(b, ch.Data...)
	}
	return b, nil
}

// DecodeMessage reads what Append made. The message has no bytes of b. The error
// is ErrMessage.
func DecodeMessage(b []byte) (Message, error) {
	if len(b) < wireHead || b[0] != wireVersion || b[1] == 0 || b[1] > wireRaft|wireChunk {
		return Message{}, fmt.Errorf("%w: head in %d bytes", ErrMessage, len(b))
	}
	parts := b[1]
	m := Message{From: binary.BigEndian.Uint64(b[2:]), To: binary.BigEndian.Uint64(b[10:]), Applied: binary.BigEndian.Uint64(b[18:])}
	b = b[wireHead:]
	if parts&wireRaft != 0 {
		if len(b) < 4 || uint64(len(b)-4) < uint64(binary.BigEndian.Uint32(b)) {
			return Message{}, fmt.Errorf("%w: Raft's part in %d bytes", ErrMessage, len(b))
		}
		size := binary.BigEndian.Uint32(b)
		m.Raft = &raftpb.Message{}
		// Of a field that is not known nothing is kept: Raft compares members with all
		// that they have, and panics.
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b[4:4+size], m.Raft); err != nil {
			return Message{}, fmt.Errorf("%w: %w", ErrMessage, err)
		}
		b = b[4+size:]
	}
	if parts&wireChunk != 0 {
		if len(b) < wireChunkLen || uint64(len(b)-wireChunkLen) < uint64(binary.BigEndian.Uint32(b[26:])) || b[20] > 1 {
			return Message{}, fmt.Errorf("%w: chunk in %d bytes", ErrMessage, len(b))
		}
		size := binary.BigEndian.Uint32(b[26:])
		m.Chunk = &Chunk{
			Term: binary.BigEndian.Uint64(b), Index: binary.BigEndian.Uint64(b[8:]), Seq: binary.BigEndian.Uint32(b[16:]),
			Last: b[20] == 1, Kind: ChunkKind(b[21]), CRC: binary.BigEndian.Uint32(b[22:]),
			Data: append([]byte(nil), b[wireChunkLen:wireChunkLen+size]...),
		}
		b = b[wireChunkLen+size:]
	}
	if len(b) > 0 {
		return Message{}, fmt.Errorf("%w: %d bytes too many", ErrMessage, len(b))
	}
	return m, nil
}
