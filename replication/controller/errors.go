package controller

import "errors"

// Errors of decisions. They are the caller's to explain: bad input or an asker
// whose view is old, not damage.
var (
	ErrTopicExists              = errors.New("topic already exists")
	ErrUnknownTopic             = errors.New("unknown topic")
	ErrInvalidPartitions        = errors.New("invalid number of partitions")
	ErrInvalidReplicationFactor = errors.New("invalid replication factor")
	ErrInvalidAssignment        = errors.New("invalid replica assignment")
	// ErrUnknownBroker says that no node of that id is registered.
	ErrUnknownBroker = errors.New("unknown broker")
	// ErrNoProducerIDs says that all ids are given out.
	ErrNoProducerIDs = errors.New("producer ids are exhausted")
	// ErrNotController says that the asker knows more than this controller, which
	// then is one no more.
	ErrNotController = errors.New("not the controller")
	// ErrStaleBrokerEpoch says that the asker's registration is over.
	ErrStaleBrokerEpoch = errors.New("stale broker epoch")
	// ErrDuplicateBroker says that another process holds the broker's id.
	ErrDuplicateBroker = errors.New("duplicate broker")
	// ErrBrokerInService says that a broker must be fenced before it can go.
	ErrBrokerInService = errors.New("broker is in service")
	// ErrUnsupportedLevel says that a broker and the cluster's feature level do not
	// go together.
	ErrUnsupportedLevel = errors.New("unsupported feature level")
	// ErrFencedLeaderEpoch says that the asker's leadership is over.
	ErrFencedLeaderEpoch = errors.New("fenced leader epoch")
	// ErrInvalidRequest says that no honest leader asks for that.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrInvalidUpdateVersion says that the partition changed since the asker
	// looked.
	ErrInvalidUpdateVersion = errors.New("invalid update version")
	// ErrIneligibleReplica says that a broker may not enter the ISR now.
	ErrIneligibleReplica = errors.New("ineligible replica")
	// ErrTooLarge says that the records of an item of a request, or those of it and
	// the items before it, take more bytes than they may: nothing of the item is done.
	ErrTooLarge = errors.New("the change of metadata is too large")
	// ErrNewLeaderElected says that the change was made and another leads now.
	ErrNewLeaderElected = errors.New("new leader elected")
)
