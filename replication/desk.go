package replication

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/replication/controller"
	"leat/replication/quorum"
)

// Errors of proposals.
var (
	// ErrUnknownOutcome says that leadership was lost before it was known whether
	// the decision is committed, or that not all parts of it could be proposed: it, or
	// the first parts of it, may be in force now, later, or never.
	ErrUnknownOutcome = errors.New("the outcome of the change of metadata is unknown")
	// ErrTooManyProposals says that as much as may be is under way, or that the
	// leadership is being handed over: nothing was proposed.
	ErrTooManyProposals = errors.New("too many changes of metadata at a time")
	// ErrChangeTooLarge says that a decision, or the item of it that has the error,
	// takes too many bytes of records: of that nothing was proposed.
	ErrChangeTooLarge = controller.ErrTooLarge
	// ErrRepeated says that a proposal of that id is committed, but its reply is
	// not known any more: nothing was proposed.
	ErrRepeated = errors.New("the change of metadata was made already")
)

// NotControllerError says that another node decides, or none at the moment:
// nothing was proposed. It is a controller.ErrNotController.
type NotControllerError struct {
	// Leader is the node that decides, -1 if it is not known.
	Leader int32
}

func (e *NotControllerError) Error() string {
	if e.Leader < 0 {
		return controller.ErrNotController.Error() + ": there is none at the moment"
	}
	return fmt.Sprintf("%v: that is node %d", controller.ErrNotController, e.Leader)
}

// Is makes it a controller.ErrNotController.
func (e *NotControllerError) Is(target error) bool { return target == controller.ErrNotController }

// DeskOptions says how a Desk works.
type DeskOptions struct {
	// Active is what the controller is told when it becomes active.
	Active controller.ActiveOptions
	// Limit is how many proposals may be under way, more being refused with
	// ErrTooManyProposals, and how many answers are kept for who asks again with the
	// same id. Zero means 256.
	Limit int
	// PartBytes is at how many bytes a proposal ends and another begins, where a
	// decision may be committed in parts; zero means 1 MiB. So what is decided about
	// a broker needs no proposal that is too large, or holds up others for long,
	// however many partitions it has.
	PartBytes int
	// NewID makes the ids of proposals that the controller makes by itself, and of
	// the parts before the last. They must never repeat in the cluster.
	NewID func() quorum.ProposalID
	// Room says whether there is room on the disk for so many bytes; its error
	// refuses the proposal. nil: there always is.
	Room func(bytes int64) error
}

// Proposals is what a Desk asks of the quorum; *quorum.Core is one.
type Proposals interface {
	Propose(id quorum.ProposalID, data []byte) error
	Applied(id quorum.ProposalID) (index uint64, ok bool)
	Read(id quorum.ProposalID) error
}

// Answer is what became of a proposal, or of a heartbeat.
type Answer struct {
	ID        quorum.ProposalID
	Reply     controller.Reply
	Heartbeat controller.HeartbeatReply
	Err       error
}

// Desk is where a node takes in what the controller is to decide: between those
// who ask, the controller, and the quorum that commits its records. It is pure,
// and is used by the owner of the quorum.Core alone.
//
// A decision is made at once, on the state that all decisions before it lead to,
// and its records are proposed; the answer comes when they are committed and
// saved here. A decision without records may rest on others that are still under
// way, so its answer waits for theirs. A large one is proposed in parts, if it may
// be, and answered with the last. When leadership is lost, what is under way
// is of unknown outcome; whatever rested on it is forgotten, and the node decides
// again only when the quorum says that everything of earlier terms is applied.
type Desk struct {
	o       DeskOptions
	core    Proposals
	machine *Machine
	// active is the controller while this node decides, in term; else nil.
	active *controller.Active
	term   uint64
	leader uint64
	shown  *controller.State
	// line has what is under way, in the order of the decisions.
	line []waiting
	// answered are the newest answers with a committed decision that somebody waited
	// for, oldest first.
	answered []Answer
	beats    beats
	// retry is when the controller tries again what was due and was not taken.
	retry time.Duration
}

// waiting is a decision whose answer is not given yet.
type waiting struct {
	id    quorum.ProposalID
	reply controller.Reply
	// proposed says that there are records; else it only waits for those before.
	proposed bool
	// own says that nobody waits for the answer.
	own bool
	// committed says that the records are.
	committed bool
}

// NewDesk is the desk of a node that does not lead yet.
func NewDesk(o DeskOptions, core Proposals, m *Machine) *Desk {
	o.Limit, o.PartBytes = cmp.Or(o.Limit, 256), cmp.Or(o.PartBytes, 1<<20)
	return &Desk{o: o, core: core, machine: m, shown: m.State()}
}

// State is the newest state that is committed and saved on this node.
func (d *Desk) State() *controller.State { return d.shown }

// Deciding reports whether this node is the active controller.
func (d *Desk) Deciding() bool { return d.active != nil }

// Leader is the node that leads the quorum, as far as this node knows, or -1.
func (d *Desk) Leader() int32 { return brokerOf(d.shown, d.leader) }

// brokerOf finds the broker that has an id in the quorum, or -1.
func brokerOf(s *controller.State, member uint64) int32 {
	if member != 0 {
		for _, id := range s.Brokers() {
			if b, ok := s.Broker(id); ok && quorum.NodeID(id, b.UUID) == member {
				return id
			}
		}
	}
	return -1
}

func (d *Desk) notController() error { return &NotControllerError{Leader: d.Leader()} }

// Propose decides about ev. The answer is given at once if later is false, else
// it is among those of a Done. A repeated id is not decided about again.
func (d *Desk) Propose(id quorum.ProposalID, ev controller.Event, now time.Duration) (a Answer, later bool) {
	a.ID = id
	if d.active == nil {
		a.Err = d.notController()
		return a, false
	}
	if i := slices.IndexFunc(d.line, func(w waiting) bool { return w.id == id }); i >= 0 {
		return Answer{}, true
	}
	if i := slices.IndexFunc(d.answered, func(a Answer) bool { return a.ID == id }); i >= 0 {
		return d.answered[i], false
	}
	if _, ok := d.core.Applied(id); ok {
		a.Err = ErrRepeated
		return a, false
	}
	if len(d.line) >= d.o.Limit {
		a.Err = ErrTooManyProposals
		return a, false
	}
	return d.decide(waiting{id: id}, ev, now)
}

// decide is Propose for an event that is taken.
func (d *Desk) decide(w waiting, ev controller.Event, now time.Duration) (a Answer, later bool) {
	reply, records := d.active.Step(ev, now)
	a, w.reply = Answer{ID: w.id, Reply: reply}, reply
	if len(records) == 0 {
		if len(d.line) == 0 {
			return a, false
		}
		d.line = append(d.line, w)
		return Answer{}, true
	}
	parts := encodeParts(records, d.o.PartBytes, func(i int) bool { return controller.Divisible(ev, records, i) })
	if asksRoom(ev) {
		if err := d.room(parts, len(records)); err != nil {
			d.active.Undo(nil)
			return Answer{ID: w.id, Err: err}, false
		}
	}
	for i, p := range parts {
		next := waiting{id: w.id, reply: w.reply, own: w.own, proposed: true}
		if i < len(parts)-1 {
			next = waiting{id: d.o.NewID(), own: true, proposed: true}
		}
		if err := d.propose(next.id, p.data); err != nil {
			d.active.Undo(records[:p.from])
			if i > 0 {
				err = fmt.Errorf("%w: after %d parts of %d: %v", ErrUnknownOutcome, i, len(parts), err) //nolint:errorlint // err would say that nothing was proposed
			}
			return Answer{ID: w.id, Err: err}, false
		}
		d.line = append(d.line, next)
	}
	return Answer{}, true
}

// room asks for room for what is proposed: once in the log, once in the state.
func (d *Desk) room(parts []part, records int) error {
	if d.o.Room == nil {
		return nil
	}
	n := commitOverhead * (records + 2*len(parts))
	for _, p := range parts {
		n += 2 * len(p.data)
	}
	return d.o.Room(int64(n))
}

// commitOverhead is what an entry of the store takes beside its bytes, roughly.
const commitOverhead = 64

// asksRoom says whether an event is refused when the disk is full: what keeps the
// cluster alive is not.
func asksRoom(ev controller.Event) bool {
	switch ev.(type) {
	case *controller.Register, *controller.Fence, *controller.Unfence, *controller.ShutDown, *controller.AlterPartitions, *controller.Elect:
		return false
	default:
		return true
	}
}

func (d *Desk) propose(id quorum.ProposalID, data []byte) error {
	switch err := d.core.Propose(id, data); {
	case errors.Is(err, quorum.ErrNotLeader):
		return d.notController()
	case errors.Is(err, quorum.ErrDropped):
		return fmt.Errorf("%w: %w", ErrTooManyProposals, err)
	case errors.Is(err, quorum.ErrTooLarge):
		return fmt.Errorf("%w: %d bytes", ErrChangeTooLarge, len(data))
	default:
		return err
	}
}

// retryAfter is when what is due and was not taken comes again. It is as long as
// a tick of the quorum, which hands its leadership over within some of them.
const retryAfter = 25 * time.Millisecond

// Tick lets the controller do what is due: at Next, or later.
func (d *Desk) Tick(now time.Duration) {
	if d.active != nil && now >= d.retry && !d.run(d.active.Due(now), now) {
		d.retry = now + retryAfter
	}
}

// Next is when Tick is to be called at the latest; ok is false if there is no
// need.
func (d *Desk) Next() (at time.Duration, ok bool) {
	if d.active == nil {
		return 0, false
	}
	return max(d.active.Next(), d.retry), true
}

// run decides about events that the controller itself has made; taken says that
// all of them were. What the quorum does not take, or what is beyond the limit,
// comes again when it is due again.
func (d *Desk) run(events []controller.Event, now time.Duration) (taken bool) {
	taken = true
	for _, ev := range events {
		if len(d.line) >= 2*d.o.Limit {
			return false
		}
		a, _ := d.decide(waiting{id: d.o.NewID(), own: true}, ev, now)
		taken = taken && errors.Join(append(a.Reply.Errs, a.Err)...) == nil
	}
	return taken
}

// Failed takes the Output of a Core that has failed: what was not saved is not
// shown, and everything under way is of unknown outcome.
func (d *Desk) Failed(out quorum.Output) []Answer {
	d.leader, d.active = out.Leader, nil
	return append(d.give(true), d.refuseBeats()...)
}

// Done takes what the quorum has saved, and gives the answers that follow from it.
func (d *Desk) Done(out quorum.Output, now time.Duration) []Answer {
	d.shown, d.leader = d.machine.State(), out.Leader
	lost := d.active != nil && (!out.Active || out.Term != d.term)
	var beats []Answer
	for _, e := range out.Ended {
		if len(d.beats.asked) > 0 && e.ID == d.beats.barrier {
			if e.Outcome == quorum.Committed {
				beats = append(beats, d.confirmed()...)
			} else {
				beats = append(beats, d.refuseBeats()...)
			}
			continue
		}
		i := slices.IndexFunc(d.line, func(w waiting) bool { return w.id == e.ID })
		switch {
		case i < 0: // not of this desk, or of one before
		case e.Outcome == quorum.Committed:
			d.line[i].committed = true
		default:
			lost = true
		}
	}
	answers := append(d.give(lost), beats...)
	if lost {
		answers = append(answers, d.refuseBeats()...)
		d.active = nil
	}
	if d.active != nil {
		d.active.Committed(d.shown, out.Applied)
	} else if out.Active {
		d.active, d.term, d.retry = controller.Activate(d.shown, out.Applied, d.o.Active, now), out.Term, 0
	}
	return answers
}

// give answers what is at the head of the line, or all of it if leadership is
// lost.
func (d *Desk) give(lost bool) []Answer {
	var answers []Answer
	n := 0
	for ; n < len(d.line); n++ {
		w := &d.line[n]
		a := Answer{ID: w.id, Reply: w.reply}
		switch {
		case w.committed && !w.own:
			d.remember(a)
		case w.committed:
		case lost && w.proposed:
			a = Answer{ID: w.id, Err: ErrUnknownOutcome}
		case lost && n > 0 && !settled(d.line[:n]):
			a = Answer{ID: w.id, Err: d.notController()}
		case w.proposed:
			d.line = slices.Delete(d.line, 0, n)
			return answers
		}
		if !w.own {
			answers = append(answers, a)
		}
	}
	d.line = nil
	return answers
}

// settled reports whether all of the line is committed that was proposed.
func settled(line []waiting) bool {
	return !slices.ContainsFunc(line, func(w waiting) bool { return w.proposed && !w.committed })
}

// remember keeps an answer for who asks again.
func (d *Desk) remember(a Answer) {
	if len(d.answered) == d.o.Limit {
		d.answered = slices.Delete(d.answered, 0, 1)
	}
	d.answered = append(d.answered, a)
}
