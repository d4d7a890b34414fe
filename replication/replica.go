package replication

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"leat/replication/controller"
	"leat/storage"
)

// Instant is a time on the monotonic clock of one process, since a moment of
// that process's own choosing.
type Instant = time.Duration

// Forever is after every Instant.
const Forever Instant = math.MaxInt64

// never is so long ago that nothing since then counts.
const never Instant = math.MinInt64 / 2

// Log is what a replica asks of its log. It must answer at once.
type Log interface {
	// Offsets are the log's bounds.
	Offsets() storage.Offsets
	// EpochEnd finds the largest leader epoch in the log that is at most epoch,
	// -1 for none, and where it ends; the newest epoch by math.MaxInt32.
	EpochEnd(epoch int32) (found int32, end int64, err error)
}

// Eligible knows which brokers may be in sync: *controller.State does.
type Eligible interface {
	// Eligible says that a broker is registered with that epoch (any for -1),
	// not fenced and not shutting down (KIP-841, KIP-903).
	Eligible(id int32, epoch int64) bool
	// Broker finds a registered broker.
	Broker(id int32) (controller.Broker, bool)
}

// Options are what is set for a replica.
type Options struct {
	// ID names the partition, Self the broker.
	ID   storage.ID
	Self int32
	// MinInSync is min.insync.replicas as the controller goes by it: that of the
	// topic, else of all brokers, 0 for the default: 2 of three replicas or more,
	// else 1. An acks=all append needs so many in sync, and the high watermark as
	// many or all replicas, if they are fewer.
	MinInSync int
	// OwnMinInSync is what this broker is told in place of MinInSync, 0 for nothing.
	// It asks for more, or for less where there are not as many replicas: never for
	// less than the controller goes by, who takes those for eligible leaders that
	// left when no more could be committed without them.
	OwnMinInSync int
	// Durable is fsync mode: what a replica acknowledges is on its disk.
	Durable bool
	// Lag is replica.lag.time.max.ms, 0 for 10 s: a replica that was not caught
	// up for longer is out of sync.
	Lag time.Duration
	// LagMessages is replica.lag.max.messages: a replica that lacks more records
	// is out of sync; 0 for no limit.
	LagMessages int64
}

// Role is what a broker is for a partition.
type Role uint8

// The roles.
const (
	None Role = iota // holds no replica
	Follower
	Leader
)

func (r Role) String() string { return [...]string{"none", "follower", "leader"}[r] }

// Replica decides for one broker's replica of one partition: how far it is
// committed, who is in sync, what to cut off, who may be answered. It is pure:
// no clock, no disk, no lock, no goroutine. Its owner serialises the calls,
// moves the bytes, and calls Advance when the log has moved.
//
// A partition of one replica is the case of an empty list of peers, not a path
// of its own.
type Replica struct {
	o       Options
	log     Log
	brokers Eligible // nil until somebody decided
	part    controller.Partition
	decided bool
	role    Role
	hw      int64
	lease   Instant
	leader  leader   // while role is Leader
	follow  follower // while role is Follower
}

// NewReplica starts with a log and the high watermark that was last noted, which
// is a hint and is held within the log. What is noted must not outlive what it
// counts: the owner lowers it, durably, when the log opens shorter, and before an
// Action below it. The replica has no role before the first Decide.
func NewReplica(o Options, log Log, hw int64) *Replica {
	b := log.Offsets()
	r := &Replica{o: o, log: log, hw: min(max(hw, b.Start), b.End), lease: never}
	r.o.setDefaults()
	return r
}

func (o *Options) setDefaults() {
	if o.Lag == 0 {
		o.Lag = 10 * time.Second
	}
}

// Configure puts other options into force, and reports whether the high
// watermark rose.
func (r *Replica) Configure(o Options, now Instant) (rose bool) {
	o.setDefaults()
	r.o = o
	return r.Advance(now)
}

// Change says what a decision did to a replica.
type Change struct {
	Role Role
	// NewEpoch says that a leader epoch began that the replica did not know.
	NewEpoch bool
	// Rose says that the high watermark rose.
	Rose bool
	// Resigned says that a leadership of this replica ended, even if it leads
	// again in a later epoch: whoever waits for it must look at Committed.
	Resigned bool
}

// Decide takes over what the controller decided about the partition, and who is
// eligible. A partition that is older than what the replica knows is ignored; with
// one that it knows it may be told of a change of brokers. The owner must not
// call it while an append of the epoch before, or an Action, is under way.
//
// Nothing is cut off because of a change of role: only epochs say what to cut.
func (r *Replica) Decide(p controller.Partition, e Eligible, now Instant) (Change, error) {
	if e != nil {
		r.brokers = e
	}
	if r.decided && (p.LeaderEpoch < r.part.LeaderEpoch || p.Epoch <= r.part.Epoch) {
		return Change{Role: r.role, Rose: r.Advance(now)}, nil
	}
	if err := r.check(&p); err != nil {
		return Change{Role: r.role}, err
	}
	was := r.role
	c := Change{Role: r.roleIn(&p), NewEpoch: !r.decided || p.LeaderEpoch > r.part.LeaderEpoch}
	anew := c.NewEpoch || c.Role != was
	c.Resigned = was == Leader && anew
	r.part, r.decided, r.role = p, true, c.Role
	switch {
	case c.Role == Leader && anew:
		r.takeOffice(now)
	case c.Role == Leader:
		r.reseat(now)
	case anew:
		r.leader, r.follow = leader{}, follower{}
	}
	c.Rose = r.Advance(now)
	return c, nil
}

// check refuses what no controller decides: a leader that is not in sync, one
// in sync that is no replica (KAFKA-9672).
func (r *Replica) check(p *controller.Partition) error {
	fault := func(what string) error {
		return fmt.Errorf("%w: partition %v: %s: leader %d of epoch %d, in sync %v, replicas %v",
			controller.ErrInconsistent, r.o.ID, what, p.Leader, p.LeaderEpoch, p.ISR, p.Replicas)
	}
	if p.Leader >= 0 && !slices.Contains(p.ISR, p.Leader) {
		return fault("the leader is not in sync")
	}
	for i, id := range p.ISR {
		if !slices.Contains(p.Replicas, id) || slices.Contains(p.ISR[:i], id) {
			return fault("the replicas in sync are none of the replicas")
		}
	}
	if r.decided && p.LeaderEpoch == r.part.LeaderEpoch && p.Leader != r.part.Leader {
		return fault("another leader of the same epoch")
	}
	return nil
}

func (r *Replica) roleIn(p *controller.Partition) Role {
	switch {
	case p.Leader == r.o.Self:
		return Leader
	case slices.Contains(p.Replicas, r.o.Self):
		return Follower
	default:
		return None
	}
}

// Lease lets the replica lead before that instant: it is how long no other can
// have been elected. The broker that stands alone has it Forever.
func (r *Replica) Lease(until Instant) { r.lease = until }

// Role is what this broker is for the partition.
func (r *Replica) Role() Role { return r.role }

// Leader is the broker that leads, or -1.
func (r *Replica) Leader() int32 {
	if !r.decided {
		return -1
	}
	return r.part.Leader
}

// LeaderEpoch is the leader epoch that the replica knows, -1 for none.
func (r *Replica) LeaderEpoch() int32 {
	if !r.decided {
		return -1
	}
	return r.part.LeaderEpoch
}

// Partition is what the replica knows to be decided. It must only be read.
func (r *Replica) Partition() controller.Partition { return r.part }

// HighWatermark is the first offset that consumers may not see yet. It lies in
// the log and goes back only when records are cut off that were committed, which
// takes an unclean election.
func (r *Replica) HighWatermark() int64 { return r.hw }

// minInSync is how many replicas must be in sync for an acks=all append.
func (r *Replica) minInSync() int {
	n, factor := r.o.MinInSync, r.part.Factor()
	switch {
	case n > 0:
	case factor >= 3:
		n = 2
	default:
		n = 1
	}
	if own := r.o.OwnMinInSync; own > 0 {
		return max(own, min(n, factor))
	}
	return n
}

// Advance says that the replica's own log has moved: records were appended or
// became durable, or its start was raised. It reports whether the high watermark
// rose. It is to be called from time to time too, for who falls silent is waited
// for only as long as the lag that is allowed.
func (r *Replica) Advance(now Instant) (rose bool) {
	o := r.log.Offsets()
	hw := r.hw
	if r.role == Leader {
		hw = max(hw, r.agreed(o, now))
	}
	hw = max(hw, o.Start) // KAFKA-9491
	rose = hw > r.hw
	r.hw = hw
	return rose
}

// String shows the whole state: two replicas with equal logs and equal strings
// behave alike.
func (r *Replica) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%v hw=%d", r.role, r.hw)
	if !r.decided {
		return s.String()
	}
	fmt.Fprintf(&s, " epoch=%d/%d isr=%v", r.part.LeaderEpoch, r.part.Epoch, r.part.ISR)
	if r.part.Recovering {
		s.WriteString(" recovering")
	}
	switch r.role {
	case Leader:
		r.leader.describe(&s)
	case Follower:
		fmt.Fprintf(&s, " leader=%d", r.part.Leader)
		r.follow.describe(&s)
	case None:
	}
	return s.String()
}

// backoff is the pause before something is tried again: it doubles from 20 ms
// to 1 s.
type backoff struct {
	delay time.Duration
	until Instant
}

func (b *backoff) next(now Instant) {
	b.delay = min(max(2*b.delay, 20*time.Millisecond), time.Second)
	b.until = now + b.delay
}

func (b *backoff) over(now Instant) bool { return b.delay == 0 || now >= b.until }

func (b *backoff) describe(s *strings.Builder) {
	if b.delay > 0 {
		fmt.Fprintf(s, " again@%v", b.until)
	}
}
