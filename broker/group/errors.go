package group

import "errors"

// The errors of members' requests, with the codes of Kafka's protocol. Compare
// with errors.Is.
var (
	ErrGone                 = errors.New("group is gone")                           // 15
	ErrIllegalGeneration    = errors.New("generation is not the group's")           // 22
	ErrInconsistentProtocol = errors.New("no protocol is common to all members")    // 23
	ErrInvalidGroupID       = errors.New("invalid group id")                        // 24
	ErrUnknownMember        = errors.New("unknown member")                          // 25
	ErrInvalidSession       = errors.New("session timeout is out of range")         // 26
	ErrRebalanceInProgress  = errors.New("group is rebalancing")                    // 27
	ErrNotEmpty             = errors.New("group is not empty")                      // 68
	ErrMemberIDRequired     = errors.New("join again with the member id given")     // 79
	ErrFull                 = errors.New("group has as many members as it may")     // 81
	ErrFencedInstance       = errors.New("a newer member has the same instance id") // 82
	ErrSubscribed           = errors.New("group is subscribed to the topic")        // 86
)

// The errors of leases. A group of the other type is Kafka's code 23 as well;
// the others have no code of Kafka's own.
var (
	ErrTypeConflict  = errors.New("group is of the other type")
	ErrLeaseLost     = errors.New("lease is lost")
	ErrLeaseRange    = errors.New("offset is outside of the lease")
	ErrNoDeadLetter  = errors.New("lease has no dead letter topic")
	ErrTooManyWaiter = errors.New("too many takes wait")
)

// The errors of a shard. The first three are Kafka's codes 14, 15 and 16: the
// client looks for the coordinator again, or waits.
var (
	ErrLoading        = errors.New("coordinator is loading")
	ErrNotAvailable   = errors.New("coordinator is not available")
	ErrNotCoordinator = errors.New("not the coordinator of the group")
	// ErrUnknownOutcome says of an append that it may be in the log all the same.
	ErrUnknownOutcome = errors.New("it is not known whether it was done")
	// ErrDamagedLog says of a log that records of it are lost.
	ErrDamagedLog = errors.New("log is damaged")
	// ErrNoRoom says that the view has no room for now.
	ErrNoRoom = errors.New("no room for the committed view")
)
