package group

import (
	"errors"
	"fmt"
	"time"
)

// Delete forgets a group without members, with all that is its own; missing is
// the answer if there is none.
func (s *Shard) Delete(now time.Time, t Token, id string, missing error) {
	s.act(now, t, id, how{missing: missing, quiet: true}, func(h *held, now time.Time) (any, error) {
		if h.stateAt(now) != Empty {
			return nil, ErrNotEmpty
		}
		s.lapse(h, ErrGone)
		err := s.view.EachLease(id, func(at Partition, _ *LeaseRecord) error {
			s.change(h, Change{Group: id, Leased: at.Topic, Partition: at.Number})
			return nil
		})
		if err != nil {
			return nil, err
		}
		err = s.view.EachOffset(id, func(topic string, partition int32, _ *Offset) error {
			s.change(h, Change{Group: id, Topic: topic, Partition: partition})
			return nil
		})
		if err == nil {
			s.change(h, Change{Group: id})
			s.take(h, h.Kill(now, ErrGone))
		}
		return nil, err
	})
}

// TopicOffsets names partitions of a topic whose offsets are to be forgotten; or
// says with Err why they are not.
type TopicOffsets struct {
	ID         [16]byte
	Name       string
	Partitions []int32
	Err        error
}

// DeleteOffsets forgets what a group has committed for partitions that none of
// its members reads. The Value is an error for each partition, in their order.
func (s *Shard) DeleteOffsets(now time.Time, t Token, id string, missing error, topics []TopicOffsets) {
	s.act(now, t, id, how{missing: missing, quiet: true}, func(h *held, now time.Time) (any, error) {
		if h.stateAt(now) != Empty && h.ProtocolType() != ConsumerType {
			return nil, ErrNotEmpty
		}
		var errs []error
		for _, q := range topics {
			err := q.Err
			if err == nil && h.Subscribes(q.Name) {
				err = fmt.Errorf("%w: %q", ErrSubscribed, q.Name)
			}
			for _, partition := range q.Partitions {
				errs = append(errs, err)
				if err == nil {
					s.change(h, Change{Group: id, Topic: q.Name, Partition: partition})
					s.leaveLease(h, now, Partition{q.ID, partition}, -1)
				}
			}
		}
		return errs, nil
	})
}

// Expire removes the offsets of groups that may go (KIP-211), and groups that have
// nothing left: those of topics that are gone, and with byAge what was committed
// longer than keep ago. While a group has members, what they read is kept; when
// the last one leaves the time begins (KAFKA-13636). All times are as they were
// committed, whoever has loaded them since (KAFKA-8069).
func (s *Shard) Expire(now time.Time, t Token, ids []string, keep time.Duration, byAge bool) {
	if err := s.Serves(); err != nil {
		s.answerNow(Answer{Token: t, Err: err})
		return
	}
	s.quiet = append(s.quiet, quiet{t, func(now time.Time) {
		var errs []error
		for _, id := range ids {
			errs = append(errs, s.expire(now, id, keep.Milliseconds(), byAge))
		}
		s.answer(nil, Answer{Token: t, Err: errors.Join(errs...)})
	}})
}

func (s *Shard) expire(now time.Time, id string, keep int64, byAge bool) error {
	h, err := s.group(id, false, now)
	if err != nil || h == nil {
		return err
	}
	state, since := h.State()
	kept := 0
	if h.ProtocolType() == LeaseType && (!byAge || h.leases != nil || now.UnixMilli()-since.UnixMilli() < keep) {
		kept++ // nobody need have committed anything
	}
	byAge = byAge && h.leases == nil
	err = s.view.EachOffset(id, func(topic string, partition int32, o *Offset) error {
		from := o.At
		if state == Empty && h.ProtocolType() != "" {
			from = max(from, since.UnixMilli())
		}
		inUse := state != Empty && h.Subscribes(topic)
		_, _, exists := s.opts.Topics.Topic(o.Topic)
		switch {
		case !exists:
		case byAge && o.Expires >= 0 && now.UnixMilli() >= o.Expires:
		case byAge && o.Expires < 0 && !inUse && now.UnixMilli()-from >= keep:
		default:
			kept++
			return nil
		}
		s.change(h, Change{Group: id, Topic: topic, Partition: partition})
		return nil
	})
	if err == nil {
		err = s.expireLeases(h, now, kept == 0)
	}
	if err == nil && kept == 0 && h.Idle() {
		s.change(h, Change{Group: id})
	}
	s.forget(h, now)
	return err
}
