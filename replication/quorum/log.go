package quorum

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// entryOverhead is what an entry counts for beside its data.
const entryOverhead = 32

// memLog is the log in memory, as Raft reads it: the entries that are saved or in
// the Write that is being made. It never fails.
type memLog struct {
	hard               *raftpb.HardState
	members            *raftpb.ConfState
	before, beforeTerm uint64 // the entry before the first
	entries            []*raftpb.Entry
	bytes              int
	// snapshot makes one, or says ErrSnapshotTemporarilyUnavailable.
	snapshot func() (*raftpb.Snapshot, error)
}

func entryBytes(e *raftpb.Entry) int { return entryOverhead + len(e.GetData()) }

func (l *memLog) first() uint64 { return l.before + 1 }
func (l *memLog) last() uint64  { return l.before + uint64(len(l.entries)) }

// at is the entry at index, which must be there.
func (l *memLog) at(index uint64) *raftpb.Entry { return l.entries[index-l.first()] }

// append adds entries that follow the log or replace its end. What was handed out
// before stays as it is.
func (l *memLog) append(entries []*raftpb.Entry) {
	keep := entries[0].GetIndex() - l.first()
	for _, e := range l.entries[keep:] {
		l.bytes -= entryBytes(e)
	}
	for _, e := range entries {
		l.bytes += entryBytes(e)
	}
	if keep == uint64(len(l.entries)) {
		l.entries = append(l.entries, entries...)
	} else {
		l.entries = append(l.entries[:keep:keep], entries...)
	}
}

// compact drops the entries up to index.
func (l *memLog) compact(index uint64) {
	n := index - l.before
	l.beforeTerm = l.at(index).GetTerm()
	for _, e := range l.entries[:n] {
		l.bytes -= entryBytes(e)
	}
	l.before = index
	l.entries = slices.Clone(l.entries[n:])
}

// reset makes it the log after a snapshot.
func (l *memLog) reset(index, term uint64) {
	l.before, l.beforeTerm, l.entries, l.bytes = index, term, nil, 0
}

// InitialState implements raft.Storage.
func (l *memLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	return l.hard, l.members, nil
}

// Entries implements raft.Storage.
func (l *memLog) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	if lo < l.first() {
		return nil, raft.ErrCompacted
	}
	if hi > l.last()+1 {
		return nil, raft.ErrUnavailable
	}
	es := l.entries[lo-l.first() : hi-l.first()]
	size, n := uint64(0), 0
	for n < len(es) {
		size += uint64(entryBytes(es[n]))
		if n > 0 && size > maxBytes {
			break
		}
		n++
	}
	return es[:n:n], nil
}

// Term implements raft.Storage.
func (l *memLog) Term(index uint64) (uint64, error) {
	switch {
	case index < l.before:
		return 0, raft.ErrCompacted
	case index == l.before:
		return l.beforeTerm, nil
	case index > l.last():
		return 0, raft.ErrUnavailable
	}
	return l.at(index).GetTerm(), nil
}

// LastIndex implements raft.Storage.
func (l *memLog) LastIndex() (uint64, error) { return l.last(), nil }

// FirstIndex implements raft.Storage.
func (l *memLog) FirstIndex() (uint64, error) { return l.first(), nil }

// Snapshot implements raft.Storage.
func (l *memLog) Snapshot() (*raftpb.Snapshot, error) { return l.snapshot() }
