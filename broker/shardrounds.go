package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"leat/broker/group"
	"leat/storage"
	"leat/storage/record"
)

// round is changes that become one batch, and the answers that wait for it.
type round struct {
	changes []change
	bytes   int
	touched []*held
	answers []answer
	end     int64
	began   time.Time // when it was appended
}

// answer tells a caller what became of its request.
type answer struct {
	h  *held // whose changes must be committed before; may be nil
	fn func(err error)
}

// change puts a change into the round.
func (s *shard) change(h *held, c change) {
	s.filling.changes = append(s.filling.changes, c)
	s.filling.bytes += c.size()
	if h != nil && !h.changed {
		h.changed = true
		s.filling.touched = append(s.filling.touched, h)
	}
}

// answer has fn called when all that the group has changed is committed, or
// with the reason why that is not known.
func (s *shard) answer(h *held, fn func(err error)) {
	s.filling.answers = append(s.filling.answers, answer{h, fn})
}

// append makes a batch of the round and appends it. Answers that need no change
// go out, or join the round that they wait for.
func (s *shard) append() {
	r := s.filling
	s.filling = round{}
	if len(r.changes) == 0 {
		s.reply(r.answers)
		return
	}
	for _, h := range r.touched {
		h.changed = false
	}
	for {
		n := r.fit()
		base, err := s.write(r.changes[:n])
		if err != nil {
			s.refuse(&r, err)
			return
		}
		end := base + int64(n)
		for _, h := range r.touched {
			h.end = end
		}
		if n == len(r.changes) {
			r.end, r.began = end, time.Now()
			s.rounds = append(s.rounds, r)
			return
		}
		s.rounds = append(s.rounds, round{changes: r.changes[:n], touched: r.touched, end: end, began: time.Now()})
		r.changes = r.changes[n:]
	}
}

// fit is how many of the changes fit one batch: all, as a rule. Only the removal
// of very many offsets does not, which need not be one.
func (r *round) fit() int {
	bytes := 0
	for i := range r.changes {
		if bytes += r.changes[i].size(); bytes > maxOperation && i > 0 {
			return i
		}
	}
	return len(r.changes)
}

func (s *shard) write(changes []change) (base int64, err error) {
	s.builder.Reset(record.Options{})
	now := s.now().UnixMilli()
	for i := range changes {
		s.builder.Add(now, changes[i].key(), changes[i].value(), nil)
	}
	batch, err := s.builder.Finish()
	if err != nil {
		return 0, err
	}
	a, _, err := s.part.append(storage.Append{Batch: batch, Epoch: anyEpoch, Trusted: true, Essential: true}, AcksAll)
	return a.Base, err
}

// reply sends answers, or keeps those whose group has changes on their way.
func (s *shard) reply(answers []answer) {
	for _, a := range answers {
		if a.h != nil && a.h.end > s.settled {
			last := &s.rounds[len(s.rounds)-1]
			last.answers = append(last.answers, a)
			continue
		}
		a.fn(nil)
	}
}

// refuse answers a round that could not be appended. Groups whose members had
// changed go back to what was appended before, and their members join again.
func (s *shard) refuse(r *round, err error) {
	s.log.Warn("changes of groups were refused", slog.Any("err", err))
	err = notAvailable(err)
	answers := r.answers
	for _, h := range r.touched {
		s.lapse(h, err)
	}
	for i := range r.changes {
		if !r.changes[i].ofGroup() {
			continue
		}
		if h := s.groups[r.changes[i].group]; h != nil && slices.Contains(r.touched, h) {
			s.take(h, h.Kill(s.now(), err))
			answers = append(answers, s.filling.answers...)
			s.filling = round{}
			s.goBack(h)
		}
	}
	for _, a := range answers {
		a.fn(err)
	}
	for _, h := range r.touched {
		s.forget(h)
	}
}

// notAvailable is err for clients, who look for the coordinator again: they
// know what to do then, and nothing of its disk.
func notAvailable(err error) error { return fmt.Errorf("%w: %v", ErrCoordinatorNotAvailable, err) } //nolint:errorlint // the cause must not decide the code

// goBack puts what was appended last of a group in its place.
func (s *shard) goBack(h *held) {
	s.drop(h)
	before, onItsWay := s.lastAppended(h.ID())
	again := &held{end: h.end, index: -1}
	switch {
	case before != nil:
		again.Group = group.Restore(h.ID(), s.config, before, s.now())
	case onItsWay: // its removal
		again.Group = group.New(h.ID(), s.config, s.now())
	default: // the store has it, and a group with members is kept in memory
		if _, err := s.group(h.ID(), false, s.now()); err != nil {
			s.log.Error("group cannot be read", slog.Any("err", err))
		}
		return
	}
	s.keep(again)
}

// lastAppended is the newest record of a group that is on its way, nil for one
// that removes it.
func (s *shard) lastAppended(id string) (r *group.Record, found bool) {
	for _, r := range slices.Backward(s.rounds) {
		for _, c := range slices.Backward(r.changes) {
			if c.group == id && c.ofGroup() {
				return c.members, true
			}
		}
	}
	return nil, false
}

// settle takes the committed rounds into the store and sends their answers, and
// waits for the next.
func (s *shard) settle() {
	s.collect()
	for len(s.rounds) > 0 && s.rounds[0].end <= s.part.hw.Load() {
		if !s.applyFirst() {
			return
		}
	}
	if len(s.rounds) == 0 || s.parked {
		return
	}
	if err := s.part.err(); err != nil {
		s.stop(err)
		return
	}
	s.parked = true
	s.part.park(&s.place, s.rounds[0].end)
}

// applyFirst takes the oldest round into the store and sends its answers. On a
// full disk it reports false, and is tried again with the next tick: the log has
// the round already, so it is not refused, and who waits for it waits.
func (s *shard) applyFirst() bool {
	r := s.rounds[0]
	err := s.store.apply(r.changes, r.end, false)
	if errors.Is(err, storage.ErrFull) {
		if !s.full {
			s.log.Warn("groups wait for room on the disk", slog.Any("err", err))
		}
		s.full = true
		return false
	}
	s.full, s.lazy = false, true
	s.rounds = s.rounds[1:]
	if err == nil {
		s.settled = r.end
		s.broker.metrics.groups.applied(&r)
	} else {
		err = notAvailable(err) // the store has failed, and the process ends
	}
	for _, a := range r.answers {
		a.fn(err)
	}
	for _, h := range r.touched {
		s.forget(h)
	}
	return true
}
