package storage

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/storage/record"
)

// Errors of idempotent producers (KIP-98, KIP-360).
var (
	// ErrOutOfOrderSequence says that a batch does not follow the producer's
	// last one: something between them is missing, or it is too old a retry
	// to be recognised (Kafka code 45).
	ErrOutOfOrderSequence = errors.New("out of order sequence number")
	// ErrProducerEpoch says that a newer incarnation of the producer has
	// written (Kafka code 47).
	ErrProducerEpoch = errors.New("producer epoch is stale")
)

const (
	// producerWindow is how many batches of a producer are remembered: as
	// many as a client may have in flight (max.in.flight.requests = 5).
	producerWindow = 5
	// maxProducers bounds the producers remembered for one partition. Beyond
	// it the one that has not written for the longest time is forgotten, as
	// if it had expired: its next batch is accepted whatever its sequence,
	// and a retry of its last ones is written twice.
	maxProducers = 65_536
	// defaultProducerExpiration is producer.id.expiration.ms.
	defaultProducerExpiration = 24 * time.Hour
)

// sequence is what the producer state needs of a batch. A batch without a
// producer has pid < 0; a control batch has first < 0.
type sequence struct {
	pid              int64
	epoch            int16
	first, last      int32 // last wraps from 2^31-1 to 0
	base, lastOffset int64
	timestamp        int64 // answered to the producer: -1, or the log append time
	// stamp is the base timestamp, -1 if it is not known: of batches that Leat
	// builds for a producer or a keyed request, when that was first tried.
	stamp int64
}

// sequenceOf is that of a batch, whose log append time is given.
func sequenceOf(b record.Batch, timestamp int64) sequence {
	s := sequence{
		pid: b.ProducerID(), epoch: b.ProducerEpoch(), first: b.BaseSequence(), last: b.LastSequence(),
		base: b.BaseOffset(), lastOffset: b.LastOffset(), timestamp: timestamp, stamp: max(b.BaseTimestamp(), -1),
	}
	if _, has := b.DeleteHorizon(); has {
		s.stamp = -1 // the horizon has its place
	}
	return s
}

// keyed says that the batch is of a request with an idempotency key.
func (s *sequence) keyed() bool { return s.pid >= FirstKeyID }

// verdict is what to do with a batch that is in order: append it, or answer
// a duplicate with what was answered to the original.
type verdict struct {
	duplicate  bool
	base, last int64
	timestamp  int64
}

// producers is the idempotence state of one partition: a pure fold over the
// batches of its log. Not safe for concurrent use; the log's lock guards it.
type producers struct {
	expiration time.Duration
	limit      int
	byID       map[int64]*list.Element // of *producer
	byAge      *list.List              // least recent write first
}

type producer struct {
	id        int64
	epoch     int16
	lastWrite time.Time
	count     int                      // of window
	window    [producerWindow]sequence // oldest first
}

// newProducers makes an empty state. Zero means the default for both.
func newProducers(expiration time.Duration, limit int) *producers {
	p := &producers{limit: limit, byID: make(map[int64]*list.Element), byAge: list.New()}
	if p.limit <= 0 {
		p.limit = maxProducers
	}
	p.setExpiration(expiration)
	return p
}

// setExpiration changes how long a producer is remembered after its last
// write, by the broker's clock (a client's timestamps may be anything).
func (p *producers) setExpiration(d time.Duration) {
	if d <= 0 {
		d = defaultProducerExpiration
	}
	p.expiration = d
}

// check judges a batch that is about to be appended; s needs no offsets. It
// changes nothing. The error is ErrOutOfOrderSequence or ErrProducerEpoch.
func (p *producers) check(s sequence, now time.Time) (verdict, error) {
	if s.pid < 0 {
		return verdict{}, nil
	}
	e := p.byID[s.pid]
	if e == nil {
		return verdict{}, nil
	}
	// Unknown producers may start anywhere: expiry and retention forget
	// producers that are still alive.
	known := e.Value.(*producer)
	if p.expired(known, now) {
		return verdict{}, nil
	}
	if s.epoch < known.epoch {
		return verdict{}, fmt.Errorf("%w: producer %d has epoch %d, the batch %d",
			ErrProducerEpoch, s.pid, known.epoch, s.epoch)
	}
	if s.first < 0 {
		return verdict{}, nil
	}
	next := int32(0)
	if s.epoch == known.epoch {
		for _, b := range known.window[:known.count] {
			if b.first == s.first && b.last == s.last {
				return verdict{duplicate: true, base: b.base, last: b.lastOffset, timestamp: b.timestamp}, nil
			}
		}
		next = known.next()
	}
	if s.first != next {
		return verdict{}, fmt.Errorf("%w: producer %d, epoch %d: got %d, want %d",
			ErrOutOfOrderSequence, s.pid, s.epoch, s.first, next)
	}
	return verdict{}, nil
}

// record folds in a batch that was appended; s has its offsets.
func (p *producers) record(s sequence, now time.Time) {
	if s.pid < 0 {
		return
	}
	p.forget(now) // an expired producer starts afresh
	// byAge stays in order even when the clock goes back.
	written := now
	if newest := p.byAge.Back(); newest != nil && newest.Value.(*producer).lastWrite.After(now) {
		written = newest.Value.(*producer).lastWrite
	}
	e := p.byID[s.pid]
	if e == nil {
		e = p.byAge.PushBack(&producer{id: s.pid, epoch: s.epoch})
		p.byID[s.pid] = e
	}
	known := e.Value.(*producer)
	if s.epoch != known.epoch {
		known.epoch, known.count = s.epoch, 0
	}
	if s.first >= 0 {
		if known.count == producerWindow {
			copy(known.window[:], known.window[1:])
			known.count--
		}
		known.window[known.count] = s
		known.count++
	}
	known.lastWrite = written
	p.byAge.MoveToBack(e)
	p.forget(now)
}

// remembers says whether the batch with that base offset is one that a retry by
// the producer would be compared with.
func (p *producers) remembers(pid, base int64) bool {
	e := p.byID[pid]
	if e == nil {
		return false
	}
	known := e.Value.(*producer)
	return slices.ContainsFunc(known.window[:known.count], func(b sequence) bool { return b.base == base })
}

// forget drops the expired and those over the limit.
func (p *producers) forget(now time.Time) {
	for e := p.byAge.Front(); e != nil; e = p.byAge.Front() {
		oldest := e.Value.(*producer)
		if len(p.byID) <= p.limit && !p.expired(oldest, now) {
			return
		}
		p.byAge.Remove(e)
		delete(p.byID, oldest.id)
	}
}

func (p *producers) expired(known *producer, now time.Time) bool {
	return now.Sub(known.lastWrite) >= p.expiration
}

// next is the sequence that follows the producer's last batch; 0 if the epoch
// has none yet.
func (k *producer) next() int32 {
	if k.count == 0 {
		return 0
	}
	if last := k.window[k.count-1].last; last != 1<<31-1 {
		return last + 1
	}
	return 0
}

// Producer is what a log knows of one idempotent producer.
type Producer struct {
	ID    int64
	Epoch int16
	// LastSequence is that of the last record, -1 if the epoch has none yet.
	LastSequence int32
	// LastWrite is when the broker last took a batch, by its own clock.
	LastWrite time.Time
}

// list returns those that have not expired, least recent write first.
func (p *producers) list(now time.Time) []Producer {
	out := make([]Producer, 0, len(p.byID))
	for e := p.byAge.Front(); e != nil; e = e.Next() {
		k := e.Value.(*producer)
		if p.expired(k, now) {
			continue
		}
		last := int32(-1)
		if k.count > 0 {
			last = k.window[k.count-1].last
		}
		out = append(out, Producer{ID: k.id, Epoch: k.epoch, LastSequence: last, LastWrite: k.lastWrite})
	}
	return out
}

// Producers returns the idempotent producers that the log remembers, at most
// 65,536, least recent write first.
func (l *Log) Producers() []Producer {
	now := l.dir.opts.Now()
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.writing.producers.list(now)
}

// CheckProducer returns ErrProducerEpoch if the log knows of a newer epoch of an
// idempotent producer.
func (l *Log) CheckProducer(id int64, epoch int16) error {
	now := l.dir.opts.Now()
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.writing.producers.check(sequence{pid: id, epoch: epoch, first: -1}, now)
	return err
}

// ProducerBatches returns the batches of an idempotent producer by which the log
// knows a retry, oldest first: the last five of the epoch, nothing if it knows
// another epoch or has forgotten the producer. The stamps are their base
// timestamps, -1 where that is not known any more.
func (l *Log) ProducerBatches(id int64, epoch int16) (batches []Written, stamps []int64) {
	now := l.dir.opts.Now()
	l.writing.Lock()
	defer l.writing.Unlock()
	e := l.writing.producers.byID[id]
	if e == nil {
		return nil, nil
	}
	known := e.Value.(*producer)
	if known.epoch != epoch || l.writing.producers.expired(known, now) {
		return nil, nil
	}
	for _, b := range known.window[:known.count] {
		batches = append(batches, Written{First: b.first, Last: b.last, Base: b.base, Timestamp: b.timestamp})
		stamps = append(stamps, b.stamp)
	}
	return batches, stamps
}
