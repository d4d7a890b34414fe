package controller

import (
	"testing"
	"time"

	"leat/storage"
)

// serving is an active controller of brokers 1 and 2 in service.
func serving(t *testing.T) *Active {
	t.Helper()
	a := Activate(NewState(), 0, ActiveOptions{}, 0)
	index := uint64(0)
	for id := int32(1); id <= 2; id++ {
		for _, ev := range []Event{register(id), &Unfence{ID: id, Epoch: int64(id)}} {
			if reply, _ := a.Step(ev, 0); reply.Errs[0] != nil {
				t.Fatal(reply.Errs[0])
			}
			index++
			a.Committed(a.State(), index)
		}
	}
	return a
}

// What the quorum does not take leaves nothing behind: the broker that was to end,
// or to begin a new life, lives on as it did, and is missed when it is silent.
func TestUndoKeepsBrokers(t *testing.T) {
	later := again(serving(t).State(), 2)
	later.Incarnation = "another"
	for name, ev := range map[string]Event{"register": later, "fence": &Fence{ID: 2, Epoch: 2}, "third": register(3)} {
		t.Run(name, func(t *testing.T) {
			a := serving(t)
			before := a.State().Hash()
			if _, records := a.Step(ev, time.Second); len(records) == 0 {
				t.Fatal("nothing was decided")
			}
			a.Undo(nil)
			if a.State().Hash() != before {
				t.Fatal("the overlay is another state")
			}
			for id := int32(1); id <= 2; id++ {
				reply, events := a.Heartbeat(Heartbeat{ID: id, Epoch: int64(id), Applied: 100}, 2*time.Second)
				if want := (HeartbeatReply{CaughtUp: true}); reply != want || len(events) > 0 {
					t.Errorf("heartbeat of %d: %+v, %v", id, reply, events)
				}
			}
			if due := a.Due(3 * time.Second); len(due) > 0 {
				t.Errorf("within the session: %v is due", due)
			}
			if _, ok := a.Due(4 * time.Second)[0].(*Fence); !ok {
				t.Error("nobody misses a broker whose session is over")
			}
		})
	}
}

// A broker that was to be unregistered, which the quorum does not take, comes back
// into service as before.
func TestUndoUnregister(t *testing.T) {
	a := serving(t)
	a.Step(&Fence{ID: 2, Epoch: 2}, 0)
	a.Committed(a.State(), 100)
	before := a.State().Hash()
	if _, records := a.Step(&Unregister{ID: 2, Epoch: 2}, time.Second); len(records) == 0 {
		t.Fatal("nothing was decided")
	}
	a.Undo(nil)
	_, events := a.Heartbeat(Heartbeat{ID: 2, Epoch: 2, Applied: 100}, time.Second)
	if a.State().Hash() != before || len(events) != 1 || *events[0].(*Unfence) != (Unfence{ID: 2, Epoch: 2}) {
		t.Errorf("decided: %v", events)
	}
}

// A broker that stands alone changes partitions for ever; nothing of that is kept
// for a rebalance that nobody needs. The first after another has come waits until
// all has been stable.
func TestAloneKeepsNoChanges(t *testing.T) {
	a := Activate(NewState(), 0, ActiveOptions{}, 0)
	first := register(1)
	first.ReadyNow = true
	a.Step(first, 0)
	for i := range 100 {
		a.Step(&CreateTopics{Topics: []NewTopic{{ID: storage.TopicID{byte(i), 1}, Name: string(rune('a' + i)), Partitions: 3, Replication: 1}}}, 0)
		a.Step(&DeleteTopics{IDs: []storage.TopicID{{byte(i), 1}}}, 0)
	}
	if len(a.changed) > 0 {
		t.Errorf("%d changes are remembered", len(a.changed))
	}
	const later = time.Hour
	a.Step(register(2), later)
	if a.rebalance < later+a.o.Stable {
		t.Errorf("leaders are looked at at %v, the second broker came at %v", a.rebalance, later)
	}
}

// A controller that takes over does what the one before has left undone: a broker in
// service leads where it may and nobody does.
func TestActivateElects(t *testing.T) {
	a := serving(t)
	topic := &CreateTopics{Topics: []NewTopic{{ID: id(1), Name: "t", Assignments: map[int32][]int32{0: {2}}}}}
	for _, ev := range []Event{topic, &Fence{ID: 2, Epoch: 2}} {
		a.Step(ev, 0)
	}
	_, records := a.Step(&Unfence{ID: 2, Epoch: 2}, 0)
	a.Undo(records[:1])
	b := Activate(a.State(), 10, ActiveOptions{}, time.Hour)
	if at := b.Next(); at > time.Hour {
		t.Errorf("something is due at %v", at)
	}
	due := b.Due(time.Hour)
	if len(due) != 1 || *due[0].(*Unfence) != (Unfence{ID: 2, Epoch: 2}) {
		t.Fatalf("%v is due", due)
	}
	b.Step(due[0], time.Hour)
	if p := b.State().Topic(id(1)).Partitions.At(0); p.Leader != 2 {
		t.Errorf("%s", showPartition(p))
	}
	if due := b.Due(time.Hour); len(due) > 0 || b.Next() <= time.Hour {
		t.Errorf("%v is due after it, the next at %v", due, b.Next())
	}
}
