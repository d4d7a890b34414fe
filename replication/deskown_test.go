package replication

import (
	"testing"
	"time"

	"leat/replication/controller"
	"leat/replication/quorum"
)

// deskOfThree is a desk that decides about three brokers in service.
func deskOfThree(t *testing.T) *deskScript {
	t.Helper()
	s := newDeskScript(t)
	s.term++
	s.leading(nil)
	for i, uuid := range []string{"u", "v", "w"} {
		ev := register("first")
		ev.ID, ev.UUID = int32(i+1), uuid
		s.decided(uuid, ev)
		if i > 0 { // the first comes up ready
			s.decided("in"+uuid, &controller.Unfence{ID: ev.ID, Epoch: int64(ev.ID)})
		}
	}
	s.desk.Tick(s.now) // it looks at what the controller before it may have left
	return s
}

// leading tells the desk what has ended while the node leads.
func (s *deskScript) leading(ended []quorum.Ended) {
	s.done(quorum.Output{Ended: ended, Term: s.term, Leader: quorum.NodeID(1, "u"), Active: true})
}

// ask proposes by a name.
func (s *deskScript) ask(name string, ev controller.Event) (a Answer, later bool) {
	var id quorum.ProposalID
	copy(id[:], name)
	return s.desk.Propose(id, ev, s.now)
}

// decided proposes, and commits all that is under way.
func (s *deskScript) decided(name string, ev controller.Event) {
	s.t.Helper()
	if a, later := s.ask(name, ev); !later {
		s.t.Fatalf("not proposed: %s", answerText(a))
	}
	s.leading(s.commit(len(s.core.taken)))
}

// The answers that are kept are those of clients: however much the controller
// decides by itself, who asks again hears what it was answered.
func TestDeskKeepsAnswersOfClients(t *testing.T) {
	s := deskOfThree(t)
	s.decided("ids", &controller.AllocateProducerIDs{Count: 10})
	for i := range 2 * s.desk.o.Limit {
		// Out of service and back into it: the controller decides that.
		h := controller.Heartbeat{ID: 2, Epoch: 2, Applied: s.core.index, WantFence: i%2 == 0}
		if a, later := s.desk.Heartbeat(quorum.ProposalID{byte(i + 1)}, h, s.now); !later {
			t.Fatalf("heartbeat: %s", answerText(a))
		}
		if len(s.core.taken) != 1 {
			t.Fatalf("heartbeat %d: %d decisions, want one", i, len(s.core.taken))
		}
		s.leading(s.commit(1))
	}
	if a, later := s.ask("ids", &controller.AllocateProducerIDs{Count: 10}); later || a.Err != nil || len(a.Reply.Errs) != 1 || a.Reply.Errs[0] != nil {
		t.Errorf("asked again: %s, later=%v", answerText(a), later)
	}
}

// What is due and is not taken comes again a little later, and not at once: who
// goes by Next does not turn round and round while leadership is handed over. What
// is due next does not wait for that.
func TestDeskRetries(t *testing.T) {
	for name, hinder := range map[string]func(s *deskScript) (free func()){
		"dropped": func(s *deskScript) func() {
			s.core.refuse = quorum.ErrDropped
			return func() { s.core.refuse = nil }
		},
		"full": func(s *deskScript) func() {
			s.desk.line = make([]waiting, 2*s.desk.o.Limit)
			return func() { s.desk.line = nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := deskOfThree(t)
			free := hinder(s)
			at, ok := s.desk.Next()
			if !ok || at != 2*time.Second {
				t.Fatalf("the first session is over at %v, %v", at, ok)
			}
			for range 10 {
				s.now = at
				s.desk.Tick(s.now)
				at, ok = s.desk.Next()
				if !ok || at <= s.now || at > s.now+100*time.Millisecond {
					t.Fatalf("refused at %v, it comes again at %v, %v", s.now, at, ok)
				}
			}
			free()
			s.now = at
			for i := range 3 {
				if at, ok = s.desk.Next(); !ok || at > s.now {
					t.Fatalf("broker %d of three whose sessions are over is looked at at %v, %v, it is %v", i, at, ok, s.now)
				}
				s.desk.Tick(s.now)
				if len(s.core.taken) != i+1 {
					t.Fatalf("%d are fenced, want %d", len(s.core.taken), i+1)
				}
			}
			if at, ok = s.desk.Next(); !ok || at <= s.now {
				t.Errorf("all are fenced, it is %v, next is %v, %v", s.now, at, ok)
			}
		})
	}
}

// A new term begins without what the one before has put off.
func TestDeskRetryEndsWithTheTerm(t *testing.T) {
	s := deskOfThree(t)
	s.core.refuse, s.now = quorum.ErrDropped, 2*time.Second
	s.desk.Tick(s.now)
	s.core.refuse = nil
	s.term += 2
	s.leading(nil)
	s.desk.Tick(s.now)
	if at, ok := s.desk.Next(); !ok || at != s.now+2*time.Second {
		t.Errorf("next is %v, %v: each broker has a whole session", at, ok)
	}
}
