package group

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// round is changes that become one batch, and the answers that wait for it.
type round struct {
	changes   []Change
	bytes     int
	touched   []*held
	answers   []answer
	base, end int64 // of the batch
}

// answer waits until what its group has changed is committed.
type answer struct {
	h *held // may be nil
	Answer
}

// failed is the answer if err has come between.
func (a Answer) failed(err error) Answer {
	a.Err = err
	switch v := a.Value.(type) {
	case JoinReply:
		a.Value = JoinReply{Token: a.Token, Err: err, MemberID: v.MemberID, Generation: -1}
	case SyncReply:
		a.Value = SyncReply{Token: a.Token, Err: err}
	default:
		a.Value = nil
	}
	return a
}

// notAvailable is err for clients, who look for the coordinator again: they
// know what to do then, and nothing of its disk.
func notAvailable(err error) error { return fmt.Errorf("%w: %v", ErrNotAvailable, err) } //nolint:errorlint // the cause must not decide the code

// change puts a change into the round.
func (s *Shard) change(h *held, c Change) {
	s.filling.changes = append(s.filling.changes, c)
	s.filling.bytes += c.Size()
	if !h.changed {
		h.changed = true
		s.filling.touched = append(s.filling.touched, h)
	}
}

// answer has an answer go out when all that the group has changed is committed,
// or fail.
func (s *Shard) answer(h *held, a Answer) {
	s.filling.answers = append(s.filling.answers, answer{h, a})
}

func (s *Shard) answerNow(a Answer) { s.out.Answers = append(s.out.Answers, a) }

func (s *Shard) refuseAll(answers []answer, err error) {
	for _, a := range answers {
		s.answerNow(a.failed(err))
	}
}

// append asks for the round that was gathered to be appended. Answers that need
// no change go out, or join the round that they wait for.
func (s *Shard) append() {
	switch {
	case s.appending != nil:
	case len(s.filling.changes) == 0:
		answers := s.filling.answers
		s.filling = round{}
		s.reply(answers)
	case len(s.rounds) < s.opts.MaxRounds:
		r := s.filling
		s.filling, s.appending = round{}, &r
		for _, h := range r.touched {
			h.changed, h.appending = false, true
		}
		s.askAppend()
	}
}

func (s *Shard) askAppend() {
	n := s.appending.fit(s.opts.MaxBatch)
	s.asked = &Append{Epoch: s.epoch, Changes: s.appending.changes[:n]}
	s.out.Append = s.asked
}

// fit is how many of the changes fit one batch: all, as a rule. Only the removal
// of very many offsets does not, which need not be one.
func (r *round) fit(limit int) int {
	bytes := 0
	for i := range r.changes {
		if bytes += r.changes[i].Size(); bytes > limit && i > 0 {
			return i
		}
	}
	return len(r.changes)
}

// Appended says what became of an Append: its first record has the offset base;
// or err why it is not in the log and never will be. With ErrUnknownOutcome it may
// be there, and base is where the log ends at the latest that has it: the shard
// looks what is committed up to there before it serves again, and does not guess.
func (s *Shard) Appended(now time.Time, a *Append, base int64, err error) {
	if a != s.asked {
		return // everybody was answered since
	}
	r := s.appending
	s.asked = nil
	if err != nil {
		s.appending = nil
		for _, h := range r.touched {
			h.appending = false
		}
		s.out.Troubles = append(s.out.Troubles, fmt.Errorf("append changes of groups: %w", err))
		if errors.Is(err, ErrUnknownOutcome) {
			s.unsure(now, r, notAvailable(err), base)
		} else {
			s.refuse(now, r, notAvailable(err))
		}
		return
	}
	n := len(a.Changes)
	end := base + int64(n)
	for _, h := range r.touched {
		h.end = end
	}
	if n < len(r.changes) {
		s.rounds = append(s.rounds, &round{changes: a.Changes, touched: r.touched, base: base, end: end})
		r.changes = r.changes[n:]
		s.askAppend()
		return
	}
	for _, h := range r.touched {
		h.appending = false
	}
	r.base, r.end, s.appending = base, end, nil
	s.rounds = append(s.rounds, r)
}

// unsure goes back to loading: what became of a round is in the log.
func (s *Shard) unsure(now time.Time, r *round, err error, end int64) {
	s.refuseAll(r.answers, err)
	s.dropGroups(now, err)
	s.role, s.loaded = loading, end
}

// reply sends answers, or keeps those whose group has changes on their way.
func (s *Shard) reply(answers []answer) {
	for _, a := range answers {
		if a.h != nil && a.h.end > s.applied.Next && len(s.rounds) > 0 {
			last := s.rounds[len(s.rounds)-1]
			last.answers = append(last.answers, a)
			continue
		}
		s.answerNow(a.Answer)
	}
}

// refuse answers a round that is not in the log, and what was made of it since.
// Groups whose members had changed go back to what was appended before, and their
// members join again.
func (s *Shard) refuse(now time.Time, r *round, err error) {
	s.absorb(r)
	for _, h := range r.touched {
		s.lapse(h, err)
	}
	for i := range r.changes {
		if !r.changes[i].OfGroup() {
			continue
		}
		if h := s.groups[r.changes[i].Group]; h != nil && slices.Contains(r.touched, h) {
			s.take(h, h.Kill(now, err))
			s.absorb(r)
			s.goBack(now, h)
		}
	}
	s.absorb(r)
	s.refuseAll(r.answers, err)
	for _, h := range r.touched {
		s.forget(h, now)
	}
}

// absorb moves what was gathered since into a round.
func (s *Shard) absorb(r *round) {
	r.changes = append(r.changes, s.filling.changes...)
	r.answers = append(r.answers, s.filling.answers...)
	for _, h := range s.filling.touched {
		h.changed = false
		if !slices.Contains(r.touched, h) {
			r.touched = append(r.touched, h)
		}
	}
	s.filling = round{}
}

// goBack puts what was appended last of a group in its place.
func (s *Shard) goBack(now time.Time, h *held) {
	s.leave(h)
	before, onItsWay := s.lastAppended(h.ID())
	again := &held{end: h.end, index: -1}
	switch {
	case before != nil:
		again.Group = Restore(h.ID(), s.cfg, before, now)
	case onItsWay: // its removal
		again.Group = New(h.ID(), s.cfg, now)
	default: // the view has it, and a group with members is kept in memory
		if _, err := s.group(h.ID(), false, now); err != nil {
			s.fail(now, err)
		}
		return
	}
	s.keep(again)
}

// lastAppended is the newest record of a group that is on its way, nil for one
// that removes it.
func (s *Shard) lastAppended(id string) (r *Record, found bool) {
	for _, r := range slices.Backward(s.rounds) {
		for _, c := range slices.Backward(r.changes) {
			if c.Group == id && c.OfGroup() {
				return c.Members, true
			}
		}
	}
	return nil, false
}

// settle sends the answers of the oldest round, which the view has.
func (s *Shard) settle(now time.Time) {
	r := s.rounds[0]
	s.rounds = s.rounds[1:]
	for _, a := range r.answers {
		s.answerNow(a.Answer)
	}
	for _, h := range r.touched {
		s.forget(h, now)
	}
}
