package replication

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"leat/storage/record"
)

// follower is what a replica knows while it follows.
type follower struct {
	step  step
	asked FetchRequest // while step is fetching
	backoff
	// corrupt counts the answers in a row whose batches were damaged.
	corrupt int
	// failed is why the replica follows no more in this epoch, or nil.
	failed error
}

// step is where a follower is in its round.
type step uint8

const (
	idle     step = iota // may fetch
	fetching             // waits for an answer
	acting               // the owner does an Action
	fenced               // the epoch has ended: waits for the next
)

// maxCorrupt is how many damaged answers in a row a follower takes.
const maxCorrupt = 3

// NextFetch is what to ask of the leader now, if anything. The owner fills in
// BrokerEpoch. Each that it hands out must come back to Fetched once; before that
// there is no other.
func (r *Replica) NextFetch(now Instant) (FetchRequest, bool) {
	f := &r.follow
	if r.role != Follower || r.part.Leader < 0 || f.step != idle || f.failed != nil || !f.over(now) {
		return FetchRequest{}, false
	}
	newest, _, err := r.log.EpochEnd(math.MaxInt32)
	if err != nil {
		f.next(now)
		return FetchRequest{}, false
	}
	o := r.log.Offsets()
	f.step = fetching
	f.asked = FetchRequest{
		Replica: r.o.Self, LeaderEpoch: r.part.LeaderEpoch, LastEpoch: newest,
		Offset: o.End, LogStart: o.Start, Flushed: o.Durable, HW: r.hw,
	}
	return f.asked, true
}

// ActionKind is what a follower does with an answer.
type ActionKind uint8

// The kinds of actions.
const (
	Ignore   ActionKind = iota // nothing, there is no Did
	Append                     // append the batches that came, if any, as they are
	Truncate                   // cut the log off at Offset
	Restart                    // drop the whole log and begin it anew at Offset
	Raise                      // raise the log's start to Offset, its end: the log is empty then
	Fail                       // nothing: this replica cannot follow, Failed says why
)

func (k ActionKind) String() string {
	return [...]string{"ignore", "append", "truncate", "restart", "raise", "fail"}[k]
}

// Action is what the owner does next. No Decide may come between it and its Did.
type Action struct {
	Kind ActionKind
	// Offset is where to cut or to begin, or where the batches belong.
	Offset int64
	// BelowHW says that records go that were committed: only an unclean election
	// does that. The replica's high watermark is lower already, so that nobody
	// reads what is being cut (KAFKA-12153).
	BelowHW bool
}

func (a Action) String() string {
	s := fmt.Sprintf("%v at %d", a.Kind, a.Offset)
	if a.BelowHW {
		s += ", below the high watermark"
	}
	return s
}

// Fetched takes the answer to a NextFetch, or why there is none: any error for a
// request that was lost. An answer to a request that is not the one outstanding,
// for it came late or the leader is another by now, is ignored (KAFKA-13207).
func (r *Replica) Fetched(asked *FetchRequest, got *FetchResponse, err error, now Instant) Action {
	f := &r.follow
	mine := *asked
	mine.BrokerEpoch = f.asked.BrokerEpoch
	if r.role != Follower || f.step != fetching || mine != f.asked {
		return Action{}
	}
	f.step = idle
	o := r.log.Offsets()
	switch {
	case errors.Is(err, ErrFencedLeaderEpoch):
		f.step = fenced
		return Action{}
	case errors.Is(err, ErrOffsetOutOfRange) && got != nil && got.LeaderEpoch == r.part.LeaderEpoch:
		return r.outOfRange(got, now)
	case err != nil, got.LeaderEpoch != r.part.LeaderEpoch, asked.Offset != o.End:
		f.next(now)
		return Action{}
	case got.Diverging != nil:
		// Nothing else of the answer counts (KAFKA-14704).
		return r.diverged(*got.Diverging, got, now)
	case got.LogStart == o.End && o.Start < o.End:
		// The leader has deleted all that this log has, so nobody can tell any more
		// whether the two were equal. It goes before anything is appended: the leader's
		// first batch may begin before Offset, and would not fit behind what is there.
		return r.act(Action{Kind: Raise, Offset: o.End})
	}
	return r.act(Action{Kind: Append, Offset: asked.Offset})
}

// act waits for the owner to do an action.
func (r *Replica) act(a Action) Action {
	r.follow.step = acting
	if a.Kind != Append && a.Offset < r.hw {
		a.BelowHW = true // looked at before the cut (KAFKA-19474)
	}
	if a.BelowHW {
		r.hw = max(min(r.hw, a.Offset), r.log.Offsets().Start)
	}
	return a
}

// diverged finds where to cut: where the leader's epoch ends, or an earlier one
// of ours if we do not have that one (KIP-279). Each round lowers the last epoch.
func (r *Replica) diverged(at EpochEnd, got *FetchResponse, now Instant) Action {
	_, end, err := r.log.EpochEnd(at.Epoch)
	o := r.log.Offsets()
	cut := min(at.End, end)
	switch {
	case err != nil, cut >= o.End:
		r.follow.next(now)
		return Action{}
	case cut < o.Start:
		return r.act(Action{Kind: Restart, Offset: got.LogStart, BelowHW: true})
	default:
		return r.act(Action{Kind: Truncate, Offset: cut})
	}
}

// outOfRange finds out what to do with a log that the leader has nothing for.
func (r *Replica) outOfRange(got *FetchResponse, now Instant) Action {
	o := r.log.Offsets()
	switch {
	case r.follow.asked.LastEpoch > r.part.LeaderEpoch:
		r.follow.failed = fmt.Errorf("%v holds batches of leader epoch %d, it is at %d", r.o.ID, r.follow.asked.LastEpoch, r.part.LeaderEpoch)
		return Action{Kind: Fail}
	case got.LogStart > o.End:
		return r.act(Action{Kind: Restart, Offset: got.LogStart})
	case got.LeaderEnd < o.Start:
		return r.act(Action{Kind: Restart, Offset: got.LogStart, BelowHW: true})
	case got.LeaderEnd < o.End: // only after an unclean election
		return r.act(Action{Kind: Truncate, Offset: got.LeaderEnd})
	default:
		r.follow.next(now)
		return Action{}
	}
}

// Did says that an action is done. It returns where the log is to begin now, as
// the leader's does, -1 if nothing changes; and whether the high watermark rose.
func (r *Replica) Did(a Action, got *FetchResponse, now Instant) (start int64, rose bool) {
	f := &r.follow
	if r.role != Follower || f.step != acting {
		return -1, false
	}
	f.step, f.backoff, f.corrupt = idle, backoff{}, 0
	o, before := r.log.Offsets(), r.hw
	start = -1
	if a.Kind == Append {
		r.hw = max(r.hw, min(got.HW, o.End))
		if s := min(got.LogStart, r.hw); s > o.Start {
			start = s
		}
	}
	r.hw = max(min(r.hw, o.End), o.Start)
	return start, r.hw > before
}

// Undid says that an action could not be done; the log is as it was. What can
// pass is tried again after a pause, but batches that came damaged three times
// in a row fail the replica for this epoch.
func (r *Replica) Undid(err error, now Instant) {
	f := &r.follow
	if r.role != Follower || f.step != acting {
		return
	}
	f.step = idle
	f.next(now)
	if !errors.Is(err, record.ErrCorrupt) {
		return
	}
	if f.corrupt++; f.corrupt >= maxCorrupt {
		f.failed = fmt.Errorf("%v: %d answers in a row were damaged: %w", r.o.ID, f.corrupt, err)
	}
}

// Failed is why a follower fetches no more in this epoch, or nil.
func (r *Replica) Failed() error { return r.follow.failed }

func (f *follower) describe(s *strings.Builder) {
	s.WriteString([...]string{" idle", " fetching", " acting", " fenced"}[f.step])
	if f.step == fetching {
		fmt.Fprintf(s, " at %d of epoch %d", f.asked.Offset, f.asked.LastEpoch)
	}
	f.backoff.describe(s)
	if f.failed != nil {
		fmt.Fprintf(s, " failed: %v", f.failed)
	}
}
