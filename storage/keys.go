package storage

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// FirstKeyID is the least producer id that stands for the idempotency key of a
// request. All from there on do, and no producer is given one.
const FirstKeyID int64 = 1 << 62

// ErrKeyReused says that another request has the same idempotency key.
var ErrKeyReused = errors.New("idempotency key was used for another request")

const (
	defaultKeyRetention = 10 * time.Minute
	defaultMaxKeys      = 100_000
	// maxKeys bounds Config.MaxKeys, and so the size of a snapshot.
	maxKeys = 1_000_000
	// batchesPerKey and fewBatches bound the batches that are remembered of the
	// keys of a topic: so many for each key that there may be, and never less
	// than so many.
	batchesPerKey = 4
	fewBatches    = 200_000
)

// Written is a batch of a producer or of a keyed request that is in the log.
type Written struct {
	// First and Last are the sequence numbers of its first and last record. They
	// count from 0 in each partition and wrap from 2^31-1 to 0.
	First, Last int32
	// Base is the offset of its first record.
	Base int64
	// Timestamp is the log append time in Unix ms, -1 if records keep their own.
	Timestamp int64
}

// Count is the number of records.
func (w Written) Count() int { return int((w.Last-w.First)&maxSequence) + 1 }

// Holds reports whether one of the records has the sequence number.
func (w Written) Holds(sequence int32) bool {
	return (sequence-w.First)&maxSequence <= (w.Last-w.First)&maxSequence
}

const maxSequence = 1<<31 - 1

// KeyedRequest is what a log knows of a request that had an idempotency key.
type KeyedRequest struct {
	// Epoch tells the request from others with the same key.
	Epoch int16
	// Stamp is when the request was first tried, in Unix ms, -1 if that is not
	// known any more. Its batches have it for their base timestamp.
	Stamp int64
	// Written are its batches in this log, in the order of their sequence
	// numbers. There are gaps where some were not written, or are not known.
	Written []Written
}

// keyring is what the logs of one topic know of keyed requests, in one list, so
// that the topic's bound pushes out the oldest wherever they are. It is safe for
// concurrent use; its lock is the last to be taken.
type keyring struct {
	mu             sync.Mutex
	retention      time.Duration
	limit          int
	count, batches int
	oldest, newest *keyEntry
	logs           int // that are open; guarded by the directory's mu
}

// keys are those of one log: a pure fold over its batches, but for what the
// bound of the topic pushes out. The ring's mu guards them.
type keys struct {
	ring *keyring
	byID map[int64]*keyEntry
}

// keyEntry is a keyed request in one log.
type keyEntry struct {
	owner        *keys
	older, newer *keyEntry
	id           int64
	written      time.Time
	stamp        int64
	batches      []Written
	epoch        int16
}

// newKeyring makes an empty one. Zero means the default for both.
func newKeyring(retention time.Duration, limit int) *keyring {
	r := &keyring{}
	r.configure(retention, limit)
	return r
}

// configure sets the bounds: how long a key is remembered after the request was
// first tried, by the broker's clock, and how many there may be.
func (r *keyring) configure(retention time.Duration, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retention = orElse(retention, defaultKeyRetention)
	r.limit = min(orElse(limit, defaultMaxKeys), maxKeys)
}

func newKeys(r *keyring) *keys { return &keys{ring: r, byID: map[int64]*keyEntry{}} }

// find returns the entry of a key that has not expired, or nil. mu must be held.
func (k *keys) find(id int64, now time.Time) *keyEntry {
	e := k.byID[id]
	if e == nil || k.ring.expired(e, now) {
		return nil
	}
	return e
}

func (r *keyring) expired(e *keyEntry, now time.Time) bool { return now.Sub(e.written) >= r.retention }

// check judges a batch that is about to be appended, and changes nothing. Any
// sequence will do that was not written: who retries writes what is missing.
func (k *keys) check(s sequence, now time.Time) (verdict, error) {
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	e := k.find(s.pid, now)
	if e == nil {
		return verdict{}, nil
	}
	if e.epoch != s.epoch {
		return verdict{}, ErrKeyReused
	}
	i, overlaps := e.overlaps(s)
	if !overlaps {
		return verdict{}, nil
	}
	if w := e.batches[i]; w.First == s.first && w.Last == s.last {
		return verdict{duplicate: true, base: w.Base, last: w.Base + int64(w.Last-w.First), timestamp: w.Timestamp}, nil
	}
	return verdict{}, fmt.Errorf("%w: keyed request: %d to %d were written in part", ErrOutOfOrderSequence, s.first, s.last)
}

// overlaps finds the first batch that ends at or behind s, and says whether it
// has records of it.
func (e *keyEntry) overlaps(s sequence) (i int, overlaps bool) {
	i, _ = slices.BinarySearchFunc(e.batches, s.first, func(w Written, first int32) int { return cmp.Compare(w.Last, first) })
	return i, i < len(e.batches) && e.batches[i].First <= s.last
}

// record folds in a batch that was appended; s has its offsets. A batch that
// check would have refused says that what is known was forgotten meanwhile.
func (k *keys) record(s sequence, now time.Time) {
	if s.first < 0 || s.last < s.first {
		return // not one of ours
	}
	r := k.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	e, i := k.byID[s.pid], 0
	if e != nil {
		var overlaps bool
		if i, overlaps = e.overlaps(s); overlaps || e.epoch != s.epoch || r.expired(e, now) {
			r.drop(e)
			e, i = nil, 0
		}
	}
	if e == nil {
		e = &keyEntry{owner: k, id: s.pid, epoch: s.epoch, stamp: s.stamp, written: s.began(now)}
		if r.expired(e, now) {
			return
		}
		// The list stays in order even when the clock goes back.
		if r.newest != nil && r.newest.written.After(e.written) {
			e.written = r.newest.written
		}
		k.byID[s.pid] = e
		r.push(e)
	}
	e.batches = slices.Insert(e.batches, i, Written{First: s.first, Last: s.last, Base: s.base, Timestamp: s.timestamp})
	r.batches++
	r.forget(now)
}

// began is when the keyed request of the batch was first tried: not after now.
func (s sequence) began(now time.Time) time.Time {
	if s.stamp < 0 {
		return now
	}
	return now.Add(min(time.UnixMilli(s.stamp).Sub(now), 0))
}

// push adds an entry that is the newest. mu must be held, as for all below.
func (r *keyring) push(e *keyEntry) {
	e.older, e.newer = r.newest, nil
	if r.newest == nil {
		r.oldest = e
	} else {
		r.newest.newer = e
	}
	r.newest = e
	r.count++
}

// drop forgets an entry.
func (r *keyring) drop(e *keyEntry) {
	if e.older == nil {
		r.oldest = e.newer
	} else {
		e.older.newer = e.newer
	}
	if e.newer == nil {
		r.newest = e.older
	} else {
		e.newer.older = e.older
	}
	r.count--
	r.batches -= len(e.batches)
	delete(e.owner.byID, e.id)
}

// forget drops the expired and those over the bounds. The newest stays, however
// many batches it has.
func (r *keyring) forget(now time.Time) {
	most := max(batchesPerKey*r.limit, fewBatches)
	for e := r.oldest; e != nil; e = r.oldest {
		over := r.count > r.limit || r.batches > most && r.count > 1
		if !over && !r.expired(e, now) {
			return
		}
		r.drop(e)
	}
}

// clear forgets all of a log.
func (k *keys) clear() {
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	k.clearLocked()
}

func (k *keys) clearLocked() {
	for _, e := range k.byID {
		k.ring.drop(e)
	}
}

// replace takes over what a fold has found in the place of all that was known.
// The fold must not be used after it.
func (k *keys) replace(found *keys, now time.Time) {
	r := k.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	k.clearLocked()
	at, e := r.oldest, found.ring.oldest
	for e != nil {
		next := e.newer
		for at != nil && !at.written.After(e.written) {
			at = at.newer
		}
		e.owner = k
		k.byID[e.id] = e
		r.insert(e, at)
		e = next
	}
	r.forget(now)
}

// insert adds an entry in front of another one, or as the newest.
func (r *keyring) insert(e, before *keyEntry) {
	r.batches += len(e.batches)
	if before == nil {
		r.push(e)
		return
	}
	e.newer, e.older = before, before.older
	if before.older == nil {
		r.oldest = e
	} else {
		before.older.newer = e
	}
	before.older = e
	r.count++
}

// list returns the entries of the log that have not expired, the oldest first.
func (k *keys) list(now time.Time) []*keyEntry {
	out := make([]*keyEntry, 0, len(k.byID))
	for _, e := range k.byID {
		if !k.ring.expired(e, now) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *keyEntry) int { return cmp.Or(a.written.Compare(b.written), cmp.Compare(a.id, b.id)) })
	return out
}

func (k *keys) empty() bool {
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	return len(k.byID) == 0
}

// remembers says whether the batch with that base offset is one that a retry
// would be answered with.
func (k *keys) remembers(id, base int64) bool {
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	e := k.byID[id]
	return e != nil && slices.ContainsFunc(e.batches, func(w Written) bool { return w.Base == base })
}

// KeyedRequest returns what the log knows of the request whose key has that
// producer id; false if it knows none, or none any more.
func (l *Log) KeyedRequest(id int64) (KeyedRequest, bool) {
	now := l.dir.opts.Now()
	l.keys.ring.mu.Lock()
	defer l.keys.ring.mu.Unlock()
	e := l.keys.find(id, now)
	if e == nil {
		return KeyedRequest{}, false
	}
	return KeyedRequest{Epoch: e.epoch, Stamp: e.stamp, Written: slices.Clone(e.batches)}, true
}

// Keys is the number of idempotency keys that the log remembers.
func (l *Log) Keys() int {
	l.keys.ring.mu.Lock()
	defer l.keys.ring.mu.Unlock()
	return len(l.keys.byID)
}

// keyringFor is the ring of a topic's logs, for one more of them. The
// directory's mu must be held.
func (d *Dir) keyringFor(topic TopicID, cfg *Config) *keyring {
	r := d.mu.keyrings[topic]
	if r == nil {
		r = newKeyring(cfg.KeyRetention, cfg.MaxKeys)
		d.mu.keyrings[topic] = r
	}
	r.logs++
	return r
}

// leaveKeyring takes a log out that is closed, or was not opened. The
// directory's mu must be held.
func (d *Dir) leaveKeyring(topic TopicID) {
	r := d.mu.keyrings[topic]
	if r.logs--; r.logs == 0 {
		delete(d.mu.keyrings, topic)
	}
}
