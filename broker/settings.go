package broker

import (
	"math"
	"strconv"
	"strings"
	"time"

	"leat/storage"
	"leat/storage/record"
)

// settings is what a topic's configs mean to a partition, resolved once for
// each change.
type settings struct {
	log storage.Config
	// durable is fsync mode: a record is committed when it is on disk.
	durable bool
	// minISR is min.insync.replicas of the topic, else of all servers, and ownISR
	// what this server was told in place of that; 0 where nobody set it.
	minISR, ownISR int
	// retention is what the logs may let go; its bound is for who asks.
	retention storage.Retention
	// dirtyRatio is min.cleanable.dirty.ratio.
	dirtyRatio float64
	// codec is that of the batches that the server builds.
	codec record.Codec
}

// settings resolves the configs of a topic.
func (s serverConfigs) settings(set map[string]string) settings {
	get := func(name string) string {
		v, _ := s.topicValue(topicConfig(name), set)
		return v
	}
	num := func(name string) int64 { return number(get(name)) }
	out := settings{
		log: storage.Config{
			SegmentBytes:       num("segment.bytes"),
			SegmentAge:         millis(num("segment.ms")),
			SegmentIndexBytes:  int(num("segment.index.bytes")),
			FlushMessages:      num("flush.messages"),
			FlushInterval:      max(millis(num("flush.ms")), time.Millisecond),
			MaxBatchBytes:      int(num("max.message.bytes")),
			MaxExpandedBytes:   num("batch.max.expanded.bytes"),
			LogAppendTime:      get("message.timestamp.type") == "LogAppendTime",
			TimestampBefore:    max(millis(num("message.timestamp.before.max.ms")), 1),
			TimestampAfter:     max(millis(num("message.timestamp.after.max.ms")), 1),
			RequireKeys:        strings.Contains(get("cleanup.policy"), "compact"),
			Compact:            strings.Contains(get("cleanup.policy"), "compact"),
			DeleteRetention:    max(millis(num("delete.retention.ms")), 1),
			MinCompactionLag:   millis(num("min.compaction.lag.ms")),
			MaxCompactionLag:   millis(num("max.compaction.lag.ms")),
			HeaderOnly:         get("leat.validate") == "header",
			ProducerExpiration: millis(s.number("producer.id.expiration.ms")),
			KeyRetention:       millis(num("leat.idempotency.retention.ms")),
			MaxKeys:            int(num("leat.idempotency.max.keys")),
		},
	}
	out.retention = storage.Retention{MaxBytes: -1, MaxAge: -1}
	if strings.Contains(get("cleanup.policy"), "delete") {
		out.retention.MaxBytes, out.retention.MaxAge = num("retention.bytes"), millis(num("retention.ms"))
	}
	// The log picks an interval by the segment's size when nobody asks for one.
	if v, source := s.topicValue(topicConfig("index.interval.bytes"), set); source != SourceDefault {
		out.log.IndexInterval = max(int(number(v)), 1)
	}
	out.durable = out.log.FlushMessages == 1
	out.minISR, out.ownISR = s.minInSync(set)
	out.dirtyRatio, _ = strconv.ParseFloat(get("min.cleanable.dirty.ratio"), 64) // its check let it through
	out.codec, _ = record.ParseCodec(codecName(get("compression.type")))
	return out
}

// minInSync is min.insync.replicas as settings have it.
func (s serverConfigs) minInSync(set map[string]string) (ruling, own int) {
	d := topicConfig("min.insync.replicas")
	switch v, source := s.topicValue(d, set); source {
	case SourceTopic, SourceDynamicDefault:
		return int(number(v)), 0
	case SourceDynamicBroker, SourceServer:
		return int(number(s.cluster[d.server])), int(number(v))
	default:
		return 0, 0
	}
}

// codecName maps compression.type to the codec of batches built here.
func codecName(v string) string {
	if v == "producer" || v == "uncompressed" {
		return "none"
	}
	return v
}

// millis is a duration of n milliseconds, as long as a Duration can be.
func millis(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Millisecond
}
