package quorum

import (
	"iter"

	"go.etcd.io/raft/v3/raftpb"
)

// ProposalID names a proposal for ever: a proposal that is made again with the
// same id is applied once. Zero is no id.
type ProposalID [16]byte

// Entry is a committed entry of the log.
type Entry struct {
	Index, Term uint64
	ID          ProposalID
	// Data is what was proposed. nil: there is nothing to do at this index.
	Data []byte
}

// Machine is what the log is applied to. It lives in memory; what it must have
// after a restart it writes into w, which is saved together with the applied
// index. Its owner shows a new state only after the Done that follows.
type Machine interface {
	// Apply applies committed entries. Every index comes once and in order, except
	// for those that a Restore covers. An error ends the Core. es and the bytes in
	// it are valid for ever and must not be changed.
	Apply(w Writer, es []Entry) error
	// Snapshot is an immutable view of the state as it is now.
	Snapshot() Snapshot
	// Restore replaces the state by what the chunks of another node's Snapshot
	// say. An error ends the Core.
	Restore(w Writer, chunks iter.Seq[[]byte]) error
}

// Snapshot gives the bytes of a state, in chunks of at most 256 KiB; io.EOF after
// the last. It is used by one goroutine and may be given up at any time.
type Snapshot interface {
	Next() (chunk []byte, err error)
}

// Writer collects changes of keys and values. Both are copied.
type Writer interface {
	Set(key, value []byte)
	Delete(key []byte)
	// DeleteRange removes the keys in [from, to).
	DeleteRange(from, to []byte)
}

// Message goes from one member to another. It may be lost, repeated and late;
// From must be proven by the transport.
type Message struct {
	From, To uint64
	// Applied is the index of the last entry that the sender has applied. It knows
	// durably who the members are as of that entry.
	Applied uint64
	// Raft is Raft's own message, nil for all chunks of a snapshot but the last.
	Raft *raftpb.Message
	// Chunk is a part of a snapshot, or says how far one was received.
	Chunk *Chunk
}

// Chunk is a part of a snapshot on its way to a follower, or the follower's word
// about it.
type Chunk struct {
	// Term and Index name the snapshot: of whose term it is, up to which entry.
	Term, Index uint64
	// Seq is the number of the chunk. In an answer it is the next one that is
	// wanted.
	Seq  uint32
	Last bool
	// Kind says what it is.
	Kind ChunkKind
	Data []byte
	// CRC is over all the other fields.
	CRC uint32
}

// ChunkKind says what a Chunk is.
type ChunkKind uint8

// The kinds of chunks.
const (
	ChunkData    ChunkKind = iota + 1 // a part, leader to follower
	ChunkWanted                       // the follower has all before Seq
	ChunkRefused                      // the follower knows of no such snapshot: begin anew
	ChunkHave                         // the follower has that state already
)

// Outcome is how a proposal has ended.
type Outcome uint8

// The outcomes. There is no third: what was certainly not proposed is an error of
// Propose.
const (
	// Committed means that it is applied, here and for ever.
	Committed Outcome = iota + 1
	// Unknown means that leadership was lost before: it may still be committed.
	Unknown
)

// Ended is the end of a proposal, a change of members or a read of this node.
type Ended struct {
	ID      ProposalID
	Index   uint64 // where it was applied, or up to where a read is valid; 0 if unknown
	Outcome Outcome
}

// Output is what may leave a Core after a save.
type Output struct {
	Messages []Message
	Ended    []Ended
	// Term and Leader are as the node knows them; Leader is 0 if it knows none.
	Term, Leader uint64
	// Active says that this node leads and has applied everything that was
	// committed before its term: it may act as leader in Term.
	Active bool
	// Applied is the last entry that is applied and saved.
	Applied uint64
	// Members says that the members or their roles have changed.
	Members bool
}

// Role is what a node is at the moment.
type Role uint8

// The roles.
const (
	Follower Role = iota + 1
	Candidate
	Leader
)

// Peer is a member as the leader sees it.
type Peer struct {
	ID       uint64
	Learner  bool
	Match    uint64 // the last entry it is known to have
	Applied  uint64 // the last entry it is known to have applied
	Silent   int    // ticks since it has answered this leader
	Active   bool   // heard of lately
	Snapshot bool   // a snapshot is on its way
}

// Status is a Core's state for people, metrics and tests.
type Status struct {
	ID, Term, Vote, Leader uint64
	Role                   Role
	Active                 bool
	Commit, Applied        uint64
	First, Last            uint64 // entries that are kept; First > Last if none is
	Voters, Learners       []uint64
	// Joint says that a change of members is half done.
	Joint bool
	// Settled says of a leader that every voter that answers knows who the members
	// are. Before that the loss of one voter may cost the quorum.
	Settled bool
	// Yielding says that a slow disk has cost this node its leadership, and that
	// the others have not noticed yet.
	Yielding bool
	Peers    []Peer // of a leader, by id
	Err      error  // why the Core has ended
}
