// Package quorumtest has a quorum.Store in memory that can crash, for the tests of
// replication/quorum and for the simulator. Nothing but tests imports it.
package quorumtest

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"leat/replication/quorum"
)

// ErrLost is what Save says when the process is gone.
var ErrLost = errors.New("the process ended")

// Store is a quorum.Store in memory. What was saved without a sync is lost in a
// Crash, from some save on. It is not safe for concurrent use.
type Store struct {
	keys map[string][]byte
	undo []saved // the saves without a sync, the oldest first
	now  state
	// Fault, if it is not nil, is asked before each Save; its error is Save's.
	// Then nothing of the Write is kept, or all of it if kept is true.
	Fault func(w quorum.Write) (kept bool, err error)
	saves int
}

// state is what observers want to know without decoding.
type state struct{ term, vote, last uint64 }

type saved struct {
	before state
	old    []pair // in reverse
}

type pair struct {
	key   string
	value []byte // nil: it was not there
}

// NewStore makes an empty one.
func NewStore() *Store { return &Store{keys: map[string][]byte{}} }

// Get implements quorum.Store.
func (s *Store) Get(key []byte) ([]byte, error) {
	v, ok := s.keys[string(key)]
	if !ok {
		return nil, quorum.ErrNotFound
	}
	return bytes.Clone(v), nil
}

// Scan implements quorum.Store.
func (s *Store) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, key := range s.sorted(func(key string) bool { return strings.HasPrefix(key, string(prefix)) }) {
		if err := fn([]byte(key), s.keys[key]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) sorted(want func(key string) bool) (keys []string) {
	for key := range s.keys {
		if want(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Save implements quorum.Store.
func (s *Store) Save(w quorum.Write) error {
	s.saves++
	if s.Fault != nil {
		if kept, err := s.Fault(w); err != nil {
			if kept {
				s.save(w)
			}
			return err
		}
	}
	s.save(w)
	return nil
}

func (s *Store) save(w quorum.Write) {
	s.undo = append(s.undo, saved{before: s.now})
	w.Apply((*writer)(s))
	if len(w.Changes) > 0 {
		s.now = state{w.Term, w.Vote, w.Last}
	}
	if w.Sync {
		s.undo = s.undo[:0]
	}
}

// Saves is how many times Save was called.
func (s *Store) Saves() int { return s.saves }

// Unsynced is how many saves a Crash may lose.
func (s *Store) Unsynced() int { return len(s.undo) }

// Kill is kill -9, for which what was written stays. It returns what is left.
func (s *Store) Kill() *Store {
	c := s.copy()
	c.undo = nil
	return c
}

// Crash is a power cut: the newest of the saves without a sync are lost, a random
// number of them. It returns what is left, all of it durable; s stays as it is.
func (s *Store) Crash(rng *rand.Rand) *Store { return s.Lose(rng.IntN(len(s.undo) + 1)) }

// Lose is a Crash that loses the n newest saves without a sync.
func (s *Store) Lose(n int) *Store {
	c := s.copy()
	for ; n > 0; n-- {
		last := c.undo[len(c.undo)-1]
		for _, p := range slices.Backward(last.old) {
			if p.value == nil {
				delete(c.keys, p.key)
			} else {
				c.keys[p.key] = p.value
			}
		}
		c.now = last.before
		c.undo = c.undo[:len(c.undo)-1]
	}
	c.undo = nil
	return c
}

func (s *Store) copy() *Store {
	return &Store{keys: maps.Clone(s.keys), undo: slices.Clone(s.undo), now: s.now, saves: s.saves}
}

// Durable is what a power cut cannot take: the term, the vote in it, and the last
// entry.
func (s *Store) Durable() (term, vote, last uint64) {
	now := s.now
	if len(s.undo) > 0 {
		now = s.undo[0].before
	}
	return now.term, now.vote, now.last
}

// Keys is everything in it.
func (s *Store) Keys() map[string][]byte { return maps.Clone(s.keys) }

// writer makes changes and notes how to undo them.
type writer Store

func (w *writer) note(key string) {
	u := &w.undo[len(w.undo)-1]
	u.old = append(u.old, pair{key, w.keys[key]})
}

func (w *writer) Set(key, value []byte) {
	w.note(string(key))
	w.keys[string(key)] = append(make([]byte, 0, len(value)), value...)
}

func (w *writer) Delete(key []byte) {
	if _, ok := w.keys[string(key)]; ok {
		w.note(string(key))
		delete(w.keys, string(key))
	}
}

func (w *writer) DeleteRange(from, to []byte) {
	for _, key := range (*Store)(w).sorted(func(key string) bool { return key >= string(from) && key < string(to) }) {
		w.Delete([]byte(key))
	}
}
