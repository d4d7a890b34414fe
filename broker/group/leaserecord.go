package group

import "time"

// LeaseTerms is what a take asks for each of its leases.
type LeaseTerms struct {
	Duration time.Duration
	// MaxDeliveries is how often a record is handed out before it goes to the
	// topic DeadLetter; 0 for no bound. Without a topic it only makes batches
	// small.
	MaxDeliveries int32
	DeadLetter    string
}

// LeaseRecord is what is persisted of a partition that is leased, or whose
// record was handed out and is not committed.
type LeaseRecord struct {
	Nonce Nonce
	LeaseTerms
	// The lease covered [Begin, Next) when it was handed out and covers [First,
	// Next) now; First is what the group has committed.
	Begin, First, Next int64
	// Until is the end of the lease, or with Delayed that of the time for which
	// nobody gets the partition, which is Span after it was set; zero for neither,
	// or one that is over.
	Until   time.Time
	Span    time.Duration
	Delayed bool
	// Deliveries counts how often the record at First was handed out, and Count
	// is how many records were, the last time.
	Deliveries, Count int32
}

// LeaseChange is one change to commit. Those of one step are committed together.
type LeaseChange struct {
	At Partition
	// With Commit the group commits Offset, and Acked is the lease that is said
	// to have been acked last; else Record is the partition's, nil for none.
	Commit bool
	Offset int64
	Acked  Nonce
	Record *LeaseRecord
}

// LeaseWatch asks for Arrived once the partition has a record at or behind From.
// There is one for each partition at most until Arrived: a second one, as after a
// seek, takes the place of the first.
type LeaseWatch struct {
	At   Partition
	From int64
}

// Reservation is a partition to read for a take. Nobody else gets it meanwhile.
type Reservation struct {
	At Partition
	// From is the offset to read from, -1 for the start of the log.
	From int64
	// Limit bounds the records of the lease.
	Limit int
	// Dead says that the record at From was handed out as often as it may be:
	// it goes to the dead letter topic first.
	Dead bool
	// Deliveries is how often it was handed out, the last time in a lease that
	// ended at Next.
	Deliveries int32
	Next       int64
}

// Handout answers a take: partitions to read for it, or an error.
type Handout struct {
	Token        Token
	Reservations []Reservation
	Err          error
}

// LeaseEffects is what a step asks for. Changes must be committed before the
// step's results are told; Handouts need not wait for that.
type LeaseEffects struct {
	Changes  []LeaseChange
	Watches  []LeaseWatch
	Handouts []Handout
}

// LeaseInfo describes a lease, or a partition without one.
type LeaseInfo struct {
	At                     Partition
	Nonce                  Nonce
	First, Next, Committed int64
	Until                  time.Time
	Duration               time.Duration
	Live, Delayed          bool
	AlreadyCommitted       bool
	Deliveries             int32
	DeadLetter             string
}
