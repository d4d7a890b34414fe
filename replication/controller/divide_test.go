package controller

import (
	"errors"
	"fmt"
	"testing"

	"leat/storage"
)

// many is n topics of so many partitions, on all of three brokers.
func many(n int, partitions int32) *CreateTopics {
	ev := &CreateTopics{}
	for i := range n {
		ev.Topics = append(ev.Topics, NewTopic{
			ID: storage.TopicID{byte(i >> 8), byte(i), 1}, Name: fmt.Sprint("t", i), Partitions: partitions, Replication: 3,
			Configs: map[string]string{"retention.ms": "1", "segment.ms": "2"},
		})
	}
	return ev
}

// inService is n brokers in service, 1 to n in their first lives.
func inService(t *testing.T, n int32) *State {
	t.Helper()
	s := NewState()
	for id := int32(1); id <= n; id++ {
		for _, ev := range []Event{register(id), &Unfence{ID: id, Epoch: int64(id)}} {
			_, records := Step(s, ev)
			next, err := s.With(records)
			if err != nil {
				t.Fatal(err)
			}
			s = next
		}
	}
	return s
}

// A topic is made whole, or not at all: with its partitions and configs. Several are
// made one after the other, as are other things that are for themselves.
func TestWhatIsDivisible(t *testing.T) {
	s := inService(t, 3)
	create := many(3, 2) // five records each
	grow, move, drop := &AddPartitions{}, &Reassign{}, &DeleteTopics{}
	for _, n := range create.Topics {
		grow.Topics = append(grow.Topics, MorePartitions{ID: n.ID, Count: 4})
		move.Partitions = append(move.Partitions, Reassignment{ID: storage.ID{Topic: n.ID}, Replicas: []int32{1, 2}})
		drop.IDs = append(drop.IDs, n.ID)
	}
	two := "2"
	for _, c := range []struct {
		ev   Event
		want string // where a part may begin
	}{
		{create, "[5 10]"},
		{grow, "[2 4]"},
		{move, "[1 2]"},
		{&Fence{ID: 3, Epoch: 3}, "[1 2 3 4 5 6 7 8 9]"},
		{&SetBrokerConfigs{ID: AllBrokers, Values: map[string]*string{"a": &two, "b": &two}}, "[]"},
		{drop, "[1 2]"},
	} {
		_, records := Step(s, c.ev)
		var at []int
		for i := 1; i < len(records); i++ {
			if Divisible(c.ev, records, i) {
				at = append(at, i)
			}
		}
		if got := fmt.Sprint(at); got != c.want {
			t.Errorf("%T: %s of %d records, want %s", c.ev, got, len(records), c.want)
		}
		next, err := s.With(records)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
}

// Configs that change who may lead come after the partitions that they change, and
// all together.
func TestConfigsComeLast(t *testing.T) {
	s := inService(t, 3)
	decide := func(ev Event) []Record {
		t.Helper()
		reply, records := Step(s, ev)
		if err := errors.Join(reply.Errs...); err != nil {
			t.Fatal(err)
		}
		next, err := s.With(records)
		if err != nil {
			t.Fatal(err)
		}
		s = next
		return records
	}
	decide(many(2, 2))
	decide(&Fence{ID: 3, Epoch: 3})
	decide(&Fence{ID: 2, Epoch: 2}) // only 1 is in sync, 2 is an eligible leader
	one := "1"
	ev := &SetBrokerConfigs{ID: AllBrokers, Values: map[string]*string{minISRConfig: &one, uncleanConfig: &one}}
	records := decide(ev)
	for i := 1; i < len(records); i++ {
		if got, want := Divisible(ev, records, i), i <= 4; got != want {
			t.Errorf("record %d of %d, a %T: divisible is %v", i, len(records), records[i], got)
		}
	}
	if len(records) != 6 {
		t.Errorf("%d records", len(records))
	}
}

// Only what is too large by itself is refused, and what is more than one request may
// take.
func TestTooLarge(t *testing.T) {
	s := inService(t, 3)
	large := NewTopic{ID: storage.TopicID{9}, Name: "large", Partitions: 1, Replication: 1, Configs: map[string]string{"a": string(make([]byte, maxItemBytes))}}
	ev := &CreateTopics{Topics: append([]NewTopic{large}, many(14, MaxPartitions).Topics...)}
	reply, records := Step(s, ev)
	made, bytes := 0, 0
	for i, err := range reply.Errs {
		switch {
		case err == nil && i > 0:
			made++
		case !errors.Is(err, ErrTooLarge):
			t.Errorf("topic %d: %v", i, err)
		}
	}
	for _, r := range records {
		bytes += len(Encode(r))
	}
	if made < 5 || made == 14 || bytes > maxEventBytes || len(records) != made*(MaxPartitions+3) {
		t.Errorf("%d topics are made, by %d records of %d bytes", made, len(records), bytes)
	}
}
