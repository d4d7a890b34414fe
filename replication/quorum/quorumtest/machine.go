package quorumtest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"slices"

	"leat/replication/quorum"
)

// Machine is a quorum.Machine that keeps everything it was given, in order. It
// lives under the keys "S" index u64.
type Machine struct {
	// Applied is the last index it has seen.
	Applied uint64
	// Entries are those with data. Callers only read them.
	Entries []quorum.Entry
	// ChunkBytes is about how large the chunks of its snapshots are. Zero means 100.
	ChunkBytes int
	// Fail, if it is not nil, is the error of the next Apply or Restore.
	Fail error
}

// OpenMachine reads the machine in a store, which has applied what "A" says.
func OpenMachine(s quorum.Store) (*Machine, error) {
	m := &Machine{}
	if applied, err := s.Get([]byte("A")); err == nil {
		m.Applied = binary.BigEndian.Uint64(applied)
	}
	return m, s.Scan([]byte("S"), func(key, value []byte) error {
		e, err := decode(value)
		if at := binary.BigEndian.Uint64(key[1:]); err == nil && (at != e.Index || at > m.Applied) {
			err = fmt.Errorf("entry %d at %d, and %d is applied", e.Index, at, m.Applied)
		}
		m.Entries = append(m.Entries, e)
		return err
	})
}

func key(index uint64) []byte { return binary.BigEndian.AppendUint64([]byte("S"), index) }

func encode(e quorum.Entry) []byte {
	b := binary.BigEndian.AppendUint64(nil, e.Index)
	b = append(binary.BigEndian.AppendUint64(b, e.Term), e.ID[:]...)
	return append(b, e.Data...)
}

func decode(b []byte) (quorum.Entry, error) {
	if len(b) < 32 {
		return quorum.Entry{}, fmt.Errorf("entry in %d bytes", len(b))
	}
	return quorum.Entry{
		Index: binary.BigEndian.Uint64(b), Term: binary.BigEndian.Uint64(b[8:]),
		ID: quorum.ProposalID(b[16:32]), Data: append([]byte{}, b[32:]...),
	}, nil
}

// Apply implements quorum.Machine.
func (m *Machine) Apply(w quorum.Writer, es []quorum.Entry) error {
	if m.Fail != nil {
		return m.Fail
	}
	for _, e := range es {
		// A new log begins after its first index, which has nothing in it.
		if e.Index != m.Applied+1 && (m.Applied > 0 || e.Index > 2) {
			return fmt.Errorf("entry %d after %d", e.Index, m.Applied)
		}
		m.Applied = e.Index
		if e.Data == nil {
			continue
		}
		m.Entries = append(m.Entries, e)
		w.Set(key(e.Index), encode(e))
	}
	return nil
}

// Snapshot implements quorum.Machine.
func (m *Machine) Snapshot() quorum.Snapshot {
	size := m.ChunkBytes
	if size == 0 {
		size = 100
	}
	return &snapshot{applied: m.Applied, entries: slices.Clip(m.Entries), size: size}
}

type snapshot struct {
	applied uint64
	entries []quorum.Entry
	size    int
	begun   bool
}

// Next implements quorum.Snapshot: the first chunk is the index, the others are
// entries, each with its length.
func (s *snapshot) Next() (chunk []byte, err error) {
	if !s.begun {
		s.begun = true
		return binary.BigEndian.AppendUint64(nil, s.applied), nil
	}
	for len(s.entries) > 0 && len(chunk) < s.size {
		e := encode(s.entries[0])
		chunk = append(binary.BigEndian.AppendUint32(chunk, uint32(len(e))), e...)
		s.entries = s.entries[1:]
	}
	if len(chunk) == 0 {
		return nil, io.EOF
	}
	return chunk, nil
}

// Restore implements quorum.Machine.
func (m *Machine) Restore(w quorum.Writer, chunks iter.Seq[[]byte]) error {
	if m.Fail != nil {
		return m.Fail
	}
	w.DeleteRange([]byte("S"), []byte("T"))
	m.Applied, m.Entries = 0, nil
	begun := false
	for b := range chunks {
		if !begun {
			begun, m.Applied = true, binary.BigEndian.Uint64(b)
			continue
		}
		for len(b) > 0 {
			n := 4 + binary.BigEndian.Uint32(b)
			e, err := decode(b[4:n])
			if err != nil {
				return err
			}
			m.Entries = append(m.Entries, e)
			w.Set(key(e.Index), encode(e))
			b = b[n:]
		}
	}
	if !begun {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Hash is equal for machines in the same state.
func (m *Machine) Hash() uint64 {
	h := fnv.New64a()
	for _, e := range m.Entries {
		_, _ = h.Write(encode(e))
	}
	return h.Sum64()
}
