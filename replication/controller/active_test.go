package controller

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// The scripts show what the active controller answers to heartbeats and decides
// as time goes by. What it proposes is committed only by "commit".
func TestActiveScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/active", func(t *testing.T, path string) {
		s := script{state: NewState(), index: 10}
		s.active = Activate(s.state, s.index, ActiveOptions{}, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.T, s.d, s.out = t, d, bytes.Buffer{}
			s.activeStep()
			return s.out.String()
		})
	})
}

func (s *script) activeStep() {
	if at := s.text("at", ""); at != "" {
		now, err := time.ParseDuration(at)
		if err != nil {
			s.Fatal(err)
		}
		s.now = now
	}
	switch s.d.Cmd {
	case "heartbeat":
		reply, events := s.active.Heartbeat(Heartbeat{
			ID: s.number("node", 0), Epoch: s.epoch(), Applied: uint64(s.number("applied", int32(s.index))),
			WantFence: s.d.HasArg("want-fence"), WantShutDown: s.d.HasArg("want-shutdown"),
		}, s.now)
		if reply.Err != nil {
			fmt.Fprintln(&s.out, "error:", reply.Err)
			return
		}
		fmt.Fprintf(&s.out, "caught-up=%t fenced=%t may-stop=%t\n", reply.CaughtUp, reply.Fenced, reply.MayStop)
		s.events(events)
	case "due":
		for events := s.active.Due(s.now); len(events) > 0; events = s.active.Due(s.now) {
			s.events(events)
		}
		if next := s.active.Next(); next == Never {
			fmt.Fprintln(&s.out, "next: never")
		} else {
			fmt.Fprintln(&s.out, "next:", next)
		}
	case "commit":
		s.index++
		s.active.Committed(s.state, s.index)
		fmt.Fprintln(&s.out, "index:", s.index)
	case "activate":
		s.active = Activate(s.state, s.index, ActiveOptions{}, s.now)
	default:
		s.step(s.event())
	}
}

func (s *script) events(events []Event) {
	for _, ev := range events {
		fmt.Fprintf(&s.out, "%T%+v\n", ev, ev)
		s.step(ev)
	}
}

// At most ActiveOptions.Moves leaderships move at a time.
func TestMoves(t *testing.T) {
	a := serving(t)
	topic := &CreateTopics{Topics: []NewTopic{{ID: id(1), Name: "t", Assignments: map[int32][]int32{0: {2, 1}, 1: {2, 1}, 2: {2, 1}}}}}
	a.Step(topic, 0)
	var out []Record
	for i := range int32(3) {
		p := *a.State().Topic(id(1)).Partitions.At(int(i))
		p.Leader, p.LeaderEpoch, p.Epoch = 1, p.LeaderEpoch+1, p.Epoch+1
		out = append(out, &PartitionChanged{Topic: id(1), Index: i, Partition: p})
	}
	s, err := a.State().With(out)
	if err != nil {
		t.Fatal(err)
	}
	for moves, want := range map[int]int{1: 1, 2: 2, 3: 3, 4: 3} {
		if got := Activate(s, 10, ActiveOptions{Moves: moves}, 0).astray(); len(got) != want {
			t.Errorf("%d at a time: %v", moves, got)
		}
	}
}
