package group

// Answer is what became of the operation of a token.
type Answer struct {
	Token Token
	// Err is why it was not done, or not known to be done.
	Err error
	// Value is what the operation says it is. With an Err it may be nil, but a
	// JoinReply and a SyncReply are always there, and have the Err too.
	Value any
}

// Append asks for a batch at the end of the log: one operation is never split
// over batches, but for the removal of more than fits one. It must not be
// appended under another leader epoch.
type Append struct {
	Epoch   int32
	Changes []Change
}

// Apply asks for committed changes to go into the view, in one step with how far
// it has the log then.
type Apply struct {
	// From and To are the offsets. Everything below To is committed.
	From, To int64
	// With Read the changes are in the log: the owner may apply a part of them,
	// a whole number of batches from From on. Else they are Changes, which are all
	// that is there, of the leader epoch Epoch.
	Read    bool
	Epoch   int32
	Changes []Change
}

// Watch asks for Arrived once a partition has a record at or behind From; see
// LeaseWatch.
type Watch struct {
	Group string
	LeaseWatch
}

// Todo is what is next. Its parts are to be done in this order, and whatever is
// known at once is to be told before Next is called again.
type Todo struct {
	// Wipe has the view forget everything; then Wiped is due.
	Wipe bool
	// Unwatched are groups whose watches are over, Watches new ones.
	Unwatched []string
	Watches   []Watch
	// Acked are the results of the acks that came with takes.
	Acked   []TakeAcks
	Answers []Answer
	// Apply is to be followed by Did, and Append by Appended.
	Apply  *Apply
	Append *Append
	// Troubles are for the log of the server.
	Troubles []error
}

func (t *Todo) empty() bool {
	return !t.Wipe && t.Apply == nil && t.Append == nil &&
		len(t.Unwatched)+len(t.Watches)+len(t.Acked)+len(t.Answers)+len(t.Troubles) == 0
}
