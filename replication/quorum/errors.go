package quorum

import (
	"errors"

	"leat/storage/meta"
)

var (
	// ErrNotLeader says that this node does not lead, or may not act as leader at
	// the moment: nothing was proposed.
	ErrNotLeader = errors.New("not the leader of the metadata quorum")
	// ErrDropped says that a proposal was not taken, and never will be: too much is
	// under way, a change of members is, or leadership is being handed over.
	ErrDropped = errors.New("proposal dropped")
	// ErrTooLarge says that a proposal has more bytes than Options.MaxProposalBytes.
	ErrTooLarge = errors.New("proposal too large")
	// ErrRefused says that a change of members makes no sense: the node is not what
	// the change takes it for, or no voter would be left.
	ErrRefused = errors.New("change of members refused")
	// ErrMessage says that a message is not one that a member sends.
	ErrMessage = errors.New("invalid quorum message")
	// ErrFailed says that a save has failed, or the machine, or an invariant: this
	// node votes and leads no more until it is started again.
	ErrFailed = errors.New("metadata quorum has failed on this node")
	// ErrDamaged says that what the store holds cannot be: the process should not
	// start (exit 78).
	ErrDamaged = errors.New("metadata log is damaged")
	// ErrOtherNode says that the store belongs to another node: the process should
	// not start (exit 78).
	ErrOtherNode = errors.New("metadata log is another node's")
	// ErrUnknownOutcome says that leadership was lost before the outcome of a
	// proposal was known: it may be committed, or never be.
	ErrUnknownOutcome = errors.New("outcome of the proposal is unknown")
	// ErrBusy says that the inbox is full: nothing was done.
	ErrBusy = errors.New("metadata quorum is busy")
	// ErrNotFound is what Store.Get says of a key that has no value.
	ErrNotFound = meta.ErrNotFound
	// ErrClosed says that the quorum was closed.
	ErrClosed = errors.New("metadata quorum is closed")
)
