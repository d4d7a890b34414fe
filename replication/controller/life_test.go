package controller

import (
	"errors"
	"testing"

	"leat/storage"
)

// A controller says that a life is over only if it knows all that was registered
// up to that life: the broker ends for ever on it. A life that it has not heard of
// was registered with another controller.
func TestUnknownLife(t *testing.T) {
	a := serving(t) // 1 at epoch 1, 2 at epoch 2
	for _, id := range []int32{3, 4} {
		if reply, _ := a.Step(register(id), 0); reply.Errs[0] != nil { // epochs 3 and 4
			t.Fatal(reply.Errs[0])
		}
	}
	a.Step(&Unregister{ID: 3, Epoch: 3}, 0)
	a.Committed(a.State(), 10)
	for _, c := range []struct {
		name  string
		id    int32
		epoch int64
		want  error
	}{
		{"the life that is registered", 2, 2, nil},
		{"an earlier one", 2, 1, ErrStaleBrokerEpoch},
		{"a later one, registered elsewhere", 2, 5, ErrNotController},
		{"a broker that has ended", 3, 3, ErrStaleBrokerEpoch},
		{"which was registered again elsewhere", 3, 5, ErrNotController},
		{"a broker that nobody here has heard of", 7, 5, ErrNotController},
		{"nor later", 7, 9, ErrNotController},
		{"a broker that is none, with the life of another", 7, 4, ErrStaleBrokerEpoch},
		{"without a life", 7, -1, ErrStaleBrokerEpoch},
	} {
		check := func(by string, err error) {
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%s: %s says %v, want %v", c.name, by, err, c.want)
			}
		}
		beat, _ := a.Heartbeat(Heartbeat{ID: c.id, Epoch: c.epoch}, 0)
		check("a heartbeat", beat.Err)
		alter, _ := Step(a.State(), &AlterPartitions{Broker: c.id, BrokerEpoch: c.epoch, Partitions: []AlterPartition{{ID: storage.ID{}}}})
		if c.want != nil { // else it is about the partition
			check("a change of the ISR", alter.Errs[0])
		}
		fence, _ := Step(a.State(), &Fence{ID: c.id, Epoch: c.epoch})
		check("a fence", fence.Errs[0])
	}
}

// That a life is over is said when it is committed: before, it may come to nothing.
func TestLifeEndsWithTheCommit(t *testing.T) {
	later := again(serving(t).State(), 2)
	later.Incarnation = "another"
	for name, ev := range map[string]Event{"registered again": later, "unregistered": &Unregister{ID: 2, Epoch: 2}} {
		t.Run(name, func(t *testing.T) {
			a := serving(t)
			beat := func() error {
				reply, events := a.Heartbeat(Heartbeat{ID: 2, Epoch: 2, Applied: 100}, 0)
				if reply.Err != nil && (reply != HeartbeatReply{Err: reply.Err} || len(events) > 0) {
					t.Errorf("%+v, %v", reply, events)
				}
				return reply.Err
			}
			a.Step(&Fence{ID: 2, Epoch: 2}, 0)
			a.Committed(a.State(), 99)
			if _, records := a.Step(ev, 0); len(records) == 0 {
				t.Fatal("nothing was decided")
			}
			if err := beat(); !errors.Is(err, ErrNotController) || errors.Is(err, ErrStaleBrokerEpoch) {
				t.Errorf("while it is under way: %v", err)
			}
			a.Committed(a.State(), 100)
			if err := beat(); !errors.Is(err, ErrStaleBrokerEpoch) {
				t.Errorf("when it is committed: %v", err)
			}
		})
	}
}

// A broker that has said its last word does not come back in that life: what it said
// before may come after it.
func TestLastWord(t *testing.T) {
	a := serving(t)
	_, events := a.Heartbeat(Heartbeat{ID: 2, Epoch: 2, Applied: 100, WantFence: true, WantShutDown: true}, 0)
	if len(events) != 1 {
		t.Fatalf("decided: %v", events)
	}
	a.Step(events[0], 0)
	a.Committed(a.State(), 99)
	reply, events := a.Heartbeat(Heartbeat{ID: 2, Epoch: 2, Applied: 100}, 0)
	if len(events) > 0 || !reply.Fenced {
		t.Errorf("a heartbeat of before: %+v, decided %v", reply, events)
	}
	later := again(a.State(), 2)
	later.Incarnation = "another"
	a.Step(later, 0)
	a.Committed(a.State(), 100)
	if _, events = a.Heartbeat(Heartbeat{ID: 2, Epoch: 3, Applied: 100}, 0); len(events) != 1 {
		t.Errorf("the next life: decided %v", events)
	}
}

// What is committed of a former life says nothing about the one that follows it.
func TestLifeIsKnownByItsCommit(t *testing.T) {
	a := serving(t)
	a.Step(&Fence{ID: 2, Epoch: 2}, 0)
	a.Committed(a.State(), 98)
	before := a.State()
	later := again(before, 2)
	later.Incarnation = "another"
	a.Step(later, 0)
	a.Committed(before, 99)
	if reply, _ := a.Heartbeat(Heartbeat{ID: 2, Epoch: 3, Applied: 100}, 0); reply.CaughtUp {
		t.Error("it knows of a registration that is not committed")
	}
	a.Committed(a.State(), 100)
	if reply, _ := a.Heartbeat(Heartbeat{ID: 2, Epoch: 3, Applied: 100}, 0); !reply.CaughtUp {
		t.Error("it does not know of one that is")
	}
}
