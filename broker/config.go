package broker

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ConfigType is the type of a config's value, with Kafka's numbers.
type ConfigType int8

// The types of Kafka's configs that Leat has.
const (
	ConfigBool   ConfigType = 1
	ConfigString ConfigType = 2
	ConfigInt    ConfigType = 3
	ConfigLong   ConfigType = 5
	ConfigDouble ConfigType = 6
	ConfigList   ConfigType = 7
)

// ConfigSource says where a config's value comes from, with Kafka's numbers.
type ConfigSource int8

// The sources that Leat has.
const (
	SourceTopic          ConfigSource = 1
	SourceDynamicBroker  ConfigSource = 2
	SourceDynamicDefault ConfigSource = 3
	SourceServer         ConfigSource = 4
	SourceDefault        ConfigSource = 5
)

// ConfigEntry is one config with its value in force.
type ConfigEntry struct {
	Name, Value string
	Source      ConfigSource
	Type        ConfigType
	// ReadOnly says that it cannot be changed while the server runs.
	ReadOnly bool
	// Synonyms are all places where the value is set, the one in force first
	// and the default last.
	Synonyms []ConfigSynonym
	// Doc says what it does, in a sentence or two.
	Doc string
}

// ConfigSynonym is a value of a config at one of the places where it is set.
type ConfigSynonym struct {
	Name, Value string
	Source      ConfigSource
}

// Default reports whether nobody set the value.
func (e ConfigEntry) Default() bool { return e.Source == SourceDefault }

// ConfigOp says what a ConfigChange does, with Kafka's numbers (KIP-339).
type ConfigOp int8

// The ways to change a config. Append and subtract are for lists.
const (
	ConfigSet      ConfigOp = 0
	ConfigDelete   ConfigOp = 1
	ConfigAppend   ConfigOp = 2
	ConfigSubtract ConfigOp = 3
)

// ConfigChange changes a config. ConfigDelete, or ConfigSet with a nil Value,
// takes it back to what is in force without it.
type ConfigChange struct {
	Name  string
	Value *string
	Op    ConfigOp
}

// configDef is one config of the table: what it is called for a topic and for
// the server, and which values it takes. An empty topic name means that topics
// cannot set it; an empty server name, that only topics can.
type configDef struct {
	topic, server string
	kind          ConfigType
	value         string // default
	check         func(string) error
	doc           string
}

// configs is every config that Leat knows, by topic name and then server name.
// Names are Kafka's wherever Kafka has one.
var configs = []configDef{
	{"batch.max.expanded.bytes", "log.batch.max.expanded.bytes", ConfigLong, "67108864", longIn(1<<10, 1<<31-1), "The most bytes that a compressed batch may expand to; more is refused."},
	{"cleanup.policy", "log.cleanup.policy", ConfigList, "delete", listOf("delete", "compact"), "What happens to old records: delete by age and size, or compact to the last of each key. Records without a key are refused where it says compact, and removed if they were there before. It may say both."},
	{"compression.type", "compression.type", ConfigString, "producer", oneOf("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), "The codec of batches that the server builds itself, for records that come over HTTP; producer means none. A Kafka client's batch is stored as it came."},
	{"delete.retention.ms", "log.cleaner.delete.retention.ms", ConfigLong, "86400000", longIn(0, math.MaxInt64), "How long a tombstone stays readable after compaction first met it; it goes when the partition is compacted after that."},
	{"file.delete.delay.ms", "log.segment.delete.delay.ms", ConfigLong, "60000", longIn(0, math.MaxInt64), "Kept for clients that set it; removed segments stay readable for the reads that hold them, however long."},
	{"flush.messages", "log.flush.interval.messages", ConfigLong, "1", longIn(1, math.MaxInt64), "1 is fsync mode: acks=all means on disk. More is page-cache mode: records are flushed after so many, 16 MiB or one second."},
	{"flush.ms", "log.flush.interval.ms", ConfigLong, "9223372036854775807", longIn(0, math.MaxInt64), "In page-cache mode, the longest that a record waits for a flush; never more than one second."},
	{"index.interval.bytes", "log.index.interval.bytes", ConfigInt, "4096", longIn(0, math.MaxInt32), "The bytes of log for each index entry."},
	{"leat.idempotency.max.keys", "log.leat.idempotency.max.keys", ConfigInt, "100000", longIn(1, 1_000_000), "How many idempotency keys of requests are remembered in all partitions of a topic; beyond it the oldest is forgotten, and a retry writes again."},
	{"leat.idempotency.retention.ms", "log.leat.idempotency.retention.ms", ConfigLong, "600000", longIn(1, math.MaxInt64), "How long the idempotency key of a request is remembered after the request was first tried."},
	{"leat.validate", "log.leat.validate", ConfigString, "full", oneOf("full", "header"), "full checks every record of a batch before it is stored; header only the batch's header and checksum."},
	{"max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", ConfigLong, "9223372036854775807", longIn(1, math.MaxInt64), "The longest that a record stays out of compaction: a segment is closed at that age, and the partition compacted however few of its bytes are dirty."},
	{"max.message.bytes", "message.max.bytes", ConfigInt, "1048588", longIn(1, math.MaxInt32), "The largest batch that is taken, in bytes as it is sent."},
	{"message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", ConfigLong, "3600000", longIn(0, math.MaxInt64), "How far a record's time may be ahead of the server's clock."},
	{"message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", ConfigLong, "9223372036854775807", longIn(0, math.MaxInt64), "How far a record's time may be behind the server's clock."},
	{"message.timestamp.type", "log.message.timestamp.type", ConfigString, "CreateTime", oneOf("CreateTime", "LogAppendTime"), "Whose clock a record's time comes from: the producer's or the server's."},
	{"min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", ConfigDouble, "0.5", ratio, "The share of uncompacted bytes above which a partition is compacted. The segment that grows does not count."},
	{"min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", ConfigLong, "0", longIn(0, math.MaxInt64), "How long a record is safe from compaction, by the newest record of its segment."},
	{"min.insync.replicas", "min.insync.replicas", ConfigInt, "1", longIn(1, math.MaxInt32), "The replicas that must be in sync for acks=all to be taken. Where nobody sets it: 2 with three replicas or more, else 1. What is set for one server, while it runs or at its start, asks for more than what is set for all, not for less."},
	{"preallocate", "log.preallocate", ConfigBool, "false", oneOf("true", "false"), "Kept for clients that set it; Leat preallocates by what a log appended lately."},
	{"retention.bytes", "log.retention.bytes", ConfigLong, "-1", longIn(-1, math.MaxInt64), "The bytes of each partition that are kept at least: its oldest segment is deleted once the others hold as many. -1 is no limit."},
	{"retention.ms", "log.retention.ms", ConfigLong, "604800000", longIn(-1, math.MaxInt64), "The age above which segments are deleted, by the newest record in them, whole and the oldest first; the one that grows too. Of a time in the future no more counts than message.timestamp.after.max.ms past the append. -1 is no limit. log.retention.minutes and log.retention.hours set it at the start where log.retention.ms does not."},
	{"segment.bytes", "log.segment.bytes", ConfigInt, "1073741824", longIn(1<<10, math.MaxInt32), "The size at which a segment is closed."},
	{"segment.index.bytes", "log.index.size.max.bytes", ConfigInt, "10485760", longIn(4, math.MaxInt32), "The size of an index at which the segment is closed."},
	{"segment.jitter.ms", "log.roll.jitter.ms", ConfigLong, "0", longIn(0, math.MaxInt64), "Kept for clients that set it."},
	{"segment.ms", "log.roll.ms", ConfigLong, "604800000", longIn(1, math.MaxInt64), "The age at which a segment is closed, by the server's clock since its first record, also without traffic. log.roll.hours sets it at the start where log.roll.ms does not."},
	{"unclean.leader.election.enable", "unclean.leader.election.enable", ConfigBool, "false", oneOf("true", "false"), "Whether a replica out of sync may lead when no other is left."},

	{"", "auto.create.topics.enable", ConfigBool, "true", oneOf("true", "false"), "Whether a topic is made when a client first names it."},
	{"", "default.replication.factor", ConfigInt, "1", longIn(1, math.MaxInt16), "The replicas of a topic whose maker does not say."},
	{"", diskLow, ConfigLong, "0", longIn(0, math.MaxInt64), "The free space in bytes on the data disk below which records are refused, while all else works; at most half of the disk. 0 is a fiftieth of the disk, 256 MiB to 4 GiB, and at most an eighth."},
	{"", scrubRate, ConfigLong, "4194304", longIn(0, math.MaxInt64), "How many bytes a second are read again of segments that have ended, to find damage while there may be another copy; 0 is none. A change begins a new pass."},
	{"", "group.initial.rebalance.delay.ms", ConfigInt, "3000", longIn(0, math.MaxInt32), "How long the first rebalance of an empty group waits for more members."},
	{"", "group.max.session.timeout.ms", ConfigInt, "1800000", longIn(1, math.MaxInt32), "The longest session timeout that a group's member may ask for."},
	{"", "group.max.size", ConfigInt, "10000", longIn(1, math.MaxInt32), "The members that a group may have."},
	{"", "group.min.session.timeout.ms", ConfigInt, "6000", longIn(1, math.MaxInt32), "The shortest session timeout that a group's member may ask for."},
	{"", inFlightConfig, ConfigLong, "536870912", longIn(64<<10, math.MaxInt64), "The bytes that the bodies of all HTTP requests and WebSocket messages may have in memory at a time; what answers to fetches are made in may have as many. More is answered with 503."},
	{"", inFlightEachConfig, ConfigLong, "67108864", longIn(64<<10, math.MaxInt64), "As leat.inflight.bytes, for the requests of each principal; more is answered with 429. A request that is the only one of its principal may have more."},
	{"", quotaConfigs[QuotaRequests], ConfigLong, "9223372036854775807", longIn(1, math.MaxInt64), "The requests a second that each principal may make, over all doors. 9223372036854775807 is no bound."},
	{"", "log.cleaner.backoff.ms", ConfigLong, "15000", longIn(0, math.MaxInt64), "How often partitions are looked for that are to be compacted, when there were none."},
	{"", "log.cleaner.dedupe.buffer.size", ConfigLong, "134217728", longIn(1<<10, math.MaxInt64), "The most memory that compaction takes for the keys of a pass, 24 bytes for each. What does not fit is left for the next pass."},
	{"", "log.cleaner.enable", ConfigBool, "true", oneOf("true", "false"), "Whether topics with cleanup.policy=compact are compacted."},
	{"", "log.cleaner.io.max.bytes.per.second", ConfigDouble, "1.7976931348623157E308", positive, "The bytes a second that compaction reads and writes at most, on average."},
	{"", "log.retention.check.interval.ms", ConfigLong, "300000", longIn(1, math.MaxInt64), "How often segments are looked for that retention.ms and retention.bytes let go; also at most 30 s after the start, and when configs change."},
	{"", "num.partitions", ConfigInt, "4", longIn(1, 100_000), "The partitions of a topic whose maker does not say."},
	{"", "offset.metadata.max.bytes", ConfigInt, "4096", longIn(0, math.MaxInt16), "The largest text that may be committed with an offset."},
	{"", "offsets.retention.check.interval.ms", ConfigLong, "600000", longIn(1, math.MaxInt64), "How often offsets are looked for that offsets.retention.minutes lets go."},
	{"", "offsets.retention.minutes", ConfigInt, "10080", longIn(1, math.MaxInt32), "How long offsets are kept after a group has lost its last member, or after the commit where there never was one."},
	{"", "offsets.topic.num.partitions", ConfigInt, "16", longIn(1, 10_000), "The partitions of __consumer_offsets, when it is made."},
	{"", "offsets.topic.segment.bytes", ConfigInt, "104857600", longIn(1<<10, math.MaxInt32), "The size at which a segment of __consumer_offsets is closed, when it is made."},
	{"", "producer.id.expiration.ms", ConfigLong, "86400000", longIn(1, math.MaxInt64), "How long an idle idempotent producer is remembered."},
	{"", quotaConfigs[QuotaFetch], ConfigLong, "9223372036854775807", longIn(1, math.MaxInt64), "The bytes of records a second that each principal may be given, over all doors: a Kafka client is held back, an HTTP request refused. 9223372036854775807 is no bound."},
	{"", quotaConfigs[QuotaProduce], ConfigLong, "9223372036854775807", longIn(1, math.MaxInt64), "The bytes of records a second that each principal may send, over all doors: a Kafka client is held back, an HTTP request refused. 9223372036854775807 is no bound."},
}

func longIn(low, high int64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a whole number from %d to %d", v, low, high)
		}
		return nil
	}
}

func ratio(v string) error {
	if f, err := strconv.ParseFloat(v, 64); err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("%q is not a number from 0 to 1", v)
	}
	return nil
}

func positive(v string) error {
	if f, err := strconv.ParseFloat(v, 64); err != nil || !(f > 0) {
		return fmt.Errorf("%q is not a number above 0", v)
	}
	return nil
}

func oneOf(values ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("%q is none of %s", v, strings.Join(values, ", "))
		}
		return nil
	}
}

func listOf(values ...string) func(string) error {
	return func(v string) error {
		for part := range strings.SplitSeq(v, ",") {
			if err := oneOf(values...)(strings.TrimSpace(part)); err != nil {
				return err
			}
		}
		return nil
	}
}

func topicConfig(name string) *configDef {
	return findConfig(func(d *configDef) bool { return d.topic == name })
}

// serverConfig finds a config of the server. The topic's name of a config is
// taken too: it sets the default of all topics.
func serverConfig(name string) *configDef {
	return findConfig(func(d *configDef) bool { return d.server == name || d.topic == name })
}

func findConfig(is func(*configDef) bool) *configDef {
	for i := range configs {
		if is(&configs[i]) {
			return &configs[i]
		}
	}
	return nil
}

// checkTopicConfigs refuses names that topics do not have and values that they
// do not take.
func checkTopicConfigs(values map[string]string) error {
	for name, v := range values {
		d := topicConfig(name)
		if name == "" || d == nil {
			return fmt.Errorf("%w: unknown topic config %q", ErrInvalidConfig, name)
		}
		if err := d.check(v); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrInvalidConfig, name, err)
		}
	}
	return nil
}
