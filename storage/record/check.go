package record

import (
	"errors"
	"math"
)

// DefaultMaxExpanded is how many bytes the records of a compressed batch may
// expand to where a limit of zero is given.
const DefaultMaxExpanded = 64 << 20

// Limits are the rules of a topic that Check applies.
type Limits struct {
	// MaxExpanded is how many bytes the records of a compressed batch may
	// expand to; zero is DefaultMaxExpanded. It does not apply to a batch
	// that is not compressed.
	MaxExpanded int64
	// RequireKeys refuses null keys, as compacted topics must.
	RequireKeys bool
}

// Summary is what Check learnt about the records.
type Summary struct {
	// MaxTimestamp and MinTimestamp are over all records, whatever the
	// header says, in Unix milliseconds.
	MaxTimestamp, MinTimestamp int64
	// MaxTimestampOffset is the offset delta of the first record that has
	// MaxTimestamp.
	MaxTimestampOffset int64
	// Expanded is the size of the records in bytes, uncompressed.
	Expanded int64
}

// CheckHeader applies the rules for a batch from a client to its header; b
// may be the header alone. It sees an old format's magic in 17 bytes.
//
// ErrCorrupt: too short. ErrInvalid: magic, base offset not 0, control,
// transactional or delete-horizon bit, a count that is not positive or not
// lastOffsetDelta+1, a producer id without epoch or sequence. ErrTimestamp:
// the client claims log append time. ErrUnsupportedCodec: ids 5 to 7.
func CheckHeader(b Batch) error {
	if len(b) > offMagic && b.Magic() != magicV2 {
		return fault(ErrInvalid, "magic %d, only record batches with magic %d are served", b.Magic(), magicV2)
	}
	if len(b) < HeaderSize {
		return b.wrongSize()
	}
	attributes := b.Attributes()
	switch {
	case b.BaseOffset() != 0:
		return fault(ErrInvalid, "base offset %d, a client's must be 0", b.BaseOffset())
	case attributes&attrControl != 0:
		return fault(ErrInvalid, "control bit set by a client")
	case attributes&attrTransactional != 0:
		return fault(ErrInvalid, "transactional bit set, transactions are not served")
	case attributes&attrDeleteHorizon != 0:
		return fault(ErrInvalid, "delete horizon bit set by a client")
	case attributes&attrLogAppendTime != 0:
		return fault(ErrTimestamp, "timestamp type log append time set by a client")
	case b.Codec() >= codecs:
		return fault(ErrUnsupportedCodec, "codec id %d", b.Codec())
	case b.Count() <= 0:
		return fault(ErrInvalid, "record count %d", b.Count())
	case int64(b.Count()) != int64(b.LastOffsetDelta())+1:
		return fault(ErrInvalid, "record count %d, last offset delta %d", b.Count(), b.LastOffsetDelta())
	case b.ProducerID() >= 0 && b.ProducerEpoch() < 0:
		return fault(ErrInvalid, "producer id %d with epoch %d", b.ProducerID(), b.ProducerEpoch())
	case b.ProducerID() >= 0 && b.BaseSequence() < 0:
		return fault(ErrInvalid, "producer id %d with base sequence %d", b.ProducerID(), b.BaseSequence())
	}
	return nil
}

// Check is the deep check of a client's batch: CheckHeader, the checksum, and
// every record: offset deltas 0 to n-1, lengths, keys, values and headers
// within their bounds, nothing behind the last record or the compressed
// frame. It changes and keeps nothing of b and is safe for concurrent use.
//
// Records that are not compressed are walked in place without allocation;
// compressed ones stream through pooled decoders, so that memory is bounded
// whatever they expand to: 64 KiB and the codec's own window (gzip 32 KiB, lz4
// 4 MiB blocks, zstd 8 MiB, snappy at most 16 MiB and what its input can
// expand to).
//
// A batch damaged on its way is ErrCorrupt even if the damage also breaks a
// rule, because clients send that once more.
func Check(b Batch, l Limits) (Summary, error) {
	headerErr := CheckHeader(b)
	if len(b) >= HeaderSize && b.Magic() == magicV2 {
		if err := b.VerifyCRC(); err != nil {
			return Summary{}, err
		}
	}
	if headerErr != nil {
		return Summary{}, headerErr
	}
	w := walker{base: b.BaseTimestamp(), requireKeys: l.RequireKeys}
	if err := w.walk(b, l.MaxExpanded); err != nil {
		return Summary{}, err
	}
	return w.sum, nil
}

// walker goes over the records of a batch, in place or as they expand.
type walker struct {
	have        []byte    // bytes at hand, not walked yet
	x           *expander // where more come from; nil in place
	base        int64
	requireKeys bool
	stored      *places // in CheckStored; gaps are allowed then
	visit       *visit  // what Times wants of the records; nil in Check
	streamErr   *Error  // what x failed with
	f           fields
	long        longWalk
	sum         Summary
}

// walk goes over the records of b, which must have a whole header.
func (w *walker) walk(b Batch, maxExpanded int64) error {
	if b.Codec() == None {
		w.have = b.Payload()
		w.sum.Expanded = int64(len(w.have))
		if err := w.records(int(b.Count())); err != nil {
			return err
		}
		return nil
	}
	x, err := expand(b, maxExpanded)
	if err != nil {
		return err
	}
	defer x.release()
	w.x = x
	if err := w.records(int(b.Count())); err != nil {
		return err
	}
	w.sum.Expanded = x.total
	return nil
}

func (w *walker) records(count int) *Error {
	for i := range count {
		if err := w.record(i); err != nil {
			if err == w.streamErr || errors.Is(err, ErrTooLarge) {
				return err // About the batch, not about this record.
			}
			return err.at(i)
		}
		if w.visit != nil && w.visit.done {
			return nil
		}
	}
	// At the end the decoder must say so: that is when it has compared its
	// own checksum.
	if len(w.have) == 0 {
		if err := w.fill(1); err != nil {
			return err
		}
	}
	if len(w.have) > 0 {
		return fault(ErrInvalid, "bytes after the last record, number %d", count-1)
	}
	return nil
}

func (w *walker) record(i int) *Error {
	if len(w.have) < maxVarint {
		if err := w.fill(maxVarint); err != nil {
			return err
		}
	}
	size, n := varint32(w.have)
	if n <= 0 {
		if len(w.have) == 0 {
			return fault(ErrInvalid, "the payload ends before it")
		}
		return badVarint("record length", n, 32)
	}
	w.have = w.have[n:]
	if size < 0 {
		return fault(ErrInvalid, "record length %d", size)
	}
	if size > int64(len(w.have)) {
		if w.x == nil {
			return fault(ErrInvalid, "record length %d, %d bytes left in the batch", size, len(w.have))
		}
		if size > int64(len(w.have))+w.x.left {
			return fault(ErrTooLarge, "record %d has %d bytes, all records may have %d", i, size, w.x.limit)
		}
		if size > int64(len(w.x.buf)) {
			return w.longRecord(i, size)
		}
		if err := w.fill(int(size)); err != nil {
			return err
		}
		if size > int64(len(w.have)) {
			return fault(ErrInvalid, "record length %d, %d bytes left in the batch", size, len(w.have))
		}
	}
	if err := w.f.parse(w.have[:size]); err != nil {
		return err
	}
	if w.f.headerCount > 0 {
		if err := w.f.checkHeaders(); err != nil {
			return err
		}
	}
	w.have = w.have[size:]
	return w.accept(i, w.f.timestampDelta, w.f.offsetDelta, w.f.key == nil)
}

// accept applies the rules that need the batch to a record's fields.
func (w *walker) accept(i int, timestampDelta, offsetDelta int64, nullKey bool) *Error {
	if w.visit != nil {
		return w.visit.record(offsetDelta, timestampDelta)
	}
	if w.stored != nil {
		if _, _, err := w.stored.next(offsetDelta, timestampDelta); err != nil {
			return err
		}
	} else if offsetDelta != int64(i) {
		return fault(ErrInvalid, "offset delta %d, want %d", offsetDelta, i)
	}
	if nullKey && w.requireKeys {
		return fault(ErrInvalid, "null key in a compacted topic")
	}
	ts, ok := addTime(w.base, timestampDelta)
	if !ok {
		return timeOverflow(w.base, timestampDelta)
	}
	if i == 0 {
		w.sum.MaxTimestamp, w.sum.MinTimestamp = ts, ts
		return nil
	}
	if ts > w.sum.MaxTimestamp {
		w.sum.MaxTimestamp, w.sum.MaxTimestampOffset = ts, offsetDelta
	}
	w.sum.MinTimestamp = min(w.sum.MinTimestamp, ts)
	return nil
}

// fill makes at least need bytes, at most len(x.buf), available unless the
// batch has no more.
func (w *walker) fill(need int) *Error {
	if w.x == nil {
		return nil
	}
	n := copy(w.x.buf, w.have)
	for n < need && !w.x.done {
		m, err := w.x.read(w.x.buf[n:])
		if err != nil {
			w.streamErr = err
			return err
		}
		n += m
	}
	w.have = w.x.buf[:n]
	return nil
}

// addTime adds a timestamp delta; ok is false if that overflows.
func addTime(base, delta int64) (ts int64, ok bool) {
	if delta > 0 && base > math.MaxInt64-delta || delta < 0 && base < math.MinInt64-delta {
		return 0, false
	}
	return base + delta, true
}

func timeOverflow(base, delta int64) *Error {
	return fault(ErrInvalid, "timestamp delta %d overflows the base timestamp %d", delta, base)
}

// CheckStored walks every record of a batch that was read back from a log and
// whose checksum holds: offset deltas that grow up to the batch's last, lengths,
// keys, values and headers within their bounds, nothing behind the last one. The
// records may expand to maxExpanded bytes. It changes and keeps nothing of b.
func CheckStored(b Batch, maxExpanded int64) (Summary, error) {
	if err := b.checkStored(); err != nil {
		return Summary{}, err
	}
	w := walker{base: b.BaseTimestamp(), stored: &places{batch: b, last: -1}}
	if err := w.walk(b, maxExpanded); err != nil {
		return Summary{}, err
	}
	return w.sum, nil
}
