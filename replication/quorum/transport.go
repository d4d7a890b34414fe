package quorum

import "time"

// Transport sends messages to other members.
type Transport interface {
	// Send sends m or drops it; it never waits. m must not be changed.
	Send(m Message)
}

// ShellOptions are those of a Quorum.
type ShellOptions struct {
	Options
	// Transport may be nil while this node is the only member.
	Transport Transport
	// Tick is how long a tick is. Zero means 25 ms.
	Tick time.Duration
	// After is called on the Quorum's goroutine with what every save allows. It
	// must not wait for the Quorum. nil: nobody is told.
	After func(*Core, Output)
	// OnFatal is called once, on that goroutine, when the Core has failed: the
	// process should end. nil: nobody is told, but nothing is done any more.
	OnFatal func(error)
}

// Lead says who leads.
type Lead struct {
	// Leader is 0 if this node knows none.
	Term, Leader uint64
	// Active says that this node leads and may act as leader in Term.
	Active bool
}
