package storage

import "time"

// Dirt says what compaction would find in a log.
type Dirt struct {
	// Clean and Dirty are the bytes of the segments that were compacted before,
	// and of those behind them that may be.
	Clean, Dirty int64
	// Overdue says that a record waits for longer than MaxCompactionLag.
	Overdue bool
}

// Ratio is the share of the dirty bytes.
func (d Dirt) Ratio() float64 {
	if d.Dirty == 0 {
		return 0
	}
	return float64(d.Dirty) / float64(d.Clean+d.Dirty)
}

// Dirt looks what Compact would do now; bound is the high watermark. It is cheap.
func (l *Log) Dirt(now time.Time, bound int64) (d Dirt) {
	segs, first := l.compactable(now, bound)
	cfg := l.config.Load()
	for i, s := range segs {
		if i < first {
			d.Clean += s.size
			continue
		}
		d.Dirty += s.size
		began := s.firstAppend
		if began == s.lastAppend && i > 0 {
			began = segs[i-1].lastAppend // it may only be known when the segment ended
		}
		d.Overdue = d.Overdue || now.UnixMilli()-began >= cfg.MaxCompactionLag.Milliseconds()
	}
	return d
}

// compactable is the segments that compaction may rewrite, all from the log's
// first on: sealed, below bound and durable, and not too young. The first of them
// are clean.
func (l *Log) compactable(now time.Time, bound int64) (segs []*segment, clean int) {
	cfg := l.config.Load()
	youngest := now.UnixMilli() - cfg.MinCompactionLag.Milliseconds()
	ahead := cfg.TimestampAfter.Milliseconds()
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := l.mu.segments
	n := 0
	for n < len(all)-1 {
		s := all[n]
		if s == l.mu.durable.seg && l.mu.durable.offset == s.next {
			l.dir.flusher.enqueue(l) // an empty round moves the mark into the next one
		}
		if s == l.mu.durable.seg || !s.sealed.Load() || s.next > bound || cfg.MinCompactionLag > 0 && newest(s, ahead) > youngest {
			break
		}
		n++
	}
	for clean < n && all[clean].clean {
		clean++
	}
	return all[:n:n], clean
}
