package group

import (
	"errors"
	"testing"
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
