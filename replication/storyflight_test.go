package replication

import (
	"errors"
	"fmt"

	"leat/replication/controller"
)

// errNoAnswer stands for a request that was lost.
var errNoAnswer = errors.New("no answer")

// name is what a command calls a message that is on its way: name=f1.
func (a *args) name() string {
	name := a.text("name", "")
	if name == "" {
		a.t.Fatalf("%s: what is it called?", a.d.Pos)
	}
	return name
}

// ask sends a fetch of a follower, or the ISR change of a leader: ask fetch=2
// name=f, ask isr=1 name=a.
func (s *story) ask(a *args) string {
	if a.has("fetch") {
		f := s.asked(int32(a.num("fetch", 0)))
		if f == nil {
			return "fetches nothing"
		}
		s.flights[a.name()] = f
		return fmt.Sprintf("at %d of epoch %d, flushed %d", f.ask.Offset, f.ask.LastEpoch, f.ask.Flushed)
	}
	id := int32(a.num("isr", 0))
	ask, ok := s.nodes[id].replica.Alter(s.now)
	if !ok {
		return "asks nothing"
	}
	s.asks[a.name()] = &altering{from: id, ask: ask}
	return fmt.Sprintf("at %d/%d for isr %v", ask.LeaderEpoch, ask.PartitionEpoch, ask.ISR)
}

// serve lets a message come to whom it is for: serve name=f [to=1]. It may come
// again.
func (s *story) serve(a *args) string {
	f := s.flights[a.name()]
	return s.answer(f, int32(a.num("to", int64(s.part.Leader))))
}

// receive lets the answer come back: receive name=f.
func (s *story) receive(a *args) string { return s.received(s.flights[a.name()], a.has("lazy")) }

// lose loses a message or its answer: lose name=f.
func (s *story) lose(a *args) string {
	if f := s.flights[a.name()]; f != nil {
		f.err = errNoAnswer
		return s.received(f, false)
	}
	ask := s.asks[a.name()]
	s.nodes[ask.from].replica.Altered(ask.ask, controller.Partition{}, errNoAnswer, s.now)
	return ""
}
