package storage

import (
	"context"
	"errors"
	"io"
	"time"
)

// replayProducers rebuilds the state of idempotent producers from the batch
// headers. Segments in which none wrote are skipped, and so are those that
// ended longer ago than a producer is remembered.
func (r *recovery) replayProducers(ctx context.Context) error {
	l, now := r.log, r.dir.opts.Now()
	oldest := now.Add(-l.config.Load().ProducerExpiration).UnixMilli()
	for i, s := range l.mu.segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		pos, next := int64(0), s.base
		if s.sealed.Load() {
			if !s.producers || s.lastAppend < oldest {
				continue
			}
		} else if i == len(l.mu.segments)-1 {
			pos, next = r.withoutProducers(s)
		}
		if err := r.replaySegment(s, pos, next, now); err != nil {
			return err
		}
	}
	return nil
}

// withoutProducers is how far into the segment the header of its index says
// that no idempotent producer wrote.
func (r *recovery) withoutProducers(s *segment) (pos, next int64) {
	p, err := readHead(r.dir.opts.FS, s.stem+indexSuffix)
	if err != nil {
		return 0, s.base
	}
	h, err := decodeHeader(p, indexMagic)
	if err != nil || h.flags != 0 || h.base != s.base || h.logBytes > s.size || h.next > s.next {
		return 0, s.base
	}
	return h.logBytes, h.next
}

func (r *recovery) replaySegment(s *segment, pos, next int64, now time.Time) error {
	h, err := r.dir.files.acquire(s)
	if err != nil {
		return err
	}
	defer r.dir.files.release(h)
	w := newWalk(h, s, pos, next, s.size)
	defer w.close()
	for {
		b, err := w.header()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if b.ProducerID() < 0 {
			continue
		}
		s.producers = true
		stamp := int64(-1)
		if b.LogAppendTime() {
			stamp = b.MaxTimestamp()
		}
		r.log.writing.producers.replay(sequence{
			pid: b.ProducerID(), epoch: b.ProducerEpoch(), first: b.BaseSequence(), last: b.LastSequence(),
			base: b.BaseOffset(), lastOffset: b.LastOffset(), timestamp: stamp,
		}, now)
	}
}
