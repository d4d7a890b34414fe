package group

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ShardOptions is what a shard needs to know.
type ShardOptions struct {
	// Groups and Leases are the same for all groups, and stay unchanged.
	Groups *Config
	Leases *LeaseConfig
	// MaxRounds is how many rounds may be appended and not committed. While they
	// are, changes gather for the next: many small commits share one batch.
	MaxRounds int
	// MaxBatch is how many bytes of changes fit one batch, about.
	MaxBatch int
	View     View
	Topics   Topics
	// Applied is how far the view has the log.
	Applied Applied
}

// role is what a shard is for its partition.
type role int8

const (
	inactive role = iota
	loading       // it leads, and waits until all is applied that the log had then
	active
	failed
)

// Shard is the coordinator of the groups of one partition: whoever leads the
// partition answers for its groups, and what it has not in its log, committed,
// it tells nobody. It is a state machine: operations and news come in, each with
// the time, and Next says what to do. It is not safe for concurrent use.
//
//	            Lead(epoch)              hw and applied reach the end at Lead
//	inactive ───────────────▶ loading ─────────────────────────────────────▶ active
//	    ▲                      │    ▲                                          │
//	    └──────────────────────┘    └──────────────────────────────────────────┤
//	    ▲     Resign                    an append whose outcome is not known   │
//	    └──────────────────────────────────────────────────────────────────────┘
//
// A replica that does not lead applies what is committed all the same, so that
// it has little left to load when it does.
type Shard struct {
	cfg  *Config
	opts ShardOptions
	view View

	role   role
	failed error
	epoch  int32 // the newest leader epoch heard of
	// loaded is the end of the log from which on it is known what is in it.
	loaded  int64
	hw      int64
	applied Applied
	wipe    bool

	groups map[string]*held
	timers ordered[*held] // the earliest first

	filling   round    // not appended yet
	appending *round   // its batch is on its way to the log, or a part of it
	asked     *Append  // which
	rounds    []*round // appended, oldest first
	applying  *Apply
	stalled   bool // the view has no room
	quiet     []quiet
	takes     []waitingTake
	stats     ShardStats
	out       Todo
}

// quiet is an operation that waits until nothing is on its way, so that the view
// has all that there is.
type quiet struct {
	token Token
	fn    func(now time.Time)
}

// NewShard makes the shard of a replica that does not lead, as far as it is known.
// Check must be called before anything else.
func NewShard(o ShardOptions) *Shard {
	return &Shard{cfg: o.Groups, opts: o, view: o.View, applied: o.Applied, epoch: -1, groups: map[string]*held{}}
}

// Check compares the view with the log: after the start, and whenever records
// have left the log that the view may have. A view that does not fit is wiped, and
// made again from the log.
func (s *Shard) Check(now time.Time, l Log) error {
	start, end := l.Bounds()
	fits, err := s.applied.fits(l)
	if err != nil {
		return fmt.Errorf("compare the committed view with its log: %w", err)
	}
	s.hw = min(s.hw, end)
	if fits {
		return nil
	}
	if s.role == loading || s.role == active {
		s.drop(now, ErrNotAvailable)
		s.role, s.loaded = loading, end
	}
	s.wipe, s.applied, s.applying = true, Applied{Next: start, Epoch: -1}, nil
	return nil
}

// Lead says that this replica leads at an epoch. It serves once everything that
// its log had then is committed and applied. A change of the partition that
// leaves the leader epoch as it was changes nothing (KAFKA-15468).
func (s *Shard) Lead(now time.Time, epoch int32, l Log) error {
	if epoch <= s.epoch {
		return nil
	}
	s.resign(now, epoch)
	if err := s.Check(now, l); err != nil {
		s.fail(now, err)
		return err
	}
	s.role = loading
	_, s.loaded = l.Bounds()
	return nil
}

// Resign says that this replica does not lead at an epoch, or does so no more.
// Everybody who waits is told ErrNotCoordinator, and what is not committed is
// forgotten: whether it ever will be the next leader knows.
func (s *Shard) Resign(now time.Time, epoch int32) {
	if epoch > s.epoch || epoch == s.epoch && s.role != inactive {
		s.resign(now, epoch)
	}
}

func (s *Shard) resign(now time.Time, epoch int32) {
	s.drop(now, ErrNotCoordinator)
	s.role, s.epoch, s.failed = inactive, epoch, nil
}

// Stop tells everybody who waits that err has come between; the shard is
// inactive then.
func (s *Shard) Stop(now time.Time, err error) {
	s.drop(now, err)
	s.role = inactive
}

// fail ends the service because of err, until the leader epoch changes.
func (s *Shard) fail(now time.Time, err error) {
	s.failed = notAvailable(err)
	s.drop(now, s.failed)
	s.role = failed
	s.out.Troubles = append(s.out.Troubles, err)
}

// drop forgets all that is not committed and tells everybody err.
func (s *Shard) drop(now time.Time, err error) {
	for _, r := range s.rounds {
		s.refuseAll(r.answers, err)
	}
	if s.appending != nil {
		s.refuseAll(s.appending.answers, err)
	}
	s.rounds, s.appending, s.asked = nil, nil, nil
	s.dropGroups(now, err)
}

// dropGroups forgets the groups and what is not appended, and tells those who
// wait for that err.
func (s *Shard) dropGroups(now time.Time, err error) {
	for _, h := range s.inOrder() {
		s.take(h, h.Kill(now, err))
		s.lapse(h, err)
		s.leave(h)
	}
	for _, w := range s.takes {
		s.answerNow(Answer{Token: w.token, Err: err})
	}
	for _, q := range s.quiet {
		s.answerNow(Answer{Token: q.token, Err: err})
	}
	s.refuseAll(s.filling.answers, err)
	s.filling, s.takes, s.quiet = round{}, nil, nil
}

func (s *Shard) inOrder() []*held {
	all := make([]*held, 0, len(s.groups))
	for _, h := range s.groups {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *held) int { return strings.Compare(a.ID(), b.ID()) })
	return all
}

// Serves is nil while the shard answers for its groups, with what is in the view;
// else it is what is answered. Whoever reads the view for a client must know too
// that the replica may still exercise its leadership.
func (s *Shard) Serves() error {
	switch s.role {
	case active:
		return nil
	case loading:
		return ErrLoading
	case failed:
		return s.failed
	default:
		return ErrNotCoordinator
	}
}

// Committed says how far the log is committed. It is done at once, whatever
// waits (KAFKA-16374).
func (s *Shard) Committed(hw int64) { s.hw = max(s.hw, hw) }

// Awaits is the watermark that the shard has something to do at; false if it
// waits for none.
func (s *Shard) Awaits() (target int64, ok bool) {
	switch {
	case len(s.rounds) > 0 && s.rounds[0].end > s.hw:
		return s.rounds[0].end, true
	case s.role == loading && s.loaded > s.hw:
		return s.loaded, true
	default:
		return s.hw + 1, s.role == inactive || s.role == loading
	}
}

// Busy says that operations had better wait, for the disk as a rule. News must
// not.
func (s *Shard) Busy() bool {
	return len(s.rounds) >= s.opts.MaxRounds || s.appending != nil || len(s.quiet) > 0
}

// Gathered is how many bytes of changes wait to be appended.
func (s *Shard) Gathered() int { return s.filling.bytes }

// Next says what is to be done; false for nothing. It is to be called until then
// after each operation, or after several whose changes are to share a batch.
func (s *Shard) Next(now time.Time) (Todo, bool) {
	s.advance(now)
	t := s.out
	s.out = Todo{}
	return t, !t.empty() || len(s.takes) > 0 || s.isQuiet()
}

func (s *Shard) advance(now time.Time) {
	if s.role == failed {
		return // what could not be done cannot be done now
	}
	if s.wipe {
		s.out.Wipe = true
		return
	}
	if s.role == loading && s.hw >= s.loaded && s.applied.Next >= s.loaded {
		s.activate(now)
	}
	// What is there of what was to be watched is told first.
	if len(s.out.Watches) == 0 && len(s.takes) > 0 {
		s.takeWaiting(now)
	}
	if s.applying == nil && !s.stalled {
		s.applying = s.due()
		s.out.Apply = s.applying
	}
	if s.applying != nil || len(s.out.Watches) > 0 {
		return
	}
	s.append()
	if s.isQuiet() {
		q := s.quiet[0]
		s.quiet = s.quiet[1:]
		q.fn(now)
		s.append()
	}
}

// Wiped says that the view is empty, or with err that it cannot be emptied, which
// ends the service: nothing is made of what is left of it.
func (s *Shard) Wiped(now time.Time, err error) {
	s.wipe = err != nil
	if err != nil {
		s.fail(now, err)
	}
}

// due is what can be applied.
func (s *Shard) due() *Apply {
	to := s.hw
	if len(s.rounds) > 0 {
		r := s.rounds[0]
		if r.base == s.applied.Next {
			if r.end > s.hw {
				return nil
			}
			return &Apply{From: r.base, To: r.end, Epoch: s.epoch, Changes: r.changes}
		}
		to = min(to, r.base)
	}
	if s.applied.Next >= to {
		return nil
	}
	return &Apply{From: s.applied.Next, To: to, Read: true}
}

// Did says what became of an Apply: the view has the log up to next, whose last
// record is of the leader epoch given, or err why it has not. ErrNoRoom has it
// tried again after Retry; nothing is refused meanwhile, for the log has it
// already. Other errors end the service.
func (s *Shard) Did(now time.Time, a *Apply, to Applied, err error) {
	if a != s.applying {
		return // the view was wiped since
	}
	s.applying = nil
	switch {
	case errors.Is(err, ErrNoRoom):
		s.stalled = true
		return
	case err != nil:
		s.fail(now, err)
		return
	}
	s.applied = to
	if !a.Read && len(s.rounds) > 0 && s.rounds[0].end == a.To {
		s.settle(now)
	}
}

// Retry has the view tried again that had no room.
func (s *Shard) Retry() { s.stalled = false }

// Stalled says that the view has no room.
func (s *Shard) Stalled() bool { return s.stalled }

// activate begins to serve. Groups with members are in memory: each member has a
// whole session from now on, so nobody is out because the coordinator was.
func (s *Shard) activate(now time.Time) {
	s.role = active
	err := s.view.EachMembers(func(id string, r *Record) error {
		if len(r.Members) > 0 {
			s.keep(&held{Group: Restore(id, s.cfg, r, now), index: -1})
		}
		return nil
	})
	if err != nil {
		s.fail(now, err)
	}
}

// isQuiet says that something waits for nothing to be on its way, and nothing is.
func (s *Shard) isQuiet() bool {
	return len(s.quiet) > 0 && len(s.rounds) == 0 && s.appending == nil && len(s.filling.changes) == 0
}

// Applied says how far the view has the log.
func (s *Shard) Applied() Applied { return s.applied }
