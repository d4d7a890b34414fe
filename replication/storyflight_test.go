package replication

import (
	"errors"
	"fmt"
	"strings"

	"leat/replication/controller"
)

// errNoAnswer stands for a request that was lost.
var errNoAnswer = errors.New("no answer")

// altering is an ISR change on its way to the controller, or its answer back.
type altering struct {
	from int32
	ask  controller.AlterPartition
	got  controller.Partition
	err  error
}

// fetch is a whole round of a follower: fetch 2 [from=1] [times=N] [lazy].
func (s *story) fetch(a *args) string {
	id := a.node()
	var out []string
	for range a.num("times", 1) {
		f := s.asked(id)
		if f == nil {
			return strings.Join(append(out, "fetches nothing"), "\n")
		}
		s.answer(f, int32(a.num("from", int64(s.nodes[id].replica.Leader()))))
		out = append(out, s.received(f, a.has("lazy")))
	}
	return strings.Join(out, "\n")
}

func (s *story) asked(id int32) *flight {
	n := s.nodes[id]
	ask, ok := n.replica.NextFetch(s.now)
	if !ok {
		return nil
	}
	ask.BrokerEpoch = n.epoch
	return &flight{from: id, ask: ask}
}

func (s *story) answer(f *flight, to int32) string {
	n := s.nodes[to]
	if n == nil || n.replica == nil {
		f.err = errNoAnswer
		return "nobody answers"
	}
	var rose bool
	f.got, rose, f.err = n.replica.Fetch(&f.ask, s.now)
	f.batches = nil
	if f.err == nil && f.got.Diverging == nil {
		for _, b := range n.log.batches {
			if b.base+b.count > f.ask.Offset {
				f.batches = append(f.batches, b)
			}
		}
	}
	return f.answered() + s.risen(n, rose)
}

func (f *flight) answered() string {
	switch {
	case f.err != nil:
		return f.err.Error()
	case f.got.Diverging != nil:
		return fmt.Sprintf("at %d of epoch %d diverges: epoch %d ends at %d", f.ask.Offset, f.ask.LastEpoch, f.got.Diverging.Epoch, f.got.Diverging.End)
	default:
		return fmt.Sprintf("at %d: %d batches, hw %d", f.ask.Offset, len(f.batches), f.got.HW)
	}
}

// received gives the follower its answer and does what it says.
func (s *story) received(f *flight, lazy bool) string {
	n := s.nodes[f.from]
	got := &f.got
	out := f.answered()
	a := n.replica.Fetched(&f.ask, got, f.err, s.now)
	switch a.Kind {
	case Append:
		for _, b := range f.batches {
			n.log.append(b.epoch, b.count, b.value, lazy)
		}
	case Truncate:
		n.log.truncate(a.Offset)
	case Restart:
		n.log.restart(a.Offset)
	case Raise:
		n.log.raise(a.Offset)
	case Ignore, Fail:
		return out + "; " + a.Kind.String()
	}
	if a.Kind != Append {
		out += "; " + a.String()
	}
	start, rose := n.replica.Did(a, got, s.now)
	if start >= 0 {
		n.log.raise(start)
		rose = n.replica.Advance(s.now) || rose
		out += fmt.Sprintf("; starts at %d", start)
	}
	return out + s.risen(n, rose)
}

// alter is a whole round of an ISR change: alter 1.
func (s *story) alter(a *args) string {
	id := a.node()
	ask, ok := s.nodes[id].replica.Alter(s.now)
	if !ok {
		return "asks nothing"
	}
	c := &altering{from: id, ask: ask}
	return c.asked() + "\n" + s.toController(c) + "\n" + s.altered(c)
}

func (c *altering) asked() string {
	out := fmt.Sprintf("asks at %d/%d for isr", c.ask.LeaderEpoch, c.ask.PartitionEpoch)
	for _, m := range c.ask.ISR {
		out += fmt.Sprintf(" %d", m.ID)
	}
	return out
}

// toController lets the controller answer.
func (s *story) toController(c *altering) string {
	ev := &controller.AlterPartitions{Broker: c.from, BrokerEpoch: s.nodes[c.from].epoch, Partitions: []controller.AlterPartition{c.ask}}
	reply := s.step(ev)
	c.err = reply.Errs[0]
	c.got = reply.Partitions[0]
	out := s.decided()
	if c.err != nil {
		out = c.err.Error() + "\n" + out
	}
	return out
}

// altered gives the leader its answer.
func (s *story) altered(c *altering) string {
	n := s.nodes[c.from]
	rose := n.replica.Altered(c.ask, c.got, c.err, s.now)
	return fmt.Sprintf("%d: may be in sync %v%s", c.from, n.replica.Maximal(), s.risen(n, rose))
}

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
	c := &altering{from: id, ask: ask}
	s.asks[a.name()] = c
	return c.asked()
}

// serve lets a message come to whom it is for: serve name=f [to=1]. It may come
// again.
func (s *story) serve(a *args) string {
	if c := s.asks[a.name()]; c != nil {
		return s.toController(c)
	}
	return s.answer(s.flights[a.name()], int32(a.num("to", int64(s.part().Leader))))
}

// receive lets the answer come back: receive name=f.
func (s *story) receive(a *args) string {
	if c := s.asks[a.name()]; c != nil {
		return s.altered(c)
	}
	return s.received(s.flights[a.name()], a.has("lazy"))
}

// lose tells the asker that there is no answer; the message may still be on its
// way: lose name=f.
func (s *story) lose(a *args) string {
	if c := s.asks[a.name()]; c != nil {
		return s.altered(&altering{from: c.from, ask: c.ask, err: errNoAnswer})
	}
	f := s.flights[a.name()]
	return s.received(&flight{from: f.from, ask: f.ask, err: errNoAnswer}, false)
}
