package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"leat/storage"
)

// compact keeps the logs of compacted topics small, one at a time and the
// dirtiest first, until the broker closes.
func (b *Broker) compact() {
	pace := newPace(func() float64 { return b.configs().float("log.cleaner.io.max.bytes.per.second") })
	var cleaner *storage.Cleaner
	var size int64
	timer := time.NewTimer(b.cleanerBackoff())
	defer timer.Stop()
	for {
		select {
		case <-b.done.Done():
			return
		case <-timer.C:
		}
		if n := b.configs().number("log.cleaner.dedupe.buffer.size"); cleaner == nil || n != size {
			size = n
			cleaner = storage.NewCleaner(storage.CleanerOptions{MapBytes: n, Pace: pace.wait})
		}
		for passed := map[*partition]bool{}; b.compactNext(cleaner, passed); {
		}
		timer.Reset(b.cleanerBackoff())
	}
}

func (b *Broker) cleanerBackoff() time.Duration {
	return max(millis(b.configs().number("log.cleaner.backoff.ms")), time.Millisecond)
}

// compactNext compacts the dirtiest log that is due and is not passed over in this
// round. It reports whether there was one, and it is worth to look for another at
// once. One that it could do nothing with is passed over, so that it does not keep
// the others from their turn.
func (b *Broker) compactNext(cleaner *storage.Cleaner, passed map[*partition]bool) (more bool) {
	if b.dir.Failed() != nil || b.done.Err() != nil || b.configs().value("log.cleaner.enable") != "true" {
		return false
	}
	p := b.dirtiest(b.opts.Now(), passed)
	if p == nil {
		return false
	}
	done, err := p.log.Compact(b.done, cleaner, b.compactTo(p))
	passed[p] = err != nil || done.To <= done.From
	switch {
	case err == nil, errors.Is(err, storage.ErrClosed), errors.Is(err, storage.ErrDamaged), b.done.Err() != nil:
	case errors.Is(err, storage.ErrCorrupt):
		p.uncleanable.Store(true)
		b.log.Error("partition cannot be compacted",
			slog.String("topic", p.topic.name), slog.Int("partition", int(p.id.Partition)), slog.Any("err", err))
	default:
		b.log.Warn("partition was not compacted, the next round tries again",
			slog.String("topic", p.topic.name), slog.Int("partition", int(p.id.Partition)), slog.Any("err", err))
	}
	// Without room it is the same with all, and each would be read for nothing.
	return !errors.Is(err, storage.ErrFull)
}

// dirtiest is the partition whose log is to be compacted next, nil if none is:
// one whose share of dirty bytes is greater than min.cleanable.dirty.ratio, or
// in which records wait longer than max.compaction.lag.ms. Those that cannot be
// compacted are passed over, and so is what is in passed.
func (b *Broker) dirtiest(now time.Time, passed map[*partition]bool) *partition {
	var next *partition
	var most, greatest float64
	for _, p := range b.partitions() {
		p.mu.Lock()
		compact, ratio, gone := p.mu.settings.log.Compact, p.mu.settings.dirtyRatio, p.mu.gone
		p.mu.Unlock()
		if !compact || gone != nil || p.skipped() {
			continue
		}
		dirt := p.log.Dirt(now, b.compactTo(p))
		greatest = max(greatest, dirt.Ratio())
		if dirt.Dirty > 0 && (dirt.Overdue || dirt.Ratio() > ratio) && !passed[p] && (next == nil || dirt.Ratio() > most) {
			next, most = p, dirt.Ratio()
		}
	}
	b.metrics.dirtyRatio.Set(greatest)
	return next
}

// compactTo is where compaction of a log ends at the latest: the watermark, and
// for the offsets topic also what the store is durable up to. A store that goes
// back to that would otherwise never hear of an offset that was removed.
func (b *Broker) compactTo(p *partition) int64 {
	hw := p.hw.Load()
	if p.topic.name != offsetsTopic {
		return hw
	}
	shards := b.groups.all()
	if int(p.id.Partition) >= len(shards) {
		return 0
	}
	return min(hw, shards[p.id.Partition].synced.Load())
}

// skipped says that compaction leaves the partition alone because it is
// damaged.
func (p *partition) skipped() bool { return p.uncleanable.Load() || p.log.Fenced() }

// uncleanable counts the compacted partitions that compaction leaves alone.
func (b *Broker) uncleanable() (n int) {
	for _, p := range b.partitions() {
		p.mu.Lock()
		compact := p.mu.settings.log.Compact
		p.mu.Unlock()
		if compact && p.skipped() {
			n++
		}
	}
	return n
}

// pace spreads bytes over time.
type pace struct {
	rate func() float64 // bytes a second
	free time.Time      // when the next bytes may move
}

func newPace(rate func() float64) *pace { return &pace{rate: rate} }

// maxWait bounds one wait, whatever the rate and the clock do.
const maxWait = 10 * time.Second

// wait returns when bytes more may move, or with ctx's error.
func (p *pace) wait(ctx context.Context, bytes int) error {
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	wait := min(p.free.Sub(now), maxWait)
	p.free = now.Add(wait + time.Duration(min(float64(bytes)/p.rate(), maxWait.Seconds())*float64(time.Second)))
	if wait < time.Millisecond {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
