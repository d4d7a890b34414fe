package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage/meta"
)

// hashEvery is after how many indexes the state is hashed: nodes that have
// applied the same must have the same hash.
const hashEvery = 1000

// StateHash is the hash of the state that the log makes up to an index. Nodes
// that know it for the same index must agree on it.
type StateHash struct{ Index, Sum uint64 }

// Machine makes the state of the log of metadata, and keeps its records and
// nothing else under PrefixState, one for each entry of the state. It is pure:
// what it writes goes through the Writer that it is given.
type Machine struct {
	state *controller.State
	hash  StateHash
}

// Reader reads a store of keys. *meta.DB is one, and every quorum.Store.
type Reader interface {
	// Get returns the value of a key, or meta.ErrNotFound.
	Get(key []byte) ([]byte, error)
	// Scan calls fn for the keys with the prefix, in order.
	Scan(prefix []byte, fn func(key, value []byte) error) error
}

// OpenMachine reads what an earlier life of the Machine has written. Records of a
// newer binary are refused with controller.ErrUnknownRecord.
func OpenMachine(r Reader) (*Machine, error) {
	state, err := ReadState(r)
	if err != nil {
		return nil, err
	}
	m := &Machine{state: state}
	value, err := r.Get(meta.StateHashKey())
	switch {
	case errors.Is(err, meta.ErrNotFound):
	case err != nil:
		return nil, fmt.Errorf("read the hash of metadata: %w", err)
	case len(value) != 16:
		return nil, fmt.Errorf("read the hash of metadata: %w: %d bytes", controller.ErrDamagedRecord, len(value))
	default:
		m.hash = StateHash{Index: binary.BigEndian.Uint64(value), Sum: binary.BigEndian.Uint64(value[8:])}
	}
	return m, nil
}

// ReadState reads the metadata that a node has applied, for who does not take
// part in deciding about it. Records of a newer binary are refused with
// controller.ErrUnknownRecord.
func ReadState(r Reader) (*controller.State, error) {
	var records []controller.Record
	err := r.Scan([]byte{meta.PrefixState}, func(_, value []byte) error {
		r, err := controller.Decode(value)
		if err != nil {
			return err
		}
		records = append(records, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	state, err := controller.NewState().With(records)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return state, nil
}

// State is the state after the last entry that was applied. Before that entry is
// saved it must not be shown.
func (m *Machine) State() *controller.State { return m.state }

// Hash is the newest hash, zero if there was none yet.
func (m *Machine) Hash() StateHash { return m.hash }

// Apply applies committed entries.
func (m *Machine) Apply(w quorum.Writer, es []quorum.Entry) error {
	for len(es) > 0 {
		// One state for all entries up to the next that is hashed: making one costs
		// as much as there are topics.
		n := 1
		for n < len(es) && es[n-1].Index%hashEvery != 0 {
			n++
		}
		if err := m.apply(w, es[:n]); err != nil {
			return fmt.Errorf("apply metadata up to entry %d: %w", es[n-1].Index, err)
		}
		if index := es[n-1].Index; index%hashEvery == 0 {
			m.setHash(w, StateHash{Index: index, Sum: m.state.Hash()})
		}
		es = es[n:]
	}
	return nil
}

func (m *Machine) apply(w quorum.Writer, es []quorum.Entry) error {
	var records []controller.Record
	for _, e := range es {
		if e.Data == nil {
			continue
		}
		rs, err := decodeRecords(e.Data)
		if err != nil {
			return err
		}
		records = append(records, rs...)
	}
	if len(records) == 0 {
		return nil
	}
	next, err := m.state.With(records)
	if err != nil {
		return err
	}
	for _, r := range records {
		keep(w, r)
	}
	m.state = next
	return nil
}

// keep writes what r does to the records of the state.
func keep(w quorum.Writer, r controller.Record) {
	if gone, ok := r.(*controller.TopicRemoved); ok {
		from, to := controller.TopicKeys(gone.ID)
		w.DeleteRange(meta.StateKey(from), meta.StateKey(to))
	}
	key, removes := controller.Key(r)
	if removes {
		w.Delete(meta.StateKey(key))
	} else {
		w.Set(meta.StateKey(key), controller.Encode(r))
	}
}

func (m *Machine) setHash(w quorum.Writer, h StateHash) {
	m.hash = h
	if h == (StateHash{}) {
		w.Delete(meta.StateHashKey())
		return
	}
	w.Set(meta.StateHashKey(), binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, h.Index), h.Sum))
}

// An entry of the log and a snapshot are lists of records:
//
//	entry     version u8 = 0 · (length uvarint · record)…
//	snapshot  version u8 = 0 · hash index u64 · hash u64 · (length uvarint · record)…
//
// A snapshot is cut into chunks without regard to its records.
const listVersion = 0

// snapshotHeader is the length of what is before the records of a snapshot.
const snapshotHeader = 1 + 8 + 8

// chunkBytes is the length of all chunks of a snapshot but the last.
const chunkBytes = 256 << 10

func encodeRecords(records []controller.Record) []byte {
	return encodeParts(records, 0, func(int) bool { return false })[0].data
}

// part is an entry with some of the records of a decision: those from one on.
type part struct {
	data []byte
	from int
}

// encodeParts makes entries of records, at least one. An entry that has so many bytes
// ends before the next record, by its place, that divisible lets begin another.
func encodeParts(records []controller.Record, bytes int, divisible func(i int) bool) []part {
	parts := []part{{data: []byte{listVersion}}}
	for i, r := range records {
		last := &parts[len(parts)-1]
		if len(last.data) >= bytes && i > last.from && divisible(i) {
			parts = append(parts, part{data: []byte{listVersion}, from: i})
			last = &parts[len(parts)-1]
		}
		last.data = appendRecord(last.data, r)
	}
	return parts
}

func appendRecord(p []byte, r controller.Record) []byte {
	b := controller.Encode(r)
	return append(binary.AppendUvarint(p, uint64(len(b))), b...)
}

func decodeRecords(p []byte) ([]controller.Record, error) {
	if len(p) == 0 {
		return nil, fmt.Errorf("%w: an empty list", controller.ErrDamagedRecord)
	}
	if p[0] != listVersion {
		return nil, fmt.Errorf("%w: list version %d", controller.ErrUnknownRecord, p[0])
	}
	records, rest, err := takeRecords(nil, p[1:])
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: a list of records ends in one", controller.ErrDamagedRecord)
	}
	return records, err
}

// takeRecords adds the whole records that p begins with, and returns the rest.
func takeRecords(to []controller.Record, p []byte) (records []controller.Record, rest []byte, err error) {
	for len(p) > 0 {
		n, size := binary.Uvarint(p)
		if size < 0 {
			return to, p, fmt.Errorf("%w: the length of a record", controller.ErrDamagedRecord)
		}
		if size == 0 || n > uint64(len(p)-size) {
			break
		}
		r, err := controller.Decode(p[size : size+int(n)])
		if err != nil {
			return to, p, err
		}
		to, p = append(to, r), p[size+int(n):]
	}
	return to, p, nil
}

// Snapshot is the state as it is now. Its bytes are made at the first Next.
func (m *Machine) Snapshot() quorum.Snapshot { return &snapshot{state: m.state, hash: m.hash} }

type snapshot struct {
	state *controller.State // nil once p is made
	hash  StateHash
	p     []byte
}

// Next returns the next chunk.
func (s *snapshot) Next() ([]byte, error) {
	if s.state != nil {
		s.p = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte{listVersion}, s.hash.Index), s.hash.Sum)
		for r := range s.state.Records() {
			s.p = appendRecord(s.p, r)
		}
		s.state = nil
	}
	if len(s.p) == 0 {
		return nil, io.EOF
	}
	n := min(chunkBytes, len(s.p))
	chunk := s.p[:n:n]
	s.p = s.p[n:]
	return chunk, nil
}

// Restore replaces the state by the one that the chunks of a snapshot make.
func (m *Machine) Restore(w quorum.Writer, chunks iter.Seq[[]byte]) error {
	var records []controller.Record
	var p []byte
	var hash StateHash
	begun := false
	for chunk := range chunks {
		p = append(p, chunk...)
		if !begun && len(p) >= snapshotHeader {
			if p[0] != listVersion {
				return fmt.Errorf("restore metadata: %w: list version %d", controller.ErrUnknownRecord, p[0])
			}
			hash = StateHash{Index: binary.BigEndian.Uint64(p[1:]), Sum: binary.BigEndian.Uint64(p[9:])}
			p, begun = p[snapshotHeader:], true
		}
		if !begun {
			continue
		}
		var err error
		if records, p, err = takeRecords(records, p); err != nil {
			return fmt.Errorf("restore metadata: %w", err)
		}
	}
	if !begun || len(p) > 0 {
		return fmt.Errorf("restore metadata: %w: the snapshot is cut short", controller.ErrDamagedRecord)
	}
	next, err := controller.NewState().With(records)
	if err != nil {
		return fmt.Errorf("restore metadata: %w", err)
	}
	from, to := meta.StateKeys()
	w.DeleteRange(from, to)
	for _, r := range records {
		keep(w, r)
	}
	m.setHash(w, hash)
	m.state = next
	return nil
}
