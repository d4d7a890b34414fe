package broker

import (
	"log/slog"
	"time"

	"leat/storage"
)

// firstCheck is how long after the start the first check for expired records
// comes at the latest. Until then a clock that the network sets is right.
const firstCheck = 30 * time.Second

// retain removes what topics need not keep any more, time and again, until the
// broker closes.
func (b *Broker) retain() {
	timer := time.NewTimer(min(firstCheck, b.checkInterval()))
	defer timer.Stop()
	for {
		select {
		case <-b.done.Done():
			return
		case <-b.recheck:
		case <-timer.C:
		}
		b.expire()
		timer.Reset(b.checkInterval())
	}
}

func (b *Broker) checkInterval() time.Duration {
	return millis(b.configs().number("log.retention.check.interval.ms"))
}

// checkSoon has the next check come at once, because configs have changed.
func (b *Broker) checkSoon() {
	select {
	case b.recheck <- struct{}{}:
	default: // one is due already
	}
}

// expire raises the starts of all logs that have segments to let go. That they
// rose is durable first, for all in one commit.
func (b *Broker) expire() {
	if b.dir.Failed() != nil {
		return
	}
	now := b.opts.Now()
	byAge := b.dir.Steady(now)
	if len(b.expired(now, byAge)) == 0 {
		return
	}
	// With the turn no topic goes and no config changes, so it is asked again.
	if b.take(b.done, b.admin) != nil {
		return
	}
	defer b.admin.give()
	due := b.expired(now, byAge)
	starts := make(map[*partition]int64, len(due))
	for p, e := range due {
		starts[p] = e.Start
	}
	if err := b.commitStarts(starts); err != nil {
		b.log.Warn("expired records were kept, the next check tries again", slog.Any("err", err))
		return
	}
	for p, e := range due {
		if p.log.SetStart(e.Start) != nil {
			continue // it is being closed, and opens with this start again
		}
		p.topic.counts.expiredBytes.Add(e.BySize + e.ByAge)
		b.log.Info("expired records were removed", slog.String("topic", p.topic.name), slog.Int("partition", int(p.id.Partition)),
			slog.Int64("log_start_offset", e.Start), slog.Int64("bytes", e.BySize+e.ByAge), slog.String("reason", reason(e)))
	}
}

// reason says by which of the two limits segments go.
func reason(e storage.Expired) string {
	switch {
	case e.ByAge == 0:
		return "size"
	case e.BySize == 0:
		return "time"
	default:
		return "size and time"
	}
}

// expired asks every partition that is served whole what it need not keep.
// Without byAge only sizes count.
func (b *Broker) expired(now time.Time, byAge bool) map[*partition]storage.Expired {
	due := map[*partition]storage.Expired{}
	for _, p := range b.partitions() {
		p.mu.Lock()
		keep, gone := p.mu.settings.retention, p.mu.gone
		p.mu.Unlock()
		if gone != nil {
			continue
		}
		if !byAge {
			keep.MaxAge = -1
		}
		keep.Bound = p.hw.Load()
		if e := p.log.Expired(now, keep); e.BySize+e.ByAge > 0 {
			due[p] = e
		}
	}
	return due
}
