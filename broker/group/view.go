package group

import "errors"

// View is what a shard's log says up to some offset: the committed groups and
// what they have committed. The shard only reads it; its owner puts into it what
// Todo.Apply says. What is passed to a function is the caller's only until that
// returns, but for records and offsets, which nobody may change.
type View interface {
	// Members is the newest record of a group, nil if it never had members and
	// no leases. Exists is also of a group that has only committed offsets.
	Members(id string) (*Record, error)
	Exists(id string) (bool, error)
	// EachGroup calls fn with the name of each group, in order.
	EachGroup(fn func(id string) error) error
	// EachMembers calls fn with each group that has a record, in order.
	EachMembers(fn func(id string, r *Record) error) error
	// EachOffset calls fn with what a group has committed, by topic and
	// partition, and EachLease with its lease records.
	EachOffset(id string, fn func(topic string, partition int32, o *Offset) error) error
	EachLease(id string, fn func(at Partition, r *LeaseRecord) error) error
	// Offset is what a group has committed for a partition, nil for nothing.
	Offset(id, topic string, partition int32) (*Offset, error)
}

// Topics is what there is of topics.
type Topics interface {
	// Topic is a topic's name and how many partitions it has; false for one that
	// is gone.
	Topic(id [16]byte) (name string, partitions int32, ok bool)
}

// Log is what a shard asks of the log of its partition.
type Log interface {
	// Bounds are the first offset of the log and the one after its last.
	Bounds() (start, end int64)
	// EpochEnd is the largest leader epoch in the log that is at most epoch, and
	// the offset at which that ended; found is -1, and end the log's start, if all
	// are larger. ErrDamagedLog says that records are lost and it cannot tell.
	EpochEnd(epoch int32) (found int32, end int64, err error)
}

// Applied says how far a view has the log.
type Applied struct {
	// Next is the offset after the last that it has.
	Next int64
	// Epoch is the leader epoch of that one, -1 if it is not known.
	Epoch int32
}

// fits reports whether a view belongs to the log: the log has all that the view
// has, and of the same leader (etcd's and Redpanda's lesson: a store may outlive
// records that its log has lost, and must not tell of them).
func (a Applied) fits(l Log) (bool, error) {
	start, end := l.Bounds()
	switch {
	case a.Next < start || a.Next > end:
		return false, nil
	case a.Next == start || a.Epoch < 0:
		return true, nil // the log has nothing left to compare with
	}
	_, until, err := l.EpochEnd(a.Epoch)
	if errors.Is(err, ErrDamagedLog) {
		return true, nil // what the view has is the better of the two
	}
	if err != nil || until < a.Next {
		return false, err
	}
	if a.Epoch == 0 {
		return true, nil
	}
	_, before, err := l.EpochEnd(a.Epoch - 1)
	return before < a.Next, err
}

// Offset is an offset as a group has committed it.
type Offset struct {
	Topic  [16]byte
	Offset int64
	// Epoch is that of the leader of the record before, -1 if the client did not
	// say (KIP-320).
	Epoch    int32
	Metadata string
	At       int64 // wall clock, ms
	// Acked is the lease that was acked last, if that is what has committed.
	Acked   Nonce
	Expires int64 // wall clock, ms; -1 for the server's rules
}

// Change is one record of the log: what was committed for a partition of a
// topic; or, with a topic's id, the lease of a partition; or, with neither, who
// is in the group. nil removes it, and of a group also that it exists.
type Change struct {
	Group     string
	Topic     string
	Leased    [16]byte
	Partition int32
	Offset    *Offset
	Lease     *LeaseRecord
	Members   *Record
}

// OfGroup says that the change is of the group itself.
func (c *Change) OfGroup() bool { return c.Topic == "" && c.Leased == [16]byte{} }

// Size is about what the change adds to the log, in bytes.
func (c *Change) Size() int {
	n := len(c.Group) + len(c.Topic) + 100
	if c.Offset != nil {
		n += len(c.Offset.Metadata)
	}
	if c.Lease != nil {
		n += 80 + len(c.Lease.DeadLetter)
	}
	if c.Members != nil {
		for i := range c.Members.Members {
			m := &c.Members.Members[i]
			n += len(m.ID) + len(m.ClientID) + len(m.Metadata) + len(m.Assignment) + 100
		}
	}
	return n
}
