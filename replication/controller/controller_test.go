package controller

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"leat/storage"
)

func id(n byte) storage.TopicID { return storage.TopicID{n, 15: 1} }

func samples() []Record {
	return []Record{
		&FeatureLevel{Level: 1},
		&BrokerRegistered{ID: 7, UUID: "u", Epoch: 3},
		&TopicCreated{ID: id(1), Name: "t"},
		&PartitionChanged{Topic: id(1), Index: 2, Partition: Partition{Leader: -1, LeaderEpoch: 4, Epoch: 9, Replicas: []int32{1, 2}, ISR: []int32{2}}},
		&TopicConfigSet{Topic: id(1), Name: "retention.ms", Value: new("")},
		&TopicConfigSet{Topic: id(1), Name: "retention.ms"},
		&TopicRemoved{ID: id(1)},
		&TopicGone{ID: id(1)},
		&ProducerIDsTaken{Next: 1 << 40},
		&BrokerConfigSet{Broker: AllBrokers, Name: "num.partitions", Value: new("3")},
		&BrokerConfigSet{Broker: 7, Name: "num.partitions"},
	}
}

// Every record comes back from its bytes as it was.
func TestRecordsRoundTrip(t *testing.T) {
	for _, r := range samples() {
		got, err := Decode(Encode(r))
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%T: got %+v, %v; want %+v", r, got, err, r)
		}
	}
}

// Records of a newer binary are refused by name, cut or padded ones as damage.
func TestDecodeRefuses(t *testing.T) {
	for _, p := range [][]byte{{200, 0}, {byte(kindTopic), newest + 1}, {0, 0}} {
		if _, err := Decode(p); !errors.Is(err, ErrUnknownRecord) {
			t.Errorf("Decode(%v) = %v, want ErrUnknownRecord", p, err)
		}
	}
	for _, r := range samples() {
		whole := Encode(r)
		for cut := range len(whole) {
			if _, err := Decode(whole[:cut]); err == nil {
				t.Errorf("%T cut to %d of %d bytes was taken", r, cut, len(whole))
			}
		}
		if _, err := Decode(append(whole, 0)); !errors.Is(err, ErrDamagedRecord) {
			t.Errorf("%T with a byte too many: %v", r, err)
		}
	}
}

// No bytes make Decode panic, and what it takes encodes to the same record.
func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		f.Add(Encode(r))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		r, err := Decode(p)
		if err != nil {
			return
		}
		again, err := Decode(Encode(r))
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v, then %+v, %v", r, again, err)
		}
	})
}

// The state read back by key is the state that the log led to, whatever the
// events were.
func TestStateIsLogByKey(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	state, kept := NewState(), map[string][]byte{}
	commit := func(ev Event) {
		_, records := Step(state, ev)
		next, err := state.With(records)
		if err != nil {
			t.Fatal(err)
		}
		state = next
		for _, r := range records {
			if gone, ok := r.(*TopicRemoved); ok {
				from, to := TopicKeys(gone.ID)
				for k := range kept {
					if k >= string(from) && k < string(to) {
						delete(kept, k)
					}
				}
			}
			if key, removes := Key(r); removes {
				delete(kept, string(key))
			} else {
				kept[string(key)] = Encode(r)
			}
		}
	}
	commit(&Boot{ID: 1, UUID: "u"})
	made := byte(0) // ids are never used again
	for step := range 200 {
		n := byte(rng.IntN(int(made) + 1))
		switch rng.IntN(8) {
		case 0, 1:
			made++
			commit(&CreateTopics{Topics: []NewTopic{{ID: id(made), Name: fmt.Sprint("t", n), Partitions: rng.Int32N(5), Replication: 1, Configs: map[string]string{"a": "b"}}}})
		case 2:
			commit(&DeleteTopics{IDs: []storage.TopicID{id(n)}})
		case 3:
			commit(&ForgetTopics{IDs: []storage.TopicID{id(n)}})
		case 4:
			commit(&SetTopicConfigs{ID: id(n), Values: map[string]*string{"a": nil, "c": new(fmt.Sprint(step))}})
		case 5:
			commit(&Boot{ID: 1, UUID: "u", Unclean: []storage.ID{{Topic: id(n)}}})
		case 6:
			commit(&AddPartitions{Topics: []MorePartitions{{ID: id(n), Count: rng.Int32N(8)}}})
		case 7:
			values := map[string]*string{"a": nil, fmt.Sprint("c", rng.IntN(3)): new(fmt.Sprint(step)), fmt.Sprint("c", rng.IntN(3)): nil}
			commit(&SetBrokerConfigs{ID: int32(rng.IntN(3)) - 1, Values: values})
		}
	}
	keys := make([]string, 0, len(kept))
	for k := range kept {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var records []Record
	for _, k := range keys {
		r, err := Decode(kept[k])
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	read, err := NewState().With(records)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read, state) {
		t.Errorf("read back %+v, want %+v", read, state)
	}
	if len(state.topics) == 0 || len(state.dying) == 0 || len(state.configs) == 0 {
		t.Error("the run covered nothing")
	}
}

// A state is not changed by making the next one.
func TestStateIsImmutable(t *testing.T) {
	s, err := NewState().With([]Record{
		&BrokerRegistered{ID: 1}, &TopicCreated{ID: id(1), Name: "t"},
		&PartitionChanged{Topic: id(1), Partition: Partition{Leader: 1}}, &TopicConfigSet{Topic: id(1), Name: "a", Value: new("1")},
		&BrokerConfigSet{Broker: 1, Name: "a", Value: new("1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprintf("%+v %+v", s, *s.Topic(id(1)))
	if _, err := s.With([]Record{
		&PartitionChanged{Topic: id(1), Partition: Partition{Leader: 2}}, &TopicConfigSet{Topic: id(1), Name: "a"},
		&TopicRemoved{ID: id(1)}, &BrokerRegistered{ID: 2}, &ProducerIDsTaken{Next: 5},
		&BrokerConfigSet{Broker: 1, Name: "a", Value: new("2")}, &BrokerConfigSet{Broker: 1, Name: "b", Value: new("2")},
	}); err != nil {
		t.Fatal(err)
	}
	if after := fmt.Sprintf("%+v %+v", s, *s.Topic(id(1))); after != before {
		t.Errorf("state became %s, was %s", after, before)
	}
}

// A start raises the feature level that an older binary left, and goes on with
// what it wrote.
func TestLevelRises(t *testing.T) {
	s, err := NewState().With([]Record{&FeatureLevel{Level: 1}, &BrokerRegistered{ID: 1, UUID: "u", Epoch: 1}, &TopicCreated{ID: id(1), Name: "t"}})
	if err != nil {
		t.Fatal(err)
	}
	_, records := Step(s, &Boot{ID: 1, UUID: "u"})
	if s, err = s.With(records); err != nil || s.Level() != Level || s.TopicNamed("t") == nil {
		t.Errorf("level %d after the start: %v", s.Level(), err)
	}
	if _, records := Step(s, &Boot{ID: 1, UUID: "u"}); len(records) > 0 {
		t.Errorf("the next start commits %v", records)
	}
}

// Records that do not fit the state are refused as damage.
func TestInconsistentRecords(t *testing.T) {
	for name, records := range map[string][]Record{
		"same name twice":      {&TopicCreated{ID: id(1), Name: "t"}, &TopicCreated{ID: id(2), Name: "t"}},
		"orphan partition":     {&PartitionChanged{Topic: id(1)}},
		"hole in partitions":   {&TopicCreated{ID: id(1), Name: "t"}, &PartitionChanged{Topic: id(1), Index: 1}},
		"negative partition":   {&TopicCreated{ID: id(1), Name: "t"}, &PartitionChanged{Topic: id(1), Index: -1}},
		"orphan config":        {&TopicConfigSet{Topic: id(1), Name: "a"}},
		"producer ids go back": {&ProducerIDsTaken{Next: 2}, &ProducerIDsTaken{Next: 1}},
	} {
		if _, err := NewState().With(records); !errors.Is(err, ErrInconsistent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewState().With([]Record{&FeatureLevel{Level: Level + 1}}); !errors.Is(err, ErrUnknownRecord) {
		t.Errorf("newer feature level: %v", err)
	}
}

// The scripts show what each event decides.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		state := NewState()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			reply, records := Step(state, parseEvent(t, d))
			var out bytes.Buffer
			for _, err := range reply.Errs {
				if err != nil {
					fmt.Fprintln(&out, "error:", err)
				}
			}
			if reply.First != 0 {
				fmt.Fprintln(&out, "first:", reply.First)
			}
			for _, r := range records {
				fmt.Fprintln(&out, show(r))
			}
			next, err := state.With(records)
			if err != nil {
				t.Fatal(err)
			}
			state = next
			return out.String()
		})
	})
}

func parseEvent(t *testing.T, d *datadriven.TestData) Event {
	var n, unclean int
	switch d.Cmd {
	case "boot":
		d.ScanArgs(t, "node", &n)
		ev := &Boot{ID: int32(n), UUID: fmt.Sprint("uuid", n)}
		if d.HasArg("unclean") {
			d.ScanArgs(t, "unclean", &unclean)
			ev.Unclean = []storage.ID{{Topic: id(byte(unclean))}}
		}
		return ev
	case "create":
		ev := &CreateTopics{}
		for line := range strings.Lines(d.Input) {
			var nt NewTopic
			var num byte
			if _, err := fmt.Sscan(line, &num, &nt.Name, &nt.Partitions, &nt.Replication); err != nil {
				t.Fatal(err)
			}
			nt.ID = id(num)
			ev.Topics = append(ev.Topics, nt)
		}
		return ev
	case "assign":
		nt := NewTopic{ID: id(99), Name: "assigned", Assignments: map[int32][]int32{}}
		for line := range strings.Lines(d.Input) {
			fields := strings.Fields(line)
			p := parse32(t, fields[0])
			nt.Assignments[p] = nil
			for _, f := range fields[1:] {
				nt.Assignments[p] = append(nt.Assignments[p], parse32(t, f))
			}
		}
		return &CreateTopics{Topics: []NewTopic{nt}}
	case "delete", "forget":
		d.ScanArgs(t, "id", &n)
		if d.Cmd == "delete" {
			return &DeleteTopics{IDs: []storage.TopicID{id(byte(n))}}
		}
		return &ForgetTopics{IDs: []storage.TopicID{id(byte(n))}}
	case "config":
		d.ScanArgs(t, "id", &n)
		return &SetTopicConfigs{ID: id(byte(n)), Values: parseConfigs(d.Input)}
	case "broker-config":
		d.ScanArgs(t, "node", &n)
		return &SetBrokerConfigs{ID: int32(n), Values: parseConfigs(d.Input)}
	case "grow":
		return parseGrow(t, d.Input)
	case "producer-ids":
		d.ScanArgs(t, "count", &n)
		return &AllocateProducerIDs{Count: int64(n)}
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return nil
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
		return fmt.Sprintf("partition %d/%d leader=%d leaderEpoch=%d epoch=%d replicas=%v isr=%v",
			r.Topic[0], r.Index, r.Leader, r.LeaderEpoch, r.Epoch, r.Replicas, r.ISR)
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
