package storage

import (
	"errors"
	"fmt"
	"leat/storage/record"
	"math"
	"syscall"
	"time"
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
}

// Appended says where a batch went.
type Appended struct {
	Base, Last int64 // offsets of its first and last record
	Start      int64 // the log's start
	Timestamp  int64 // the log append time in Unix ms, -1 if records keep their own
	Duplicate  bool  // nothing was appended: the offsets are of the first time
}

// Append appends one batch and returns when it is in the page cache; it never
// waits for a sync. Appends to one log are written one after the other in the
// order of their offsets.
//
// Errors: *record.Error for what the batch's content does wrong,
// *TooLargeError, record.ErrTimestamp, ErrOutOfOrderSequence,
// ErrProducerEpoch; ErrFull and ErrWrite after which the log is as it was;
// ErrFailed; ErrClosed. After any error nothing was appended.
func (l *Log) Append(a Append) (Appended, error) {
	cfg := l.config.Load()
	stamp, err := l.prepare(a, cfg)
	if err != nil {
		return Appended{}, err
	}
	if !l.enter() {
		return Appended{}, ErrClosed
	}
	defer l.leave()
	done, fatal, err := l.write(a, cfg, stamp)
	if fatal != nil {
		l.dir.fail(fatal)
	}
	if err != nil || done.Duplicate {
		return done, err
	}
	l.dir.metrics.bytes.Add(float64(len(a.Batch)))
	l.dir.metrics.batches.Inc()
	l.dir.keeper.appended(len(a.Batch))
	l.dir.flusher.touch(l, cfg)
	return done, nil
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

// write appends a batch that was checked. fatal is for the directory: it is
// handed up because no lock may be held when the directory fails.
func (l *Log) write(a Append, cfg *Config, stamp int64) (done Appended, fatal, err error) {
	b := a.Batch
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.dir.Failed(); err != nil {
		return Appended{}, nil, err
	}
	if l.dir.closing.Load() {
		return Appended{}, nil, ErrClosed
	}
	now := l.dir.opts.Now()
	seq := sequence{
		pid: b.ProducerID(), epoch: b.ProducerEpoch(), first: b.BaseSequence(), last: b.LastSequence(), timestamp: stamp,
	}
	v, err := l.writing.producers.check(seq, now)
	if err != nil {
		return Appended{}, nil, err
	}
	if v.duplicate {
		return Appended{Base: v.base, Last: v.last, Start: l.Offsets().Start, Timestamp: v.timestamp, Duplicate: true}, nil, nil
	}
	seg, err := l.place(b, cfg, now)
	if err != nil {
		return Appended{}, nil, err
	}
	b.SetBaseOffset(seg.next)
	b.SetLeaderEpoch(a.Epoch)
	h, fatal, err := l.store(seg, b, cfg, now)
	if err != nil {
		return Appended{}, fatal, err
	}
	seq.base, seq.lastOffset = b.BaseOffset(), b.LastOffset()
	l.writing.producers.record(seq, now)
	start := l.publish(seg, b, h, cfg, now)
	return Appended{Base: seq.base, Last: seq.lastOffset, Start: start, Timestamp: stamp}, nil, nil
}

// place returns the segment for b, a new one if the active one must end first.
// Only the holder of writing changes a segment's numbers, so they are read
// here without mu.
func (l *Log) place(b record.Batch, cfg *Config, now time.Time) (*segment, error) {
	l.mu.RLock()
	seg := l.activeLocked()
	l.mu.RUnlock()
	if seg.next > math.MaxInt64-int64(b.LastOffsetDelta())-1 {
		return nil, fmt.Errorf("append at offset %d: %w: no offsets are left", seg.next, ErrFull)
	}
	if shouldRoll(&seg.tail, seg.firstAppend, int64(len(b)), int64(b.LastOffsetDelta()), now.UnixMilli(), cfg) {
		return l.roll(seg)
	}
	return seg, nil
}

// store writes b behind the segment's last batch. If that fails the file is
// cut back; if that fails, too, the error is fatal.
func (l *Log) store(seg *segment, b record.Batch, cfg *Config, now time.Time) (h *handle, fatal, err error) {
	h, err = l.dir.files.acquire(seg)
	if err != nil {
		return nil, nil, writeError(seg, err)
	}
	if cfg.syncEach() {
		l.dir.preallocate(seg, h, int64(len(b)), cfg, now.UnixMilli())
	}
	if _, err = h.WriteAt(b, seg.size); err == nil {
		if grown := seg.size + int64(len(b)) - seg.allocated; grown > 0 {
			seg.allocated += grown
			l.dir.slack.Add(grown)
		}
		l.dir.slack.Add(-int64(len(b)))
		return h, nil, nil
	}
	err = writeError(seg, err)
	if undo := h.Truncate(seg.size); undo != nil {
		fatal = fmt.Errorf("undo the append to %s: %w", seg.logPath(), undo)
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	} else {
		l.dir.slack.Add(seg.size - seg.allocated)
		seg.allocated = seg.size
	}
	l.dir.files.release(h)
	return nil, fatal, err
}

// publish makes the batch visible and hands h over to the segment until the
// next sync. It returns the log's start.
func (l *Log) publish(seg *segment, b record.Batch, h *handle, cfg *Config, now time.Time) (start int64) {
	l.mu.Lock()
	l.mu.recent.add(point{offset: b.BaseOffset(), pos: seg.size})
	seg.extend(b, cfg.IndexInterval)
	seg.lastAppend = now.UnixMilli()
	if seg.firstAppend == 0 {
		seg.firstAppend = seg.lastAppend
	}
	if seg.pin == nil {
		seg.pin, h = h, nil
	}
	if !cfg.syncEach() {
		if l.mu.lazy.records == 0 {
			l.mu.lazySince = l.dir.clock()
		}
		l.mu.lazy.bytes += int64(len(b))
		l.mu.lazy.records += int64(b.LastOffsetDelta()) + 1
		l.dir.flusher.lazyBytes.Add(int64(len(b)))
	}
	l.mu.end = seg.next
	l.mu.epoch = b.LeaderEpoch()
	l.mu.changed = true
	start = l.mu.start
	l.mu.Unlock()
	l.dir.files.release(h)
	return start
}

// writeError tells a full disk from other refusals.
func writeError(seg *segment, err error) error {
	kind := ErrWrite
	if noSpace(err) {
		kind = ErrFull
	}
	return fmt.Errorf("append to %s: %w: %w", seg.logPath(), kind, err)
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
