package storage

import (
	"fmt"
	"math"

	"leat/storage/record"
)

// Append is one batch to append.
type Append struct {
	// Batch is patched in place: base offset, leader epoch, and where the
	// topic's rules ask for it the timestamps and the checksum. It must not
	// change before Append returns; the log keeps no reference to it.
	Batch record.Batch
	// Epoch is the leader epoch that the batch gets.
	Epoch int32
	// Trusted says that Leat built the batch itself, checksum included: only
	// its size and the timestamps in its header are checked.
	Trusted bool
	// Essential says that the server itself needs the batch stored: it is taken
	// from the reserve where clients' batches are refused for lack of room.
	Essential bool
}

// Appended says where a batch went.
type Appended struct {
	Base, Last int64 // offsets of its first and last record
	Start      int64 // the log's start
	Timestamp  int64 // the log append time in Unix ms, -1 if records keep their own
	Duplicate  bool  // nothing was appended: the offsets are of the first time
}

// Append appends one batch and returns when it is in the page cache; it never
// waits for a sync. Appends to one log are written in the order of their
// offsets; those that come while another is being written share one write.
//
// Errors: *record.Error for what the batch's content does wrong,
// *TooLargeError, record.ErrTimestamp, ErrOutOfOrderSequence,
// ErrProducerEpoch; ErrFull, also while the disk is nearly full, and ErrWrite after which the log is as it was;
// ErrFailed; ErrDamaged; ErrClosed. After any error nothing was appended.
func (l *Log) Append(a Append) (Appended, error) {
	if err := l.dir.room.admit(int64(len(a.Batch)), a.Essential); err != nil {
		return Appended{}, err
	}
	cfg := l.config.Load()
	stamp, err := l.prepare(a, cfg)
	if err != nil {
		return Appended{}, err
	}
	if !l.enter() {
		return Appended{}, ErrClosed
	}
	defer l.leave()
	p := &pending{Append: a, cfg: cfg, stamp: stamp}
	if l.queue.join(p) || <-p.turn {
		l.lead(p)
	}
	if p.err != nil || p.done.Duplicate {
		return p.done, p.err
	}
	l.dir.metrics.bytes.Add(float64(len(a.Batch)))
	l.dir.metrics.batches.Inc()
	l.dir.keeper.appended(len(a.Batch))
	l.dir.flusher.touch(l, cfg)
	return p.done, nil
}

// prepare checks the batch and sets its timestamps, all without a lock. It
// returns the log append time, -1 if records keep their own.
func (l *Log) prepare(a Append, cfg *Config) (stamp int64, err error) {
	b := a.Batch
	if len(b) < record.HeaderSize || b.Size() != len(b) {
		return 0, &record.Error{Kind: record.ErrCorrupt, Record: -1, Reason: fmt.Sprintf("%d bytes are not one whole batch", len(b))}
	}
	if len(b) > cfg.MaxBatchBytes {
		return 0, &TooLargeError{Size: len(b), Max: cfg.MaxBatchBytes}
	}
	sum := record.Summary{MinTimestamp: b.BaseTimestamp(), MaxTimestamp: b.MaxTimestamp()}
	if a.Trusted && b.ProducerID() >= 0 {
		sum.MinTimestamp = -1 // the base is the time of the first try, which may be long ago
	}
	switch {
	case a.Trusted:
	case cfg.HeaderOnly && !cfg.RequireKeys:
		if err := record.CheckHeader(b); err != nil {
			return 0, err
		}
		if err := b.VerifyCRC(); err != nil {
			return 0, err
		}
	default:
		sum, err = record.Check(b, record.Limits{MaxExpanded: cfg.MaxExpandedBytes, RequireKeys: cfg.RequireKeys})
		if err != nil {
			return 0, err
		}
	}
	now := l.dir.opts.Now().UnixMilli()
	if cfg.LogAppendTime {
		stamp = l.nextStamp(now)
		b.SetMaxTimestamp(stamp, true)
		return stamp, nil
	}
	if err := checkTimes(sum, now, cfg); err != nil {
		return 0, err
	}
	// Some clients leave the header's maximum unset; lookups by time and
	// retention rely on it.
	if sum.MaxTimestamp != b.MaxTimestamp() {
		b.SetMaxTimestamp(sum.MaxTimestamp, false)
	}
	return -1, nil
}

// nextStamp is now, or the newest stamp given before if the clock went back.
func (l *Log) nextStamp(now int64) int64 {
	for {
		last := l.stamp.Load()
		if now <= last {
			return last
		}
		if l.stamp.CompareAndSwap(last, now) {
			return now
		}
	}
}

// checkTimes applies the topic's bounds to the timestamps of a batch (KIP-937).
// -1 means that a record has none and is always allowed.
func checkTimes(sum record.Summary, now int64, cfg *Config) error {
	fault := func(format string, args ...any) error {
		return &record.Error{Kind: record.ErrTimestamp, Record: -1, Reason: fmt.Sprintf(format, args...)}
	}
	if sum.MinTimestamp < -1 {
		return fault("timestamp %d is negative", sum.MinTimestamp)
	}
	if latest := saturate(now, cfg.TimestampAfter.Milliseconds()); sum.MaxTimestamp > latest {
		return fault("timestamp %d is more than %v after the broker's clock", sum.MaxTimestamp, cfg.TimestampAfter)
	}
	if earliest := now - cfg.TimestampBefore.Milliseconds(); sum.MinTimestamp >= 0 && sum.MinTimestamp < earliest {
		return fault("timestamp %d is more than %v before the broker's clock", sum.MinTimestamp, cfg.TimestampBefore)
	}
	return nil
}

// saturate is a+b for b >= 0, or the largest int64.
func saturate(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
