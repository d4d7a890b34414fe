package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/storage/record"
)

// The headers that a record gets in the dead letter topic, behind its own: where
// it was, whose it was, how often it was handed out, and why it is there.
const (
	deadLetterHeader      = "leat.dead_letter."
	deadAfterDeliveries   = "max_deliveries"
	deadByRelease         = "released"
	deadLetterWait        = 30 * time.Second
	deadLetterReadAtLeast = 1
)

// deadLetter is a record on its way to a dead letter topic.
type deadLetter struct {
	group, topic string
	part         *partition
	// from and to are where it is: the first record there.
	from, to   int64
	deliveries int32
	reason     string
}

// bury sends the record at a reservation to the dead letter topic, and returns
// where the partition goes on.
func (t *taking) bury(ctx context.Context, part *partition, in *group.Reservation) (next int64, err error) {
	d := deadLetter{group: t.id, topic: t.req.DeadLetter, part: part, from: in.From, to: in.Next, deliveries: in.Deliveries, reason: deadAfterDeliveries}
	return t.broker.bury(ctx, t.principal, &d)
}

// deadLetter sends the first record of a lease that is left behind upto to the
// lease's dead letter topic, and returns the offset after it.
func (c *leaseCall) deadLetter(ctx context.Context, p auth.Principal, upto int64) (next int64, err error) {
	i, err := c.step(ctx, func(l *group.Leases, now time.Time) (group.LeaseInfo, group.LeaseEffects, error) {
		return l.Lease(now, c.at, c.nonce)
	})
	if err != nil {
		return 0, err
	}
	from := max(i.First, upto)
	switch {
	case i.DeadLetter == "":
		return 0, ErrNoDeadLetter
	case from >= i.Next:
		return 0, fmt.Errorf("%w: nothing is left of the lease behind offset %d", ErrInvalidRequest, from-1)
	}
	b := c.shard.broker
	part, err := b.partition(c.topic, c.at.Number)
	if err != nil {
		return 0, err
	}
	d := deadLetter{group: c.group, topic: i.DeadLetter, part: part, from: from, to: i.Next, deliveries: i.Deliveries, reason: deadByRelease}
	if from > i.First {
		d.deliveries = 1
	}
	return b.bury(ctx, p, &d)
}

// bury writes a record to its dead letter topic, with acks=all, and returns the
// offset after it. If nothing is left of it that is as far as there is nothing:
// what comes behind is not to be dead, it may have never been handed out. The key makes it the same
// record however often it is tried, whoever does: a crash may come before the
// offset is committed.
func (b *Broker) bury(ctx context.Context, p auth.Principal, d *deadLetter) (next int64, err error) {
	r, found, err := b.recordAt(d.part, d.from, d.to)
	if err != nil || !found {
		return r.Offset, err
	}
	set, err := b.NewRecordSet(ctx, p, d.topic)
	if err != nil {
		return 0, err
	}
	defer set.Close()
	key := fmt.Sprintf("dead letter\x00%s\x00%s/%d/%d", d.group, d.part.id.Topic, d.part.id.Partition, r.Offset) // no client's: it has a NUL
	if err := set.Key(auth.Principal{}, key, sha256.Sum256([]byte(key))); err != nil {
		return 0, fmt.Errorf("dead letter topic %q: %w", d.topic, err)
	}
	set.origin.named = true // another try may be for another reason
	partition := int32(-1)
	if r.Key == nil {
		partition = d.part.id.Partition % set.origin.partitions
	}
	headers := r.Headers
	for _, h := range [][2]string{
		{"topic", d.part.topic.name},
		{"partition", strconv.Itoa(int(d.part.id.Partition))},
		{"offset", strconv.FormatInt(r.Offset, 10)},
		{"group", d.group},
		{"deliveries", strconv.Itoa(int(d.deliveries))},
		{"reason", d.reason},
	} {
		headers = append(headers, record.Header{Key: deadLetterHeader + h[0], Value: []byte(h[1])})
	}
	if err := set.Add(partition, -1, r.Key, r.Value, headers); err != nil {
		return 0, fmt.Errorf("dead letter topic %q: %w", d.topic, err)
	}
	results, err := set.Produce(ctx, AcksAll, deadLetterWait)
	if err == nil {
		err = results[0].Err
	}
	if err != nil {
		return 0, fmt.Errorf("dead letter topic %q: %w", d.topic, err)
	}
	if !results[0].Duplicate {
		b.metrics.leases.deadLettered.Inc()
	}
	return r.Offset + 1, nil
}

// cloned is a record that does not need its reader any more.
func cloned(r *record.Record) record.Record {
	out := record.Record{Offset: r.Offset, Timestamp: r.Timestamp, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, record.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	return out
}

// recordAt finds the first record in [from, to). If there is none, the Offset of
// what it returns is up to where it has looked.
func (b *Broker) recordAt(p *partition, from, to int64) (r record.Record, found bool, err error) {
	var reader record.Reader
	defer reader.Close()
	for from < to {
		var f FetchResult
		if b.read(p, from, deadLetterReadAtLeast, &f); f.Err != nil || f.Section == nil {
			return record.Record{Offset: from}, false, errors.Join(f.Err, p.err())
		}
		whole := make([]byte, f.Section.Len())
		_, err := f.Section.ReadAt(whole, 0)
		end := f.Section.NextOffset()
		f.Section.Release()
		if err != nil && !errors.Is(err, io.EOF) {
			return r, false, err
		}
		for len(whole) > 0 {
			batch := record.Batch(whole[:record.Batch(whole).Size()])
			whole = whole[len(batch):]
			if batch.Control() {
				continue
			}
			err := reader.Reset(batch, 0)
			for err == nil {
				if err = reader.Next(&r); err == nil && r.Offset >= to {
					return record.Record{Offset: to}, false, nil
				}
				if err == nil && r.Offset >= from {
					return cloned(&r), true, nil
				}
			}
			if !errors.Is(err, io.EOF) {
				return r, false, b.noteDamage(p, max(from, batch.BaseOffset()), err)
			}
		}
		from = end
	}
	return record.Record{Offset: to}, false, nil
}
