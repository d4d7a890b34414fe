package quorum

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"go.etcd.io/raft/v3"
)

// dedupeWindow is for how many indexes the id of an applied proposal is
// remembered. All nodes must agree on it: what is applied depends on it.
const dedupeWindow = 1024

// Options of a Core.
type Options struct {
	// ID is this node's, see NodeID. It is never used again after the node's disk
	// was lost.
	ID uint64
	// Voters are the members of a new cluster, for a store that has no log yet:
	// every one of them is given the same list, which has its own ID. A node that
	// joins has none.
	Voters []uint64
	// QuorumSize is up to how many voters the leader promotes learners that have
	// caught up; 0: it promotes nobody by itself.
	QuorumSize int
	// ReplaceTicks is after how many ticks without an answer from a voter the leader
	// has a learner that has caught up take its place, at least ElectionTicks. Zero
	// means 24,000, which is ten minutes at 25 ms a tick. Below zero it never does,
	// nor does it if QuorumSize is 0.
	ReplaceTicks int
	// ElectionTicks is after how many ticks without its leader a node stands for
	// election, at least; zero means 10. HeartbeatTicks is how often a leader is
	// heard of, at most a fifth of it; zero means 2.
	ElectionTicks, HeartbeatTicks int
	// KeepEntries and KeepBytes are how much of the log stays behind what is
	// applied, for followers that lag; who lags more gets a snapshot. Zero means
	// 1024 and 4 MiB.
	KeepEntries int
	KeepBytes   int
	// MaxProposalBytes bounds one proposal. Zero means 8 MiB.
	MaxProposalBytes int
	// MaxSnapshotBytes bounds a snapshot that is received. Zero means 1 GiB.
	MaxSnapshotBytes int
	// Logger gets what Raft has to say: warnings, and the rest at debug level. nil:
	// nobody.
	Logger *slog.Logger
}

// The limits of Raft itself.
const (
	maxMessageBytes     = 1 << 20
	maxInflight         = 256
	maxUncommittedBytes = 64 << 20
	maxCommittedBytes   = 4 << 20
	// maxPending is how many proposals of a leader may be without an end; more are
	// dropped.
	maxPending = 4096
	// maxReads is how many reads may wait for a quorum; more are dropped.
	maxReads = 1024
	// maxWorkBytes is after how many bytes of entries and applied entries Work
	// ends a Write and goes on in the next one. Raft gives up to
	// maxCommittedBytes at a time.
	maxWorkBytes = 4 << 20
)

func (o *Options) setDefaults() {
	o.ElectionTicks = cmp.Or(o.ElectionTicks, 10)
	o.HeartbeatTicks = cmp.Or(o.HeartbeatTicks, 2)
	o.ReplaceTicks = cmp.Or(o.ReplaceTicks, 24_000)
	o.KeepEntries = cmp.Or(o.KeepEntries, 1024)
	o.KeepBytes = cmp.Or(o.KeepBytes, 4<<20)
	o.MaxProposalBytes = cmp.Or(o.MaxProposalBytes, 8<<20)
	o.MaxSnapshotBytes = cmp.Or(o.MaxSnapshotBytes, 1<<30)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) validate() error {
	if o.ID == 0 || raft.IsLocalMsgTarget(o.ID) {
		return fmt.Errorf("quorum: ID %d is reserved", o.ID)
	}
	if o.HeartbeatTicks < 1 || o.HeartbeatTicks*5 > o.ElectionTicks {
		return fmt.Errorf("quorum: HeartbeatTicks %d must be 1 to a fifth of ElectionTicks %d", o.HeartbeatTicks, o.ElectionTicks)
	}
	if o.ReplaceTicks > 0 && o.ReplaceTicks < o.ElectionTicks {
		return fmt.Errorf("quorum: ReplaceTicks %d must be at least ElectionTicks %d, or below zero", o.ReplaceTicks, o.ElectionTicks)
	}
	if o.QuorumSize < 0 || o.KeepEntries < 1 || o.KeepBytes < 1 {
		return fmt.Errorf("quorum: QuorumSize %d, KeepEntries %d or KeepBytes %d is out of range", o.QuorumSize, o.KeepEntries, o.KeepBytes)
	}
	if len(o.Voters) > 0 && !slices.Contains(o.Voters, o.ID) {
		return fmt.Errorf("quorum: ID %x is none of the Voters %x", o.ID, o.Voters)
	}
	for i, id := range o.Voters {
		if id == 0 || raft.IsLocalMsgTarget(id) || slices.Contains(o.Voters[:i], id) {
			return fmt.Errorf("quorum: Voters %x has %x twice, or it is reserved", o.Voters, id)
		}
	}
	return nil
}

// NodeID is the quorum's id of the node with the number and the directory uuid. A
// wiped disk has a new uuid and is a new node.
func NodeID(node int32, uuid string) uint64 {
	b := binary.BigEndian.AppendUint32([]byte("leat quorum "), uint32(node))
	h := sha256.Sum256(append(b, uuid...))
	id := binary.BigEndian.Uint64(h[:])
	// The lowest is nobody and the highest two are Raft's own.
	return min(max(id, 1), math.MaxUint64-2)
}

// config is how Raft is used.
func (o *Options) config(storage raft.Storage, applied uint64) *raft.Config {
	return &raft.Config{
		ID:                        o.ID,
		ElectionTick:              o.ElectionTicks,
		HeartbeatTick:             o.HeartbeatTicks,
		Storage:                   storage,
		Applied:                   applied,
		MaxSizePerMsg:             maxMessageBytes,
		MaxCommittedSizePerReady:  maxCommittedBytes,
		MaxUncommittedEntriesSize: maxUncommittedBytes,
		MaxInflightMsgs:           maxInflight,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    raftLogger{o.Logger},
	}
}
