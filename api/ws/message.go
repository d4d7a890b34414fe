package ws

import (
	"time"

	"leat/broker"
)

// kind is the type of a message, of either side.
type kind uint8

const (
	kindInvalid kind = iota
	kindSubscribe
	kindCredit
	kindPause
	kindResume
	kindUnsubscribe
	kindProduce
	kindPing

	kindReady
	kindSubscribed
	kindData
	kindProduced
	kindGap
	kindStreamReset
	kindUnsubscribed
	kindPaused
	kindResumed
	kindPong
	kindHeartbeat
	kindGoaway
	kindError
	kinds
)

// kindNames are the values of the member type.
var kindNames = [kinds]string{
	"invalid", "subscribe", "credit", "pause", "resume", "unsubscribe", "produce", "ping",
	"ready", "subscribed", "data", "produced", "gap", "stream_reset", "unsubscribed", "paused", "resumed", "pong", "hb",
	"goaway", "error",
}

// clientKind is the kind of a message that clients may send, kindInvalid for
// any other name.
func clientKind(name string) kind {
	for k := kindSubscribe; k <= kindPing; k++ {
		if kindNames[k] == name {
			return k
		}
	}
	return kindInvalid
}

const (
	// maxIdent is how long an id or the name of a subscription may be, in bytes
	// of its JSON text without the quotes.
	maxIdent = 64
	// maxFrameBytes and defaultFrameBytes bound the records of a data frame.
	maxFrameBytes     = 256 << 10
	defaultFrameBytes = 64 << 10
	// maxAskedDelay is the longest frame delay that a client may allow.
	maxAskedDelay = 100 * time.Millisecond
	// The window of a subscription that says nothing of credit.
	defaultWindowBytes   = 1 << 20
	defaultWindowRecords = 1000
	// maxCredit bounds what a client can grant, so that sums do not overflow.
	maxCredit = 1 << 53

	defaultAckTimeout = 30 * time.Second
	maxAckTimeout     = 5 * time.Minute
)

// ident is an id as the client wrote it: a JSON string or integer, or nothing.
type ident string

// gapRule says what happens to a subscription whose position retention has
// overtaken.
type gapRule uint8

const (
	gapEarliest gapRule = iota // go on at the start of the log
	gapLatest                  // go on at its end
	gapFail                    // end the subscription
)

// fromKind is the way in which a place to start is given.
type fromKind uint8

const (
	fromPlace   fromKind = iota // text: earliest, latest, ts:…, tail:…, or a cursor
	fromOffsets                 // offsets by partition
	fromTime                    // a time in ms
	fromCursor                  // a cursor
)

// from is where a subscription starts.
type from struct {
	kind    fromKind
	text    string
	ms      int64
	offsets []broker.TailStart
}

// grant is credit: bytes and records, and whether the server tops it up.
type grant struct {
	auto           bool
	bytes, records int64
}

// receiptsForm is what a producer is told of its records.
type receiptsForm uint8

const (
	receiptsDefault receiptsForm = iota // until the number of records is known
	receiptsFull
	receiptsSummary
	receiptsNone
)

// message is what a client sent, checked. Slices are of the text.
type message struct {
	kind    kind
	id, sub ident

	// Of subscribe.
	topic      string
	topicID    string
	partitions []int32
	// allPartitions says that every partition is meant, also those to come,
	// whatever from names.
	allPartitions bool
	from          from
	credit        grant
	maxBytes      int
	maxDelay      time.Duration
	skip          bool
	onGap         gapRule
	as            string
	filter        string

	// Of produce: the JSON array, not looked into.
	records  []byte
	acks     broker.Acks
	receipts receiptsForm
	timeout  time.Duration
	// producer is the idempotent producer whose records these are, all for
	// partition; nil for none.
	producer  *broker.ProducerSequence
	partition int32
}

// member is a set of members of a message.
type member uint32

const (
	memberType member = 1 << iota
	memberID
	memberSub
	memberTopic
	memberTopicID
	memberPartitions
	memberFrom
	memberCredit
	memberBatch
	memberSlow
	memberOnGap
	memberAs
	memberFilter
	memberRecords
	memberBytes
	memberAcks
	memberReceipts
	memberTimeout
	memberProducer
)

var memberNames = []string{
	"type", "id", "sub", "topic", "topic_id", "partitions", "from", "credit", "batch", "slow", "on_gap", "as", "filter",
	"records", "bytes", "acks", "receipts", "timeout_ms", "producer",
}

// membersOf says which members each kind must and may have, beside type.
var membersOf = map[kind]struct{ must, may member }{
	kindSubscribe: {
		memberSub | memberTopic,
		memberID | memberPartitions | memberFrom | memberCredit | memberBatch | memberSlow | memberOnGap | memberTopicID | memberAs | memberFilter,
	},
	kindCredit:      {memberSub, memberID | memberBytes | memberRecords},
	kindPause:       {memberSub, memberID},
	kindResume:      {memberSub, memberID},
	kindUnsubscribe: {memberSub, memberID},
	kindProduce:     {memberTopic | memberRecords, memberID | memberAcks | memberReceipts | memberTimeout | memberProducer},
	kindPing:        {0, memberID},
}
