package group

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// memView is a committed view in memory.
type memView struct {
	groups  map[string]*Record
	exists  map[string]bool
	offsets map[offsetAt]*Offset
	leases  map[leaseAt]*LeaseRecord
	err     error // of every read
}

type offsetAt struct {
	group, topic string
	partition    int32
}

type leaseAt struct {
	group string
	at    Partition
}

func newMemView() *memView {
	return &memView{groups: map[string]*Record{}, exists: map[string]bool{}, offsets: map[offsetAt]*Offset{}, leases: map[leaseAt]*LeaseRecord{}}
}

func (v *memView) apply(changes []Change) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.OfGroup() && c.Members == nil:
			delete(v.groups, c.Group)
			delete(v.exists, c.Group)
			continue
		case c.OfGroup():
			v.groups[c.Group] = c.Members
		case c.Topic != "" && c.Offset == nil:
			delete(v.offsets, offsetAt{c.Group, c.Topic, c.Partition})
			continue
		case c.Topic != "":
			v.offsets[offsetAt{c.Group, c.Topic, c.Partition}] = c.Offset
		case c.Lease == nil:
			delete(v.leases, leaseAt{c.Group, Partition{c.Leased, c.Partition}})
			continue
		default:
			v.leases[leaseAt{c.Group, Partition{c.Leased, c.Partition}}] = c.Lease
		}
		v.exists[c.Group] = true
	}
}

func (v *memView) Members(id string) (*Record, error) { return v.groups[id], v.err }
func (v *memView) Exists(id string) (bool, error)     { return v.exists[id], v.err }
func (v *memView) EachGroup(fn func(string) error) error {
	return each(v, v.exists, strings.Compare, func(id string, _ bool) error { return fn(id) })
}

func (v *memView) EachMembers(fn func(string, *Record) error) error {
	return each(v, v.groups, strings.Compare, fn)
}

func (v *memView) EachOffset(id string, fn func(string, int32, *Offset) error) error {
	order := func(a, b offsetAt) int {
		return cmp.Or(strings.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	}
	return each(v, v.offsets, order, func(at offsetAt, o *Offset) error {
		if at.group != id {
			return nil
		}
		return fn(at.topic, at.partition, o)
	})
}

func (v *memView) EachLease(id string, fn func(Partition, *LeaseRecord) error) error {
	order := func(a, b leaseAt) int {
		return cmp.Or(slices.Compare(a.at.Topic[:], b.at.Topic[:]), cmp.Compare(a.at.Number, b.at.Number))
	}
	return each(v, v.leases, order, func(at leaseAt, r *LeaseRecord) error {
		if at.group != id {
			return nil
		}
		return fn(at.at, r)
	})
}

func (v *memView) Offset(id, topic string, partition int32) (*Offset, error) {
	return v.offsets[offsetAt{id, topic, partition}], v.err
}

// each calls fn with what is in a map, in order.
func each[K comparable, V any](v *memView, m map[K]V, order func(a, b K) int, fn func(K, V) error) error {
	var keys []K
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, order)
	for _, k := range keys {
		if err := fn(k, m[k]); err != nil {
			return err
		}
	}
	return v.err
}

// memBatch is a batch of a log in memory.
type memBatch struct {
	epoch   int32
	changes []Change
}

// memLog is a log in memory; it begins at offset 0 unless start says more.
type memLog struct {
	batches []memBatch
	start   int64
	err     error // of EpochEnd
}

func (l *memLog) end() int64 {
	n := l.start
	for _, b := range l.batches {
		n += int64(len(b.changes))
	}
	return n
}

// Bounds is for Log.
func (l *memLog) Bounds() (start, end int64) { return l.start, l.end() }

// EpochEnd is for Log.
func (l *memLog) EpochEnd(epoch int32) (found int32, end int64, err error) {
	found, end = -1, l.start
	for _, b := range l.batches {
		if b.epoch > epoch {
			break
		}
		found, end = b.epoch, end+int64(len(b.changes))
	}
	return found, end, l.err
}

// read returns the changes of whole batches in [from, to), at most a few, and up
// to where they are.
func (l *memLog) read(from, to int64, most int) (changes []Change, upTo Applied) {
	at := l.start
	upTo = Applied{Next: from, Epoch: -1}
	for _, b := range l.batches {
		end := at + int64(len(b.changes))
		if at >= from && end <= to && most > 0 {
			changes = append(changes, b.changes...)
			upTo = Applied{Next: end, Epoch: b.epoch}
			most--
		}
		at = end
	}
	return changes, upTo
}

// cut takes batches off the end.
func (l *memLog) cut(end int64) {
	for l.end() > end {
		l.batches = l.batches[:len(l.batches)-1]
	}
}

// everyTopic is Topics of which some are gone.
type everyTopic struct{ gone map[[16]byte]bool }

func (e everyTopic) Topic(id [16]byte) (string, int32, bool) {
	return strings.TrimRight(string(id[:]), "\x00"), 100, !e.gone[id]
}

func topicNamed(name string) (id [16]byte) {
	copy(id[:], name)
	return id
}

// node is a replica of the offsets topic's partition: a shard, its view and its
// log. How its disk behaves is set by the test.
type node struct {
	shard *Shard
	view  *memView
	log   *memLog
	// applied is what the view says of itself.
	applied Applied
	// refuse is how the next append ends, if it is not nil; with lands it is in
	// the log all the same.
	refuse error
	lands  bool
	// holdAppend and holdApply keep what was asked for in asked and due.
	holdAppend, holdApply bool
	asked, late           *Append
	due                   *Apply
	noRoom                bool
	batches               int // that a read returns at most
	tell                  func(a Answer)
	trace                 func(format string, args ...any)
}

// options are the same for all nodes of tests.
func (n *node) options(cfg *Config, topics Topics) ShardOptions {
	return ShardOptions{
		Groups: cfg, Leases: &LeaseConfig{MaxWaiting: 10, Aside: time.Second, Linger: time.Minute}, MaxRounds: 2, MaxBatch: 4000,
		View: n.view, Topics: topics, Applied: n.applied,
	}
}

// drive does all that the shard asks for.
func (n *node) drive(now time.Time) {
	for {
		t, ok := n.shard.Next(now)
		if !ok {
			return
		}
		if t.Wipe {
			*n.view = *newMemView()
			n.applied = n.shard.Applied()
			n.trace("wipe")
			n.shard.Wiped(now, nil)
		}
		for _, id := range t.Unwatched {
			n.trace("%s watches nothing", id)
		}
		for _, w := range t.Watches {
			n.trace("%s watches %d from %d", w.Group, w.At.Number, w.From)
		}
		for _, a := range t.Answers {
			n.tell(a)
		}
		if t.Apply != nil {
			n.due = t.Apply
			if !n.holdApply {
				n.apply(now)
			}
		}
		if t.Append != nil {
			n.late = n.asked // nobody waits for it any more
			n.asked = t.Append
			if !n.holdAppend {
				n.append(now)
			}
		}
		for _, err := range t.Troubles {
			n.trace("trouble: %v", err)
		}
	}
}

func (n *node) append(now time.Time) {
	a := n.asked
	n.asked = nil
	base, err := n.log.end(), n.refuse
	n.refuse = nil
	if err == nil || n.lands {
		n.log.batches = append(n.log.batches, memBatch{a.Epoch, a.Changes})
	}
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		base = n.log.end()
		n.trace("append of %d: %v", len(a.Changes), err)
	case err != nil:
		n.trace("append of %d: %v", len(a.Changes), err)
	default:
		n.trace("append [%d,%d) of epoch %d: %s", base, n.log.end(), a.Epoch, showChanges(a.Changes))
	}
	n.shard.Appended(now, a, base, err)
}

// endLate tells the shard of an append that it does not wait for any more.
func (n *node) endLate(now time.Time) {
	if a := n.late; a != nil {
		n.late = nil
		n.shard.Appended(now, a, n.log.end(), nil)
	}
}

func (n *node) apply(now time.Time) {
	a := n.due
	n.due = nil
	if n.noRoom {
		n.trace("no room for [%d,%d)", a.From, a.To)
		n.shard.Did(now, a, Applied{}, ErrNoRoom)
		return
	}
	changes, to := a.Changes, Applied{Next: a.To, Epoch: a.Epoch}
	if a.Read {
		changes, to = n.log.read(a.From, a.To, n.batches)
		n.trace("read [%d,%d)", a.From, to.Next)
	} else {
		n.trace("apply [%d,%d)", a.From, a.To)
	}
	n.view.apply(changes)
	n.applied = to
	n.shard.Did(now, a, to, nil)
}

func showChanges(changes []Change) string {
	if len(changes) > 5 {
		return "many"
	}
	out := make([]string, len(changes))
	for i := range changes {
		switch c := &changes[i]; {
		case c.OfGroup() && c.Members == nil:
			out[i] = c.Group + " removed"
		case c.OfGroup():
			out[i] = fmt.Sprintf("%s generation %d", c.Group, c.Members.Generation)
		case c.Topic != "" && c.Offset == nil:
			out[i] = fmt.Sprintf("%s %s/%d removed", c.Group, c.Topic, c.Partition)
		case c.Topic != "":
			out[i] = fmt.Sprintf("%s %s/%d=%d", c.Group, c.Topic, c.Partition, c.Offset.Offset)
		default:
			out[i] = fmt.Sprintf("%s lease of %d", c.Group, c.Partition)
		}
	}
	return strings.Join(out, ", ")
}
