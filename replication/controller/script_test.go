package controller

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"leat/storage"
)

// The scripts show what each event decides: its errors, then its records. After
// each step the invariants hold.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/steps", func(t *testing.T, path string) {
		s := script{state: NewState()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.T, s.d, s.out = t, d, bytes.Buffer{}
			if d.Cmd == "cluster" {
				return s.cluster()
			}
			s.step(s.event())
			return s.out.String()
		})
	})
}

type script struct {
	*testing.T
	d     *datadriven.TestData
	out   bytes.Buffer
	state *State
	lives int
	// active decides in its place, if there is one, at now; index is up to where it
	// is committed.
	active *Active
	now    Instant
	index  uint64
}

func (s *script) decide(ev Event) (Reply, []Record) {
	if s.active != nil {
		return s.active.Step(ev, s.now)
	}
	return Step(s.state, ev)
}

func (s *script) step(ev Event) {
	s.Helper()
	reply, records := s.decide(ev)
	for _, err := range reply.Errs {
		if err != nil {
			fmt.Fprintln(&s.out, "error:", err)
		}
	}
	if reply.First != 0 {
		fmt.Fprintln(&s.out, "first:", reply.First)
	}
	for _, r := range records {
		fmt.Fprintln(&s.out, show(r))
	}
	next, err := s.state.With(records)
	if err != nil {
		s.Fatal(err)
	}
	checkStep(s.T, s.state, ev, records, next)
	s.state = next
}

// cluster puts so many brokers into service, in racks if they are named.
func (s *script) cluster() string {
	racks := strings.Split(s.text("racks", ""), "-")
	n := s.number("nodes", 3)
	for i := range n {
		ev := register(i + 1)
		ev.UUID, ev.Incarnation, ev.Rack = fmt.Sprint("uuid", i+1), fmt.Sprint("first", i+1), racks[int(i)%len(racks)]
		s.step(ev)
		s.step(&Unfence{ID: i + 1, Epoch: int64(i + 1)})
	}
	return fmt.Sprintf("brokers 1 to %d, epochs 1 to %d\n", n, n)
}

func (s *script) event() Event {
	switch s.d.Cmd {
	case "register":
		return s.register()
	case "fence":
		return &Fence{ID: s.number("node", 0), Epoch: s.epoch()}
	case "unfence":
		return &Unfence{ID: s.number("node", 0), Epoch: s.epoch()}
	case "shutdown":
		return &ShutDown{ID: s.number("node", 0), Epoch: s.epoch()}
	case "unregister":
		return &Unregister{ID: s.number("node", 0), Epoch: s.epoch()}
	case "elect":
		return &Elect{IDs: s.partitions(), Kind: map[string]ElectionKind{"preferred": Preferred, "unclean": Unclean}[s.text("kind", "preferred")]}
	case "reassign":
		return s.reassign()
	case "level":
		return &UpdateLevel{Level: uint32(s.number("to", 0))}
	case "alter":
		return s.alter()
	case "create":
		return s.create()
	case "assign":
		return s.assign()
	case "grow":
		return parseGrow(s.T, s.d.Input)
	case "delete":
		return &DeleteTopics{IDs: []storage.TopicID{s.topic()}}
	case "forget":
		return &ForgetTopics{IDs: []storage.TopicID{s.topic()}}
	case "config":
		return &SetTopicConfigs{ID: s.topic(), Values: parseConfigs(s.d.Input)}
	case "broker-config":
		return &SetBrokerConfigs{ID: s.number("node", 0), Values: parseConfigs(s.d.Input)}
	case "producer-ids":
		return &AllocateProducerIDs{Count: int64(s.number("count", 0))}
	}
	s.Fatalf("%s: unknown command %q", s.d.Pos, s.d.Cmd)
	return nil
}

// number is an argument, or otherwise if it is not given.
func (s *script) number(name string, otherwise int32) int32 {
	n := int(otherwise)
	s.d.MaybeScanArgs(s.T, name, &n)
	return int32(n)
}

func (s *script) text(name, otherwise string) string {
	s.d.MaybeScanArgs(s.T, name, &otherwise)
	return otherwise
}

func (s *script) topic() storage.TopicID { return id(byte(s.number("id", 1))) }

// partitions are those of the input, as topic/index.
func (s *script) partitions() (out []storage.ID) {
	for f := range strings.FieldsSeq(s.d.Input) {
		out = append(out, s.partition(f))
	}
	return out
}

func (s *script) partition(text string) storage.ID {
	topic, index, _ := strings.Cut(text, "/")
	return storage.ID{Topic: id(byte(parse32(s.T, topic))), Partition: parse32(s.T, index)}
}

// epoch is the epoch given, or that of the node.
func (s *script) epoch() int64 {
	b, _ := s.state.Broker(s.number("node", 0))
	return int64(s.number("epoch", int32(b.Epoch)))
}

// register begins a new life of a node, if it is not said to be an old one.
// "clean" says that the node ends the life that is registered, which it knows of if
// it is not said to know another.
func (s *script) register() Event {
	s.lives++
	n := s.number("node", 0)
	ev := &Register{
		ID: n, UUID: s.text("uuid", fmt.Sprint("uuid", n)), Incarnation: s.text("life", fmt.Sprint("life", s.lives)),
		PreviousEpoch: int64(s.number("previous", -1)), Known: int64(s.number("known", int32(s.state.BrokerEpoch(n)))), Rack: s.text("rack", ""),
		MinLevel: uint32(s.number("min-level", 1)), MaxLevel: uint32(s.number("level", Level)), ReadyNow: s.d.HasArg("ready"),
	}
	if host := s.text("address", ""); host != "" {
		ev.Endpoints = []Endpoint{{Name: "kafka", Host: host, Port: 9092}}
	}
	if s.d.HasArg("clean") {
		ev.PreviousEpoch = s.epoch()
	}
	if s.d.HasArg("lost") {
		ev.Lost = []storage.ID{{Topic: id(byte(s.number("lost", 0)))}}
	}
	if s.d.HasArg("unclean") {
		ev.Unclean = []storage.ID{{Topic: id(byte(s.number("unclean", 0)))}}
	}
	return ev
}

// alter is asked by the leader, with the epochs of now, if nothing else is said.
// A member of the ISR is a node, in the life of now, or node:epoch.
func (s *script) alter() Event {
	a := AlterPartition{ID: storage.ID{Topic: s.topic(), Partition: s.number("partition", 0)}, Recovered: s.d.HasArg("recovered")}
	p := Partition{}
	if _, found := s.state.find(a.ID); found != nil {
		p = *found
	}
	a.LeaderEpoch, a.PartitionEpoch = s.number("leader-epoch", p.LeaderEpoch), s.number("partition-epoch", p.Epoch)
	for m := range strings.FieldsSeq(s.d.Input) {
		node, epoch, given := strings.Cut(m, ":")
		member := Member{ID: parse32(s.T, node)}
		b, _ := s.state.Broker(member.ID)
		if member.Epoch = b.Epoch; given {
			member.Epoch = int64(parse32(s.T, epoch))
		}
		a.ISR = append(a.ISR, member)
	}
	asker := s.number("node", p.Leader)
	b, _ := s.state.Broker(asker)
	return &AlterPartitions{Broker: asker, BrokerEpoch: int64(s.number("epoch", int32(b.Epoch))), Partitions: []AlterPartition{a}}
}

// reassign reads a line for each partition: topic/index and the replicas, or
// "cancel".
func (s *script) reassign() Event {
	ev := &Reassign{}
	for line := range strings.Lines(s.d.Input) {
		fields := strings.Fields(line)
		r := Reassignment{ID: s.partition(fields[0])}
		switch fields[1] {
		case "cancel":
		case "none":
			r.Replicas = []int32{}
		default:
			for _, f := range fields[1:] {
				r.Replicas = append(r.Replicas, parse32(s.T, f))
			}
		}
		ev.Partitions = append(ev.Partitions, r)
	}
	return ev
}

// create reads a line for each topic: id, name, partitions, replicas.
func (s *script) create() Event {
	ev := &CreateTopics{}
	for line := range strings.Lines(s.d.Input) {
		var nt NewTopic
		var num byte
		if _, err := fmt.Sscan(line, &num, &nt.Name, &nt.Partitions, &nt.Replication); err != nil {
			s.Fatal(err)
		}
		nt.ID = id(num)
		ev.Topics = append(ev.Topics, nt)
	}
	return ev
}

// assign makes a topic of a line for each partition: its index and its replicas.
func (s *script) assign() Event {
	n := s.number("id", 99)
	nt := NewTopic{ID: id(byte(n)), Name: s.text("name", "assigned"), Assignments: map[int32][]int32{}}
	for line := range strings.Lines(s.d.Input) {
		fields := strings.Fields(line)
		p := parse32(s.T, fields[0])
		nt.Assignments[p] = nil
		for _, f := range fields[1:] {
			nt.Assignments[p] = append(nt.Assignments[p], parse32(s.T, f))
		}
	}
	return &CreateTopics{Topics: []NewTopic{nt}}
}

func parseConfigs(input string) map[string]*string {
	values := map[string]*string{}
	for line := range strings.Lines(input) {
		name, v, set := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = nil
		if set {
			values[name] = &v
		}
	}
	return values
}

// parseGrow reads a line for each topic: id, count, and the replicas of each new
// partition as 1,2.
func parseGrow(t *testing.T, input string) Event {
	ev := &AddPartitions{}
	for line := range strings.Lines(input) {
		fields := strings.Fields(line)
		more := MorePartitions{ID: id(byte(parse32(t, fields[0]))), Count: parse32(t, fields[1])}
		for _, f := range fields[2:] {
			var replicas []int32
			for node := range strings.SplitSeq(f, ",") {
				replicas = append(replicas, parse32(t, node))
			}
			more.Assignments = append(more.Assignments, replicas)
		}
		ev.Topics = append(ev.Topics, more)
	}
	return ev
}

func parse32(t *testing.T, s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

func show(r Record) string {
	switch r := r.(type) {
	case *TopicConfigSet:
		if r.Value == nil {
			return fmt.Sprintf("config topic=%d %s back to default", r.Topic[0], r.Name)
		}
		return fmt.Sprintf("config topic=%d %s=%s", r.Topic[0], r.Name, *r.Value)
	case *BrokerConfigSet:
		if r.Value == nil {
			return fmt.Sprintf("config node=%d %s unset", r.Broker, r.Name)
		}
		return fmt.Sprintf("config node=%d %s=%s", r.Broker, r.Name, *r.Value)
	case *PartitionChanged:
		return fmt.Sprintf("partition %d/%d %s", r.Topic[0], r.Index, showPartition(&r.Partition))
	case *BrokerRegistered:
		return showBroker(&r.Broker)
	case *TopicCreated:
		return fmt.Sprintf("topic %d %q", r.ID[0], r.Name)
	case *TopicRemoved:
		return fmt.Sprintf("topic %d removed", r.ID[0])
	case *TopicGone:
		return fmt.Sprintf("topic %d gone", r.ID[0])
	default:
		return strings.TrimPrefix(fmt.Sprintf("%T%+v", r, reflect.ValueOf(r).Elem().Interface()), "*controller.")
	}
}

func showPartition(p *Partition) string {
	out := fmt.Sprintf("leader=%d leaderEpoch=%d epoch=%d replicas=%v isr=%v", p.Leader, p.LeaderEpoch, p.Epoch, p.Replicas, p.ISR)
	for _, list := range []struct {
		name string
		ids  []int32
	}{{"elr", p.ELR}, {"adding", p.Adding}, {"removing", p.Removing}} {
		if len(list.ids) > 0 {
			out += fmt.Sprintf(" %s=%v", list.name, list.ids)
		}
	}
	if p.Recovering {
		out += " recovering"
	}
	return out
}

func showBroker(b *Broker) string {
	out := fmt.Sprintf("broker %d epoch=%d", b.ID, b.Epoch)
	if b.Rack != "" {
		out += " rack=" + b.Rack
	}
	if b.Fenced {
		out += " fenced"
	}
	if b.ShuttingDown {
		out += " shutting-down"
	}
	return out
}
