package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	keeperTick      = time.Second
	checkpointEvery = 5 * time.Second
	checkpointBytes = 256 << 20 // appended since the last checkpoint
)

// keeper is the one goroutine of a directory that writes what nobody waits
// for: it seals segments that have ended, writes checkpoints and what is known
// of idempotent producers, removes segments below their log's start, and ends
// segments whose time is over.
type keeper struct {
	dir  *Dir
	wake chan struct{}

	mu struct {
		sync.Mutex
		seals    []sealRequest // in the order in which the segments ended
		removals []removal
		// snapshots are logs that have one to write; each is in it once at most.
		snapshots []*Log
	}
	bytes atomic.Int64 // appended since the last checkpoint
	rolls rollTime
	// told are the troubles that pass by of which the log has a line; they are
	// forgotten when a round of work goes well. For the keeper alone.
	told map[string]bool
}

type sealRequest struct {
	log *Log
	seg *segment
}

func newKeeper(d *Dir) *keeper {
	return &keeper{dir: d, wake: make(chan struct{}, 1), told: make(map[string]bool)}
}

// appended counts appended bytes towards the next checkpoint.
func (k *keeper) appended(n int) {
	if was := k.bytes.Add(int64(n)) - int64(n); was < checkpointBytes && was+int64(n) >= checkpointBytes {
		k.signal()
	}
}

// seal asks for the segment to be sealed; requests of one log are served in
// their order.
func (k *keeper) seal(l *Log, s *segment) {
	k.mu.Lock()
	k.mu.seals = append(k.mu.seals, sealRequest{l, s})
	k.mu.Unlock()
	k.signal()
}

func (k *keeper) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends.
func (k *keeper) run(ctx context.Context) {
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	last := time.Now()
	k.dir.room.keepBallast()
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-tick.C:
			k.dir.room.keepBallast()
			k.rollOver()
			due = k.removalsDue()
		}
		if k.dir.Failed() != nil {
			continue
		}
		k.sealAll()
		k.snapshotAll()
		if due || time.Since(last) >= checkpointEvery || k.bytes.Load() >= checkpointBytes {
			last = time.Now()
			k.save()
		}
	}
}

// save writes a checkpoint, and then removes what it says is not needed.
func (k *keeper) save() {
	removals := k.covered(k.takeRemovals())
	err := k.checkpoint()
	if err != nil {
		k.complain("checkpoint was not written", err)
	}
	if err == nil {
		clear(k.told)
	}
	if err == nil || noSpace(err) && k.dir.Failed() == nil {
		k.removeAll(removals)
		return
	}
	k.mu.Lock()
	k.mu.removals = append(removals, k.mu.removals...)
	k.mu.Unlock()
}

// complain reports an error. A lack of room or of descriptors passes by and
// the work is done again later; anything else means that the disk cannot be
// trusted.
func (k *keeper) complain(msg string, err error) {
	if noDescriptors(err) || noSpace(err) && !errors.Is(err, errSync) {
		if !k.told[msg] {
			k.told[msg] = true
			k.dir.opts.Logger.Warn(msg, slog.Any("err", err)) //nolint:sloglint // msg is constant in every call
		}
		return
	}
	k.dir.fail(err)
}

// rollOver ends the segments that are old enough or of which nothing is left.
// It looks at the logs only when one may have such a segment.
func (k *keeper) rollOver() {
	now := k.dir.opts.Now()
	if !k.rolls.due(now.UnixMilli()) {
		return
	}
	for _, l := range k.dir.openLogs() {
		over, err := l.rollIfOver(now)
		if err != nil {
			over = 0 // again with the next tick
			k.dir.opts.Logger.Warn("segment whose time is over was not closed",
				slog.String("topic", l.name), slog.Int("partition", int(l.id.Partition)), slog.Any("err", err))
		}
		k.rolls.by(over)
	}
}

// sealAll seals the segments that have ended. A log whose segment cannot be
// sealed for now keeps its order: its later ones wait, too.
func (k *keeper) sealAll() {
	k.mu.Lock()
	seals := k.mu.seals
	k.mu.seals = nil
	k.mu.Unlock()
	var again []sealRequest
	blocked := make(map[*Log]bool)
	for _, r := range seals {
		if blocked[r.log] || k.dir.Failed() != nil {
			again = append(again, r)
			continue
		}
		if err := k.sealOne(r.log, r.seg); err != nil {
			blocked[r.log] = true
			again = append(again, r)
			k.complain("segment was not sealed", err)
		}
	}
	k.mu.Lock()
	k.mu.seals = append(again, k.mu.seals...)
	k.mu.Unlock()
}

// sealOne makes an ended segment durable, its name included, then its indexes
// with the header that says so. From then on nothing of the segment changes.
func (k *keeper) sealOne(l *Log, s *segment) error {
	if !l.enter() {
		return nil
	}
	defer l.leave()
	l.cutting.RLock()
	defer l.cutting.RUnlock()
	if l.wasCut(s) {
		return nil
	}
	h, err := k.dir.files.acquire(s)
	if err != nil {
		return err
	}
	defer k.dir.files.release(h)
	l.mu.RLock()
	t, head, named := s.tail, s.seal(), s.named
	l.mu.RUnlock()
	if s.allocated > t.size {
		if err := h.Truncate(t.size); err != nil {
			return fmt.Errorf("trim %s: %w", s.logPath(), err)
		}
		k.dir.slack.Add(t.size - s.allocated)
		s.allocated = t.size
	}
	if err := syncFault(s.logPath(), h.SyncData()); err != nil {
		return err
	}
	if err := k.name(l, s, named); err != nil {
		return err
	}
	if err := writeSealed(k.dir.opts.FS, s.stem, head, t.entries, t.times); err != nil {
		return err
	}
	l.mu.Lock()
	s.entries, s.times = nil, nil
	s.sealed.Store(true)
	l.mu.Unlock()
	l.shed()
	return nil
}

// wasCut says that a truncation has taken the segment, which had ended, out of
// the log.
func (l *Log) wasCut(s *segment) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return !slices.Contains(l.mu.segments, s)
}

// checkpoint writes how far each log is durable.
func (k *keeper) checkpoint() error {
	bytes := k.bytes.Load()
	var pending []*Log
	for _, l := range k.dir.openLogs() {
		ok, err := k.record(l)
		if err != nil {
			return err
		}
		if ok {
			pending = append(pending, l)
		}
	}
	if len(pending) == 0 && !k.dir.recordsChanged() {
		return nil
	}
	if err := k.dir.writeCheckpoint(); err != nil {
		for _, l := range pending {
			_ = l.stillChanged(err)
		}
		return err
	}
	k.bytes.Add(-bytes)
	k.dir.metrics.checkpoints.Inc()
	return nil
}

// stillChanged says that the next checkpoint must look at the log again, since
// this one failed with err.
func (l *Log) stillChanged(err error) error {
	l.mu.Lock()
	l.mu.changed = true
	l.mu.Unlock()
	return err
}

// name makes the segment's name durable unless it is: a segment that recovery
// has begun is part of the durable mark while it is empty and has no durable
// name yet. A checkpoint must not speak of it before, because the next start
// takes what a checkpoint speaks of for named.
func (k *keeper) name(l *Log, s *segment, named bool) error {
	if named {
		return nil
	}
	if err := syncFault(l.path, k.dir.opts.FS.SyncDir(l.path)); err != nil {
		return err
	}
	l.mu.Lock()
	s.named = true
	l.mu.Unlock()
	return nil
}

// record makes the log's line of the checkpoint, after it has written the
// index entries that the line counts; false if the log has not changed. The
// entries need no sync, because the line has their checksum.
func (k *keeper) record(l *Log) (bool, error) {
	if !l.enter() {
		return false, nil
	}
	defer l.leave()
	l.cutting.RLock()
	defer l.cutting.RUnlock()
	l.mu.Lock()
	changed := l.mu.changed
	l.mu.changed = false
	m, start := l.mu.durable, l.mu.start
	sealed, named := m.seg.sealed.Load(), m.seg.named
	t := m.seg.tail
	l.mu.Unlock()
	if !changed {
		return false, nil
	}
	if err := k.name(l, m.seg, named); err != nil {
		return false, l.stillChanged(err)
	}
	r := checkpointRecord{
		corrupt: l.fenced.Load(), logStart: start, activeBase: m.seg.base, activeGen: m.seg.gen, recoveryOffset: m.offset, recoveryPos: m.pos,
		maxTimestamp: m.maxTimestamp, lastAppendMs: m.lastAppend, logCRC: m.crc, leaderEpoch: m.epoch,
	}
	if age := (m.lastAppend - m.firstAppend) / 1000; m.firstAppend > 0 && age > 0 {
		r.activeSeconds = uint32(min(age, maxActiveSeconds))
	}
	if sealed {
		// The entries are behind the seal; should that be damaged, the
		// whole segment is scanned.
		r.recoveryPos = 0
		k.dir.setRecord(l.id, r)
		return true, nil
	}
	err := writePending(k.dir.opts.FS, m.seg, &m, t.entries[:m.entries], t.times[:m.times])
	if err != nil {
		return false, l.stillChanged(err)
	}
	w := &m.seg.written
	r.indexEntries, r.indexCRC = uint32(w.entries), w.entriesCRC
	r.timeIndexEntries, r.timeIndexCRC = uint32(w.times), w.timesCRC
	k.dir.setRecord(l.id, r)
	return true, nil
}
