package replication

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"leat/storage"
)

// leader is what a replica knows while it leads.
type leader struct {
	// start is where the log ended when the leadership began: what was committed
	// before lies below it.
	start int64
	// peers are the other replicas, in the order of the assignment.
	peers []peer
	// asked is the ISR change that the controller was asked for, nil if none is
	// under way.
	asked *isrChange
	// refused holds the next one back.
	refused backoff
}

// peer is another replica as its leader knows it, by its fetches alone.
type peer struct {
	id int32
	// epoch is the newest broker epoch that it fetched with, -1 for none yet.
	epoch int64
	// end is where its log ended by its last fetch, and ack how far that counts
	// as acknowledged; -1 before the first fetch. Neither ever falls within a
	// broker epoch: a fetch that is not refused proves that the follower's log is
	// the leader's up to there, and it cuts nothing of that in this leader epoch.
	end, ack int64
	// caughtUp is when it last had all that the leader had.
	caughtUp Instant
	// mark is an end of the leader's log that it has not acknowledged yet, -1 for
	// none, and markAt when that was: once it is acknowledged, the peer was caught
	// up then. So one that always trails by a batch or a flush stays in sync.
	mark   int64
	markAt Instant
}

func newPeer(id int32, caughtUp Instant) peer {
	return peer{id: id, epoch: -1, end: -1, ack: -1, caughtUp: caughtUp, mark: -1}
}

// takeOffice begins a leadership. Nothing that was known of the peers counts.
func (r *Replica) takeOffice(now Instant) {
	r.follow = follower{}
	r.leader = leader{start: r.log.Offsets().End}
	r.reseat(now)
}

// reseat makes peers and replicas agree after a decision, which ends any ISR
// change that was under way (KAFKA-12686): if it is not in force by now it can
// not come into force any more.
func (r *Replica) reseat(now Instant) {
	r.leader.asked = nil
	peers := make([]peer, 0, len(r.part.Replicas)-1)
	for _, id := range r.part.Replicas {
		if id == r.o.Self {
			continue
		}
		p := newPeer(id, never)
		if old := r.peer(id); old != nil {
			p = *old
		}
		if p.caughtUp == never && slices.Contains(r.part.ISR, id) {
			p.caughtUp = now // it has the time of lag to fetch
		}
		peers = append(peers, p)
	}
	r.leader.peers = peers
}

func (r *Replica) peer(id int32) *peer {
	for i := range r.leader.peers {
		if r.leader.peers[i].id == id {
			return &r.leader.peers[i]
		}
	}
	return nil
}

// lead is an error unless this replica may act as leader now.
func (r *Replica) lead(now Instant) error {
	switch {
	case r.role != Leader:
		return r.notLeader()
	case now >= r.lease:
		return fmt.Errorf("partition %v: %w", r.o.ID, ErrLeaseExpired)
	default:
		return nil
	}
}

func (r *Replica) notLeader() error {
	return fmt.Errorf("%w: %v, which %d leads", ErrNotLeader, r.o.ID, r.Leader())
}

// CheckAppend says whether the replica may append; with all, for an append that
// is answered when it is committed. The errors are ErrNotLeader, ErrLeaseExpired
// and ErrNotEnoughReplicas. The batch gets LeaderEpoch.
func (r *Replica) CheckAppend(all bool, now Instant) error {
	if err := r.lead(now); err != nil {
		return err
	}
	if all && len(r.part.ISR) < r.minInSync() {
		return fmt.Errorf("%w: %d in sync, min.insync.replicas is %d", ErrNotEnoughReplicas, len(r.part.ISR), r.minInSync())
	}
	return nil
}

// CheckAck says whether an append of that leader epoch may be answered that is
// not to be committed first: the lease may have ended during the append. The
// error is ErrLeadershipLost.
func (r *Replica) CheckAck(epoch int32, now Instant) error {
	if r.lead(now) != nil || epoch != r.part.LeaderEpoch {
		return r.lost(epoch)
	}
	return nil
}

func (r *Replica) lost(epoch int32) error {
	return fmt.Errorf("%w of epoch %d: %v", ErrLeadershipLost, epoch, r.o.ID)
}

// CheckRead says whether consumers may read here.
func (r *Replica) CheckRead(now Instant) error { return r.lead(now) }

// Latest is the offset that a consumer gets for "latest". A new leader does not
// know it before all that was there when it took office is committed, and
// answers ErrOffsetNotAvailable, so that the latest offset never steps back.
func (r *Replica) Latest(now Instant) (int64, error) {
	if err := r.lead(now); err != nil {
		return -1, err
	}
	if r.hw < r.leader.start {
		return -1, fmt.Errorf("%w: %v, committed to %d, epoch %d began at %d", ErrOffsetNotAvailable, r.o.ID, r.hw, r.part.LeaderEpoch, r.leader.start)
	}
	return r.hw, nil
}

// Committed says whether an append of a leader epoch that ends at next may be
// answered as committed: nil for yes, ErrPending for not yet. If the leadership
// has ended or too few replicas are in sync by now, nothing is known of the
// records: ErrLeadershipLost, ErrNotEnoughReplicasAfterAppend.
func (r *Replica) Committed(epoch int32, next int64) error {
	switch {
	case r.role != Leader || epoch != r.part.LeaderEpoch:
		return r.lost(epoch)
	case r.hw < next:
		return ErrPending
	case r.inSync() < r.minInSync():
		return fmt.Errorf("%w: %d in sync, min.insync.replicas is %d", ErrNotEnoughReplicasAfterAppend, r.inSync(), r.minInSync())
	default:
		return nil
	}
}

// agreed is how far every replica holds the log that counts for the high
// watermark. It is 0 with fewer in sync than there must be (KAFKA-15583): only so
// does each that leaves in that time still hold all that is committed. That there
// are eligible leaders beside those in sync says so too, by the controller's
// min.insync.replicas, a change of which may be news to this replica.
func (r *Replica) agreed(o storage.Offsets, now Instant) int64 {
	if len(r.part.ISR) < min(r.minInSync(), r.part.Factor()) || len(r.part.ELR) > 0 {
		return 0
	}
	end := o.End
	if r.o.Durable {
		end = o.Durable
	}
	for i := range r.leader.peers {
		if p := &r.leader.peers[i]; r.counts(p, o.End, now) {
			end = min(end, p.ack)
		}
	}
	return end
}

// counts says whether the high watermark waits for a peer: because it may be in
// sync, or because it may be soon, as it keeps up and is eligible (KAFKA-15021).
func (r *Replica) counts(p *peer, end int64, now Instant) bool {
	return r.maximal(p.id) || !r.lags(p, end, now) && r.eligible(p)
}

func (r *Replica) eligible(p *peer) bool {
	return p.epoch >= 0 && r.brokers != nil && r.brokers.Eligible(p.id, p.epoch)
}

// lags says that a peer is out of sync with a leader whose log ends at end.
func (r *Replica) lags(p *peer, end int64, now Instant) bool {
	switch {
	case p.ack >= end:
		return false
	case r.o.LagMessages > 0 && p.ack >= 0 && end-p.ack > r.o.LagMessages:
		return true
	default:
		return now-p.caughtUp > r.o.Lag
	}
}

// FetchRequest is what a follower asks of the leader, and at once all that it
// acknowledges.
type FetchRequest struct {
	// Replica is the follower, BrokerEpoch its registration.
	Replica     int32
	BrokerEpoch int64
	// LeaderEpoch is the epoch that it follows, LastEpoch that of the last batch
	// of its log, -1 for none.
	LeaderEpoch, LastEpoch int32
	// Offset is where its log ends, LogStart where it begins. Flushed is where
	// what is durable of it ends, -1 if it does not say.
	Offset, LogStart, Flushed int64
	// HW is the high watermark that it knows.
	HW int64
}

// FetchResponse is what a leader tells beside the batches, or instead of them.
type FetchResponse struct {
	LeaderEpoch int32
	// HW is the leader's high watermark, LogStart and LeaderEnd the bounds of its
	// log.
	HW, LogStart, LeaderEnd int64
	// Diverging, if not nil, says that the follower's log is not the leader's:
	// there are no batches then, and nothing else of the answer counts.
	Diverging *EpochEnd
}

// EpochEnd is a leader epoch of a log and where it ends.
type EpochEnd struct {
	Epoch int32
	End   int64
}

// Fetch takes what a follower's fetch says, and reports whether the high
// watermark rose. If the answer has no Diverging, the owner sends batches from
// f.Offset on with it. With ErrOffsetOutOfRange the bounds of the log are valid;
// the other errors are ErrFencedLeaderEpoch, ErrUnknownLeaderEpoch, ErrNotLeader,
// ErrStaleBrokerEpoch and those of the log. No refused fetch, and none that
// diverges (KAFKA-13141), changes what the leader knows.
func (r *Replica) Fetch(f *FetchRequest, now Instant) (resp FetchResponse, rose bool, err error) {
	p, err := r.admit(f)
	if err != nil {
		return FetchResponse{}, false, err
	}
	o := r.log.Offsets()
	resp = FetchResponse{LeaderEpoch: r.part.LeaderEpoch, HW: r.hw, LogStart: o.Start, LeaderEnd: o.End}
	at, err := r.epochEnd(f.LastEpoch, o)
	switch {
	case err != nil:
		return FetchResponse{}, false, err
	case f.Offset < o.Start, at.End < 0, f.LastEpoch < 0 && f.Offset > o.End:
		// The range comes first, whatever the epochs say (KAFKA-12996).
		return resp, false, fmt.Errorf("%w: %v at %d of epoch %d, the leader has %d to %d", ErrOffsetOutOfRange, r.o.ID, f.Offset, f.LastEpoch, o.Start, o.End)
	case f.LastEpoch >= 0 && (at.Epoch < f.LastEpoch || at.End < f.Offset):
		resp.Diverging = &at
		return resp, false, nil
	}
	r.observe(p, f, o.End, now)
	rose = r.Advance(now)
	resp.HW = r.hw
	return resp, rose, nil
}

// admit finds the peer that fetches.
func (r *Replica) admit(f *FetchRequest) (*peer, error) {
	switch epoch := r.LeaderEpoch(); {
	case f.LeaderEpoch < epoch:
		return nil, fmt.Errorf("%w: %d, %v is at %d", ErrFencedLeaderEpoch, f.LeaderEpoch, r.o.ID, epoch)
	case f.LeaderEpoch > epoch:
		return nil, fmt.Errorf("%w: %d, %v is at %d", ErrUnknownLeaderEpoch, f.LeaderEpoch, r.o.ID, epoch)
	case r.role != Leader:
		return nil, r.notLeader()
	}
	p := r.peer(f.Replica)
	switch {
	case p == nil:
		// It knows of a reassignment of this epoch that is news to the leader.
		return nil, fmt.Errorf("%w: %d is no replica of %v yet", ErrUnknownLeaderEpoch, f.Replica, r.o.ID)
	case f.BrokerEpoch < r.lifeOf(p):
		return nil, fmt.Errorf("%w: %d of broker %d, it has %d", ErrStaleBrokerEpoch, f.BrokerEpoch, f.Replica, r.lifeOf(p))
	}
	return p, nil
}

// lifeOf is the newest life of a peer's broker that the leader knows of, by its
// fetches or by the metadata. A newer one is fine: the metadata may be behind
// (KAFKA-9839).
func (r *Replica) lifeOf(p *peer) int64 {
	if r.brokers == nil {
		return p.epoch
	}
	b, _ := r.brokers.Broker(p.id)
	return max(p.epoch, b.Epoch)
}

// epochEnd says where an epoch ends in the leader's log. End is -1 for one that
// it cannot know: undefined in, undefined out (KAFKA-6857).
func (r *Replica) epochEnd(epoch int32, o storage.Offsets) (EpochEnd, error) {
	switch {
	case epoch < 0:
		return EpochEnd{Epoch: -1, End: math.MaxInt64}, nil
	case epoch > r.part.LeaderEpoch:
		return EpochEnd{Epoch: -1, End: -1}, nil
	case epoch == r.part.LeaderEpoch:
		// Also before its first record (KAFKA-7415).
		return EpochEnd{Epoch: epoch, End: o.End}, nil
	}
	found, end, err := r.log.EpochEnd(epoch)
	if err != nil {
		return EpochEnd{}, err
	}
	if found < 0 { // below every epoch of the log
		found = epoch
	}
	return EpochEnd{Epoch: found, End: max(end, o.Start)}, nil
}

// observe takes what a fetch acknowledges. One that comes late, behind a later
// one, changes nothing.
func (r *Replica) observe(p *peer, f *FetchRequest, end int64, now Instant) {
	if f.BrokerEpoch > p.epoch && p.epoch >= 0 {
		// Another life of the broker may have lost what the one before had. One
		// in sync has the time of lag to come back.
		caughtUp := never
		if slices.Contains(r.part.ISR, p.id) {
			caughtUp = p.caughtUp
		}
		*p = newPeer(p.id, caughtUp)
	}
	p.epoch = f.BrokerEpoch
	if f.Offset < p.end {
		return
	}
	p.end = f.Offset
	ack := f.Offset
	if r.o.Durable && f.Flushed >= 0 {
		ack = min(ack, f.Flushed)
	}
	p.ack = max(p.ack, ack)
	switch {
	case p.ack >= end:
		p.caughtUp, p.mark = now, -1
	case p.mark < 0:
		p.mark, p.markAt = end, now
	case p.ack >= p.mark:
		p.caughtUp = max(p.caughtUp, p.markAt)
		p.mark, p.markAt = end, now
	}
}

func (l *leader) describe(s *strings.Builder) {
	if l.asked != nil {
		l.asked.describe(s)
	}
	l.refused.describe(s)
	fmt.Fprintf(s, " start=%d", l.start)
	for i := range l.peers {
		p := &l.peers[i]
		fmt.Fprintf(s, "\n  %d:", p.id)
		if p.end >= 0 {
			fmt.Fprintf(s, " ack=%d end=%d broker=%d", p.ack, p.end, p.epoch)
		}
		if p.caughtUp != never {
			fmt.Fprintf(s, " caught up@%v", p.caughtUp)
		}
		if p.mark >= 0 {
			fmt.Fprintf(s, " mark=%d@%v", p.mark, p.markAt)
		}
	}
}
