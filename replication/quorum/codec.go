package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"leat/storage/meta"
)

// The second byte of a key.
const (
	keyHard    = 'H'
	keyMembers = 'M'
	keyLog     = 'L'
	keyID      = 'D'
)

// codecVersion is the first byte of what has one key.
const codecVersion = 1

func quorumKey(kind byte) []byte { return []byte{meta.PrefixQuorum, kind} }

func indexKey(kind byte, index uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{meta.PrefixQuorum, kind}, index)
}

func keyIndex(key []byte) uint64 { return binary.BigEndian.Uint64(key[2:]) }

// indexKeyBytes is the size of a key with an index.
const indexKeyBytes = 10

// saved is what a store holds of a Core.
type saved struct {
	node               uint64
	term, vote, commit uint64
	// index and term of the entry before the first of the log
	before, beforeTerm uint64
	members            *raftpb.ConfState
	entries            []*raftpb.Entry
	applied            uint64
	ids                []seenID
	// fresh says that there is no log yet.
	fresh bool
}

// seenID is the id of the proposal that was applied at index.
type seenID struct {
	index uint64
	id    ProposalID
}

func encodeHard(node, term, vote, commit uint64) []byte {
	b := append(make([]byte, 0, 33), codecVersion)
	for _, n := range []uint64{node, term, vote, commit} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

func (s *saved) decodeHard(b []byte) error {
	if len(b) != 33 || b[0] != codecVersion {
		return fmt.Errorf("%w: term and vote in %d bytes", ErrDamaged, len(b))
	}
	for i, n := range []*uint64{&s.node, &s.term, &s.vote, &s.commit} {
		*n = binary.BigEndian.Uint64(b[1+8*i:])
	}
	return nil
}

func encodeMembers(index, term uint64, m *raftpb.ConfState) []byte {
	b := append(make([]byte, 0, 64), codecVersion)
	b = binary.BigEndian.AppendUint64(b, index)
	b = binary.BigEndian.AppendUint64(b, term)
	for _, ids := range [][]uint64{m.Voters, m.Learners, m.VotersOutgoing, m.LearnersNext} {
		b = binary.BigEndian.AppendUint16(b, uint16(len(ids)))
		for _, id := range ids {
			b = binary.BigEndian.AppendUint64(b, id)
		}
	}
	if m.GetAutoLeave() {
		return append(b, 1)
	}
	return append(b, 0)
}

func (s *saved) decodeMembers(b []byte) error {
	bad := fmt.Errorf("%w: members in %d bytes", ErrDamaged, len(b))
	if len(b) < 17 || b[0] != codecVersion {
		return bad
	}
	s.before = binary.BigEndian.Uint64(b[1:])
	s.beforeTerm = binary.BigEndian.Uint64(b[9:])
	b = b[17:]
	m := &raftpb.ConfState{}
	for _, ids := range []*[]uint64{&m.Voters, &m.Learners, &m.VotersOutgoing, &m.LearnersNext} {
		if len(b) < 2 {
			return bad
		}
		n := int(binary.BigEndian.Uint16(b))
		b = b[2:]
		if len(b) < 8*n {
			return bad
		}
		for range n {
			*ids = append(*ids, binary.BigEndian.Uint64(b))
			b = b[8:]
		}
	}
	if len(b) != 1 || b[0] > 1 {
		return bad
	}
	m.AutoLeave = new(b[0] == 1)
	s.members = m
	return nil
}

func encodeEntry(e *raftpb.Entry) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 9+len(e.GetData())), e.GetTerm())
	return append(append(b, byte(e.GetType())), e.GetData()...)
}

func decodeEntry(index uint64, b []byte) (*raftpb.Entry, error) {
	if len(b) < 9 || b[8] != byte(raftpb.EntryNormal) && b[8] != byte(raftpb.EntryConfChangeV2) {
		return nil, fmt.Errorf("%w: entry %d in %d bytes", ErrDamaged, index, len(b))
	}
	e := &raftpb.Entry{
		Index: &index, Term: new(binary.BigEndian.Uint64(b)), Type: raftpb.EntryType(b[8]).Enum(),
	}
	if len(b) > 9 {
		e.Data = append(make([]byte, 0, len(b)-9), b[9:]...)
	}
	if _, _, err := decodeChange(e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return e, nil
}

// Check reads what a store holds and changes nothing. Its error is the store's, or
// the ErrDamaged that Open would return.
func Check(s Store) error {
	_, err := load(s)
	return err
}

// load reads what a store holds and proves that it is whole.
func load(s Store) (*saved, error) {
	st := &saved{members: &raftpb.ConfState{AutoLeave: new(false)}}
	applied, err := s.Get(meta.AppliedKey())
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return nil, fmt.Errorf("read the applied index: %w", err)
	case len(applied) != 8:
		return nil, fmt.Errorf("%w: applied index in %d bytes", ErrDamaged, len(applied))
	default:
		st.applied = binary.BigEndian.Uint64(applied)
	}
	hard, err := s.Get(quorumKey(keyHard))
	if errors.Is(err, ErrNotFound) {
		st.fresh = true
		return st, st.nothingElse(s)
	}
	if err == nil {
		err = st.decodeHard(hard)
	}
	if err != nil {
		return nil, fmt.Errorf("read term and vote: %w", err)
	}
	members, err := s.Get(quorumKey(keyMembers))
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: they are missing", ErrDamaged)
	}
	if err == nil {
		err = st.decodeMembers(members)
	}
	if err != nil {
		return nil, fmt.Errorf("read the members: %w", err)
	}
	if err := st.loadLog(s); err != nil {
		return nil, err
	}
	return st, st.check()
}

// nothingElse proves that a store without a term has no log either.
func (s *saved) nothingElse(store Store) error {
	return store.Scan([]byte{meta.PrefixQuorum}, func(key, _ []byte) error {
		return fmt.Errorf("%w: it has %q, but no term", ErrDamaged, key)
	})
}

func (s *saved) loadLog(store Store) error {
	err := store.Scan(quorumKey(keyLog), func(key, value []byte) error {
		if len(key) != indexKeyBytes {
			return fmt.Errorf("%w: key %q", ErrDamaged, key)
		}
		if at, want := keyIndex(key), s.last()+1; at != want {
			return fmt.Errorf("%w: entry %d where %d should be", ErrDamaged, at, want)
		}
		e, err := decodeEntry(keyIndex(key), value)
		if err == nil && e.GetTerm() < s.lastTerm() {
			err = fmt.Errorf("%w: entry %d of term %d follows term %d", ErrDamaged, e.GetIndex(), e.GetTerm(), s.lastTerm())
		}
		s.entries = append(s.entries, e)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the metadata log: %w", err)
	}
	err = store.Scan(quorumKey(keyID), func(key, value []byte) error {
		id := ProposalID{}
		if len(key) != indexKeyBytes || copy(id[:], value) != len(value) || len(value) != len(id) {
			return fmt.Errorf("%w: key %q", ErrDamaged, key)
		}
		s.ids = append(s.ids, seenID{keyIndex(key), id})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the proposals' ids: %w", err)
	}
	return nil
}

func (s *saved) last() uint64 { return s.before + uint64(len(s.entries)) }

func (s *saved) lastTerm() uint64 {
	if n := len(s.entries); n > 0 {
		return s.entries[n-1].GetTerm()
	}
	return s.beforeTerm
}

// check refuses what no history of saves leaves behind.
func (s *saved) check() error {
	if s.before > 0 { // else it has no members yet
		if err := checkMembers(s.members); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	switch {
	case s.applied < s.before:
		return fmt.Errorf("%w: it begins after entry %d, and only %d is applied", ErrDamaged, s.before, s.applied)
	case s.applied > s.last():
		return fmt.Errorf("%w: entry %d is applied, and the log ends at %d", ErrDamaged, s.applied, s.last())
	case s.commit > s.last():
		return fmt.Errorf("%w: entry %d is committed, and the log ends at %d", ErrDamaged, s.commit, s.last())
	case s.lastTerm() > s.term:
		return fmt.Errorf("%w: its last term is %d, and the node's is %d", ErrDamaged, s.lastTerm(), s.term)
	case len(s.ids) > 0 && s.ids[len(s.ids)-1].index > s.applied:
		return fmt.Errorf("%w: proposal %d was applied, and %d is the last", ErrDamaged, s.ids[len(s.ids)-1].index, s.applied)
	}
	// The applied entries are in the machine, whatever the commit index says:
	// it is saved without a sync of its own, but never behind what is applied.
	s.commit = max(s.commit, s.applied)
	return nil
}
