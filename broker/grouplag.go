package broker

import (
	"context"
	"errors"
	"io"
	"slices"

	"leat/auth"
	"leat/broker/group"
	"leat/replication/controller"
	"leat/storage/record"
)

// PartitionLag is how far a group is behind in one partition.
type PartitionLag struct {
	Topic     string
	Partition int32
	// Committed is what the group has committed, -1 for nothing.
	Committed, LogStart, HighWatermark int64
	// Lag is how many offsets are behind what is committed, as far as the log
	// has them.
	Lag int64
	// Seconds is the age of the first record that is not committed, by its
	// timestamp; 0 if there is none.
	Seconds float64
	Err     error
}

// GroupLag says how far a group is behind in each partition of the topics, or
// with nil of those that it has committed or leased and that p may describe. It
// needs auth.Describe for the group and the topics.
func (b *Broker) GroupLag(ctx context.Context, p auth.Principal, id string, topics []string) ([]PartitionLag, error) {
	if err := b.allowedGroup(p, auth.Describe, id); err != nil {
		return nil, err
	}
	s, err := b.existing(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := s.ready(); err != nil {
		return nil, err
	}
	if has, err := s.store.Exists(id); err != nil || !has {
		return nil, errors.Join(err, unknownGroup(id))
	}
	if topics == nil {
		all, err := b.begun(p, s, id)
		if err != nil {
			return nil, err
		}
		out := make([]PartitionLag, 0, len(all))
		for i := range all {
			t := b.proposer.State().TopicNamed(all[i].Topic)
			if t == nil {
				continue
			}
			out = append(out, b.lag(t, all[i].Partition, all[i].Offset))
		}
		return out, nil
	}
	var out []PartitionLag
	for _, name := range topics {
		t, err := b.resolve(p, auth.Describe, TopicRef{Name: name})
		if err != nil {
			return nil, err
		}
		every := make([]int32, t.Partitions.Len())
		for i := range every {
			every[i] = int32(i)
		}
		found, err := s.store.ofTopic(id, name, every)
		if err != nil {
			return nil, err
		}
		for i, o := range found {
			committed := int64(-1)
			if o != nil && o.Topic == t.ID {
				committed = o.Offset
			}
			out = append(out, b.lag(t, int32(i), committed))
		}
	}
	return out, nil
}

// begun is what a group has committed, and with offset -1 the partitions that it
// leased and has committed nothing of: it may be stuck at their first record.
func (b *Broker) begun(p auth.Principal, s *shard, id string) ([]CommittedOffset, error) {
	all, err := b.allOffsets(p, s, id)
	if err != nil {
		return nil, err
	}
	state := b.proposer.State()
	err = s.store.leases(id, false, func(_ string, at group.Partition, _ []byte) error {
		if t := state.Topic(at.Topic); t != nil && b.allowed(p, auth.Describe, t.Name) {
			all = append(all, CommittedOffset{Topic: t.Name, Partition: at.Number, Offset: -1})
		}
		return nil
	})
	slices.SortStableFunc(all, byPartition)
	return slices.CompactFunc(all, func(x, y CommittedOffset) bool { return byPartition(x, y) == 0 }), err
}

// lag is how far behind an offset is.
func (b *Broker) lag(t *controller.Topic, partition int32, committed int64) PartitionLag {
	out := PartitionLag{Topic: t.Name, Partition: partition, Committed: committed, LogStart: -1, HighWatermark: -1, Lag: -1}
	p, err := b.partition(t, partition)
	if err != nil {
		out.Err = err
		return out
	}
	out.LogStart, out.HighWatermark = p.log.Offsets().Start, p.hw.Load()
	from := max(committed, out.LogStart)
	out.Lag = max(out.HighWatermark-from, 0)
	if out.Lag == 0 {
		return out
	}
	ts, err := b.timeAt(p, from)
	if err != nil {
		out.Err = err
	} else if ts >= 0 {
		out.Seconds = age(b.opts.Now().UnixMilli(), ts)
	}
	return out
}

// age is how long ago a time was, in seconds, from Unix ms; 0 if it is to come.
func age(now, ts int64) float64 { return max(float64(now-ts)/1000, 0) }

// timeAt is the timestamp of the first record at or behind an offset, -1 if there
// is none.
func (b *Broker) timeAt(p *partition, from int64) (ts int64, err error) {
	for {
		var f FetchResult
		if b.read(p, from, 1, &f); f.Err != nil || f.Section == nil {
			return -1, f.Err
		}
		whole := make([]byte, f.Section.Len())
		_, err := f.Section.ReadAt(whole, 0)
		end := f.Section.NextOffset()
		f.Section.Release()
		if err != nil && !errors.Is(err, io.EOF) {
			return -1, err
		}
		for len(whole) > 0 {
			batch := record.Batch(whole[:record.Batch(whole).Size()])
			whole = whole[len(batch):]
			ts := int64(-1)
			err := record.Times(batch, 0, func(offset, at int64) bool {
				if offset >= from {
					ts = at
				}
				return offset < from
			})
			if err != nil {
				return -1, b.noteDamage(p, max(from, batch.BaseOffset()), err)
			}
			if ts >= 0 {
				return ts, nil
			}
		}
		from = end
	}
}
