package replication

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"leat/replication/controller"
)

// The script is a broker's life: what it sends when, and how long its lease is.
func TestSessionScript(t *testing.T) {
	var s *Session
	var now Instant
	sent := map[string]Send{}
	datadriven.RunTest(t, "testdata/session", func(t *testing.T, d *datadriven.TestData) string {
		a := &args{t, d}
		switch d.Cmd {
		case "new":
			now = 0
			s = NewSession(SessionOptions{Session: 2 * time.Second, Interval: 250 * ms, Alone: a.has("alone")}, controller.Register{ID: 1, PreviousEpoch: a.num("before", -1), ReadyNow: a.has("alone")})
		case "time":
			now += time.Duration(a.node()) * ms
		case "next":
			m, ok := s.Next(now)
			if !ok {
				return fmt.Sprintf("nothing before %v\n", due(s))
			}
			sent[a.text("name", "it")] = m
			return told(m) + "\n"
		case "registered":
			s.Registered(controller.Reply{Epoch: a.num("epoch", 0)}, lossOf(a), now)
		case "answered":
			reply := controller.HeartbeatReply{Fenced: a.has("fenced"), MayStop: a.has("may-stop")}
			if a.has("stale") {
				reply.Err = controller.ErrStaleBrokerEpoch
			}
			s.Answered(sent[a.text("name", "it")], reply, lossOf(a), now)
		case "ready":
			s.Ready(now)
		case "applied":
			s.Applied(uint64(a.node()), a.num("registered", -1))
		case "fence":
			s.WantFence(!a.has("no"), now)
		case "alone":
			s.SetAlone(!a.has("no"), now)
		case "stop":
			s.Stop(now)
		case "goodbye":
			h, ok := s.Goodbye(now)
			if !ok {
				return "nothing to say\n"
			}
			return told(Send{Heartbeat: &h}) + "\n"
		default:
			t.Fatalf("unknown command %q", d.Cmd)
		}
		return fmt.Sprintf("%v: %v\n", now, s)
	})
}

func due(s *Session) string {
	if s.Due() == Forever {
		return "something happens"
	}
	return s.Due().String()
}

// lossOf is how a message was lost.
func lossOf(a *args) error {
	switch {
	case a.has("lost"):
		return errNoAnswer
	case a.has("not-controller"):
		return controller.ErrNotController
	case a.has("unsupported"):
		return controller.ErrUnsupportedLevel
	case a.has("behind"):
		return controller.ErrStaleBrokerEpoch
	case a.has("duplicate"):
		return controller.ErrDuplicateBroker
	default:
		return nil
	}
}

func told(m Send) string {
	if m.Register != nil {
		out := fmt.Sprintf("register %d, epoch before %d", m.Register.ID, m.Register.PreviousEpoch)
		if m.Register.Known >= 0 {
			out += fmt.Sprintf(", known %d", m.Register.Known)
		}
		return out
	}
	h := m.Heartbeat
	out := []string{fmt.Sprintf("heartbeat of epoch %d, applied %d", h.Epoch, h.Applied)}
	if h.WantFence {
		out = append(out, "wants to be fenced")
	}
	if h.WantShutDown {
		out = append(out, "wants to stop")
	}
	return strings.Join(out, ", ")
}

// Whatever is answered late, twice or not at all, a lease ends within three
// quarters of a session after the sending of a heartbeat that was answered by a
// controller that had the broker in service.
func TestSessionLease(t *testing.T) {
	s := NewSession(SessionOptions{}, controller.Register{ID: 1})
	s.Next(0)
	s.Registered(controller.Reply{Epoch: 7}, nil, 0)
	s.Ready(0)
	first, _ := s.Next(0)
	s.Answered(first, controller.HeartbeatReply{}, nil, 1900*ms)
	if want := 1500 * ms; s.Lease() != want {
		t.Errorf("the lease ends at %v, want %v: it counts from the sending", s.Lease(), want)
	}
	second, _ := s.Next(1900 * ms)
	s.Answered(second, controller.HeartbeatReply{}, nil, 1950*ms)
	s.Answered(first, controller.HeartbeatReply{Fenced: true}, nil, 2*time.Second)
	if want := 3400 * ms; s.Lease() != want || s.Phase() != Running {
		t.Errorf("the lease ends at %v, want %v: an old answer says nothing new; %v", s.Lease(), want, s)
	}
	// It asks to be fenced: what was answered to an earlier heartbeat holds no more.
	third, _ := s.Next(2150 * ms)
	s.WantFence(true, 2200*ms)
	s.Next(2200 * ms)
	s.Answered(third, controller.HeartbeatReply{}, nil, 2210*ms)
	if want := 2200 * ms; s.Lease() != want {
		t.Errorf("the lease ends at %v, want %v: the broker may be fenced since", s.Lease(), want)
	}
	s.Answered(second, controller.HeartbeatReply{Err: controller.ErrStaleBrokerEpoch}, nil, 2*time.Second)
	if s.Lease() != never || s.Phase() != Ended || !errors.Is(s.Err(), controller.ErrStaleBrokerEpoch) {
		t.Errorf("another life took over: %v", s)
	}
	s.Answered(second, controller.HeartbeatReply{}, nil, 2*time.Second)
	if s.Lease() != never {
		t.Errorf("an ended session has a lease: %v", s)
	}
}
