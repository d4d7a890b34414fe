package broker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

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
		r.Dead = from > in.From
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

// measureChunk is how much of a section is in memory at a time.
const measureChunk = 64 << 10

var measureBuffers = sync.Pool{New: func() any { return new([measureChunk]byte) }}

// measure finds the offset after the first records of a section from an offset
// on, at most limit, and how many they are. It ends before a batch that is
// damaged, for an ack would pass over what nobody can be given; the error is
// about the first batch.
func measure(s record.Section, from int64, limit int) (count int32, next int64, err error) {
	buf := measureBuffers.Get().(*[measureChunk]byte)
	defer measureBuffers.Put(buf)
	at, have := int64(0), int64(0) // buf is [at, at+have) of the section
	next = from
	for pos := int64(0); pos < s.Len() && int(count) < limit; {
		var n int
		var end int64
		if inBuffer := buf[min(pos-at, have):have]; len(inBuffer) < record.HeaderSize || record.Batch(inBuffer).Size() > len(inBuffer) {
			at, have = pos, min(measureChunk, s.Len()-pos)
			if err = readAt(s, buf[:have], pos); err != nil {
				break
			}
		}
		b := record.Batch(buf[pos-at : have])
		size := int64(0)
		if len(b) >= record.HeaderSize {
			size = int64(b.Size())
		}
		switch {
		case size < record.HeaderSize || pos+size > s.Len():
			err = record.ErrCorrupt
		case size > have-(pos-at):
			header := record.Batch(bytes.Clone(b[:record.HeaderSize]))
			err, have = header.VerifyCRCFrom(s, pos, buf[:]), 0
			b = header
		default:
			b = b[:size]
			err = b.VerifyCRC()
		}
		if err == nil {
			n, end, err = measureBatch(s, pos, b, next, limit-int(count))
		}
		if err != nil {
			break
		}
		count, next = count+int32(n), max(next, end)
		pos += int64(b.Size())
	}
	if next > from {
		err = nil // it is met again, as the first
	}
	return count, next, err
}

// readAt fills p.
func readAt(r io.ReaderAt, p []byte, pos int64) error {
	n, err := r.ReadAt(p, pos)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	default:
		return err
	}
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
	if err := readAt(s, whole, pos); err != nil {
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
