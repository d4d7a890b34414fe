package replication

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage/meta"
)

// MetadataOptions says how a node takes part in the metadata.
type MetadataOptions struct {
	// NodeID and NodeUUID are those of the data directory.
	NodeID   int32
	NodeUUID string
	// Logger gets what an operator must know; default none.
	Logger *slog.Logger
	// Registerer gets the metrics; default none.
	Registerer prometheus.Registerer
}

// maxProposals is how many proposals may be under way, those included whose callers
// have gone. Further callers wait.
const maxProposals = 256

// Metadata is a node's part of the metadata: it applies the log of the quorum, and
// is the Proposer that decides and commits while the node leads. It is safe for
// concurrent use.
//
// One goroutine, the quorum's, has everything but what is shown to readers.
type Metadata struct {
	quorum *quorum.Quorum
	// slots bounds the proposals under way.
	slots   chan struct{}
	shown   atomic.Pointer[shown]
	ids     proposalIDs
	began   time.Time
	metrics *proposalMetrics

	room func(bytes int64) error
	// opened is told once that the node decides, or why it never will.
	opened chan error

	// What follows is the quorum goroutine's.
	machine *Machine
	desk    *Desk // nil before the first save
	callers map[quorum.ProposalID]chan<- Answer
	told    bool // opened was
}

// shown is what others may see.
type shown struct {
	state  *controller.State
	leader int32
	status quorum.Status
	hash   StateHash
}

// OpenMetadata opens the metadata in db of a cluster of one, and returns when the
// node decides about it. Metadata that cannot be right, or is of a newer binary,
// is an error that IsDamaged knows.
func OpenMetadata(ctx context.Context, db *meta.DB, o MetadataOptions) (*Metadata, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	machine, err := OpenMachine(db)
	if err != nil {
		return nil, err
	}
	if err := dropOldLog(db); err != nil {
		return nil, err
	}
	m := &Metadata{
		slots: make(chan struct{}, maxProposals), ids: newProposalIDs(), began: time.Now(),
		machine: machine, callers: map[quorum.ProposalID]chan<- Answer{}, opened: make(chan error, 1),
	}
	m.shown.Store(&shown{state: machine.State(), leader: -1})
	m.metrics = newProposalMetrics(o.Registerer, m)
	m.room = db.Room
	id := quorum.NodeID(o.NodeID, o.NodeUUID)
	m.quorum, err = quorum.OpenQuorum(quorum.ShellOptions{
		Options: quorum.Options{ID: id, Voters: []uint64{id}, Logger: o.Logger}, After: m.after,
	}, quorum.NewStore(db), machine)
	if err != nil {
		return nil, fmt.Errorf("open metadata: %w", err)
	}
	select {
	case err = <-m.opened:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("open metadata: %w", err)
	}
	return m, nil
}

// dropOldLog removes the log that versions without a quorum have left: what it
// says is in the state. Such a version wrote last then, perhaps after a later one
// that never came so far as to register: what that has left of a quorum is behind
// the state, and goes too. All goes with the first save.
func dropOldLog(db *meta.DB) error {
	there, err := hasOldLog(db)
	if err != nil || !there {
		return err
	}
	b := db.NewBatch()
	for _, prefix := range []byte{meta.PrefixLog, meta.PrefixQuorum} {
		b.DeleteRange([]byte{prefix}, []byte{prefix + 1})
	}
	return db.CommitAdmitted(b, false)
}

func hasOldLog(db *meta.DB) (bool, error) {
	found := errors.New("found")
	err := db.Scan([]byte{meta.PrefixLog}, func(_, _ []byte) error { return found })
	if errors.Is(err, found) {
		return true, nil
	}
	return false, err
}

// CheckMetadata says what OpenMetadata would find wrong with what is in db, which
// it does not change: errors that IsDamaged knows, or those of reading.
func CheckMetadata(db *meta.DB) error {
	if _, err := OpenMachine(db); err != nil {
		return err
	}
	if old, err := hasOldLog(db); err != nil || old {
		return err // the quorum begins at the state
	}
	return quorum.Check(quorum.NewStore(db))
}

// IsDamaged says whether an error is of metadata that this binary cannot go on
// from: damaged, another node's, or of a newer binary.
func IsDamaged(err error) bool {
	for _, target := range []error{controller.ErrUnknownRecord, controller.ErrDamagedRecord, controller.ErrInconsistent, quorum.ErrDamaged, quorum.ErrOtherNode} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// State is the newest state that is committed, and saved on this node.
func (m *Metadata) State() *controller.State { return m.shown.Load().state }

// Controller is the node that decides, as far as this one knows, or -1.
func (m *Metadata) Controller() int32 { return m.shown.Load().leader }

// Status is how the quorum is on this node, as far as it is saved.
func (m *Metadata) Status() quorum.Status { return m.shown.Load().status }

// Hash is the newest hash of the state that the log makes up to an index.
func (m *Metadata) Hash() StateHash { return m.shown.Load().hash }

// Propose decides about ev, and returns when the outcome is committed and saved. If
// ctx ends before the decision is proposed, nothing is. If it ends later, as it may
// while the disk hangs, the decision goes on by itself, and the error is
// ErrUnknownOutcome besides the cause of ctx. Other errors: *NotControllerError,
// ErrUnknownOutcome, ErrTooManyProposals, ErrChangeTooLarge, and what the store says
// when it has no room or has failed.
func (m *Metadata) Propose(ctx context.Context, ev controller.Event) (controller.Reply, error) {
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		return controller.Reply{}, context.Cause(ctx)
	}
	answer := make(chan Answer, 1)
	id := m.ids.next()
	err := m.quorum.Do(ctx, func(*quorum.Core) error {
		m.callers[id] = answer
		if a, later := m.desk.Propose(id, ev, time.Since(m.began)); !later {
			m.answer(a)
		}
		return nil
	})
	if err != nil {
		<-m.slots
		m.metrics.count(err)
		return controller.Reply{}, fmt.Errorf("change metadata: %w", err)
	}
	var a Answer
	select {
	case a = <-answer:
	case <-ctx.Done():
		a.Err = fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx))
	}
	m.metrics.count(a.Err)
	if a.Err != nil {
		return controller.Reply{}, fmt.Errorf("change metadata: %w", a.Err)
	}
	return a.Reply, nil
}

// after takes what the quorum has saved; it runs on the quorum's goroutine.
func (m *Metadata) after(core *quorum.Core, out quorum.Output) {
	if m.desk == nil {
		m.desk = NewDesk(DeskOptions{Limit: maxProposals, NewID: m.ids.next, Room: m.room}, core, m.machine)
	}
	var answers []Answer
	failed := core.Err()
	if failed != nil {
		answers = m.desk.Failed(out)
	} else {
		answers = m.desk.Done(out, time.Since(m.began))
	}
	m.shown.Store(&shown{state: m.desk.State(), leader: m.desk.Leader(), status: core.Status(), hash: m.machine.Hash()})
	for _, a := range answers {
		if failed != nil && a.Err != nil {
			a.Err = fmt.Errorf("%w: %w", a.Err, failed)
		}
		m.answer(a)
	}
	if !m.told && (m.desk.Deciding() || failed != nil) {
		m.told = true
		m.opened <- failed
	}
}

// answer tells the caller of a proposal what became of it, and lets the next one
// propose. Not before: a proposal is under way even if its caller has gone.
func (m *Metadata) answer(a Answer) {
	if caller, ok := m.callers[a.ID]; ok {
		delete(m.callers, a.ID)
		caller <- a // it has room for the one answer
		<-m.slots
	}
}

// Close ends the node's part, and waits for what is being saved. The store stays
// open.
func (m *Metadata) Close() {
	m.quorum.Close()
	for id := range m.callers { // the goroutine has ended
		m.answer(Answer{ID: id, Err: fmt.Errorf("%w: %w", ErrUnknownOutcome, quorum.ErrClosed)})
	}
}

// proposalIDs makes ids that never repeat: random for each start, then counted.
type proposalIDs struct {
	start [8]byte
	n     *atomic.Uint64
}

func newProposalIDs() proposalIDs {
	p := proposalIDs{n: new(atomic.Uint64)}
	_, _ = rand.Read(p.start[:]) // never fails: crypto/rand ends the process instead
	return p
}

func (p proposalIDs) next() (id quorum.ProposalID) {
	copy(id[:], p.start[:])
	binary.BigEndian.PutUint64(id[8:], p.n.Add(1))
	return id
}
