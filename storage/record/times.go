package record

// Times calls fn with the offset and the timestamp (Unix milliseconds) of each
// record of b, which must be whole, in order for as long as fn wants more. It
// gives what Reader gives: compaction may have left gaps, and with log append
// time every record has the batch's time. The checksum is not looked at.
//
// Records stream as in Check, so that memory is bounded whatever they expand
// to, and what follows the record at which fn was done is not expanded. A
// compressed batch may expand to maxExpanded bytes (zero is
// DefaultMaxExpanded), else ErrTooLarge; fn may have seen records before that
// or any other error. Times keeps nothing of b and is safe for concurrent use.
func Times(b Batch, maxExpanded int64, fn func(offset, timestamp int64) (more bool)) error {
	if err := b.checkStored(); err != nil {
		return err
	}
	w := walker{visit: &visit{places: places{batch: b, last: -1}, fn: fn}}
	return w.walk(b, maxExpanded)
}

// visit is what the walker does with a record for Times.
type visit struct {
	places places
	fn     func(offset, timestamp int64) (more bool)
	done   bool // fn wants no more
}

func (v *visit) record(offsetDelta, timestampDelta int64) *Error {
	offset, ts, err := v.places.next(offsetDelta, timestampDelta)
	if err == nil {
		v.done = !v.fn(offset, ts)
	}
	return err
}

// places gives the records of a stored batch their offsets and timestamps.
type places struct {
	batch Batch
	last  int64 // offset delta of the record before
}

func (p *places) next(offsetDelta, timestampDelta int64) (offset, timestamp int64, err *Error) {
	// Compaction leaves gaps, but never turns the order.
	if offsetDelta <= p.last || offsetDelta > int64(p.batch.LastOffsetDelta()) {
		return 0, 0, fault(ErrInvalid, "offset delta %d after %d, the batch's last is %d",
			offsetDelta, p.last, p.batch.LastOffsetDelta())
	}
	timestamp, ok := addTime(p.batch.BaseTimestamp(), timestampDelta)
	if !ok {
		return 0, 0, timeOverflow(p.batch.BaseTimestamp(), timestampDelta)
	}
	if p.batch.LogAppendTime() {
		timestamp = p.batch.MaxTimestamp()
	}
	p.last = offsetDelta
	return p.batch.BaseOffset() + offsetDelta, timestamp, nil
}

// checkStored refuses what is no whole batch of the one format.
func (b Batch) checkStored() *Error {
	if len(b) < HeaderSize || b.Size() != len(b) {
		return b.wrongSize()
	}
	if b.Magic() != magicV2 {
		return fault(ErrInvalid, "magic %d, want %d", b.Magic(), magicV2)
	}
	return nil
}
