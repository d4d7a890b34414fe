package replication

import (
	"errors"

	"leat/replication/controller"
	"leat/storage"
)

// Errors of a replica. The doors translate them by the table in api/errors.go.
var (
	// ErrNotLeader refuses what only the leader of the epoch may answer.
	ErrNotLeader = errors.New("not the leader of the partition")
	// ErrLeaseExpired says that the leader has not heard from the controller for
	// so long that another may lead by now. It unwraps to ErrNotLeader.
	ErrLeaseExpired error = &notLeaderError{"the leader's lease has expired"}
	// ErrLeadershipLost says that the leadership in which records were appended
	// has ended before they could be answered: they may stay. It unwraps to
	// ErrNotLeader.
	ErrLeadershipLost error = &notLeaderError{"leadership was lost after the append"}
	// ErrFencedLeaderEpoch refuses a leader epoch that has ended.
	ErrFencedLeaderEpoch = controller.ErrFencedLeaderEpoch
	// ErrUnknownLeaderEpoch refuses a leader epoch, or a follower, that this
	// replica has not heard of yet.
	ErrUnknownLeaderEpoch = errors.New("unknown leader epoch")
	// ErrStaleBrokerEpoch refuses a fetch of an earlier life of a broker (KIP-903).
	ErrStaleBrokerEpoch = controller.ErrStaleBrokerEpoch
	// ErrNotEnoughReplicas refuses an append before anything is written.
	ErrNotEnoughReplicas = errors.New("not enough in-sync replicas")
	// ErrNotEnoughReplicasAfterAppend says that too few replicas are in sync by
	// now; the records are in the log and may stay.
	ErrNotEnoughReplicasAfterAppend = errors.New("not enough in-sync replicas after the append")
	// ErrOffsetNotAvailable says that a new leader does not know yet how far its
	// log is committed.
	ErrOffsetNotAvailable = errors.New("offset not available yet")
	// ErrPending says that an append is not committed yet.
	ErrPending = errors.New("not committed yet")
	// ErrOffsetOutOfRange says that a follower asks for what the leader's log
	// does not have.
	ErrOffsetOutOfRange = storage.ErrOffsetOutOfRange
)

// notLeaderError is a way of not being the leader.
type notLeaderError struct{ text string }

func (e *notLeaderError) Error() string { return e.text }
func (*notLeaderError) Unwrap() error   { return ErrNotLeader }
