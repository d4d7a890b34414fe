package broker

import (
	"context"
	"errors"
	"io"

	"leat/broker/group"
	"leat/storage"
	"leat/storage/record"
)

// leaseRead is what was read of a reserved partition.
type leaseRead struct {
	group.Read
	part    *partition
	gap     Gap
	section record.Section
}

func (r *leaseRead) release() {
	if r.section != nil {
		r.section.Release()
		r.section = nil
	}
}

// read reads the reserved partitions in their order, as much as a take may have.
// Those for which nothing is left are not among the reads.
func (t *taking) read(ctx context.Context, reservations []group.Reservation) []leaseRead {
	reads := make([]leaseRead, 0, len(reservations))
	records, bytes := t.req.MaxRecords, t.req.MaxBytes
	for i := range reservations {
		if records <= 0 || bytes <= 0 || ctx.Err() != nil {
			break
		}
		r := leaseRead{Read: group.Read{At: reservations[i].At}}
		full := t.readOne(ctx, &reservations[i], &r, min(records, reservations[i].Limit), bytes, bytes < t.req.MaxBytes)
		if full {
			r.release()
			break
		}
		if r.section != nil {
			records -= int(r.Count)
			bytes -= int(r.section.Len())
		}
		reads = append(reads, r)
	}
	return reads
}

// readOne reads for one reservation. full says that what is there is more than is
// left of the take, which has something already.
func (t *taking) readOne(ctx context.Context, in *group.Reservation, r *leaseRead, records, bytes int, some bool) (full bool) {
	r.part = t.broker.served(storage.ID{Topic: in.At.Topic, Partition: in.At.Number})
	if r.part == nil {
		r.Err = deleted(t.topicName(in.At.Topic))
		return false
	}
	from, start := in.From, r.part.log.Offsets().Start
	if from < start {
		if from >= 0 {
			r.gap = Gap{From: from, To: start}
		}
		from = start
	} else if in.Dead {
		from, r.Err = t.bury(ctx, r.part, in)
		r.Dead = true
	}
	for r.Err == nil {
		var f FetchResult
		t.broker.read(r.part, from, bytes, &f)
		r.First, r.Next, r.End = from, from, f.HighWatermark
		if lost, ok := errors.AsType[*OffsetError](f.Err); ok && lost.Start > from { // retention was quicker
			r.gap.From, r.gap.To = cmpGap(r.gap, from), lost.Start
			from = lost.Start
			continue
		}
		if r.section, r.Err = f.Section, f.Err; f.Section == nil {
			r.End = from
			break
		}
		if some && f.Section.Len() > int64(bytes) {
			return true
		}
		r.Count, r.Next, r.Err = measure(f.Section, from, records)
		if r.Err != nil {
			r.Err = t.broker.noteDamage(r.part, from, r.Err)
		}
		if r.Err == nil && r.Count == 0 { // nothing is left there of what compaction took
			from = r.Next
			r.release()
			continue
		}
		break
	}
	if r.Err != nil {
		r.release()
	}
	return false
}

// cmpGap is where a gap begins that goes on.
func cmpGap(g Gap, from int64) int64 {
	if g.To > g.From {
		return g.From
	}
	return from
}

func (t *taking) topicName(id TopicID) string {
	for _, topic := range t.topics {
		if topic.ID == id {
			return topic.Name
		}
	}
	return id.String()
}

// measureChunk is how much of a section is looked at at a time.
const measureChunk = 16 << 10

// measure finds the offset after the first records of a section from an offset
// on, at most limit, and how many they are. Only the headers of the batches are
// looked at, unless one is to be cut that does not have a record for each offset.
func measure(s record.Section, from int64, limit int) (count int32, next int64, err error) {
	var buf []byte
	at, have := int64(0), int64(0) // buf is [at, at+have) of the section
	next = from
	for pos := int64(0); pos < s.Len() && int(count) < limit; {
		if pos < at || pos+record.HeaderSize > at+have {
			if buf == nil {
				buf = make([]byte, min(measureChunk, s.Len()))
			}
			at, have = pos, min(int64(len(buf)), s.Len()-pos)
			if n, err := s.ReadAt(buf[:have], pos); int64(n) < have {
				return 0, 0, errors.Join(err, io.ErrUnexpectedEOF)
			}
		}
		b := record.Batch(buf[pos-at:])
		n, end, err := measureBatch(s, pos, b[:record.HeaderSize], next, limit-int(count))
		if err != nil {
			return 0, 0, err
		}
		count, next = count+int32(n), max(next, end)
		pos += int64(b.Size())
	}
	return count, next, nil
}

// measureBatch does the same for a batch, at a position of a section.
func measureBatch(s record.Section, pos int64, b record.Batch, from int64, limit int) (count int, next int64, err error) {
	switch {
	case b.NextOffset() <= from || b.Count() == 0 || b.Control():
		return 0, b.NextOffset(), nil
	case b.Count() == b.LastOffsetDelta()+1: // a record for each offset
		first := max(from, b.BaseOffset())
		count = min(limit, int(b.NextOffset()-first))
		return count, first + int64(count), nil
	}
	whole := make([]byte, b.Size())
	if _, err := s.ReadAt(whole, pos); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	next = b.NextOffset()
	err = record.Times(whole, 0, func(offset, _ int64) bool {
		if offset >= from {
			if count == limit {
				next = offset
				return false
			}
			count++
		}
		return true
	})
	return count, next, err
}
