package replication

import (
	"cmp"
	"slices"
)

// Waiters lists by the high watermark that they wait for who waits for a
// replica: levels by target, the lowest first, so that a rise finds its waiters
// without looking at others, and a thousand who wait for the same record cost
// one entry. It belongs to the replica's owner, under the same lock. Its size is
// bounded by what the owner lets wait.
//
// Whoever is taken out must be told with no lock held (KAFKA-13254), and looks
// at Committed or reads anew. Reached is due whenever Rose or Resigned is said.
type Waiters[W any] struct{ levels []*level[W] }

// Place is a waiter's entry in the list of one replica. It belongs to the list
// while it is parked, and to the waiter once it was taken out.
type Place[W any] struct {
	// Waiter is whose place it is.
	Waiter W
	// Index says to the waiter which of its places this is.
	Index int32
	// Next is for the waiter's use, while the place is not parked.
	Next *Place[W]

	level *level[W]
	prev  *Place[W]
}

// level is the places that wait for one offset.
type level[W any] struct {
	target int64
	first  *Place[W]
	// reached says that the level has left the list, with all its places.
	reached bool
	next    *level[W] // among those that were reached
}

func (ws *Waiters[W]) find(target int64) (int, bool) {
	return slices.BinarySearchFunc(ws.levels, target, func(l *level[W], target int64) int { return cmp.Compare(l.target, target) })
}

// Add parks a place until the high watermark is at least target.
func (ws *Waiters[W]) Add(pl *Place[W], target int64) {
	i, ok := ws.find(target)
	if !ok {
		ws.levels = slices.Insert(ws.levels, i, &level[W]{target: target})
	}
	l := ws.levels[i]
	pl.level, pl.prev, pl.Next = l, nil, l.first
	if l.first != nil {
		l.first.prev = pl
	}
	l.first = pl
}

// Remove takes a place out, and reports whether it was there: if not, it was
// reached.
func (ws *Waiters[W]) Remove(pl *Place[W]) bool {
	l := pl.level
	if l == nil || l.reached {
		return false
	}
	if pl.prev != nil {
		pl.prev.Next = pl.Next
	} else {
		l.first = pl.Next
	}
	if pl.Next != nil {
		pl.Next.prev = pl.prev
	}
	pl.level, pl.prev, pl.Next = nil, nil, nil
	if l.first == nil {
		i, _ := ws.find(l.target)
		ws.levels = slices.Delete(ws.levels, i, i+1)
	}
	return true
}

// Reached takes out those whose target is at most hw.
func (ws *Waiters[W]) Reached(hw int64) Reached[W] {
	n := 0
	for n < len(ws.levels) && ws.levels[n].target <= hw {
		ws.levels[n].reached = true
		n++
	}
	if n == 0 {
		return Reached[W]{}
	}
	for i := range n - 1 {
		ws.levels[i].next = ws.levels[i+1]
	}
	first := ws.levels[0]
	ws.levels = slices.Delete(ws.levels, 0, n)
	return Reached[W]{first: first}
}

// Reached is the places that a rise has taken out.
type Reached[W any] struct{ first *level[W] }

// Each hands every place to tell. A place may be parked again at once, so nothing
// is looked at after it was told.
func (r Reached[W]) Each(tell func(*Place[W])) {
	for l := r.first; l != nil; {
		pl, next := l.first, l.next
		l.first, l.next = nil, nil
		for pl != nil {
			after := pl.Next
			tell(pl)
			pl = after
		}
		l = next
	}
}
