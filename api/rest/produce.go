package rest

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"leat/api"
	"leat/broker"
)

const (
	// fullReceipts is up to how many records each gets its own receipt unless
	// the request says otherwise.
	fullReceipts = 1000

	defaultAckTimeout = 30 * time.Second
	maxAckTimeout     = 5 * time.Minute
)

// The forms of a produce's answer.
const (
	receiptsDefault = "" // until the number of records is known
	receiptsFull    = "full"
	receiptsSummary = "summary"
	receiptsNone    = "none"
)

// produceOptions are what the query and headers say of a produce.
type produceOptions struct {
	acks     broker.Acks
	timeout  time.Duration
	receipts string
	// lines says that each line of the body is a value.
	lines bool
	// key finds the keys of lines; nil leaves them without.
	key *api.Pointer
	// stream says that records are appended, and receipts written, as they come.
	stream bool
}

// produceParams reads what the headers and the query say of a produce: what its
// body is, and what to do with it.
func (s *Server) produceParams(w *responseWriter, r *http.Request, partition int32) (media string, o produceOptions, err error) {
	ps, err := parseParams(r, "acks", "timeout_ms", "receipts", "value", "key_pointer", "raw", "stream")
	if err != nil {
		return "", o, err
	}
	raw, err := ps.boolean("raw")
	if err != nil {
		return "", o, err
	}
	if media, err = s.produceMedia(w, r, partition, raw); err != nil {
		return "", o, err
	}
	if err = o.read(r, ps); err == nil {
		err = o.readLines(ps, media)
	}
	if err == nil {
		err = o.readStream(r, ps, media)
	}
	if err == nil && media == mediaBatch && o.receipts == receiptsFull {
		err = api.InvalidParameter("receipts", "raw batches get a receipt each: want summary or none")
	}
	return media, o, err
}

// read reads what applies to every body.
func (o *produceOptions) read(r *http.Request, ps params) error {
	acks, err := ps.choice("acks", "all", "-1", "leader", "1", "none", "0")
	if err != nil {
		return err
	}
	switch acks {
	case "all", "-1":
		o.acks = broker.AcksAll
	case "leader", "1":
		o.acks = broker.AcksLeader
	default:
		o.acks = broker.AcksNone
	}
	ms, err := ps.integer("timeout_ms", 0, maxAckTimeout.Milliseconds(), defaultAckTimeout.Milliseconds())
	if err != nil {
		return err
	}
	o.timeout = time.Duration(ms) * time.Millisecond
	if _, given := ps.get("receipts"); given {
		if o.receipts, err = ps.choice("receipts", receiptsFull, receiptsSummary, receiptsNone); err != nil {
			return err
		}
	} else if prefer(r, "return") == "minimal" {
		o.receipts = receiptsSummary
	}
	return nil
}

// readLines reads what applies to lines that are values.
func (o *produceOptions) readLines(ps params, media string) (err error) {
	if value, given := ps.get("value"); given {
		if value != "line" || media != mediaNDJSON {
			return api.InvalidParameter("value", "want line, with Content-Type "+mediaNDJSON)
		}
		o.lines = true
	}
	if pointer, given := ps.get("key_pointer"); given {
		if !o.lines {
			return api.InvalidParameter("key_pointer", "is for value=line")
		}
		if o.key, err = api.ParsePointer(pointer); err != nil {
			return api.InvalidParameter("key_pointer", err.Error())
		}
	}
	return nil
}

// readStream finds out whether the body has no end.
func (o *produceOptions) readStream(r *http.Request, ps params, media string) (err error) {
	if o.stream, err = ps.boolean("stream"); err != nil || !o.stream {
		return err
	}
	if media != mediaNDJSON {
		return api.InvalidParameter("stream", "want Content-Type "+mediaNDJSON)
	}
	for _, name := range []string{headerKey, headerProducerID, headerProducerEpoch, headerProducerSeq} {
		if _, given := r.Header[name]; given {
			return badHeader(name, "does not go with stream=true")
		}
	}
	return nil
}

// settle chooses the receipts once the number of records is known.
func (o *produceOptions) settle(count int) {
	if o.receipts == receiptsDefault {
		o.receipts = receiptsFull
		if o.lines || count > fullReceipts {
			o.receipts = receiptsSummary
		}
	}
}

func (s *Server) produceToTopic(w *responseWriter, r *http.Request) error {
	return s.produce(w, r, api.AnyPartition)
}

func (s *Server) produceToPartition(w *responseWriter, r *http.Request) error {
	p, err := partitionParam(r)
	if err != nil {
		return err
	}
	return s.produce(w, r, p)
}

// production is one produce under way.
type production struct {
	produceOptions
	s         *Server
	w         *responseWriter
	r         *http.Request
	topic     string
	partition int32
	media     string
	text      []byte
	identity
}

// produce takes the records of a request. Nothing is appended, and no topic is
// made, before the whole body is read and found to be good.
func (s *Server) produce(w *responseWriter, r *http.Request, partition int32) error {
	topic, err := topicParam(r)
	if err != nil {
		return err
	}
	media, opts, err := s.produceParams(w, r, partition)
	if err != nil {
		return err
	}
	if opts.stream {
		if err := s.upload(w, r, &opts, topic, partition); err != nil {
			return api.ProblemOf(err).At(topic, partition)
		}
		return nil
	}
	who, err := requestIdentity(r, media, partition)
	if err != nil {
		return err
	}
	b, err := s.readBody(w, r, s.opts.MaxRequestBytes)
	if err != nil {
		return err
	}
	defer b.release()
	s.spend(w, r, broker.QuotaProduce, int64(len(b.bytes)))
	if len(b.bytes) == 0 && media != formEvent {
		return api.EmptyBody("the body is empty")
	}
	p := &production{produceOptions: opts, s: s, w: w, r: r, topic: topic, partition: partition, media: media, text: b.bytes, identity: who}
	if err := p.run(); err != nil {
		problem := api.ProblemOf(err)
		s.metrics.refusedRecords(problem)
		return p.repeatable(problem).At(topic, partition)
	}
	return nil
}

func (p *production) run() error {
	switch {
	case p.media == mediaBatch:
		return p.runBatches()
	case p.lines && p.partition < 0 && p.key == nil && p.receipts != receiptsFull:
		return p.runLines()
	}
	if err := p.checkTarget(p.parse); err != nil {
		return err
	}
	set, err := p.newSet()
	if err != nil {
		return err
	}
	defer set.Close()
	rs := &api.Records{Sink: set, Route: p.partition, Now: set.Now()}
	if err := p.parse(rs); err != nil {
		return err
	}
	p.settle(rs.Count)
	return p.append(set, rs.Times)
}

// runLines is the fast lane: lines go from the body into batches by one call.
func (p *production) runLines() error {
	count, err := api.CountLines(p.text)
	if err != nil {
		return err
	}
	if err := p.checkTarget(p.parse); err != nil {
		return err
	}
	set, err := p.newSet()
	if err != nil {
		return err
	}
	defer set.Close()
	if err := set.AddLines(p.text); err != nil {
		rs := &api.Records{Count: count}
		if le, ok := errors.AsType[*broker.LineError](err); ok {
			rs.Refuse(&api.ItemError{Index: &le.Line, Line: le.Line + 1}, le.Err)
			return rs.Finish()
		}
		return err
	}
	p.settle(count)
	return p.append(set, nil)
}

// checkTarget finds out whether the records have a place to go. For a topic
// that does not exist yet they are tried by parse first, so that a bad body does
// not make the topic.
func (p *production) checkTarget(parse func(*api.Records) error) error {
	partitions, err := p.s.broker.PartitionCount(principal(p.r), p.topic)
	switch {
	case errors.Is(err, broker.ErrUnknownTopic):
		return p.try(parse)
	case err != nil:
		return err
	case int(p.partition) >= partitions:
		return noPartition(p.topic, p.partition, partitions)
	}
	return nil
}

// try finds out what is wrong with records for a topic that is still to be made.
func (p *production) try(parse func(*api.Records) error) error {
	trial, err := p.s.broker.NewTrialSet(p.r.Context(), principal(p.r), p.topic)
	if err != nil {
		return err
	}
	defer trial.Close()
	if n := trial.Partitions(); int(p.partition) >= n {
		return noPartition(p.topic, p.partition, n)
	}
	return parse(&api.Records{Sink: trial, Route: p.partition, Now: trial.Now()})
}

func noPartition(topic string, partition int32, have int) error {
	return fmt.Errorf("%w: topic %q has no partition %d, it has %d", broker.ErrUnknownPartition, topic, partition, have)
}

// append writes the records and answers.
func (p *production) append(set *broker.RecordSet, times []int64) error {
	results, err := set.Produce(p.r.Context(), p.acks, p.timeout)
	if err != nil {
		return err
	}
	return p.answer(&outcome{results: results, placement: set.Placement(), times: times})
}
