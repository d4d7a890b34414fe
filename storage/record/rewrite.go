package record

import (
	"encoding/binary"
	"math"
)

// Entry is what compaction must know of a record.
type Entry struct {
	Offset, Timestamp int64
	Key               KeyHash // zero without a key
	HasKey            bool
	Tombstone         bool // the value is null
}

// Rewriter goes over the records of stored batches and leaves some of them out.
// Its buffers are used again, and their size does not depend on what a batch
// expands to: a batch that does not fit into them is expanded twice. The zero
// Rewriter is ready. It is not safe for concurrent use.
type Rewriter struct {
	source source
	hash   keyHasher
	kept   []uint64 // a bit for each record
	out    compressor
}

// NoHorizon is the delete horizon that Rewrite takes for none.
const NoHorizon = math.MinInt64

// Each calls fn with each record of b, which must be whole, for as long as it
// wants more. The records may expand to maxExpanded bytes. The checksum is not
// looked at.
func (w *Rewriter) Each(b Batch, maxExpanded int64, fn func(*Entry) (more bool)) error {
	if err := b.checkStored(); err != nil {
		return err
	}
	if b.Count() == 0 {
		return nil
	}
	if err := w.source.open(b, maxExpanded); err != nil {
		return err
	}
	defer w.source.close()
	if err := w.each(b, fn); err != nil {
		return err
	}
	return nil
}

func (w *Rewriter) each(b Batch, fn func(*Entry) (more bool)) *Error {
	p := places{batch: b, last: -1}
	var e Entry
	for i := range int(b.Count()) {
		if err := w.entry(&e, &p); err != nil {
			return err.at(i)
		}
		if !fn(&e) {
			return nil
		}
	}
	return w.source.end()
}

// Rewritten is what became of a batch.
type Rewritten struct {
	// Batch is b itself if nothing changed and nil if no record is left;
	// otherwise it is valid until the Rewriter's next call.
	Batch         Batch
	Kept, Removed int
}

// Rewrite leaves out the records of b, which must be whole, for which keep is
// false. What stays is as it was: offsets, timestamps, keys, values, headers and
// the codec, and in the batch's header all but the size, the count, the greatest
// timestamp, which is that of the records that stay, and the checksum.
//
// If a tombstone stays and the batch has no delete horizon yet, it gets this
// one, in Unix milliseconds, unless it is NoHorizon (KIP-534): a flag says that
// the base timestamp is it, and the records' are relative to that.
func (w *Rewriter) Rewrite(b Batch, maxExpanded, horizon int64, keep func(*Entry) bool) (Rewritten, error) {
	if err := b.checkStored(); err != nil {
		return Rewritten{}, err
	}
	if b.Count() == 0 || b.Control() {
		return Rewritten{Batch: b, Kept: int(b.Count())}, nil
	}
	if err := w.source.open(b, maxExpanded); err != nil {
		return Rewritten{}, err
	}
	defer w.source.close()
	out, newest, tombstones := Rewritten{}, int64(-1), 0
	w.kept = w.kept[:0]
	i := 0
	fault := w.each(b, func(e *Entry) bool {
		if i%64 == 0 {
			w.kept = append(w.kept, 0)
		}
		if keep(e) {
			w.kept[i/64] |= 1 << (i % 64)
			newest = max(newest, e.Timestamp)
			out.Kept++
			if e.Tombstone {
				tombstones++
			}
		}
		i++
		return true
	})
	if fault != nil {
		return Rewritten{}, fault
	}
	out.Removed = i - out.Kept
	if _, has := b.DeleteHorizon(); has || tombstones == 0 {
		horizon = NoHorizon
	}
	switch {
	case out.Kept == 0:
		return out, nil
	case out.Removed == 0 && horizon == NoHorizon:
		out.Batch = b
		return out, nil
	}
	if out.Batch, fault = w.encode(b, maxExpanded, horizon, newest, out.Kept); fault != nil {
		return Rewritten{}, fault
	}
	return out, nil
}

// encode writes the records that are marked as kept.
func (w *Rewriter) encode(b Batch, maxExpanded, horizon, newest int64, kept int) (Batch, *Error) {
	if err := w.source.again(b, maxExpanded); err != nil {
		return nil, err
	}
	w.out.begin(b[:HeaderSize], b.Codec())
	for i := range int(b.Count()) {
		var err *Error
		if w.kept[i/64]&(1<<(i%64)) == 0 {
			err = w.pass(nil, NoHorizon, 0)
		} else {
			err = w.pass(&w.out, horizon, b.BaseTimestamp())
		}
		if err != nil {
			return nil, err.at(i)
		}
	}
	out, err := w.out.end()
	if err != nil {
		return nil, err
	}
	if len(out) > MaxBatchSize {
		return nil, fault(ErrTooLarge, "%d bytes when rewritten, the largest batch has %d", len(out), MaxBatchSize)
	}
	put := binary.BigEndian
	put.PutUint32(out[offLength:], uint32(len(out)-lengthPrefix))
	put.PutUint32(out[offCount:], uint32(kept))
	if horizon != NoHorizon {
		put.PutUint16(out[offAttributes:], uint16(b.Attributes())|attrDeleteHorizon)
		put.PutUint64(out[offBaseTime:], uint64(horizon))
	}
	put.PutUint64(out[offMaxTime:], uint64(newest))
	out.seal()
	return out, nil
}

// recordFront is the most that a record has before its key.
const recordFront = 5 + 1 + 10 + 5 + 5

// entry reads the next record.
func (w *Rewriter) entry(e *Entry, p *places) *Error {
	size, err := w.source.recordSize()
	if err != nil {
		return err
	}
	f := w.source.have[:min(size, int64(len(w.source.have)))]
	if len(f) == 0 {
		return fault(ErrInvalid, "record length 0")
	}
	used := 1 // the attributes have no meaning yet
	timestampDelta, n := varint(f[used:])
	if n <= 0 {
		return badVarint("timestamp delta", n, 64)
	}
	used += n
	offsetDelta, n := varint32(f[used:])
	if n <= 0 {
		return badVarint("offset delta", n, 32)
	}
	used += n
	keySize, n := varint32(f[used:])
	if n <= 0 {
		return badVarint("key length", n, 32)
	}
	used += n
	left := size - int64(used)
	if keySize < -1 || keySize > left {
		return badLength("key", keySize, int(left))
	}
	w.source.have = w.source.have[used:]
	e.Key, e.HasKey = KeyHash{}, keySize >= 0
	if e.HasKey {
		w.hash.begin(keySize)
		if err := w.source.take(keySize, &w.hash); err != nil {
			return err
		}
		e.Key = w.hash.sum()
		left -= keySize
	}
	if err := w.source.fill(maxVarint); err != nil {
		return err
	}
	valueSize, n := varint32(w.source.have[:min(left, int64(len(w.source.have)))])
	if n <= 0 {
		return badVarint("value length", n, 32)
	}
	if valueSize < -1 || valueSize > left-int64(n) {
		return badLength("value", valueSize, int(left)-n)
	}
	e.Tombstone = valueSize == -1
	if e.Offset, e.Timestamp, err = p.next(offsetDelta, timestampDelta); err != nil {
		return err
	}
	return w.source.take(left, nil)
}

// pass copies the next record to out, or passes over it where that is nil. With
// a horizon its timestamp is encoded relative to that.
func (w *Rewriter) pass(out *compressor, horizon, base int64) *Error {
	size, err := w.source.recordSize()
	if err != nil {
		return err
	}
	if out == nil {
		return w.source.take(size, nil)
	}
	f := w.source.have[:min(size, int64(len(w.source.have)))]
	if horizon == NoHorizon {
		out.head = appendVarint(out.head[:0], size)
		out.write(out.head)
		return w.source.take(size, out)
	}
	delta, n := varint(f[1:])
	if n <= 0 {
		return badVarint("timestamp delta", n, 64)
	}
	delta = base + delta - horizon // may wrap, as it does when it is added again
	rest := size - 1 - int64(n)
	out.head = appendVarint(out.head[:0], rest+1+int64(varintSize(delta)))
	out.head = append(out.head, f[0])
	out.head = appendVarint(out.head, delta)
	out.write(out.head)
	w.source.have = w.source.have[1+n:]
	return w.source.take(rest, out)
}

// DeleteHorizon is the time in Unix milliseconds after which compaction may
// remove the batch's tombstones, if it has set one. Then the base timestamp is
// that time.
func (b Batch) DeleteHorizon() (ms int64, ok bool) {
	return b.BaseTimestamp(), b.Attributes()&attrDeleteHorizon != 0
}

// AppendEmptied appends b's header as that of a batch whose records were all
// removed: without records and codec, everything else as it was.
func AppendEmptied(dst []byte, b Batch) Batch {
	at := len(dst)
	dst = append(dst, b[:HeaderSize]...)
	e := Batch(dst[at:])
	if _, ok := b.DeleteHorizon(); ok {
		binary.BigEndian.PutUint64(e[offBaseTime:], math.MaxUint64)
	}
	binary.BigEndian.PutUint16(e[offAttributes:], uint16(b.Attributes())&^(attrCodec|attrDeleteHorizon))
	binary.BigEndian.PutUint32(e[offLength:], HeaderSize-lengthPrefix)
	binary.BigEndian.PutUint32(e[offCount:], 0)
	e.seal()
	return e
}

// AppendFiller appends a batch without records that stands for the offsets from
// base to last, of which nothing is left. Its producer and its times are -1.
func AppendFiller(dst []byte, base, last int64, epoch int32) Batch {
	at := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	f := Batch(dst[at:])
	put := binary.BigEndian
	f.SetBaseOffset(base)
	f.SetLeaderEpoch(epoch)
	put.PutUint32(f[offLength:], HeaderSize-lengthPrefix)
	f[offMagic] = magicV2
	put.PutUint32(f[offLastDelta:], uint32(last-base))
	put.PutUint64(f[offBaseTime:], math.MaxUint64)
	put.PutUint64(f[offMaxTime:], math.MaxUint64)
	put.PutUint64(f[offProducerID:], math.MaxUint64)
	put.PutUint16(f[offProducerEp:], math.MaxUint16)
	put.PutUint32(f[offBaseSequence:], math.MaxUint32)
	f.seal()
	return f
}
