package broker

import (
	"errors"

	"leat/broker/group"
	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/record"
)

// Errors of the domain. The doors translate them by the table in api/errors.go
// and by nothing else. Compare with errors.Is; the text of the error that
// wraps one of these says what was wrong and is fit for a client.
var (
	ErrExceedsSegment          = errors.New("batch is larger than a segment")
	ErrTransactionState        = errors.New("transactions are not supported")
	ErrUnknownTopicID          = errors.New("unknown topic id")
	ErrUnknownPartition        = errors.New("unknown partition")
	ErrInvalidTopic            = errors.New("invalid topic name")
	ErrInvalidPartition        = errors.New("invalid partition")
	ErrInvalidConfig           = errors.New("invalid config")
	ErrInvalidRequest          = errors.New("invalid request")
	ErrInvalidAcks             = errors.New("invalid required acks")
	ErrTimedOut                = errors.New("timed out waiting for acknowledgement")
	ErrTopicAuthorization      = errors.New("topic authorization failed")
	ErrClusterAuthorization    = errors.New("cluster authorization failed")
	ErrUnsupportedForTimestamp = errors.New("timestamp type not supported")
	ErrShuttingDown            = errors.New("server is shutting down")
	ErrCorruptRecord           = errors.New("records are damaged")
	ErrElectionNotNeeded       = controller.ErrElectionNotNeeded
	ErrPolicyViolation         = errors.New("policy violation")
	ErrGroupAuthorization      = errors.New("group authorization failed")
	ErrUnknownGroup            = errors.New("unknown group")
	ErrMetadataTooLarge        = errors.New("offset metadata is too large")
	ErrCommitTooLarge          = errors.New("too many offsets in one commit")
	ErrBadLease                = errors.New("bad lease id")
	ErrOverloaded              = errors.New("too many requests wait")
	ErrQuota                   = errors.New("quota exceeded")
	ErrKeyInProgress           = errors.New("a request with this idempotency key is in progress")
	ErrTooManyBatches          = errors.New("request needs more batches than a retry can be told by")
	ErrInvalidFilter           = errors.New("invalid filter")
	ErrFilterBudget            = errors.New("filter takes too much")
)

// Errors that come up from replicas, the log, the batch format and the metadata,
// re-exported so that the doors need broker alone.
var (
	ErrUnknownTopic             = controller.ErrUnknownTopic
	ErrUnknownBroker            = controller.ErrUnknownBroker
	ErrTopicExists              = controller.ErrTopicExists
	ErrInvalidPartitions        = controller.ErrInvalidPartitions
	ErrInvalidReplicationFactor = controller.ErrInvalidReplicationFactor
	ErrInvalidAssignment        = controller.ErrInvalidAssignment
	ErrNoProducerIDs            = controller.ErrNoProducerIDs
	ErrNotController            = controller.ErrNotController
	ErrUnknownOutcome           = replication.ErrUnknownOutcome
	ErrTooManyChanges           = replication.ErrTooManyProposals
	ErrChangeTooLarge           = replication.ErrChangeTooLarge

	ErrLeadershipLost               = replication.ErrLeadershipLost
	ErrNotLeader                    = replication.ErrNotLeader
	ErrFencedEpoch                  = replication.ErrFencedLeaderEpoch
	ErrUnknownEpoch                 = replication.ErrUnknownLeaderEpoch
	ErrNotEnoughReplicas            = replication.ErrNotEnoughReplicas
	ErrNotEnoughReplicasAfterAppend = replication.ErrNotEnoughReplicasAfterAppend
	ErrOffsetNotAvailable           = replication.ErrOffsetNotAvailable

	ErrOffsetOutOfRange   = storage.ErrOffsetOutOfRange
	ErrBatchTooLarge      = storage.ErrTooLarge
	ErrOutOfOrderSequence = storage.ErrOutOfOrderSequence
	ErrProducerEpoch      = storage.ErrProducerEpoch
	ErrKeyReused          = storage.ErrKeyReused
	ErrStorageFailed      = storage.ErrFailed
	ErrStorageFull        = storage.ErrFull
	ErrLogClosed          = storage.ErrClosed
	ErrDamaged            = storage.ErrDamaged
	ErrCorruptBatch       = record.ErrCorrupt
	ErrInvalidRecord      = record.ErrInvalid
	ErrExpandsTooLarge    = record.ErrTooLarge
	ErrUnsupportedCodec   = record.ErrUnsupportedCodec
	ErrTimestamp          = record.ErrTimestamp
)

// Errors of groups, re-exported likewise.
var (
	ErrCoordinatorLoading      = group.ErrLoading
	ErrCoordinatorNotAvailable = group.ErrNotAvailable
	ErrNotCoordinator          = group.ErrNotCoordinator
	ErrGroupGone               = group.ErrGone
	ErrIllegalGeneration       = group.ErrIllegalGeneration
	ErrInconsistentProtocol    = group.ErrInconsistentProtocol
	ErrInvalidGroupID          = group.ErrInvalidGroupID
	ErrUnknownMember           = group.ErrUnknownMember
	ErrInvalidSession          = group.ErrInvalidSession
	ErrRebalanceInProgress     = group.ErrRebalanceInProgress
	ErrGroupNotEmpty           = group.ErrNotEmpty
	ErrMemberIDRequired        = group.ErrMemberIDRequired
	ErrGroupFull               = group.ErrFull
	ErrFencedInstance          = group.ErrFencedInstance
	ErrGroupSubscribed         = group.ErrSubscribed
	ErrGroupTypeConflict       = group.ErrTypeConflict
	ErrLeaseLost               = group.ErrLeaseLost
	ErrNoDeadLetter            = group.ErrNoDeadLetter
)

// OffsetError says which offset was asked for and what there is. It unwraps to
// ErrOffsetOutOfRange.
type OffsetError = storage.OffsetError
