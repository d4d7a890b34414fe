package replication

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage"
)

// manyPartitions is a desk of three brokers with so many partitions in ten topics:
// on all three, and some on one of them alone. With as many as 100,000 the size of
// the parts is the default.
func manyPartitions(t *testing.T, partitions int32) *deskScript {
	t.Helper()
	s := deskOfThree(t)
	if partitions < 100_000 {
		s.desk.o.PartBytes = 64 << 10
	}
	for i := range 10 {
		topic := controller.NewTopic{ID: storage.TopicID{byte(i), 1}, Name: fmt.Sprint("t", i), Partitions: partitions / 10, Replication: 3}
		if i == 0 { // first in the order of decisions
			topic.Replication = 1
		}
		s.decided(topic.Name, &controller.CreateTopics{Topics: []controller.NewTopic{topic}})
	}
	return s
}

// count counts the partitions of the newest state that are as which says.
func (s *deskScript) count(which func(p *controller.Partition) bool) (n int) {
	for _, topic := range s.machine.State().Topics() {
		for i := range topic.Partitions.Len() {
			if which(topic.Partitions.At(i)) {
				n++
			}
		}
	}
	return n
}

// commitPart commits the next proposal, and fails the test if the state is not a
// legal one then.
func (s *deskScript) commitPart() {
	s.t.Helper()
	before := s.machine.State()
	ended := s.commit(1)
	after := s.machine.State()
	wrong := s.count(func(p *controller.Partition) bool {
		return (p.Leader < 0) != (len(p.ISR) == 0) || p.Leader >= 0 && !slices.Contains(p.ISR, p.Leader) ||
			slices.ContainsFunc(p.ISR, func(r int32) bool {
				b, _ := after.Broker(r)
				return !after.Eligible(r, -1) && (r != p.Leader || !b.ShuttingDown)
			})
	})
	if wrong > 0 {
		s.t.Fatalf("after a part %d partitions are led or held in sync by who is not in service", wrong)
	}
	for _, topic := range before.Topics() {
		is := after.Topic(topic.ID)
		for i := range topic.Partitions.Len() {
			if was, is := topic.Partitions.At(i), is.Partitions.At(i); is.LeaderEpoch-was.LeaderEpoch > 1 || is.Leader != was.Leader && is.LeaderEpoch == was.LeaderEpoch {
				s.t.Fatalf("%s/%d goes from %+v to %+v", topic.Name, i, was, is)
			}
		}
	}
	s.leading(ended)
}

func of(id int32) func(p *controller.Partition) bool {
	return func(p *controller.Partition) bool { return p.Leader == id || slices.Contains(p.ISR, id) }
}

func (s *deskScript) brokerTwo() controller.Broker {
	b, _ := s.machine.State().Broker(2)
	return b
}

func leaderless(p *controller.Partition) bool { return p.Leader < 0 }

// What is decided about a broker with 100,000 partitions is proposed in parts of
// 1 MiB, far below what the quorum takes, and after each of them the state is legal.
func TestDeskParts(t *testing.T) {
	again := register("second")
	again.ID, again.UUID, again.ReadyNow, again.Known = 2, "v", false, 2
	for name, c := range map[string]struct {
		ev         controller.Event
		partitions int32
	}{
		"fence":     {&controller.Fence{ID: 2, Epoch: 2}, 100_000},
		"register":  {again, 10_000},
		"shut down": {&controller.ShutDown{ID: 2, Epoch: 2}, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			s := manyPartitions(t, c.partitions)
			before, held := s.brokerTwo(), s.count(of(2))
			if a, later := s.ask(name, c.ev); !later {
				t.Fatal(answerText(a))
			}
			parts, bytes := len(s.core.taken), 0
			for _, e := range s.core.taken {
				bytes = max(bytes, len(e.Data))
			}
			t.Logf("%d parts of at most %d bytes for %d partitions", parts, bytes, held)
			if bytes > s.desk.o.PartBytes+1024 || bytes > 1<<20+1024 || parts < 3 {
				t.Errorf("%d parts of up to %d bytes", parts, bytes)
			}
			for range parts {
				if b := s.brokerTwo(); b.Fenced != before.Fenced || b.ShuttingDown != before.ShuttingDown || b.Epoch != before.Epoch {
					t.Errorf("the broker is another before all is decided about it: %+v", b)
				}
				s.commitPart()
			}
			left := s.count(of(2))
			if b := s.brokerTwo(); b.ShuttingDown {
				left -= s.count(func(p *controller.Partition) bool { return len(p.Replicas) == 1 && p.Leader == 2 }) // which nobody else can lead
			} else if !b.Fenced || s.count(leaderless) == 0 {
				t.Errorf("the broker is %+v, and %d partitions are without a leader", b, s.count(leaderless))
			}
			if left > 0 {
				t.Errorf("the broker is still in %d partitions", left)
			}
		})
	}
}

// A fence of which leadership was lost after some parts is brought to its end by
// the next controller: what it finds without a leader is led again at once if the
// broker lives, and the broker is fenced if it does not.
func TestDeskPartsCutShort(t *testing.T) {
	for name, alive := range map[string]bool{"the broker lives": true, "the broker is dead": false} {
		t.Run(name, func(t *testing.T) {
			s := manyPartitions(t, 10_000)
			if a, later := s.ask("fence", &controller.Fence{ID: 2, Epoch: 2}); !later {
				t.Fatal(answerText(a))
			}
			parts := len(s.core.taken)
			if parts < 3 {
				t.Fatalf("%d parts", parts)
			}
			// The first has the partitions that only this broker holds.
			for range parts - 1 {
				s.commitPart()
			}
			if s.count(leaderless) == 0 {
				t.Fatal("nothing is without a leader")
			}
			answers := s.desk.Done(quorum.Output{Ended: s.lost(), Term: s.term + 1, Leader: quorum.NodeID(2, "v")}, s.now)
			s.core.taken = nil
			if len(answers) != 1 || answers[0].Err == nil {
				t.Errorf("who asked is told %v", answers)
			}
			s.term += 2
			s.leading(nil)
			if at, ok := s.desk.Next(); !ok || at > s.now {
				t.Errorf("the new controller looks at %v, it is %v", at, s.now)
			}
			s.desk.Tick(s.now)
			for len(s.core.taken) > 0 {
				s.commitPart()
			}
			if n := s.count(leaderless); n > 0 {
				t.Errorf("%d partitions have no leader, all brokers are in service", n)
			}
			s.desk.Tick(s.now)
			if at, ok := s.desk.Next(); !ok || at <= s.now || len(s.core.taken) > 0 {
				t.Errorf("nothing is left to do, it is %v, next is %v, %d proposals", s.now, at, len(s.core.taken))
			}
			if alive {
				return
			}
			s.now += 1500 * time.Millisecond
			for _, id := range []int32{1, 3} {
				s.desk.Heartbeat(quorum.ProposalID{byte(id)}, controller.Heartbeat{ID: id, Epoch: int64(id), Applied: s.core.index}, s.now)
			}
			s.now += time.Second
			s.desk.Tick(s.now)
			for len(s.core.taken) > 0 {
				s.commitPart()
			}
			if b := s.brokerTwo(); !b.Fenced || s.count(of(2)) > 0 {
				t.Errorf("the broker is %+v, in %d partitions", b, s.count(of(2)))
			}
		})
	}
}

// Of what the quorum refuses in the middle the first parts stand, and the event
// that comes again does the rest.
func TestDeskPartsRefused(t *testing.T) {
	s := manyPartitions(t, 10_000)
	s.core.room = 2
	a, later := s.ask("fence", &controller.Fence{ID: 2, Epoch: 2})
	if later || a.Err == nil || len(s.core.taken) != 2 {
		t.Fatalf("%s, later=%v, %d parts proposed", answerText(a), later, len(s.core.taken))
	}
	s.core.room = 0
	if a, later := s.ask("fence", &controller.Fence{ID: 2, Epoch: 2}); !later {
		t.Fatal(answerText(a))
	}
	for len(s.core.taken) > 0 {
		s.commitPart()
	}
	if b := s.brokerTwo(); !b.Fenced || s.count(of(2)) > 0 {
		t.Errorf("the broker is %+v, in %d partitions", b, s.count(of(2)))
	}
}

// Items that are for themselves are decided in parts, and all of them are done with
// the last: 10,000 new topics, a move of all partitions, and the end of some topics.
func TestDeskItems(t *testing.T) {
	s := deskOfThree(t)
	s.desk.o.PartBytes = 128 << 10
	all := func(ev controller.Event) {
		t.Helper()
		if a, later := s.ask(fmt.Sprintf("%T", ev), ev); !later {
			t.Fatal(answerText(a))
		}
		if len(s.core.taken) < 2 {
			t.Errorf("%T: %d parts", ev, len(s.core.taken))
		}
		for len(s.core.taken) > 0 {
			if n := len(s.core.taken[0].Data); n > s.desk.o.PartBytes+1024 {
				t.Errorf("%T: a part of %d bytes", ev, n)
			}
			s.leading(s.commit(1))
			for _, topic := range s.machine.State().Topics() {
				if topic.Partitions.Len() != 2 || len(topic.Configs) != 1 {
					t.Fatalf("%T: after a part topic %s has %d partitions and the configs %v", ev, topic.Name, topic.Partitions.Len(), topic.Configs)
				}
			}
		}
	}
	create, move, drop := &controller.CreateTopics{}, &controller.Reassign{}, &controller.DeleteTopics{}
	for i := range 10_000 {
		id := storage.TopicID{byte(i >> 8), byte(i), 1}
		create.Topics = append(create.Topics, controller.NewTopic{ID: id, Name: fmt.Sprint("topic", i), Partitions: 2, Replication: 3, Configs: map[string]string{"retention.ms": "1000"}})
		for p := range int32(2) {
			move.Partitions = append(move.Partitions, controller.Reassignment{ID: storage.ID{Topic: id, Partition: p}, Replicas: []int32{1, 2}})
		}
		if i < 300 {
			drop.IDs = append(drop.IDs, id)
		}
	}
	all(create)
	if n := len(s.machine.State().Topics()); n != 10_000 {
		t.Errorf("%d topics", n)
	}
	all(move)
	if n := s.count(func(p *controller.Partition) bool { return len(p.Replicas) == 2 }); n != 20_000 {
		t.Errorf("%d partitions were moved", n)
	}
	s.desk.o.PartBytes = 2 << 10
	all(drop)
	if n := len(s.machine.State().Topics()); n != 9_700 {
		t.Errorf("%d topics are left", n)
	}
}

// If the quorum takes only the first parts of a request, the outcome is unknown, and
// who asks again has the rest done.
func TestDeskItemsRefused(t *testing.T) {
	s := deskOfThree(t)
	s.desk.o.PartBytes, s.core.room = 4<<10, 2
	create := &controller.CreateTopics{}
	for i := range 1000 {
		create.Topics = append(create.Topics, controller.NewTopic{ID: storage.TopicID{byte(i >> 8), byte(i), 1}, Name: fmt.Sprint("topic", i), Partitions: 1, Replication: 1})
	}
	if a, later := s.ask("create", create); later || !errors.Is(a.Err, ErrUnknownOutcome) {
		t.Fatal(answerText(a), later)
	}
	s.core.room = 0
	for len(s.core.taken) > 0 {
		s.leading(s.commit(1))
	}
	made := len(s.machine.State().Topics())
	a, later := s.ask("again", create)
	if !later || made == 0 || made == 1000 {
		t.Fatal(answerText(a), made)
	}
	for len(s.core.taken) > 0 {
		s.leading(s.commit(1))
	}
	if n := len(s.machine.State().Topics()); n != 1000 {
		t.Errorf("%d topics", n)
	}
}
