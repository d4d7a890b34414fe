package kafka

import (
	"context"
	"encoding/binary"
	"sync"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

// Fetch (key 1), versions 4 to 17.
//
// The answer is encoded by hand around file sections, see output: kmsg wants
// the records in memory. MaxWait, MinBytes and MaxBytes are the broker's.
//
//	v5  log start offset
//	v7  top-level error, sessions (KIP-227)
//	v9  the client's leader epoch is checked (KIP-320)
//	v11 rack id; preferred replica in the answer
//	v12 flexible
//	v13 topics by id (KIP-516)
//	v15 the replica's state moved to a tag; v16 and v17 change tags only
//
// Left out: sessions are declined with session id 0, and a client that goes on
// with a session of an earlier server is told FETCH_SESSION_ID_NOT_FOUND, which
// makes it start over. Followers do not fetch here. The preferred replica is
// always -1, and the tags with the current leader and its address are not sent:
// clients ask Metadata. With read_committed the list of aborted transactions is
// empty, since there are no transactions. Version 18 changes followers' fetches.

type fetchCall struct {
	query   broker.FetchRequest
	topics  []fetchTopic // of the query's partitions, in order
	refused int16        // top-level error
	// session is the epoch of the client's session, see sessionError.
	session int32
	// results is what fetchReady found, if it is enough.
	results []broker.FetchResult
	ready   bool
}

var fetchCalls = sync.Pool{New: func() any { return new(fetchCall) }}

func decodeFetch(c *conn, cl *call, body []byte) error {
	fc := fetchCalls.Get().(*fetchCall)
	cl.state = fc
	if err := fc.decode(&c.names, body, cl.version); err != nil {
		endFetch(cl)
		return err
	}
	fc.refused = sessionError(fc.session)
	return nil
}

// endFetch gives the call back, unless it has grown too large to be kept.
func endFetch(cl *call) {
	fc := cl.state.(*fetchCall)
	partitions, topics := fc.query.Partitions, fc.topics
	clear(partitions)
	clear(topics)
	*fc = fetchCall{topics: topics[:0]}
	fc.query.Partitions = partitions[:0]
	if cap(partitions) <= 1024 && cap(topics) <= 1024 {
		fetchCalls.Put(fc)
	}
}

// sessionError judges the session's epoch (KIP-227): 0 asks for a new session
// and -1 ends one, and both are full fetches whatever the id; any other goes on
// with a session, of which we have none.
func sessionError(epoch int32) int16 {
	if epoch == 0 || epoch == -1 {
		return api.KafkaNone
	}
	return api.KafkaFetchSessionIDNotFound
}

// fetchReady reads once without a wait and keeps what it finds if that is
// enough to answer. A wait belongs to the writer, so that the reader meets the
// end of the connection.
func fetchReady(ctx context.Context, c *conn, cl *call) bool {
	fc := cl.state.(*fetchCall)
	if fc.ready = fc.refused != api.KafkaNone; fc.ready {
		return true
	}
	q := &fc.query
	wait := q.MaxWait
	q.MaxWait = 0
	fc.results = c.srv.opts.Broker.Fetch(ctx, c.principal, q)
	q.MaxWait = wait
	got := 0
	for i := range fc.results {
		if s := fc.results[i].Section; s != nil {
			got += int(s.Len())
		}
		fc.ready = fc.ready || fc.results[i].Err != nil
	}
	if fc.ready = fc.ready || wait <= 0 || got >= q.MinBytes || len(fc.results) == 0; !fc.ready {
		for i := range fc.results {
			if s := fc.results[i].Section; s != nil {
				s.Release()
			}
		}
		fc.results = nil
	}
	return fc.ready
}

func answerFetch(ctx context.Context, c *conn, cl *call) error {
	fc := cl.state.(*fetchCall)
	switch {
	case fc.refused != api.KafkaNone:
		cl.refuse(fc.refused)
		fc.topics = fc.topics[:0]
	case !fc.ready:
		fc.results = c.srv.opts.Broker.Fetch(ctx, c.principal, &fc.query)
	}
	bytes := int64(0)
	for i := range fc.results {
		if s := fc.results[i].Section; s != nil {
			bytes += s.Len()
		}
	}
	c.meter(cl, broker.QuotaFetch, bytes)
	c.out.begin(cl.corr, cl.version >= cl.h.flexible)
	fc.encode(ctx, c.out, cl)
	return c.out.flush()
}

// fetchEncoder appends the skeleton of a response. It holds the slice while
// it appends and gives it back where a section is put.
type fetchEncoder struct {
	b        []byte
	version  int16
	flexible bool
}

// encode encodes the response into o, where result i belongs to the i-th
// partition of the request. It takes the sections over.
func (fc *fetchCall) encode(ctx context.Context, o *output, cl *call) {
	e := fetchEncoder{b: o.buf.b, version: cl.version, flexible: cl.version >= 12}
	e.int32(cl.throttleMillis())
	if e.version >= 7 {
		e.int16(fc.refused)
		e.int32(0) // session id: none
	}
	e.array(len(fc.topics))
	n := 0
	for i := range fc.topics {
		t := &fc.topics[i]
		if e.version >= 13 {
			e.b = append(e.b, t.id[:]...)
		} else {
			e.string(t.name)
		}
		e.array(t.partitions)
		for range t.partitions {
			fc.put(ctx, &e, o, cl, n)
			n++
		}
		e.tags()
	}
	e.tags()
	o.buf.b = e.b
}

// put appends the whole of partition n. A section that cannot be read into the
// skeleton makes it a partition with an error.
func (fc *fetchCall) put(ctx context.Context, e *fetchEncoder, o *output, cl *call, n int) {
	begin := len(e.b)
	in, r := &fc.query.Partitions[n], &fc.results[n]
	index, s := in.Partition, r.Section
	if e.version >= 13 && in.TopicID == (broker.TopicID{}) {
		r.Err = broker.ErrUnknownTopicID // and not a name that is empty
	}
	e.partition(index, cl.code(ctx, r.Err), r, fc.query.ReadCommitted)
	e.bytes(s)
	if s != nil {
		r.Section = nil
		o.buf.b = e.b
		err := o.put(s)
		e.b = o.buf.b
		if err != nil {
			r.Err, e.b = err, e.b[:begin]
			fc.put(ctx, e, o, cl, n)
			return
		}
	}
	e.tags()
}

// partition appends what stands before the records.
func (e *fetchEncoder) partition(index int32, code int16, r *broker.FetchResult, committed bool) {
	hw, stable, start := r.HighWatermark, r.LastStable, r.LogStart
	if code != api.KafkaNone {
		hw, stable, start = -1, -1, -1
	}
	e.int32(index)
	e.int16(code)
	e.int64(hw)
	e.int64(stable)
	if e.version >= 5 {
		e.int64(start)
	}
	// Aborted transactions: null for readers of everything, who must not be
	// given a list, and none for the others.
	switch {
	case !committed || code != api.KafkaNone:
		e.null()
	default:
		e.array(0)
	}
	if e.version >= 11 {
		e.int32(-1) // preferred replica
	}
}

// bytes appends the length of the records. No records are an empty field and
// never null, which librdkafka does not take.
func (e *fetchEncoder) bytes(s record.Section) {
	n := 0
	if s != nil {
		n = int(s.Len())
	}
	e.array(n)
}

func (e *fetchEncoder) int16(v int16) { e.b = binary.BigEndian.AppendUint16(e.b, uint16(v)) }
func (e *fetchEncoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *fetchEncoder) int64(v int64) { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

// array appends a length: n+1 as uvarint where flexible, else an int32.
func (e *fetchEncoder) array(n int) {
	if e.flexible {
		e.b = binary.AppendUvarint(e.b, uint64(n)+1)
	} else {
		e.int32(int32(n))
	}
}

// null appends the length of an array that is null.
func (e *fetchEncoder) null() {
	if e.flexible {
		e.b = append(e.b, 0)
	} else {
		e.int32(-1)
	}
}

func (e *fetchEncoder) string(s string) {
	if e.flexible {
		e.array(len(s))
	} else {
		e.int16(int16(len(s)))
	}
	e.b = append(e.b, s...)
}

func (e *fetchEncoder) tags() {
	if e.flexible {
		e.b = append(e.b, 0)
	}
}
