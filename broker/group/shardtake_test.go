package group

import (
	"errors"
	"testing"
	"time"
)

// serving is a shard that leads, with an empty log.
func serving(t *testing.T) *Shard {
	t.Helper()
	n := &node{view: newMemView(), log: &memLog{}, applied: Applied{Epoch: -1}}
	s := NewShard(n.options(&Config{}, everyTopic{}))
	if err := errors.Join(s.Check(start, n.log), s.Lead(start, 1, n.log)); err != nil {
		t.Fatal(err)
	}
	s.Next(start)
	if err := s.Serves(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A take is handed out all that is there, not only what is found first; and no batch
// is closed before the take has asked, for what that changes belongs to it.
func TestTakeAsksLast(t *testing.T) {
	s := serving(t)
	s.Take(start, 1, "g", &LeaseTake{Request: &TakeRequest{
		Topics: []TakeTopic{{ID: topicNamed("t"), Partitions: 2}}, MaxPartitions: 2, LeaseTerms: LeaseTerms{Duration: time.Minute},
	}})
	todo, more := s.Next(start)
	if len(todo.Watches) != 2 || todo.Append != nil || !more {
		t.Fatalf("at first %+v, more %t", todo, more)
	}
	for _, w := range todo.Watches {
		s.Arrived(start, w.Group, w.At)
	}
	todo, _ = s.Next(start)
	if len(todo.Answers) != 1 || todo.Append == nil {
		t.Fatalf("then %+v", todo)
	}
	if got, _ := todo.Answers[0].Value.([]Reservation); len(got) != 2 {
		t.Errorf("it is handed out %+v", got)
	}
}

// Groups whose changes were refused stay in memory no longer, those of the round that
// was being filled neither.
func TestRefusedGroupsLeave(t *testing.T) {
	s := serving(t)
	commit := func(token Token, id string) {
		s.Commit(start, token, id, MemberRef{Generation: -1}, []Change{{Group: id, Topic: "t", Offset: &Offset{Topic: topicNamed("t"), Expires: -1}}})
	}
	commit(1, "appended")
	todo, _ := s.Next(start)
	commit(2, "gathered")
	s.Appended(start, todo.Append, 0, errors.New("disk is full"))
	if todo, _ = s.Next(start); len(todo.Answers) != 2 {
		t.Errorf("%d answers", len(todo.Answers))
	}
	if got := s.Stats(); got != (ShardStats{}) {
		t.Errorf("in memory: %+v", got)
	}
}
