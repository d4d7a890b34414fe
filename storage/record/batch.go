package record

import (
	"encoding/binary"
	"math"
)

// HeaderSize is the length of a batch header in bytes.
const HeaderSize = 61

// MaxBatchSize is the largest batch in bytes that Next takes for possible,
// whatever a topic allows: a length beyond it is damage.
const MaxBatchSize = 128 << 20

// Offsets of the header's fields; the drawing is in the package comment.
const (
	offLength       = 8
	offEpoch        = 12
	offMagic        = 16
	offCRC          = 17
	offAttributes   = 21
	offLastDelta    = 23
	offBaseTime     = 27
	offMaxTime      = 35
	offProducerID   = 43
	offProducerEp   = 51
	offBaseSequence = 53
	offCount        = 57

	lengthPrefix = 12 // bytes that batchLength does not count
	magicV2      = 2
)

// Bits of the attributes.
const (
	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrDeleteHorizon = 0x40
)

// Batch is the bytes of exactly one batch. The accessors need only the first
// HeaderSize bytes, so a Batch may also be a header alone. A Batch aliases the
// bytes that it was made from; it is not safe for concurrent writes.
type Batch []byte

// BaseOffset is the offset of the first record.
func (b Batch) BaseOffset() int64 { return b.int64(0) }

// Size is the whole batch's length in bytes as its header claims it. It is
// not checked: it may be negative in bytes that Next did not vouch for.
func (b Batch) Size() int { return lengthPrefix + int(b.int32(offLength)) }

// LeaderEpoch is the epoch of the leader that appended the batch.
func (b Batch) LeaderEpoch() int32 { return b.int32(offEpoch) }

// Magic is the version of the format, 2 in all that Leat stores.
func (b Batch) Magic() int8 { return int8(b[offMagic]) }

// CRC is the checksum as the header claims it.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[offCRC:]) }

// Attributes are the flags: codec, timestamp type, transactional, control,
// delete horizon.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[offAttributes:])) }

// Codec is how the records are compressed; ids 5 to 7 are no known codec.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & attrCodec) }

// LogAppendTime says that MaxTimestamp is the time of every record.
func (b Batch) LogAppendTime() bool { return b.Attributes()&attrLogAppendTime != 0 }

// Transactional says that the batch is part of a transaction.
func (b Batch) Transactional() bool { return b.Attributes()&attrTransactional != 0 }

// Control says that the batch holds a marker and no records of a user.
func (b Batch) Control() bool { return b.Attributes()&attrControl != 0 }

// LastOffsetDelta is the last offset relative to the base offset.
func (b Batch) LastOffsetDelta() int32 { return b.int32(offLastDelta) }

// LastOffset is the offset of the last record (in a compacted log, of the
// last record that was once there).
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is the offset after the batch.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// BaseTimestamp is what the records' timestamp deltas are relative to, in
// Unix milliseconds.
func (b Batch) BaseTimestamp() int64 { return b.int64(offBaseTime) }

// MaxTimestamp is the largest timestamp in Unix milliseconds as the header
// claims it.
func (b Batch) MaxTimestamp() int64 { return b.int64(offMaxTime) }

// ProducerID is the idempotent producer's id, -1 for none.
func (b Batch) ProducerID() int64 { return b.int64(offProducerID) }

// ProducerEpoch is the epoch of ProducerID, -1 for none.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[offProducerEp:])) }

// BaseSequence is the sequence number of the first record, -1 for none.
func (b Batch) BaseSequence() int32 { return b.int32(offBaseSequence) }

// LastSequence is the sequence number of the last record; sequence numbers
// wrap from 2^31-1 to 0. It is -1 where BaseSequence is negative.
func (b Batch) LastSequence() int32 {
	base := b.BaseSequence()
	if base < 0 {
		return -1
	}
	return int32((int64(base) + int64(b.LastOffsetDelta())) & math.MaxInt32)
}

// Count is the number of records as the header claims it.
func (b Batch) Count() int32 { return b.int32(offCount) }

// Payload is what follows the header: the records or one compressed blob of
// them. It aliases b.
func (b Batch) Payload() []byte { return b[HeaderSize:] }

// SetBaseOffset patches the base offset, which is outside the checksum.
func (b Batch) SetBaseOffset(offset int64) { binary.BigEndian.PutUint64(b, uint64(offset)) }

// SetLeaderEpoch patches the leader epoch, which is outside the checksum.
func (b Batch) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[offEpoch:], uint32(epoch))
}

// SetMaxTimestamp sets the largest timestamp and whether it is the time of
// every record (KIP-32), and computes the checksum anew; b must be whole.
func (b Batch) SetMaxTimestamp(ts int64, logAppendTime bool) {
	attributes := b.Attributes() &^ attrLogAppendTime
	if logAppendTime {
		attributes |= attrLogAppendTime
	}
	binary.BigEndian.PutUint16(b[offAttributes:], uint16(attributes))
	binary.BigEndian.PutUint64(b[offMaxTime:], uint64(ts))
	b.seal()
}

func (b Batch) int32(off int) int32 { return int32(binary.BigEndian.Uint32(b[off:])) }

func (b Batch) int64(off int) int64 { return int64(binary.BigEndian.Uint64(b[off:])) }
