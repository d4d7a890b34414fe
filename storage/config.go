package storage

import (
	"math"
	"time"
)

// The defaults of the Kafka configs that Config stands for, and the limits of
// the file format.
const (
	defaultSegmentBytes   = 1 << 30
	defaultSegmentAge     = 7 * 24 * time.Hour
	defaultIndexInterval  = 4 << 10
	largeIndexInterval    = 16 << 10 // for segments of 1 GiB and more
	defaultIndexBytes     = 10 << 20
	defaultMaxBatchBytes  = 1048588
	defaultMaxExpanded    = 64 << 20
	defaultTimestampAfter = time.Hour
	defaultProducerExpiry = 24 * time.Hour

	defaultDeleteRetention = 24 * time.Hour

	// maxSegmentBytes and maxOffsetDelta are the format's: positions and
	// relative offsets in an index have 32 bits, and Kafka's tools take
	// both for signed.
	maxSegmentBytes = math.MaxInt32
	maxOffsetDelta  = math.MaxInt32

	// pageCacheDelay and pageCacheBytes say when a page-cache-mode log is
	// flushed at the latest.
	pageCacheDelay = time.Second
	pageCacheBytes = 16 << 20
)

// Config is a topic's configuration as the log needs it, resolved by broker.
// The zero value of a field means the default of the Kafka config it names.
type Config struct {
	// SegmentBytes is segment.bytes: a segment is closed before it would grow
	// beyond it. Default 1 GiB, at most 2^31-1.
	SegmentBytes int64
	// SegmentAge is segment.ms: a segment is closed this long after the first
	// append to it, by the wall clock. Default 7 days.
	SegmentAge time.Duration
	// IndexInterval is index.interval.bytes: at most one index entry for so
	// many bytes. Default 4 KiB, 16 KiB for segments of 1 GiB and more.
	IndexInterval int
	// SegmentIndexBytes is segment.index.bytes: the size of each index that
	// closes the segment. Default 10 MiB.
	SegmentIndexBytes int
	// FlushMessages is flush.messages. 1, the default, is fsync mode: every
	// append starts a flush. More is page-cache mode: a flush when so many
	// records, 16 MiB or one second have gathered, whichever is first.
	FlushMessages int64
	// FlushInterval is flush.ms, for page-cache mode; it can only shorten
	// that mode's one second.
	FlushInterval time.Duration
	// MaxBatchBytes is max.message.bytes. Default 1048588.
	MaxBatchBytes int
	// MaxExpandedBytes is batch.max.expanded.bytes: what a compressed batch
	// may expand to. Default 64 MiB.
	MaxExpandedBytes int64
	// LogAppendTime is message.timestamp.type=LogAppendTime.
	LogAppendTime bool
	// TimestampBefore and TimestampAfter are message.timestamp.before.max.ms
	// and .after.max.ms: how far from the broker's clock a record's time may
	// be. Defaults: no limit, and one hour.
	TimestampBefore, TimestampAfter time.Duration
	// RequireKeys refuses records without a key, as compacted topics do. It
	// needs the deep check and therefore overrides HeaderOnly.
	RequireKeys bool
	// HeaderOnly is leat.validate=header: only a batch's header and checksum
	// are checked, not its records.
	HeaderOnly bool
	// Compact is cleanup.policy=compact: Compact is called for the log, and its
	// active segment is closed no later than MaxCompactionLag.
	Compact bool
	// DeleteRetention is delete.retention.ms: how long a tombstone stays from
	// the first pass on that went over it. Default 24 hours.
	DeleteRetention time.Duration
	// MinCompactionLag and MaxCompactionLag are min.compaction.lag.ms and
	// max.compaction.lag.ms: how long records are left alone, and after what
	// time they are overdue. Defaults: none, and no limit.
	MinCompactionLag, MaxCompactionLag time.Duration
	// ProducerExpiration is producer.id.expiration.ms: how long an idle
	// idempotent producer is remembered. Default 24 hours.
	ProducerExpiration time.Duration
	// KeyRetention is leat.idempotency.retention.ms: how long the idempotency key
	// of a request is remembered. Default 10 minutes.
	KeyRetention time.Duration
	// MaxKeys is leat.idempotency.max.keys: how many are remembered in all logs of
	// a topic; beyond it the oldest is forgotten. Default 100,000, at most 1,000,000.
	MaxKeys int
}

// withDefaults returns c with every zero replaced and every size within the
// limits of the file format.
func (c Config) withDefaults() Config {
	c.SegmentBytes = min(orElse(c.SegmentBytes, defaultSegmentBytes), maxSegmentBytes)
	c.SegmentAge = orElse(c.SegmentAge, defaultSegmentAge)
	if c.IndexInterval <= 0 {
		c.IndexInterval = defaultIndexInterval
		if c.SegmentBytes >= defaultSegmentBytes {
			c.IndexInterval = largeIndexInterval
		}
	}
	c.SegmentIndexBytes = orElse(c.SegmentIndexBytes, defaultIndexBytes)
	c.FlushMessages = orElse(c.FlushMessages, 1)
	c.FlushInterval = min(orElse(c.FlushInterval, pageCacheDelay), pageCacheDelay)
	c.MaxBatchBytes = orElse(c.MaxBatchBytes, defaultMaxBatchBytes)
	c.MaxExpandedBytes = orElse(c.MaxExpandedBytes, defaultMaxExpanded)
	c.TimestampBefore = orElse(c.TimestampBefore, math.MaxInt64)
	c.TimestampAfter = orElse(c.TimestampAfter, defaultTimestampAfter)
	c.DeleteRetention = orElse(c.DeleteRetention, defaultDeleteRetention)
	c.MaxCompactionLag = orElse(c.MaxCompactionLag, math.MaxInt64)
	c.ProducerExpiration = orElse(c.ProducerExpiration, defaultProducerExpiry)
	c.KeyRetention = orElse(c.KeyRetention, defaultKeyRetention)
	c.MaxKeys = orElse(c.MaxKeys, defaultMaxKeys)
	return c
}

// syncEach says that the log is in fsync mode.
func (c *Config) syncEach() bool { return c.FlushMessages == 1 }

// orElse returns v, or the default for a v that is not positive.
func orElse[T int | int64 | time.Duration](v, fallback T) T {
	if v > 0 {
		return v
	}
	return fallback
}
