package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
)

// stage is a view made by hand: three nodes, one partition of three replicas,
// in fsync mode unless os is set. It notes what failed.
type stage struct {
	*checker
	clock    time.Duration
	leases   map[int32]time.Duration
	logs     map[int32]*simLog
	replicas map[int32]*actor
	os       bool
	faults   []string
}

// actor is a replica that says what it is told to say.
type actor struct {
	leads   bool
	hw      int64
	part    controller.Partition
	maximal []int32
}

func (a *actor) Role() replication.Role {
	if a.leads {
		return replication.Leader
	}
	return replication.Follower
}
func (a *actor) LeaderEpoch() int32              { return a.part.LeaderEpoch }
func (a *actor) Partition() controller.Partition { return a.part }
func (a *actor) HighWatermark() int64            { return a.hw }
func (a *actor) Maximal() []int32                { return a.maximal }

var staged = partID{Topic: storage.TopicID{1}}

func (s *stage) now() time.Duration             { return s.clock }
func (s *stage) nodes() []int32                 { return []int32{1, 2, 3} }
func (s *stage) lease(node int32) time.Duration { return s.leases[node] }
func (s *stage) log(node int32, _ partID) *simLog {
	return s.logs[node]
}
func (s *stage) minISR(partID) int   { return 2 }
func (s *stage) durable(partID) bool { return !s.os }
func (s *stage) failed(invariant, _ string) {
	s.faults = append(s.faults, invariant)
}

func (s *stage) replica(node int32, _ partID) replicaView {
	if a := s.replicas[node]; a != nil {
		return a
	}
	return nil
}

// decree applies a partition at all nodes.
func (s *stage) decree(p controller.Partition) {
	s.record(&controller.PartitionChanged{Topic: staged.Topic, Partition: p})
}

func (s *stage) apply(next *controller.State) {
	old, index := s.newest, s.index+1
	for _, node := range s.nodes() {
		s.applied(node, index, old, next)
	}
}

// fence has the controller take a broker for dead.
func (s *stage) fence(node int32) {
	b, _ := s.newest.Broker(node)
	b.Fenced = true
	s.record(&controller.BrokerRegistered{Broker: b})
}

// record applies one record at all nodes.
func (s *stage) record(r controller.Record) {
	next, err := s.newest.With([]controller.Record{r})
	if err != nil {
		panic(err)
	}
	s.apply(next)
}

// come takes node 3 away, and brings it back by a decision that only node 1 has
// heard of.
func (s *stage) come(back controller.Partition) {
	p := partitionOf(1, 0, 1, 1, 2)
	p.Replicas = []int32{1, 2}
	s.decree(p)
	next, err := s.newest.With([]controller.Record{&controller.PartitionChanged{Topic: staged.Topic, Partition: back}})
	if err != nil {
		panic(err)
	}
	s.applied(1, s.index+1, s.newest, next)
}

func partitionOf(leader, epoch, version int32, isr ...int32) controller.Partition {
	return controller.Partition{Leader: leader, LeaderEpoch: epoch, Epoch: version, Replicas: []int32{1, 2, 3}, ISR: isr}
}

// newStage has node 1 lead epoch 0, with two batches that are committed and one
// that is not.
func newStage() *stage {
	s := &stage{clock: time.Second, leases: map[int32]time.Duration{}, logs: map[int32]*simLog{}, replicas: map[int32]*actor{}}
	s.checker = newChecker(s, newHistory())
	records := []controller.Record{&controller.FeatureLevel{Level: controller.Level}, &controller.TopicCreated{ID: staged.Topic, Name: "t"}}
	for _, node := range s.nodes() {
		records = append(records, &controller.BrokerRegistered{Broker: controller.Broker{ID: node, Epoch: int64(node), MinLevel: 1, MaxLevel: controller.Level}})
	}
	first := partitionOf(1, 0, 0, 1, 2, 3)
	records = append(records, &controller.PartitionChanged{Topic: staged.Topic, Partition: first})
	next, err := s.newest.With(records)
	if err != nil {
		panic(err)
	}
	s.apply(next)
	for _, node := range s.nodes() {
		s.leases[node] = time.Minute
		s.logs[node] = newLog(staged)
		s.replicas[node] = &actor{leads: node == 1, part: first, maximal: first.ISR}
		s.moved(node, staged)
	}
	s.took(1, staged, 0)
	for i, b := range []batch{batchOf(0, 0, 1, 2), batchOf(2, 0, 3, 1), batchOf(3, 0, 4, 1)} {
		for _, node := range s.nodes() {
			if i < 2 || node == 1 {
				s.write(node, b)
			}
		}
	}
	for _, node := range s.nodes() {
		s.raise(node, 3)
	}
	return s
}

// rest has the last batch committed that there is.
func (s *stage) rest() {
	s.write(2, batchOf(3, 0, 4, 1))
	s.write(3, batchOf(3, 0, 4, 1))
	s.raise(1, 4)
}

// again has a batch committed again, behind all that there is.
func (s *stage) again(b batch) {
	b.base = 4
	for _, node := range s.nodes() {
		s.write(node, b)
	}
	s.raise(1, 6)
}

// write appends a batch as it is and makes it durable.
func (s *stage) write(node int32, b batch) {
	if _, err := s.logs[node].append(b); err != nil {
		panic(err)
	}
	s.logs[node].durable = s.logs[node].end
	s.appended(node, staged, &b)
}

func (s *stage) raise(node int32, hw int64) {
	s.replicas[node].hw = hw
	s.moved(node, staged)
}

// lead has a node lead a new epoch with a set in sync.
func (s *stage) lead(node, epoch int32, isr ...int32) {
	p := partitionOf(node, epoch, s.replicas[node].part.Epoch+1, isr...)
	s.decree(p)
	for other, a := range s.replicas {
		a.part, a.leads, a.maximal = p, other == node, isr
	}
	s.took(node, staged, epoch)
	s.moved(node, staged)
}

// crash has a node lose the end of its log.
func (s *stage) crash(node int32, end int64) {
	before := s.logs[node].end
	s.logs[node].truncate(end)
	s.logs[node].settle()
	s.replicas[node].hw = min(s.replicas[node].hw, end)
	s.recovered(node, staged, before, true)
}

// Each invariant is reported, and it alone, by what breaks it; what only comes
// near it is not.
func TestInvariants(t *testing.T) {
	b0, b1, b2 := batchOf(0, 0, 1, 2), batchOf(2, 0, 3, 1), batchOf(3, 0, 4, 1)
	act(t, map[string]scene{
		"nothing": {"", func(*stage) {}},
		"a clean fail-over": {"", func(s *stage) {
			s.lead(2, 1, 1, 2, 3)
			s.logs[1].truncate(3)
			s.cut(1, staged, 3, 3)
			for _, node := range s.nodes() {
				s.write(node, batchOf(3, 1, 9, 1))
			}
			for _, node := range []int32{2, 1, 3} {
				s.raise(node, 4)
			}
			s.acked(2, staged, &s.logs[2].batches[2], -1)
			s.served(2, staged, 0, 4)
		}},
		"I1 two leaders": {"I1", func(s *stage) { s.took(2, staged, 0) }},
		"I2 leader epoch": {"I2", func(s *stage) {
			s.replicas[2].part.LeaderEpoch = -2
			s.moved(2, staged)
		}},
		"I2 partition epoch": {"I2", func(s *stage) {
			s.lead(2, 1, 1, 2, 3)
			s.decree(partitionOf(2, 1, 0, 1, 2, 3))
		}},
		"I2 broker epoch": {"I2", func(s *stage) {
			next, _ := s.newest.With([]controller.Record{&controller.BrokerRegistered{Broker: controller.Broker{ID: 3, Epoch: 1}}})
			s.apply(next)
		}},
		"I2 broker epoch again": {"I2", func(s *stage) {
			next, _ := s.newest.With([]controller.Record{&controller.BrokerRegistered{Broker: controller.Broker{ID: 3, Epoch: 3, Incarnation: "new"}}})
			s.apply(next)
		}},
		"I2 broker epoch of one that was unregistered": {"I2", func(s *stage) {
			s.record(&controller.BrokerUnregistered{ID: 3})
			s.record(&controller.BrokerRegistered{Broker: controller.Broker{ID: 3, Epoch: 3}})
		}},
		"I2 index": {"I2", func(s *stage) { s.applied(1, 0, s.newest, s.newest) }},
		"I2 index after a restart": {"", func(s *stage) {
			s.restarted(1)
			s.applied(1, 0, s.newest, s.newest)
		}},
		"I2 term": {"I2", func(s *stage) {
			s.promised(1, promise{term: 5}, promise{term: 5})
			s.promised(1, promise{term: 4}, promise{term: 5})
		}},
		"I2 term of another disk": {"", func(s *stage) {
			s.promised(1, promise{term: 5, vote: 2}, promise{term: 5, vote: 2})
			s.replaced(1)
			s.promised(1, promise{term: 1, vote: 3}, promise{term: 1, vote: 3})
		}},
		"I3 other bytes": {"I3", func(s *stage) {
			b := batchOf(3, 0, 9, 1)
			s.write(2, b)
		}},
		"I4 other past": {"I4", func(s *stage) {
			s.write(2, b2)
			s.write(1, batchOf(4, 1, 5, 1))
			s.logs[3].truncate(2)
			s.logs[3].restart(2)
			s.write(3, batchOf(2, 0, 3, 1))
			s.write(3, batchOf(3, 1, 8, 1))
			s.write(3, batchOf(4, 1, 5, 1))
		}},
		"I5 epochs": {"I5", func(s *stage) {
			s.logs[2].epochs = nil
			s.recovered(2, staged, 3, false)
		}},
		"I6 above the log": {"I6", func(s *stage) { s.raise(2, 4) }},
		"I6 below the log": {"I6", func(s *stage) {
			s.logs[2].raise(2)
			s.raise(2, 1)
		}},
		"I7 high watermark falls": {"I7", func(s *stage) { s.raise(1, 2) }},
		"I7 committed data is missing": {"I7", func(s *stage) {
			s.logs[2].truncate(2)
			s.replicas[2].hw = 2
			s.lead(2, 1, 1, 2, 3)
		}},
		"I7 committed data is another": {"I7", func(s *stage) {
			s.logs[3].restart(0)
			s.replicas[3].hw = 0
			s.recovered(3, staged, 3, true) // which loses it, once: too little for an excuse
			s.write(3, batchOf(0, 1, 9, 2))
			s.raise(3, 2)
		}},
		"as many lose it as must hold it": {"", func(s *stage) {
			s.os = true
			s.crash(2, 2)
			s.crash(3, 2)
			s.lead(2, 1, 2, 3)
		}},
		"as many lose all from a start within a batch on": {"", func(s *stage) {
			s.os = true
			for _, node := range s.nodes() {
				if node != 1 {
					s.write(node, b2)
				}
				s.write(node, batchOf(4, 0, 5, 2))
			}
			s.raise(1, 6)
			for node := int32(2); node <= 3; node++ {
				s.logs[node].restart(5)
				s.replicas[node].hw = 5
				s.recovered(node, staged, 6, true)
			}
			s.lead(2, 1, 2, 3)
		}},
		"one less loses it": {"I7", func(s *stage) {
			s.os = true
			s.crash(2, 2)
			s.lead(2, 1, 2, 3)
		}},
		"I8 a member that has less": {"I8", func(s *stage) {
			s.logs[3].durable = 2
			s.moved(1, staged)
		}},
		"I8 a member that lost it": {"", func(s *stage) {
			s.os = true
			s.crash(3, 2)
			s.moved(1, staged)
		}},
		"I8 a member that lost what the leader still counts on": {"", func(s *stage) {
			s.os = true
			more := batchOf(4, 0, 5, 2)
			s.write(2, b2)
			s.write(3, b2)
			for _, node := range s.nodes() {
				s.write(node, more)
			}
			s.crash(3, 3)
			s.write(3, b2)
			s.raise(1, 4) // all that is committed, and less than node 3 had
			s.raise(1, 6)
		}},
		"I8 a leader whose disk has less": {"I8", func(s *stage) {
			s.logs[1].durable = 2
			s.moved(1, staged)
		}},
		"I8 the leader believes another set": {"I8", func(s *stage) {
			s.write(2, b2)
			s.replicas[1].maximal = []int32{1, 2}
			s.raise(1, 4)
		}},
		"I8 a decision that is old news": {"", func(s *stage) {
			s.decree(partitionOf(1, 0, 1, 1, 2))
			before := s.newest
			s.decree(partitionOf(1, 0, 2, 1, 2, 3))
			then, index := s.newest, s.index
			s.decree(partitionOf(1, 0, 3, 1, 2))
			s.logs[3] = newLog(staged)
			s.restarted(2)
			s.applied(2, index, before, then)
		}},
		"I8 one that was taken away and begins anew, by a leader that does not know": {"", func(s *stage) {
			p := partitionOf(1, 1, 1, 1, 2)
			p.Replicas = []int32{1, 2}
			s.decree(p)
			s.wiped(3, staged, "unassigned")
			s.logs[3] = newLog(staged)
			s.decree(partitionOf(1, 1, 2, 1, 2))
			s.moved(1, staged)
		}},
		"I9 a leader that is not in sync": {"I9", func(s *stage) { s.decree(partitionOf(1, 0, 1, 2, 3)) }},
		"I10 a fenced one comes": {"I10", func(s *stage) {
			s.decree(partitionOf(1, 0, 1, 1, 2))
			s.fence(3)
			s.decree(partitionOf(1, 0, 2, 1, 2, 3))
		}},
		"I11 eligible and in sync": {"I11", func(s *stage) {
			p := partitionOf(1, 0, 1, 1)
			p.ELR = []int32{1}
			s.decree(p)
		}},
		"I11 eligible without need": {"I11", func(s *stage) {
			p := partitionOf(1, 0, 1, 1, 2)
			p.ELR = []int32{3}
			s.decree(p)
		}},
		"I11 eligible with less": {"I11", func(s *stage) {
			p := partitionOf(1, 0, 1, 1)
			p.ELR = []int32{3}
			s.logs[3].durable = 2
			s.replicas[1].part, s.replicas[1].maximal = p, p.ISR
			s.moved(1, staged)
		}},
		"I18 producers": {"I18", func(s *stage) {
			s.logs[2].state()[7].last[0].base = 1
			s.lead(2, 1, 1, 2, 3)
		}},
		"I19 applied too far":    {"I19", func(s *stage) { s.folded(2, staged, 4, true) }},
		"I19 another state":      {"I19", func(s *stage) { s.folded(2, staged, 3, false) }},
		"I19 applied":            {"", func(s *stage) { s.folded(2, staged, 3, true) }},
		"I21 two states":         {"I21", func(s *stage) { s.applied(1, s.index, s.newest, controller.NewState()) }},
		"I22 acks after EIO":     {"I22", func(s *stage) { s.ioFailed(1); s.acked(1, staged, &b0, -1) }},
		"I22 votes after EIO":    {"I22", func(s *stage) { s.ioFailed(1); s.promised(1, promise{}, promise{}) }},
		"I22 decides after EIO":  {"I22", func(s *stage) { s.ioFailed(1); s.proposed(1, 1, true) }},
		"I22 acks after restart": {"", func(s *stage) { s.ioFailed(1); s.restarted(1); s.acked(1, staged, &b0, -1) }},
		"I23 late":               {"I23", func(s *stage) { s.parked(1, 9, 0); s.clock += time.Minute; s.answered(1, 9) }},
		"I23 never":              {"I23", func(s *stage) { s.parked(1, 9, time.Second); s.clock += 3 * time.Second; s.quiesce() }},
		"I23 died with it":       {"", func(s *stage) { s.parked(1, 9, 0); s.stopped(1); s.clock += time.Minute; s.answered(1, 9) }},
		"I24 nobody leads": {"I24", func(s *stage) {
			s.decree(partitionOf(-1, 1, 1, 2))
			s.quiesce()
		}},
		"I24 not in sync": {"I24", func(s *stage) {
			s.decree(partitionOf(1, 0, 1, 1, 2))
			s.quiesce()
		}},
		"I25 dropped": {"I25", func(s *stage) { s.wiped(3, staged, "stray") }},
		"I25 unassigned": {"", func(s *stage) {
			p := partitionOf(1, 0, 1, 1, 2)
			p.Replicas = []int32{1, 2}
			s.decree(p)
			s.wiped(3, staged, "unassigned")
		}},
		"I25 unassigned, and to come again": {"", func(s *stage) {
			s.come(partitionOf(1, 0, 2, 1, 2))
			s.wiped(3, staged, "unassigned")
		}},
		"I25 it has heard that it is to come again": {"I25", func(s *stage) {
			s.come(partitionOf(1, 0, 2, 1, 2))
			s.applied(3, s.index, s.newest, s.newest)
			s.wiped(3, staged, "unassigned")
		}},
		"I25 it came again, and is in sync": {"I25", func(s *stage) {
			s.come(partitionOf(1, 0, 2, 1, 2, 3))
			s.wiped(3, staged, "unassigned")
		}},
		"I26 too early": {"I26", func(s *stage) { s.proposed(1, 3, false) }},
		"I27 term":      {"I27", func(s *stage) { s.promised(1, promise{term: 2}, promise{term: 1}) }},
		"I27 entry":     {"I27", func(s *stage) { s.promised(1, promise{term: 2, last: 9}, promise{term: 2, last: 8}) }},
		"I27 vote":      {"I27", func(s *stage) { s.promised(1, promise{term: 2, vote: 3}, promise{term: 2}) }},
		"I27 two votes": {"I27", func(s *stage) {
			s.promised(1, promise{term: 2, vote: 3}, promise{term: 2, vote: 3})
			s.promised(1, promise{term: 2, vote: 2}, promise{term: 2, vote: 2})
		}},
		"I27 a vote, then a later term": {"", func(s *stage) {
			s.promised(1, promise{term: 2, vote: 3, last: 4}, promise{term: 2, vote: 3, last: 9})
			s.promised(1, promise{term: 3, vote: 2}, promise{term: 3, vote: 2, last: 9})
			s.promised(1, promise{term: 3}, promise{term: 4, last: 9})
		}},
		"I27 an entry that a later leader replaced": {"", func(s *stage) {
			s.promise(promise{term: 6, last: 35}, promise{term: 5, last: 35}, promise{term: 3, last: 36}, promise{term: 6})
		}},
		"I27 a later term that replaced nothing": {"I27", func(s *stage) {
			s.promise(promise{term: 6, last: 35}, promise{term: 3, last: 36}, promise{term: 5, vote: 2}, promise{term: 6})
		}},
		"I27 a lower entry in the same term": {"I27", func(s *stage) {
			s.promise(promise{term: 3, last: 35}, promise{term: 3, last: 36}, promise{term: 3, last: 35})
		}},
		"I27 a lower entry in an earlier term": {"I27", func(s *stage) {
			s.promise(promise{term: 5, last: 35}, promise{term: 5, last: 36}, promise{term: 3, last: 35})
		}},
		"I27 replaced by what is not there": {"I27", func(s *stage) {
			s.promise(promise{term: 5, last: 34}, promise{term: 3, last: 36}, promise{term: 5, last: 35})
		}},
		"I28 acks=1": {"I28", func(s *stage) { s.leases[1] = 0; s.acked(1, staged, &b2, 1) }},
		"I28 a read": {"I28", func(s *stage) { s.leases[1] = s.clock; s.served(1, staged, 0, 3) }},
		"I28 fenced": {"I28", func(s *stage) { s.fence(1); s.served(1, staged, 0, 3) }},
		"I28 unregistered": {"I28", func(s *stage) {
			s.record(&controller.BrokerUnregistered{ID: 1})
			s.served(1, staged, 0, 3)
		}},
		"I28 another one": {"", func(s *stage) { s.fence(2); s.served(1, staged, 0, 3) }},
		"I28 not for all": {"", func(s *stage) { s.leases[1] = 0; s.acked(1, staged, &b1, -1) }},
	})
}

// scene is what happens on a stage, and which fault is reported, "" for none.
type scene struct {
	want string
	do   func(s *stage)
}

// act plays each scene on a stage of its own.
func act(t *testing.T, scenes map[string]scene) {
	t.Helper()
	for name, tc := range scenes {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			if len(s.faults) > 0 {
				t.Fatal("the stage is not sound:", s.faults)
			}
			tc.do(s)
			if got := slices.Compact(s.faults); fmt.Sprint(got) != fmt.Sprint([]string{tc.want}) && (tc.want != "" || len(got) > 0) {
				t.Errorf("failed %v, want %q", got, tc.want)
			}
		})
	}
}

// promise has node 1 say all this at once.
func (s *stage) promise(disk promise, said ...promise) {
	inOrder(said)
	for _, m := range said {
		s.promised(1, m, disk)
	}
}

// quiesce lets all replicas be level first.
func (s *stage) quiesce() {
	b := batchOf(3, 0, 4, 1)
	s.write(2, b)
	s.write(3, b)
	for _, node := range s.nodes() {
		s.raise(node, 4)
	}
	for v := uint64(1); v < 5; v++ {
		if v != 2 {
			count := int32(1)
			if v == 1 {
				count = 2
			}
			s.h.sent(s.h.send(1, staged, -1, v, count, true), unknown, -1, -1)
		}
	}
	s.quiesced()
}

// At the end the logs are in the history and are judged there.
func TestQuiesced(t *testing.T) {
	s := newStage()
	s.h.sent(s.h.send(9, staged, -1, 50, 1, true), okay, 5, 0)
	s.quiesce()
	if fmt.Sprint(s.faults) != "[lost-write]" || len(s.h.finals[staged]) != 3 {
		t.Errorf("%v with %d logs", s.faults, len(s.h.finals[staged]))
	}
}
