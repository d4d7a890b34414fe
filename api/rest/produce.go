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
}

func produceParams(r *http.Request, media string) (o produceOptions, err error) {
	ps, err := parseParams(r, "acks", "timeout_ms", "receipts", "value")
	if err != nil {
		return o, err
	}
	acks, err := ps.choice("acks", "all", "-1", "leader", "1", "none", "0")
	if err != nil {
		return o, err
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
		return o, err
	}
	o.timeout = time.Duration(ms) * time.Millisecond
	if _, given := ps.get("receipts"); given {
		if o.receipts, err = ps.choice("receipts", receiptsFull, receiptsSummary, receiptsNone); err != nil {
			return o, err
		}
	} else if prefer(r, "return") == "minimal" {
		o.receipts = receiptsSummary
	}
	if value, given := ps.get("value"); given {
		if value != "line" || media != mediaNDJSON {
			return o, api.InvalidParameter("value", "want line, with Content-Type "+mediaNDJSON)
		}
		o.lines = true
	}
	if media == mediaBatch && o.receipts == receiptsFull {
		return o, api.InvalidParameter("receipts", "raw batches get a receipt each: want summary or none")
	}
	return o, nil
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
}

// produce takes the records of a request. Nothing is appended, and no topic is
// made, before the whole body is read and found to be good.
func (s *Server) produce(w *responseWriter, r *http.Request, partition int32) error {
	topic, err := topicParam(r)
	if err != nil {
		return err
	}
	offers := []string{mediaJSON, mediaNDJSON, mediaBytes}
	if partition >= 0 {
		offers = append(offers, mediaBatch)
	}
	media, err := requestMedia(w, r, "Accept-Post", offers...)
	if err != nil {
		return err
	}
	opts, err := produceParams(r, media)
	if err != nil {
		return err
	}
	b, err := s.readBody(w, r, s.opts.MaxRequestBytes)
	if err != nil {
		return err
	}
	defer b.release()
	if len(b.bytes) == 0 {
		return api.EmptyBody("the body is empty")
	}
	p := &production{produceOptions: opts, s: s, w: w, r: r, topic: topic, partition: partition, media: media, text: b.bytes}
	if err := p.run(); err != nil {
		return api.ProblemOf(err).At(topic, partition)
	}
	return nil
}

func (p *production) run() error {
	switch {
	case p.media == mediaBatch:
		return p.runBatches()
	case p.lines && p.partition < 0 && p.receipts != receiptsFull:
		return p.runLines()
	}
	if err := p.checkTarget(); err != nil {
		return err
	}
	set, err := p.s.broker.NewRecordSet(p.r.Context(), principal(p.r), p.topic)
	if err != nil {
		return err
	}
	defer set.Close()
	rs := &api.Records{Sink: set, Route: p.partition, Now: time.Now().UnixMilli()}
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
	set, err := p.s.broker.NewRecordSet(p.r.Context(), principal(p.r), p.topic)
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
// that does not exist yet the body is parsed for nothing, so that a bad one
// does not make the topic.
func (p *production) checkTarget() error {
	t, err := p.s.broker.Topic(p.r.Context(), principal(p.r), broker.TopicRef{Name: p.topic})
	switch {
	case errors.Is(err, broker.ErrUnknownTopic):
		return p.parse(&api.Records{Route: p.partition})
	case err != nil:
		return err
	case int(p.partition) >= len(t.Partitions):
		return fmt.Errorf("%w: topic %q has no partition %d, it has %d", broker.ErrUnknownPartition, p.topic, p.partition, len(t.Partitions))
	}
	return nil
}

// parse reads the whole body into rs and says what is wrong with it.
func (p *production) parse(rs *api.Records) error {
	var err error
	switch {
	case p.lines:
		err = api.ParseLines(rs, p.text)
	case p.media == mediaJSON:
		err = api.ParseJSON(rs, p.text)
	case p.media == mediaNDJSON:
		err = api.ParseNDJSON(rs, p.text)
	default:
		err = parseBytes(rs, p.r, p.text)
	}
	if err != nil {
		return err
	}
	return rs.Finish()
}

// append writes the records and answers.
func (p *production) append(set *broker.RecordSet, times []int64) error {
	results, err := set.Produce(p.r.Context(), p.acks, p.timeout)
	if err != nil {
		return err
	}
	return p.answer(&outcome{results: results, placement: set.Placement(), times: times})
}
