package api

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"syscall"

	"leat/broker"
)

// Kafka's error codes that a door answers without an error of the domain
// behind them, or that the table below names. The numbers are Kafka's.
const (
	KafkaUnknownServerError          int16 = -1
	KafkaNone                        int16 = 0
	KafkaOffsetOutOfRange            int16 = 1
	KafkaCorruptMessage              int16 = 2
	KafkaUnknownTopicOrPartition     int16 = 3
	KafkaLeaderNotAvailable          int16 = 5
	KafkaNotLeaderOrFollower         int16 = 6
	KafkaRequestTimedOut             int16 = 7
	KafkaMessageTooLarge             int16 = 10
	KafkaOffsetMetadataTooLarge      int16 = 12
	KafkaCoordinatorLoading          int16 = 14
	KafkaCoordinatorNotAvailable     int16 = 15
	KafkaNotCoordinator              int16 = 16
	KafkaInvalidTopic                int16 = 17
	KafkaRecordListTooLarge          int16 = 18
	KafkaNotEnoughReplicas           int16 = 19
	KafkaNotEnoughAfterAppend        int16 = 20
	KafkaInvalidRequiredAcks         int16 = 21
	KafkaIllegalGeneration           int16 = 22
	KafkaInconsistentProtocol        int16 = 23
	KafkaInvalidGroupID              int16 = 24
	KafkaUnknownMember               int16 = 25
	KafkaInvalidSessionTimeout       int16 = 26
	KafkaRebalanceInProgress         int16 = 27
	KafkaInvalidCommitOffsetSize     int16 = 28
	KafkaTopicAuthorization          int16 = 29
	KafkaGroupAuthorization          int16 = 30
	KafkaClusterAuthorization        int16 = 31
	KafkaInvalidTimestamp            int16 = 32
	KafkaUnsupportedVersion          int16 = 35
	KafkaTopicAlreadyExists          int16 = 36
	KafkaInvalidPartitions           int16 = 37
	KafkaInvalidReplicationFactor    int16 = 38
	KafkaInvalidReplicaAssignment    int16 = 39
	KafkaInvalidConfig               int16 = 40
	KafkaNotController               int16 = 41
	KafkaInvalidRequest              int16 = 42
	KafkaUnsupportedForMessageFormat int16 = 43
	KafkaPolicyViolation             int16 = 44
	KafkaOutOfOrderSequence          int16 = 45
	KafkaInvalidProducerEpoch        int16 = 47
	KafkaInvalidTxnState             int16 = 48
	KafkaStorageError                int16 = 56
	KafkaNonEmptyGroup               int16 = 68
	KafkaGroupIDNotFound             int16 = 69
	KafkaFetchSessionIDNotFound      int16 = 70
	KafkaFencedLeaderEpoch           int16 = 74
	KafkaUnknownLeaderEpoch          int16 = 75
	KafkaUnsupportedCompression      int16 = 76
	KafkaOffsetNotAvailable          int16 = 78
	KafkaMemberIDRequired            int16 = 79
	KafkaGroupMaxSizeReached         int16 = 81
	KafkaFencedInstanceID            int16 = 82
	KafkaElectionNotNeeded           int16 = 84
	KafkaGroupSubscribedToTopic      int16 = 86
	KafkaInvalidRecord               int16 = 87
	KafkaThrottlingQuotaExceeded     int16 = 89
	KafkaUnknownTopicID              int16 = 100
	KafkaMismatchedEndpointType      int16 = 114
	KafkaUnsupportedEndpointType     int16 = 115
)

// Error is how an error looks from outside. It is a value.
type Error struct {
	// Kafka is the error code of the Kafka protocol.
	Kafka int16
	// Status is the HTTP status.
	Status int
	// Code is the slug of the problem, in snake_case; stable.
	Code string
	// Title is one short phrase for people, the same for every error of
	// this Code.
	Title string
	// Retriable says that the same request may succeed later and that
	// repeating it cannot write twice.
	Retriable bool
	// MaybeWritten says that the records may be in the log all the same.
	// Retriable is false then: only a request that carries an idempotency
	// key or producer sequence may be repeated.
	MaybeWritten bool
	// Detail is what was wrong with this request, fit for a client. It is
	// empty where the text might show the inside of the server.
	Detail string
}

// visibility says whether the text of an error goes to the client.
type visibility bool

const (
	show visibility = true
	hide visibility = false
)

// outcome says what a client may do after the error.
type outcome uint8

const (
	final   outcome = iota // the same request fails again
	retry                  // the same request may succeed later
	unclear                // as retry, but the records may have been written
)

type row struct {
	sentinel error
	kafka    int16
	status   int
	code     string
	title    string
	outcome  outcome
	detail   visibility
}

// table is the one place where an error of the domain gets a number. The first
// row whose sentinel the error wraps is taken, so a general sentinel stands
// after the special ones.
var table = []row{
	{broker.ErrUnknownTopic, KafkaUnknownTopicOrPartition, http.StatusNotFound, "unknown_topic", "Unknown topic", final, show},
	{broker.ErrUnknownTopicID, KafkaUnknownTopicID, http.StatusNotFound, "unknown_topic_id", "Unknown topic id", final, show},
	{broker.ErrUnknownPartition, KafkaUnknownTopicOrPartition, http.StatusNotFound, "unknown_partition", "Unknown partition", final, show},
	{broker.ErrInvalidTopic, KafkaInvalidTopic, http.StatusBadRequest, "invalid_topic", "Invalid topic name", final, show},
	{broker.ErrTopicExists, KafkaTopicAlreadyExists, http.StatusConflict, "topic_exists", "Topic already exists", final, show},
	{broker.ErrInvalidPartitions, KafkaInvalidPartitions, http.StatusUnprocessableEntity, "invalid_partitions", "Invalid number of partitions", final, show},
	{broker.ErrInvalidPartition, KafkaUnknownTopicOrPartition, http.StatusBadRequest, "invalid_partition", "Invalid partition", final, show},
	{broker.ErrInvalidReplicationFactor, KafkaInvalidReplicationFactor, http.StatusUnprocessableEntity, "invalid_replication_factor", "Invalid replication factor", final, show},
	{broker.ErrInvalidAssignment, KafkaInvalidReplicaAssignment, http.StatusUnprocessableEntity, "invalid_replica_assignment", "Invalid replica assignment", final, show},
	{broker.ErrNoProducerIDs, KafkaPolicyViolation, http.StatusServiceUnavailable, "no_producer_ids", "Producer ids are exhausted", final, show},
	{broker.ErrUnknownOutcome, KafkaRequestTimedOut, http.StatusServiceUnavailable, "outcome_unknown", "Outcome of the change is unknown", unclear, hide},
	{broker.ErrNotController, KafkaNotController, http.StatusServiceUnavailable, "not_controller", "Not the controller", retry, show},
	{broker.ErrTooManyChanges, KafkaThrottlingQuotaExceeded, http.StatusServiceUnavailable, "overloaded", "Overloaded", retry, show},
	{broker.ErrChangeTooLarge, KafkaPolicyViolation, http.StatusRequestEntityTooLarge, "change_too_large", "Change is too large", final, show},
	{broker.ErrInvalidConfig, KafkaInvalidConfig, http.StatusUnprocessableEntity, "invalid_config", "Invalid configuration", final, show},
	{broker.ErrInvalidRequest, KafkaInvalidRequest, http.StatusBadRequest, "invalid_request", "Invalid request", final, show},
	{broker.ErrInvalidAcks, KafkaInvalidRequiredAcks, http.StatusBadRequest, "invalid_acks", "Invalid required acks", final, show},
	{broker.ErrNotEnoughReplicas, KafkaNotEnoughReplicas, http.StatusServiceUnavailable, "not_enough_replicas", "Not enough in-sync replicas", retry, show},
	{broker.ErrNotEnoughReplicasAfterAppend, KafkaNotEnoughAfterAppend, http.StatusServiceUnavailable, "not_enough_replicas_after_append", "Not enough in-sync replicas after the append", unclear, show},
	{broker.ErrLeadershipLost, KafkaNotLeaderOrFollower, http.StatusServiceUnavailable, "leadership_lost", "Leadership was lost after the append", unclear, show},
	{broker.ErrNotLeader, KafkaNotLeaderOrFollower, http.StatusServiceUnavailable, "not_leader", "Not the leader of the partition", retry, show},
	{broker.ErrOffsetNotAvailable, KafkaOffsetNotAvailable, http.StatusServiceUnavailable, "offset_not_available", "Offset is not available yet", retry, show},
	{broker.ErrFencedEpoch, KafkaFencedLeaderEpoch, http.StatusConflict, "fenced_leader_epoch", "Fenced leader epoch", retry, show},
	{broker.ErrUnknownEpoch, KafkaUnknownLeaderEpoch, http.StatusServiceUnavailable, "unknown_leader_epoch", "Unknown leader epoch", retry, show},
	{broker.ErrTimedOut, KafkaRequestTimedOut, http.StatusGatewayTimeout, "ack_timeout", "Timed out waiting for acknowledgement", unclear, show},
	{broker.ErrUnknownBroker, KafkaInvalidRequest, http.StatusNotFound, "unknown_broker", "Unknown broker", final, show},
	{broker.ErrPolicyViolation, KafkaPolicyViolation, http.StatusUnprocessableEntity, "policy_violation", "Policy violation", final, show},
	{broker.ErrTopicAuthorization, KafkaTopicAuthorization, http.StatusForbidden, "topic_forbidden", "Not authorized for the topic", final, show},
	{broker.ErrClusterAuthorization, KafkaClusterAuthorization, http.StatusForbidden, "cluster_forbidden", "Not authorized for the cluster", final, show},
	{broker.ErrUnsupportedForTimestamp, KafkaUnsupportedForMessageFormat, http.StatusBadRequest, "unsupported_timestamp", "Timestamp kind not supported", final, show},
	{broker.ErrGroupAuthorization, KafkaGroupAuthorization, http.StatusForbidden, "group_forbidden", "Not authorized for the group", final, show},
	{broker.ErrUnknownGroup, KafkaGroupIDNotFound, http.StatusNotFound, "unknown_group", "Unknown group", final, show},
	{broker.ErrInvalidGroupID, KafkaInvalidGroupID, http.StatusBadRequest, "invalid_group", "Invalid group id", final, show},
	{broker.ErrGroupNotEmpty, KafkaNonEmptyGroup, http.StatusConflict, "group_not_empty", "Group is not empty", final, show},
	{broker.ErrGroupSubscribed, KafkaGroupSubscribedToTopic, http.StatusConflict, "group_subscribed", "Group is subscribed to the topic", final, show},
	{broker.ErrGroupFull, KafkaGroupMaxSizeReached, http.StatusConflict, "group_full", "Group has as many members as it may", final, show},
	{broker.ErrGroupTypeConflict, KafkaInconsistentProtocol, http.StatusConflict, "group_type_conflict", "Group is of the other type", final, show},
	{broker.ErrBadLease, KafkaInvalidRequest, http.StatusBadRequest, "bad_lease", "Bad lease id", final, show},
	{broker.ErrLeaseLost, KafkaInvalidRequest, http.StatusConflict, "lease_lost", "Lease is lost", final, show},
	{broker.ErrNoDeadLetter, KafkaInvalidRequest, http.StatusUnprocessableEntity, "no_dead_letter", "Lease has no dead letter topic", final, show},
	{broker.ErrOverloaded, KafkaThrottlingQuotaExceeded, http.StatusServiceUnavailable, "overloaded", "Overloaded", retry, show},
	{broker.ErrUnknownMember, KafkaUnknownMember, http.StatusNotFound, "unknown_member", "Unknown group member", final, show},
	{broker.ErrMemberIDRequired, KafkaMemberIDRequired, http.StatusConflict, "member_id_required", "Member id required", retry, show},
	{broker.ErrFencedInstance, KafkaFencedInstanceID, http.StatusConflict, "fenced_instance", "Fenced group instance", final, show},
	{broker.ErrIllegalGeneration, KafkaIllegalGeneration, http.StatusConflict, "illegal_generation", "Illegal group generation", final, show},
	{broker.ErrRebalanceInProgress, KafkaRebalanceInProgress, http.StatusConflict, "rebalance_in_progress", "Group is rebalancing", retry, show},
	{broker.ErrInconsistentProtocol, KafkaInconsistentProtocol, http.StatusUnprocessableEntity, "inconsistent_protocol", "Inconsistent group protocol", final, show},
	{broker.ErrInvalidSession, KafkaInvalidSessionTimeout, http.StatusUnprocessableEntity, "invalid_session_timeout", "Invalid session timeout", final, show},
	{broker.ErrMetadataTooLarge, KafkaOffsetMetadataTooLarge, http.StatusUnprocessableEntity, "offset_metadata_too_large", "Offset metadata is too large", final, show},
	{broker.ErrCommitTooLarge, KafkaInvalidCommitOffsetSize, http.StatusRequestEntityTooLarge, "commit_too_large", "Commit is too large", final, show},
	{broker.ErrInvalidFilter, KafkaInvalidRequest, http.StatusBadRequest, "invalid_filter", "Invalid filter", final, show},
	{broker.ErrFilterBudget, KafkaPolicyViolation, http.StatusUnprocessableEntity, "filter_budget", "Filter takes too much", final, show},
	{broker.ErrCoordinatorLoading, KafkaCoordinatorLoading, http.StatusServiceUnavailable, "coordinator_loading", "Group coordinator is loading", retry, show},
	{broker.ErrCoordinatorNotAvailable, KafkaCoordinatorNotAvailable, http.StatusServiceUnavailable, "coordinator_not_available", "Group coordinator is not available", unclear, hide},
	{broker.ErrNotCoordinator, KafkaNotCoordinator, http.StatusServiceUnavailable, "coordinator_not_available", "Group coordinator is not available", unclear, show},
	{broker.ErrGroupGone, KafkaCoordinatorNotAvailable, http.StatusServiceUnavailable, "coordinator_not_available", "Group coordinator is not available", unclear, hide},
	{broker.ErrQuota, KafkaThrottlingQuotaExceeded, http.StatusTooManyRequests, "quota_rate", "Quota exceeded", retry, show},
	// 6 and not 8: every client answers 6 with fresh metadata and a retry,
	// while BROKER_NOT_AVAILABLE is final in some of them.
	{broker.ErrShuttingDown, KafkaNotLeaderOrFollower, http.StatusServiceUnavailable, "shutting_down", "Server is shutting down", retry, show},
	{broker.ErrCorruptRecord, KafkaCorruptMessage, http.StatusInternalServerError, "corrupt_record", "Record is damaged", final, show},
	{broker.ErrElectionNotNeeded, KafkaElectionNotNeeded, http.StatusConflict, "election_not_needed", "Election not needed", final, show},
	{broker.ErrDamaged, KafkaStorageError, http.StatusServiceUnavailable, "partition_damaged", "Partition is damaged", final, hide},

	{broker.ErrOffsetOutOfRange, KafkaOffsetOutOfRange, http.StatusRequestedRangeNotSatisfiable, "offset_out_of_range", "Offset out of range", final, show},
	{broker.ErrExceedsSegment, KafkaRecordListTooLarge, http.StatusRequestEntityTooLarge, "batch_exceeds_segment", "Batch is larger than a segment", final, show},
	{broker.ErrTransactionState, KafkaInvalidTxnState, http.StatusUnprocessableEntity, "invalid_transaction_state", "Transactions are not supported", final, show},
	{broker.ErrBatchTooLarge, KafkaMessageTooLarge, http.StatusRequestEntityTooLarge, "record_too_large", "Record or batch too large", final, show},
	{broker.ErrOutOfOrderSequence, KafkaOutOfOrderSequence, http.StatusConflict, "out_of_order_sequence", "Out of order producer sequence", final, show},
	{broker.ErrProducerEpoch, KafkaInvalidProducerEpoch, http.StatusConflict, "producer_fenced", "Old producer epoch", final, show},
	{broker.ErrKeyReused, KafkaInvalidRequest, http.StatusUnprocessableEntity, "idempotency_key_reused", "Idempotency key was used for another request", final, show},
	{broker.ErrKeyInProgress, KafkaInvalidRequest, http.StatusConflict, "idempotency_in_progress", "Request with this idempotency key is in progress", retry, show},
	{broker.ErrTooManyBatches, KafkaRecordListTooLarge, http.StatusRequestEntityTooLarge, "too_many_batches", "Request is too large for a producer sequence", final, show},
	{broker.ErrStorageFull, KafkaStorageError, http.StatusInsufficientStorage, "storage_full", "Disk is full", retry, hide},
	{broker.ErrStorageFailed, KafkaStorageError, http.StatusServiceUnavailable, "storage_failed", "Storage has failed", unclear, hide},
	// A log is closed when its topic goes away or the server stops; fresh
	// metadata tells a client which.
	{broker.ErrLogClosed, KafkaNotLeaderOrFollower, http.StatusServiceUnavailable, "partition_closed", "Partition is closed", retry, hide},
	{broker.ErrCorruptBatch, KafkaCorruptMessage, http.StatusBadRequest, "corrupt_batch", "Corrupt record batch", final, show},
	{broker.ErrInvalidRecord, KafkaInvalidRecord, http.StatusUnprocessableEntity, "invalid_record", "Invalid record", final, show},
	{broker.ErrExpandsTooLarge, KafkaMessageTooLarge, http.StatusRequestEntityTooLarge, "batch_expands_too_large", "Batch expands beyond the limit", final, show},
	{broker.ErrUnsupportedCodec, KafkaUnsupportedCompression, http.StatusUnsupportedMediaType, "unsupported_codec", "Unsupported compression codec", final, show},
	{broker.ErrTimestamp, KafkaInvalidTimestamp, http.StatusUnprocessableEntity, "invalid_timestamp", "Invalid timestamp", final, show},

	{ErrStreamReset, KafkaUnknownTopicID, http.StatusGone, "stream_reset", "Stream reset", final, show},
	{ErrBadCursor, KafkaInvalidRequest, http.StatusBadRequest, "bad_cursor", "Bad cursor", final, show},

	// A wait that the caller or the drain ended: what it waited for may
	// still have happened.
	{context.DeadlineExceeded, KafkaRequestTimedOut, http.StatusGatewayTimeout, "timed_out", "Request timed out", unclear, hide},
	{context.Canceled, KafkaRequestTimedOut, http.StatusServiceUnavailable, "canceled", "Request was canceled", unclear, hide},
	{syscall.ENOSPC, KafkaStorageError, http.StatusInsufficientStorage, "storage_full", "Disk is full", retry, hide},
	{syscall.EDQUOT, KafkaStorageError, http.StatusInsufficientStorage, "storage_full", "Disk is full", retry, hide},
}

// storageError is the answer to an error of the file system that no row names:
// it fails its request only.
var storageError = row{nil, KafkaStorageError, http.StatusServiceUnavailable, "storage_error", "Storage error", retry, hide}

// internal is the answer to an error that nobody named.
var internal = row{nil, KafkaUnknownServerError, http.StatusInternalServerError, "internal", "Internal error", final, hide}

// Describe says how err looks on the wire. nil gives the zero Error with
// status 200. An error without a row gives Code "internal" and no detail; its
// owner logs it. Safe for concurrent use.
func Describe(err error) Error {
	if err == nil {
		return Error{Status: http.StatusOK}
	}
	for i := range table {
		if errors.Is(err, table[i].sentinel) {
			return table[i].describe(err)
		}
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return storageError.describe(err)
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return storageError.describe(err)
	}
	return internal.describe(err)
}

func (r *row) describe(err error) Error {
	e := Error{
		Kafka:        r.kafka,
		Status:       r.status,
		Code:         r.code,
		Title:        r.title,
		Retriable:    r.outcome == retry,
		MaybeWritten: r.outcome == unclear,
	}
	if r.detail == show {
		e.Detail = bounded(err.Error())
	}
	return e
}

// bounded keeps a name or value that a request has made long from coming back
// whole.
func bounded(detail string) string { return clip(detail, 2<<10) }

// clip is at most so many bytes of a text, with a mark if that is not all.
func clip(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
