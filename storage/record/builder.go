package record

import (
	"encoding/binary"
)

// Header is one header of a record. A nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Options says how a Builder builds.
type Options struct {
	// Codec compresses the batch; zero is None.
	Codec Codec
	// Sequence makes the batch one of an idempotent producer; nil is none.
	Sequence *Sequence
	// BaseTimestamp is what the records' timestamps are relative to, in Unix
	// milliseconds; 0 is the first record's.
	BaseTimestamp int64
}

// Sequence is an idempotent producer and the sequence number of the first record
// of its batch.
type Sequence struct {
	Producer int64
	Epoch    int16
	First    int32
}

// Builder makes batches, one at a time: Reset, Add or AddValue for each
// record, Finish. Its buffers are reused, so that a Builder in use allocates
// nothing once it has grown (but for the compressors' own needs). The zero
// Builder is one that was Reset with zero Options. It is not safe for
// concurrent use.
type Builder struct {
	options   Options
	buf       []byte // header, then records uncompressed
	out       []byte // header, then records compressed
	count     int
	base, max int64
	bad       *Error // why Finish must fail
}

// recordOverhead is the most that AddValue writes beside the value: length,
// attributes, timestamp delta, offset delta, null key, value length, headers.
const recordOverhead = 5 + 1 + 10 + 5 + 1 + 5 + 1

// Reset starts a new batch; what Finish returned is no longer valid. Producer
// id, epoch and sequence will be -1 without a Sequence, base offset and leader
// epoch 0.
func (w *Builder) Reset(options Options) {
	if cap(w.buf) < HeaderSize {
		w.buf = make([]byte, HeaderSize, 4<<10)
	}
	w.options = options
	w.buf = w.buf[:HeaderSize]
	w.count, w.base, w.max, w.bad = 0, 0, 0, nil
}

// AddValue adds a record without key and headers; ts is in Unix milliseconds.
// The value is copied; nil is null.
func (w *Builder) AddValue(ts int64, value []byte) {
	if value == nil || len(value) > MaxBatchSize {
		w.Add(ts, nil, value, nil)
		return
	}
	delta := zigzag(w.delta(ts))
	offset := uint64(w.count) << 1
	length := uint64(len(value)) << 1
	body := 3 + uvarintSize(delta) + uvarintSize(offset) + uvarintSize(length) + len(value)
	if cap(w.buf)-len(w.buf) < recordOverhead+len(value) {
		w.grow(recordOverhead + len(value))
	}
	p := w.buf[:cap(w.buf)]
	i := putUvarint(p, len(w.buf), uint64(body)<<1)
	p[i] = 0 // attributes
	i = putUvarint(p, i+1, delta)
	i = putUvarint(p, i, offset)
	p[i] = 1 // -1: the key is null
	i = putUvarint(p, i+1, length)
	i += copy(p[i:], value)
	p[i] = 0 // no headers
	w.buf = p[:i+1]
	w.count++
}

// Add adds a record; ts is in Unix milliseconds. Key, value and headers are
// copied; nil is null, empty is empty.
func (w *Builder) Add(ts int64, key, value []byte, headers []Header) {
	delta := w.delta(ts)
	body := bodySize(w.count, delta, key, value, headers)
	if body > MaxBatchSize {
		w.refuse(fault(ErrTooLarge, "%d bytes, the largest batch has %d", body, MaxBatchSize).at(w.count))
		return
	}
	need := varintSize(int64(body)) + body
	if cap(w.buf)-len(w.buf) < need {
		w.grow(need)
	}
	p := appendVarint(w.buf, int64(body))
	p = append(p, 0)
	p = appendVarint(p, delta)
	p = appendVarint(p, int64(w.count))
	p = appendBytes(p, key)
	p = appendBytes(p, value)
	p = appendVarint(p, int64(len(headers)))
	for i := range headers {
		p = appendVarint(p, int64(len(headers[i].Key)))
		p = append(p, headers[i].Key...)
		p = appendBytes(p, headers[i].Value)
	}
	w.buf = p
	w.count++
}

// Size is the batch's size in bytes so far, before compression.
func (w *Builder) Size() int { return max(len(w.buf), HeaderSize) }

// Count is the number of records so far.
func (w *Builder) Count() int { return w.count }

// RecordSize is what a record adds to a batch's size before compression.
// tsDelta is relative to the batch's first record.
//
//nolint:revive // record.Size would read as the size of a batch.
func RecordSize(offsetDelta int, tsDelta int64, key, value []byte, headers []Header) int {
	body := bodySize(offsetDelta, tsDelta, key, value, headers)
	return varintSize(int64(body)) + body
}

// Finish compresses and checksums the batch and returns it; it is valid until
// the next Reset. A batch without records, one whose timestamps lie so far
// apart that their difference overflows, and one beyond MaxBatchSize are
// errors.
func (w *Builder) Finish() (Batch, error) {
	switch {
	case w.bad != nil:
		return nil, w.bad
	case w.count == 0:
		return nil, fault(ErrInvalid, "no records")
	case len(w.buf) > MaxBatchSize:
		return nil, fault(ErrTooLarge, "%d bytes, the largest batch has %d", len(w.buf), MaxBatchSize)
	}
	b := Batch(w.buf)
	if w.options.Codec != None {
		out, err := compress(append(w.out[:0], b[:HeaderSize]...), b.Payload(), w.options.Codec)
		if err != nil {
			return nil, err
		}
		w.out = out
		b = out
	}
	w.writeHeader(b)
	return b, nil
}

func (w *Builder) writeHeader(b Batch) {
	clear(b[:HeaderSize])
	put := binary.BigEndian
	put.PutUint32(b[offLength:], uint32(len(b)-lengthPrefix))
	b[offMagic] = magicV2
	put.PutUint16(b[offAttributes:], uint16(w.options.Codec))
	put.PutUint32(b[offLastDelta:], uint32(w.count-1))
	put.PutUint64(b[offBaseTime:], uint64(w.base))
	put.PutUint64(b[offMaxTime:], uint64(w.max))
	of := Sequence{Producer: -1, Epoch: -1, First: -1}
	if w.options.Sequence != nil {
		of = *w.options.Sequence
	}
	put.PutUint64(b[offProducerID:], uint64(of.Producer))
	put.PutUint16(b[offProducerEp:], uint16(of.Epoch))
	put.PutUint32(b[offBaseSequence:], uint32(of.First))
	put.PutUint32(b[offCount:], uint32(w.count))
	b.seal()
}

// delta is ts relative to the first record's; it keeps base and max.
func (w *Builder) delta(ts int64) int64 {
	if w.count == 0 {
		w.base, w.max = ts, ts
		if w.options.BaseTimestamp == 0 {
			return 0
		}
		w.base = w.options.BaseTimestamp
	}
	w.max = max(w.max, ts)
	d := ts - w.base
	if (d < 0) != (ts < w.base) {
		w.refuse(fault(ErrInvalid, "timestamp %d is too far from the first record's %d", ts, w.base).at(w.count))
	}
	return d
}

func (w *Builder) refuse(e *Error) {
	if w.bad == nil {
		w.bad = e
	}
}

// grow makes room for n more bytes, and for the header in a zero Builder.
func (w *Builder) grow(n int) {
	used := max(len(w.buf), HeaderSize)
	p := make([]byte, used, max(2*cap(w.buf), used+n, 4<<10))
	copy(p, w.buf)
	w.buf = p
}

func bodySize(offsetDelta int, tsDelta int64, key, value []byte, headers []Header) int {
	n := 1 + varintSize(tsDelta) + varintSize(int64(offsetDelta)) +
		bytesSize(key) + bytesSize(value) + varintSize(int64(len(headers)))
	for i := range headers {
		n += varintSize(int64(len(headers[i].Key))) + len(headers[i].Key) + bytesSize(headers[i].Value)
	}
	return n
}

func bytesSize(p []byte) int {
	if p == nil {
		return 1
	}
	return varintSize(int64(len(p))) + len(p)
}

func appendBytes(dst, p []byte) []byte {
	if p == nil {
		return append(dst, 1)
	}
	return append(appendVarint(dst, int64(len(p))), p...)
}
