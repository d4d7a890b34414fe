package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"leat/storage"
)

func id(n byte) storage.TopicID { return storage.TopicID{n, 15: 1} }

// register is the start of a node that stands alone.
func register(n int32) *Register {
	return &Register{ID: n, UUID: "u", PreviousEpoch: -1, Known: -1, MinLevel: 1, MaxLevel: Level, ReadyNow: true}
}

// again is the start of a node that has applied the whole state.
func again(s *State, n int32) *Register {
	ev := register(n)
	ev.Known = s.BrokerEpoch(n)
	return ev
}

// alike compares two states.
func alike(a, b *State) bool {
	return a.Hash() == b.Hash() && reflect.DeepEqual(slices.Collect(a.Records()), slices.Collect(b.Records()))
}

func samples() []Record {
	return []Record{
		&FeatureLevel{Level: 1},
		&BrokerRegistered{Broker{ID: 7, UUID: "u", Epoch: 3}},
		&BrokerRegistered{Broker{
			ID: 7, UUID: "u", Incarnation: "i", Epoch: 3, Rack: "r", Endpoints: []Endpoint{{"kafka", "::1", 9092}, {"peer", "h", 9094}},
			MinLevel: 1, MaxLevel: 3, Fenced: true,
		}},
		&BrokerRegistered{Broker{ID: 8, ShuttingDown: true}},
		&BrokerUnregistered{ID: 8},
		&BrokerEpochsTaken{Next: 1 << 40},
		&TopicCreated{ID: id(1), Name: "t"},
		&PartitionChanged{Topic: id(1), Index: 2, Partition: Partition{Leader: -1, LeaderEpoch: 4, Epoch: 9, Replicas: []int32{1, 2}, ISR: []int32{2}}},
		&PartitionChanged{Topic: id(1), Partition: Partition{Leader: -1, Replicas: []int32{1, 2, 3}, ELR: []int32{1}, Adding: []int32{3}, Removing: []int32{2}, Recovering: true}},
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
	for _, p := range [][]byte{{200, 0}, {byte(kindTopic), 1}, {byte(kindPartition), 2}, {byte(kindBroker), 2}, {0, 0}} {
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
	commit(register(1))
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
			ev := register(1)
			ev.Unclean = []storage.ID{{Topic: id(n)}}
			commit(ev)
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
	if !alike(read, state) {
		t.Errorf("read back %+v, want %+v", read, state)
	}
	if state.topics.len == 0 || state.dying.len == 0 || len(state.configs) == 0 {
		t.Error("the run covered nothing")
	}
}

// A state is not changed by making the next one.
func TestStateIsImmutable(t *testing.T) {
	s, err := NewState().With([]Record{
		&FeatureLevel{Level: 2}, &BrokerRegistered{Broker{ID: 1}}, &TopicCreated{ID: id(1), Name: "t"},
		&PartitionChanged{Topic: id(1), Partition: Partition{Leader: 1}}, &TopicConfigSet{Topic: id(1), Name: "a", Value: new("1")},
		&BrokerConfigSet{Broker: 1, Name: "a", Value: new("1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	before := slices.Collect(s.Records())
	if _, err := s.With([]Record{
		&PartitionChanged{Topic: id(1), Partition: Partition{Leader: 2}}, &TopicConfigSet{Topic: id(1), Name: "a"},
		&TopicRemoved{ID: id(1)}, &BrokerRegistered{Broker{ID: 2}}, &ProducerIDsTaken{Next: 5},
		&BrokerConfigSet{Broker: 1, Name: "a", Value: new("2")}, &BrokerConfigSet{Broker: 1, Name: "b", Value: new("2")},
	}); err != nil {
		t.Fatal(err)
	}
	if after := slices.Collect(s.Records()); !reflect.DeepEqual(after, before) {
		t.Errorf("state became %v, was %v", after, before)
	}
}

// A start raises the feature level that an older binary left, and goes on with
// what it wrote.
func TestLevelRises(t *testing.T) {
	s, err := NewState().With([]Record{&FeatureLevel{Level: 1}, &BrokerRegistered{Broker{ID: 1, UUID: "u", Epoch: 1}}, &TopicCreated{ID: id(1), Name: "t"}})
	if err != nil {
		t.Fatal(err)
	}
	for start := range 2 {
		_, records := Step(s, again(s, 1))
		if s, err = s.With(records); err != nil || s.Level() != Level || s.TopicNamed("t") == nil {
			t.Fatalf("level %d after the start: %v", s.Level(), err)
		}
		if len(records) != 2-start {
			t.Errorf("start %d commits %d records", start, len(records))
		}
	}
}

// What binaries of levels 1 and 2 wrote reads as before and is written in the same
// bytes as long as nothing newer is in it.
func TestOldRecords(t *testing.T) {
	topic := string(append([]byte{9}, make([]byte, 15)...))
	var records []Record
	for _, p := range []string{
		"\x01\x00\x02",               // feature level 2
		"\x02\x00\x02\x03abc\x0a",    // broker 1 of abc in life 5
		"\x03\x00" + topic + "\x01t", // topic t
		"\x04\x00" + topic + "\x00\x02\x04\x06\x01\x02\x01\x02", // its partition 0, led by 1
		"\x05\x00" + topic + "\x01k\x01\x01v",                   // k=v
		"\x09\x00\x01\x01k\x01\x01v",                            // for all brokers too
		"\x08\x00\x14",                                          // producer ids below 10 are taken
	} {
		r, err := Decode([]byte(p))
		if err != nil {
			t.Fatalf("%x: %v", p, err)
		}
		if again := Encode(r); string(again) != p {
			t.Errorf("%x is written as %x", p, again)
		}
		records = append(records, r)
	}
	s, err := NewState().With(records)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Eligible(1, 5) || s.nextEpoch != 6 || s.Topics()[0].Partitions.At(0).LeaderEpoch != 2 {
		t.Errorf("read as %v", slices.Collect(s.Records()))
	}
	// A fence cannot be said at level 2, nor can a step want to.
	_, records = Step(s, &Fence{ID: 1, Epoch: 5})
	if len(records) > 0 {
		t.Errorf("a fence at level 2: %v", records)
	}
	if _, err := s.With([]Record{&BrokerRegistered{Broker{ID: 1, Fenced: true}}}); !errors.Is(err, ErrInconsistent) {
		t.Errorf("a record above the level: %v", err)
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
