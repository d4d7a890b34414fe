package group

import (
	"errors"
	"testing"
	"time"
)

// failing is a shard that leads at epoch 1, with a log of one batch that is
// committed.
func failing(t *testing.T, applied Applied) (*Shard, *memLog) {
	t.Helper()
	log := &memLog{batches: []memBatch{{0, []Change{{Group: "g"}}}}}
	n := &node{view: newMemView(), log: log, applied: applied}
	s := NewShard(n.options(&Config{}, everyTopic{}))
	if err := errors.Join(s.Check(start, log), s.Lead(start, 1, log)); err != nil {
		t.Fatal(err)
	}
	s.Committed(log.end())
	return s, log
}

// rest makes sure that the shard asks for nothing more than to be heard.
func rest(t *testing.T, s *Shard) {
	t.Helper()
	for range 5 {
		todo, ok := s.Next(start)
		if todo.Wipe || todo.Apply != nil || todo.Append != nil {
			t.Fatalf("a shard that has failed asks for %+v", todo)
		}
		if !ok {
			return
		}
	}
	t.Fatal("a shard that has failed never ends to ask")
}

// What cannot be read of the log ends the service, and is not asked for again and
// again: the owner's goroutine would never come to an end. Another leader epoch
// begins anew.
func TestShardFailsOnce(t *testing.T) {
	s, log := failing(t, Applied{Epoch: -1})
	todo, _ := s.Next(start)
	if todo.Apply == nil {
		t.Fatalf("asks for %+v", todo)
	}
	s.Did(start, todo.Apply, Applied{}, ErrDamagedLog)
	rest(t, s)
	if err := s.Serves(); !errors.Is(err, ErrNotAvailable) {
		t.Errorf("serves: %v", err)
	}
	if err := s.Lead(start, 2, log); err != nil {
		t.Fatal(err)
	}
	if todo, _ := s.Next(start); todo.Apply == nil {
		t.Errorf("in the next epoch it asks for %+v", todo)
	}
}

// A view that could not be wiped is wiped before anything is made of it.
func TestShardWipesBeforeItApplies(t *testing.T) {
	s, log := failing(t, Applied{Next: 1, Epoch: 7}) // that is not what the log has
	if todo, _ := s.Next(start); !todo.Wipe {
		t.Fatalf("asks for %+v", todo)
	}
	s.Wiped(start, errors.New("no disk"))
	rest(t, s)
	if err := s.Lead(start, 2, log); err != nil {
		t.Fatal(err)
	}
	if todo, _ := s.Next(start); !todo.Wipe || todo.Apply != nil {
		t.Errorf("in the next epoch it asks for %+v", todo)
	}
}

// An Apply that was asked for before the view was wiped counts for nothing when it
// is done after all: the view does not have what it says.
func TestShardForgetsOldApply(t *testing.T) {
	s, log := failing(t, Applied{Epoch: -1})
	todo, _ := s.Next(start)
	s.Did(start, todo.Apply, Applied{Next: 1, Epoch: 0}, nil)
	log.batches = append(log.batches, memBatch{1, []Change{{Group: "h"}}})
	s.Committed(log.end())
	todo, _ = s.Next(start)
	old := todo.Apply
	if old == nil {
		t.Fatalf("asks for %+v", todo)
	}
	other := &memLog{batches: []memBatch{{5, []Change{{Group: "i"}}}, {5, []Change{{Group: "j"}}}}}
	if err := s.Check(start, other); err != nil {
		t.Fatal(err)
	}
	s.Did(start, old, Applied{Next: old.To, Epoch: 1}, nil)
	if got, want := s.Applied(), (Applied{Epoch: -1}); got != want {
		t.Errorf("the view is taken for %+v, want %+v", got, want)
	}
	if todo, _ := s.Next(start); !todo.Wipe {
		t.Errorf("asks for %+v", todo)
	}
}

// A member of which nothing is heard after a fail-over is out when its session is
// over, though nobody asks about its group.
func TestShardWatchesMembersAfterFailover(t *testing.T) {
	log := &memLog{batches: []memBatch{{0, []Change{{Group: "g"}}}}}
	n := &node{view: newMemView(), log: log, applied: Applied{Next: 1}}
	n.view.apply([]Change{{Group: "g", Members: &Record{
		ProtocolType: "consumer", Protocol: "range", Leader: "m", Generation: 3,
		Members: []Member{{ID: "m", Session: time.Second, RebalanceTimeout: time.Second}},
	}}})
	s := NewShard(n.options(&Config{}, everyTopic{}))
	if err := errors.Join(s.Check(start, log), s.Lead(start, 1, log)); err != nil {
		t.Fatal(err)
	}
	s.Committed(log.end())
	s.Next(start)
	due, ok := s.Deadline()
	if !ok || due.Sub(start) != time.Second || s.Stats().Members != 1 {
		t.Fatalf("due at %v, %t; %+v", due, ok, s.Stats())
	}
	s.Tick(due)
	todo, _ := s.Next(due)
	if todo.Append == nil || len(todo.Append.Changes) != 1 || todo.Append.Changes[0].Members.Generation != 4 || len(todo.Append.Changes[0].Members.Members) != 0 {
		t.Errorf("asks for %+v", todo.Append)
	}
}
