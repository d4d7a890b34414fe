package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage"
)

// proposals is a quorum for scripts: it takes proposals and commits them when it
// is told to.
type proposals struct {
	refuse  error
	room    int            // how many may be under way, 0 for any number
	taken   []quorum.Entry // not committed
	applied map[quorum.ProposalID]uint64
	index   uint64
	reads   []quorum.ProposalID
}

func (p *proposals) Propose(id quorum.ProposalID, data []byte) error {
	if p.refuse != nil {
		return p.refuse
	}
	if p.room > 0 && len(p.taken) >= p.room {
		return quorum.ErrDropped
	}
	p.taken = append(p.taken, quorum.Entry{ID: id, Data: data})
	return nil
}

func (p *proposals) Applied(id quorum.ProposalID) (index uint64, ok bool) {
	index, ok = p.applied[id]
	return index, ok
}

func (p *proposals) Read(id quorum.ProposalID) error {
	if p.refuse == nil {
		p.reads = append(p.reads, id)
	}
	return p.refuse
}

// deskScript is a desk with its surroundings, and the commands for it.
type deskScript struct {
	t       *testing.T
	desk    *Desk
	core    *proposals
	machine *Machine
	store   keys
	room    error
	own     uint64
	term    uint64
	now     time.Duration
}

func newDeskScript(t *testing.T) *deskScript {
	s := &deskScript{t: t, core: &proposals{applied: map[quorum.ProposalID]uint64{}, index: 1}, store: keys{}}
	s.machine = openMachine(t, s.store)
	s.desk = NewDesk(DeskOptions{
		Limit: 4, Room: func(int64) error { return s.room },
		NewID: func() quorum.ProposalID {
			s.own++
			return quorum.ProposalID(binary.BigEndian.AppendUint64([]byte("the desk"), s.own))
		},
		Active: controller.ActiveOptions{Session: 2 * time.Second},
	}, s.core, s.machine)
	return s
}

// commit applies the next n proposals; told says that the desk learns of it.
func (s *deskScript) commit(n int) []quorum.Ended {
	s.t.Helper()
	var ended []quorum.Ended
	for ; n > 0; n-- {
		e := s.core.taken[0]
		s.core.taken = s.core.taken[1:]
		s.core.index++
		e.Index = s.core.index
		if err := s.machine.Apply(s.store, []quorum.Entry{e}); err != nil {
			s.t.Fatal(err)
		}
		s.core.applied[e.ID] = e.Index
		ended = append(ended, quorum.Ended{ID: e.ID, Index: e.Index, Outcome: quorum.Committed})
	}
	return ended
}

// lost ends everything that is not committed.
func (s *deskScript) lost() (ended []quorum.Ended) {
	for _, e := range s.core.taken {
		ended = append(ended, quorum.Ended{ID: e.ID, Outcome: quorum.Unknown})
	}
	for _, id := range s.core.reads {
		ended = append(ended, quorum.Ended{ID: id, Outcome: quorum.Unknown})
	}
	s.core.reads = nil
	return ended
}

func (s *deskScript) done(out quorum.Output) string {
	out.Applied = s.core.index
	var b strings.Builder
	for _, a := range s.desk.Done(out, s.now) {
		fmt.Fprintln(&b, answerText(a))
	}
	return b.String()
}

func answerText(a Answer) string {
	name := strings.TrimRight(string(a.ID[:]), "\x00")
	if err := errors.Join(append([]error{a.Err}, a.Reply.Errs...)...); err != nil {
		return name + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if strings.HasPrefix(name, "beat") {
		return fmt.Sprintf("%s: fenced=%v caught-up=%v %v", name, a.Heartbeat.Fenced, a.Heartbeat.CaughtUp, a.Heartbeat.Err)
	}
	if a.Reply.Epoch > 0 {
		return fmt.Sprintf("%s: done, broker epoch %d", name, a.Reply.Epoch)
	}
	return fmt.Sprintf("%s: done, first %d", name, a.Reply.First)
}

// event reads a word that names an event.
func (s *deskScript) event(word, arg string) controller.Event {
	switch word {
	case "register":
		return register(arg)
	case "create":
		return creation(arg)
	case "delete":
		return &controller.DeleteTopics{IDs: []storage.TopicID{topicID(arg)}}
	case "ids":
		return &controller.AllocateProducerIDs{Count: 10}
	default:
		s.t.Fatalf("unknown event %q", word)
		return nil
	}
}

func (s *deskScript) run(d *datadriven.TestData) string {
	var n int
	switch d.Cmd {
	case "propose": // a line each: id event argument
		var b strings.Builder
		for line := range strings.Lines(d.Input) {
			words := append(strings.Fields(line), "")
			var id quorum.ProposalID
			copy(id[:], words[0])
			if a, later := s.desk.Propose(id, s.event(words[1], words[2]), s.now); later {
				fmt.Fprintf(&b, "%s: later\n", words[0])
			} else {
				fmt.Fprintln(&b, answerText(a))
			}
		}
		return b.String()
	case "beat": // a line each: id broker epoch
		var b strings.Builder
		for line := range strings.Lines(d.Input) {
			var name string
			h := controller.Heartbeat{Applied: s.core.index}
			if _, err := fmt.Sscan(line, &name, &h.ID, &h.Epoch); err != nil {
				s.t.Fatal(err)
			}
			var id quorum.ProposalID
			copy(id[:], name)
			if a, later := s.desk.Heartbeat(id, h, s.now); later {
				fmt.Fprintf(&b, "%s: later\n", name)
			} else {
				fmt.Fprintln(&b, answerText(a))
			}
		}
		return b.String()
	case "confirm": // the oldest read ends well
		end := quorum.Ended{ID: s.core.reads[0], Index: s.core.index, Outcome: quorum.Committed}
		s.core.reads = s.core.reads[1:]
		return s.done(quorum.Output{Ended: []quorum.Ended{end}, Term: s.term, Leader: quorum.NodeID(1, "u"), Active: true})
	case "lead": // the barrier of a new term is applied
		s.term++
		return s.done(quorum.Output{Term: s.term, Leader: quorum.NodeID(1, "u"), Active: true})
	case "elected": // it leads, but what came before is not applied yet
		return s.done(quorum.Output{Term: s.term + 1, Leader: quorum.NodeID(1, "u")})
	case "commit":
		d.ScanArgs(s.t, "n", &n)
		return s.done(quorum.Output{Ended: s.commit(n), Term: s.term, Leader: quorum.NodeID(1, "u"), Active: true})
	case "lose": // and the next leader commits so many of what was under way
		d.ScanArgs(s.t, "survive", &n)
		out := quorum.Output{Ended: s.lost(), Term: s.term + 1, Leader: quorum.NodeID(2, "v")}
		text := s.done(out)
		s.commit(n)
		s.core.taken, out.Ended = nil, nil
		s.term++
		return text + s.done(out)
	case "again": // leadership is lost and won again before the desk hears of either
		ended := s.lost()
		s.core.taken = nil
		s.term += 2
		return s.done(quorum.Output{Ended: ended, Term: s.term, Leader: quorum.NodeID(1, "u"), Active: true})
	case "fail": // what the next n proposals do is applied, but could not be saved
		d.ScanArgs(s.t, "n", &n)
		ended := s.lost()
		s.commit(n)
		var b strings.Builder
		for _, a := range s.desk.Failed(quorum.Output{Ended: ended, Term: s.term}) {
			fmt.Fprintln(&b, answerText(a))
		}
		return b.String()
	case "refuse":
		s.core.refuse = map[string]error{"": nil, "dropped": quorum.ErrDropped, "not-leader": quorum.ErrNotLeader, "large": quorum.ErrTooLarge}[arg(d)]
		return ""
	case "room":
		s.room = map[string]error{"": nil, "none": storage.ErrFull}[arg(d)]
		return ""
	case "state":
		state, names := s.desk.State(), []string{}
		for _, topic := range state.Topics() {
			names = append(names, topic.Name)
		}
		return fmt.Sprintf("deciding=%v leader=%d topics=%v dying=%d under-way=%d\n", s.desk.Deciding(), s.desk.Leader(), names, len(state.DyingTopics()), len(s.core.taken))
	default:
		s.t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

func arg(d *datadriven.TestData) string {
	if len(d.CmdArgs) == 0 {
		return ""
	}
	return d.CmdArgs[0].Key
}

// The scripts show what a desk answers, and when: proposals on top of others that
// are not committed, leadership that is lost with proposals under way, repeated
// and refused ones, and that nothing is decided before the barrier of the term.
func TestDeskScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/desk", func(t *testing.T, path string) {
		s := newDeskScript(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.run(d)
		})
	})
}
