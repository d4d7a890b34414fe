// Package quorum replicates a log of proposals among a few nodes by Raft and
// applies it to a Machine. It is the only importer of go.etcd.io/raft; it knows
// proposals as bytes, and no controller.
//
// Core is pure: no goroutine, clock, file or lock. Its owner feeds it ticks,
// messages and proposals and then loops
//
//	for w, ok := core.Work(); ok; w, ok = core.Work() {
//		store.Save(w)            // one atomic batch; core.Failed if it fails
//		out := core.Done(took)   // only now may anything leave
//	}
//
// Work takes everything that Raft has ready, applies what is committed to the
// machine and puts it all into one Write: term and vote, entries, membership, the
// applied index, the ids of recent proposals and what the machine wrote. Nothing
// that depends on it (a vote, an acknowledgement, an outcome, leadership) leaves
// before Done, so that a crash before, in or after the save loses either nothing
// or what nobody was told. That an entry is applied costs no sync, for the log has
// it and commits it again; that members have changed does, for only they can.
//
// Quorum is the shell around a Core: one goroutine, a Transport and a clock.
// Store is where it all lives, NewStore is the one over storage/meta.
//
// # Members
//
// A member is a voter or a learner. The leader makes voters of learners while there
// are fewer voters than Options.QuorumSize, and has a learner take the place of a
// voter that has been silent for Options.ReplaceTicks (Replace). That voter comes back
// as a learner.
//
// Raft counts by the members that a node has applied. A change has ended only when
// every voter that answers has applied it (Status.Settled), which the leader learns
// from Message.Applied: if the leader alone had, and lost its disk, the others would
// look for a majority of members that may not be there any more. For the same reason a
// leader that is removed appends nothing behind its removal.
//
// # Keys
//
// All numbers are big endian. The keys are listed in storage/meta/keys.go.
//
//	"Q" "H"            version u8 = 1 · node u64 · term u64 · vote u64 · commit u64
//	"Q" "M"            version u8 = 1 · index u64 · term u64 of the entry before the
//	                   first of the log · members
//	"Q" "L" index u64  term u64 · type u8 · data      one entry of the log
//	"Q" "D" index u64  id [16]byte                    an applied proposal, of the last 1024 indexes
//	"A"                index u64                      the last applied entry
//
//	members            five lists: voters, learners, outgoing voters, learners to
//	                   be, each count u16 · id u64…; then auto leave u8
//	data               of a proposal: id [16]byte · bytes; of a change of members:
//	                   Raft's protobuf with the id as its context; else nothing
//
// A store without "Q" that has "A" was written before there was a quorum: it
// counts as a snapshot at that index, of term 1.
//
// # Wire
//
// See Message.Append.
//
// replication and its tests may import this package; broker/sim drives Core.
package quorum
