package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/replication/controller"
	"leat/storage/record"
)

// The bounds of leases.
const (
	MinLease        = time.Second
	MaxLease        = group.MaxLease
	DefaultLease    = 30 * time.Second
	MaxLeaseWait    = 20 * time.Second
	MaxLeaseRecords = 100_000
	MaxLeaseBytes   = 32 << 20
	// DefaultLeaseBytes is MaxBytes for a take that does not say.
	DefaultLeaseBytes = 1 << 20
	// MaxDeliveries is the largest bound of deliveries that a take may ask for.
	MaxDeliveries = 1 << 20
	// MaxLeases is how many leases one take gets, and of how many topics.
	MaxLeases = 64
	// maxParkedTakes is how many takes of one group may wait.
	maxParkedTakes = 10_000
)

// LeaseFrom says where a group begins that has nothing of a topic yet.
type LeaseFrom int8

// The places: the start of each log, or its end, which is committed then.
const (
	FromEarliest LeaseFrom = iota
	FromLatest
)

// LeaseRequest asks for work: leases of partitions that have records behind what
// the group has committed, and that nobody else has leased.
type LeaseRequest struct {
	Topics []string
	From   LeaseFrom
	// MaxPartitions bounds the leases; 0 is MaxLeases. MaxRecords and MaxBytes
	// bound all of them together, but for the first batch, which comes whatever
	// its size; 0 is MaxLeaseRecords and DefaultLeaseBytes.
	MaxPartitions, MaxRecords, MaxBytes int
	// Lease is for how long, 0 for DefaultLease; Wait is how long to wait for
	// the first lease.
	Lease, Wait time.Duration
	// MaxDeliveries is how often a record is handed out before it goes to the
	// topic DeadLetter; 0 for no bound. The last delivery is of one record.
	MaxDeliveries int
	DeadLetter    string
}

// Lease is the right to work on the records [First, Next) of a partition until
// the deadline.
type Lease struct {
	ID, Topic   string
	TopicID     TopicID
	Partition   int32
	First, Next int64
	Deadline    time.Time
	Duration    time.Duration
	// Deliveries counts how often the record at First was handed out, this time
	// included.
	Deliveries int
	// Gap is what the group has lost: records that it had not committed and that
	// are gone from the log. It is empty as a rule.
	Gap Gap
	// Section holds the records, in whole batches: the first may begin before
	// First, and the last may end behind Next. The caller must Release it.
	Section record.Section
}

// Gap is the offsets [From, To).
type Gap struct{ From, To int64 }

// LeaseState is what became of a lease, or a partition of a group that nobody
// gets.
type LeaseState struct {
	Topic     string
	Partition int32
	// The lease covers [First, Next) now.
	First, Next int64
	// Committed is what the group has committed, -1 for nothing.
	Committed int64
	// Deadline is when the lease ends, or with Delayed the delay; zero for a
	// lease that is over.
	Deadline      time.Time
	Live, Delayed bool
	// AlreadyCommitted says that the call has changed nothing, because an
	// earlier one had.
	AlreadyCommitted bool
	Deliveries       int
}

// check looks at the bounds and fills in the defaults.
func (r *LeaseRequest) check() (err error) {
	number := func(name string, v *int, def, most int) {
		if *v == 0 {
			*v = def
		}
		if *v < 1 || *v > most {
			err = errors.Join(err, fmt.Errorf("%w: %s %d is not from 1 to %d", ErrInvalidRequest, name, *v, most))
		}
	}
	number("max_partitions", &r.MaxPartitions, MaxLeases, MaxLeases)
	number("max_records", &r.MaxRecords, MaxLeaseRecords, MaxLeaseRecords)
	number("max_bytes", &r.MaxBytes, DefaultLeaseBytes, MaxLeaseBytes)
	if r.Lease == 0 {
		r.Lease = DefaultLease
	}
	topics := slices.Clone(r.Topics)
	slices.Sort(topics)
	switch {
	case err != nil:
		return err
	case len(topics) == 0 || len(topics) > MaxLeases:
		return fmt.Errorf("%w: %d topics, from 1 to %d are allowed", ErrInvalidRequest, len(topics), MaxLeases)
	case len(slices.Compact(topics)) < len(r.Topics):
		return fmt.Errorf("%w: a topic is named twice", ErrInvalidRequest)
	case r.Lease < MinLease || r.Lease > MaxLease:
		return fmt.Errorf("%w: a lease of %v is not from %v to %v", ErrInvalidRequest, r.Lease, MinLease, MaxLease)
	case r.Wait < 0 || r.Wait > MaxLeaseWait:
		return fmt.Errorf("%w: a wait of %v is not from 0 to %v", ErrInvalidRequest, r.Wait, MaxLeaseWait)
	case r.MaxDeliveries < 0 || r.MaxDeliveries > MaxDeliveries:
		return fmt.Errorf("%w: max_deliveries %d is not from 0 to %d", ErrInvalidRequest, r.MaxDeliveries, MaxDeliveries)
	case r.DeadLetter != "" && slices.Contains(r.Topics, r.DeadLetter):
		return fmt.Errorf("%w: the dead letter topic %q is among those that are taken from", ErrInvalidRequest, r.DeadLetter)
	default:
		return nil
	}
}

// TakeLeases leases what there is, and waits for it as long as the request says;
// then it returns no leases and no error. The group is one of leases from then
// on. It needs auth.Read for the group and the topics, and auth.Write for the
// dead letter topic.
//
// Errors: ErrInvalidGroupID; ErrGroupTypeConflict; ErrOverloaded; those of a
// fetch for a topic; *CorruptError and its like if nothing else can be given.
func (b *Broker) TakeLeases(ctx context.Context, p auth.Principal, id string, r *LeaseRequest) ([]Lease, error) {
	leases, _, err := b.AckAndTakeLeases(ctx, p, id, r, nil)
	return leases, err
}

// checkTake looks at what a take asks for, before anything happens.
func (b *Broker) checkTake(ctx context.Context, p auth.Principal, id string, req *LeaseRequest) error {
	if err := req.check(); err != nil {
		return err
	}
	if id == "" {
		return fmt.Errorf("%w: it is empty", ErrInvalidGroupID)
	}
	if err := b.allowedGroup(p, auth.Read, id); err != nil {
		return err
	}
	if req.DeadLetter != "" {
		if _, err := b.ensure(ctx, p, auth.Write, req.DeadLetter); err != nil {
			return err
		}
	}
	return nil
}

// leasedTopics finds the topics of a take.
func (b *Broker) leasedTopics(p auth.Principal, names []string) ([]*controller.Topic, error) {
	out := make([]*controller.Topic, len(names))
	for i, name := range names {
		var err error
		if out[i], err = b.resolve(p, auth.Read, TopicRef{Name: name}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// leaseCall is a call about a lease by its id.
type leaseCall struct {
	shard *shard
	group string
	topic *controller.Topic
	at    group.Partition
	nonce group.Nonce
}

func (b *Broker) leaseCall(ctx context.Context, p auth.Principal, id, lease string) (c leaseCall, err error) {
	if id == "" {
		return c, fmt.Errorf("%w: it is empty", ErrInvalidGroupID)
	}
	if err := b.allowedGroup(p, auth.Read, id); err != nil {
		return c, err
	}
	c.group = id
	if c.at, c.nonce, c.topic, err = b.leaseOf(p, lease); err != nil {
		return c, err
	}
	if c.shard, err = b.shard(ctx, id, false); err == nil && c.shard == nil {
		err = ErrLeaseLost
	}
	return c, err
}

// leaseOf reads a lease's id and finds its topic.
func (b *Broker) leaseOf(p auth.Principal, lease string) (at group.Partition, n group.Nonce, t *controller.Topic, err error) {
	if at, n, err = parseLeaseID(lease); err != nil {
		return at, n, nil, err
	}
	t, err = b.resolve(p, auth.Read, TopicRef{ID: at.Topic})
	if errors.Is(err, ErrUnknownTopicID) {
		err = fmt.Errorf("%w: its topic is gone", ErrLeaseLost)
	}
	return at, n, t, err
}

// do takes a step and returns when what it changed is committed.
func (c *leaseCall) do(ctx context.Context, step group.LeaseStep) (LeaseState, error) {
	i, err := c.step(ctx, step)
	if err != nil {
		return LeaseState{}, err
	}
	return leaseState(c.topic.Name, &i), nil
}

func (c *leaseCall) step(ctx context.Context, step group.LeaseStep) (group.LeaseInfo, error) {
	i, err := call[group.LeaseInfo](ctx, c.shard, func(now time.Time, t group.Token) { c.shard.core.Lease(now, t, c.group, step) })
	if errors.Is(err, ErrLeaseLost) {
		c.shard.broker.metrics.leases.lost.Inc()
	}
	return i, leaseError(err)
}

func leaseState(topic string, i *group.LeaseInfo) LeaseState {
	return LeaseState{
		Topic: topic, Partition: i.At.Number, First: i.First, Next: i.Next, Committed: i.Committed, Deadline: i.Until,
		Live: i.Live, Delayed: i.Delayed, AlreadyCommitted: i.AlreadyCommitted, Deliveries: int(i.Deliveries),
	}
}

// AckLease commits what was done of a lease: all with -1, and the lease is over;
// else up to the offset upto, and it goes on with the rest, if there is any. An
// ack that was answered already, or the answer of which was lost, succeeds again.
//
// Errors of the calls about a lease: ErrBadLease for an id that is none;
// ErrLeaseLost for a lease that does not live, or of a topic that is gone;
// ErrInvalidRequest for an offset outside of it.
func (b *Broker) AckLease(ctx context.Context, p auth.Principal, id, lease string, upto int64) (LeaseState, error) {
	if upto < -1 {
		return LeaseState{}, fmt.Errorf("%w: offset %d", ErrInvalidRequest, upto)
	}
	c, err := b.leaseCall(ctx, p, id, lease)
	if err != nil {
		return LeaseState{}, err
	}
	state, err := c.do(ctx, func(l *group.Leases, now time.Time) (group.LeaseInfo, group.LeaseEffects, error) {
		return l.Ack(now, c.at, c.nonce, upto)
	})
	if err == nil && !state.AlreadyCommitted {
		b.metrics.leases.acked.Inc()
	}
	return state, err
}

// ReturnLease undoes a lease of which nobody was told: it does not count as a
// delivery. One that does not live any more needs nothing. Errors as AckLease.
func (b *Broker) ReturnLease(ctx context.Context, p auth.Principal, id, lease string) error {
	c, err := b.leaseCall(ctx, p, id, lease)
	if err != nil {
		return err
	}
	_, err = c.step(ctx, func(l *group.Leases, now time.Time) (group.LeaseInfo, group.LeaseEffects, error) {
		return group.LeaseInfo{}, l.Return(now, c.at, c.nonce), nil
	})
	return err
}

// ExtendLease has a lease end d from now, or with 0 after the time for which it
// was taken. Errors as AckLease.
func (b *Broker) ExtendLease(ctx context.Context, p auth.Principal, id, lease string, d time.Duration) (LeaseState, error) {
	if d != 0 && (d < MinLease || d > MaxLease) {
		return LeaseState{}, fmt.Errorf("%w: a lease of %v is not from %v to %v", ErrInvalidRequest, d, MinLease, MaxLease)
	}
	c, err := b.leaseCall(ctx, p, id, lease)
	if err != nil {
		return LeaseState{}, err
	}
	return c.do(ctx, func(l *group.Leases, now time.Time) (group.LeaseInfo, group.LeaseEffects, error) {
		return l.Extend(now, c.at, c.nonce, d)
	})
}

// ReleaseRequest says how a lease is given back.
type ReleaseRequest struct {
	// Upto is what is committed first, -1 for nothing.
	Upto int64
	// Delay is for how long nobody gets the partition, at most MaxLease.
	Delay time.Duration
	// DeadLetter sends the first record that is left to the lease's dead letter
	// topic, and commits it.
	DeadLetter bool
}

// ReleaseLease gives a lease back. Errors as AckLease, and ErrNoDeadLetter; with
// DeadLetter those of a produce to that topic, for which it needs auth.Write.
func (b *Broker) ReleaseLease(ctx context.Context, p auth.Principal, id, lease string, r ReleaseRequest) (LeaseState, error) {
	switch {
	case r.Upto < -1:
		return LeaseState{}, fmt.Errorf("%w: offset %d", ErrInvalidRequest, r.Upto)
	case r.Delay < 0 || r.Delay > MaxLease:
		return LeaseState{}, fmt.Errorf("%w: a delay of %v is not from 0 to %v", ErrInvalidRequest, r.Delay, MaxLease)
	}
	c, err := b.leaseCall(ctx, p, id, lease)
	if err != nil {
		return LeaseState{}, err
	}
	if r.DeadLetter {
		if r.Upto, err = c.deadLetter(ctx, p, r.Upto); err != nil {
			return LeaseState{}, err
		}
	}
	return c.do(ctx, func(l *group.Leases, now time.Time) (group.LeaseInfo, group.LeaseEffects, error) {
		return l.Release(now, c.at, c.nonce, r.Upto, r.Delay)
	})
}

// GroupLeases describes the leases of a group that live, and the partitions that
// are delayed, of the topics that p may describe. It needs auth.Describe.
func (b *Broker) GroupLeases(ctx context.Context, p auth.Principal, id string) ([]LeaseState, error) {
	if err := b.allowedGroup(p, auth.Describe, id); err != nil {
		return nil, err
	}
	s, err := b.existing(ctx, id)
	if err != nil {
		return nil, err
	}
	infos, err := call[[]group.LeaseInfo](ctx, s, func(now time.Time, t group.Token) { s.core.ListLeases(now, t, id, unknownGroup(id)) })
	var out []LeaseState
	state := b.proposer.State()
	for i := range infos {
		if t := state.Topic(infos[i].At.Topic); t != nil && b.allowed(p, auth.Describe, t.Name) {
			out = append(out, leaseState(t.Name, &infos[i]))
		}
	}
	return out, err
}
