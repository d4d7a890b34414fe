package ws

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// fullReceipts is up to how many records each gets its own receipt unless the
// message says otherwise.
const fullReceipts = 1000

// production is a produce that was taken or refused and whose answer is due.
type production struct {
	pending *broker.Pending
	// refused is why nothing was appended; there is no pending then.
	refused *api.Problem
	id      ident
	topic   string
	acks    broker.Acks
	timeout time.Duration
	form    receiptsForm
	// repeatable says that the message may be sent again whatever became of it.
	repeatable bool
	count      int
	// size is what the message counts for, in bytes.
	size  int
	began time.Time
	// placement says for each record which result is its own, and times are the
	// records' timestamps; both are for full receipts only.
	placement []int32
	times     []int64
}

// produce appends the records of a message, or answers why it does not.
func (s *session) produce(m *message, size int, began time.Time) {
	p := &production{id: m.id, topic: m.topic, acks: m.acks, timeout: m.timeout, form: m.receipts, size: size, began: began}
	if err := s.append(m, p); err != nil {
		p.refused = api.ProblemOf(err).At(m.topic, api.AnyPartition)
	}
	s.mu.Lock()
	s.mu.appending = false
	if s.mu.dead {
		s.mu.Unlock()
		return
	}
	s.mu.pending = append(s.mu.pending, p)
	s.mu.unacked += p.size
	start := !s.mu.settling
	if start {
		s.mu.settling = true
		s.srv.wg.Add(1) // under the lock: the session has not ended
	}
	s.mu.Unlock()
	if start {
		go s.settle()
	}
}

// append parses the records and appends them. As at the HTTP door, nothing is
// appended, and no topic is made, before the whole message is found to be good.
func (s *session) append(m *message, p *production) error {
	s.mu.Lock()
	draining := s.mu.draining
	s.mu.appending = !draining
	s.mu.Unlock()
	if draining {
		return broker.ErrShuttingDown
	}
	switch _, err := s.srv.broker.PartitionCount(s.principal, m.topic); {
	case errors.Is(err, broker.ErrUnknownTopic):
		if err := s.try(m); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	set, err := s.srv.broker.NewRecordSet(s.srv.ctx, s.principal, m.topic)
	if err != nil {
		return err
	}
	defer set.Close()
	if m.producer != nil {
		if err := set.Identify(*m.producer, m.partition); err != nil {
			return err
		}
		p.repeatable = true
	}
	rs := &api.Records{Sink: set, Route: m.partition, Now: set.Now()}
	if err := parse(rs, m.records); err != nil {
		return err
	}
	if p.form == receiptsDefault {
		p.form = receiptsFull
		if rs.Count > fullReceipts {
			p.form = receiptsSummary
		}
	}
	if p.acks == broker.AcksNone {
		p.form = receiptsNone
	}
	if p.form == receiptsFull {
		p.placement, p.times = slices.Clone(set.Placement()), rs.Times
	}
	p.count = rs.Count
	p.pending, err = set.Append(s.srv.ctx, p.acks)
	return err
}

// try finds out what is wrong with records for a topic that is still to be made.
func (s *session) try(m *message) error {
	trial, err := s.srv.broker.NewTrialSet(s.srv.ctx, s.principal, m.topic)
	if err != nil {
		return err
	}
	defer trial.Close()
	return parse(&api.Records{Sink: trial, Route: m.partition, Now: trial.Now()}, m.records)
}

func parse(rs *api.Records, records []byte) error {
	if err := api.ParseJSON(rs, records); err != nil {
		return err
	}
	return rs.Finish()
}

// settle waits for what was appended and answers, in the order in which it was
// appended. It runs while anything is pending.
func (s *session) settle() {
	defer s.srv.wg.Done()
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked(cause)
		}
	}()
	ctx, stop := context.WithCancel(s.srv.ctx)
	defer stop()
	s.mu.Lock()
	s.mu.stop = stop
	for len(s.mu.pending) > 0 && !s.mu.dead {
		p := s.mu.pending[0]
		s.mu.pending[0] = nil
		s.mu.pending = s.mu.pending[1:]
		s.mu.Unlock()
		answer := s.answer(ctx, p)
		s.post(&event{reply: answer}, true)
		s.srv.metrics.produced.Observe(time.Since(p.began).Seconds())
		s.mu.Lock()
		s.mu.unacked -= p.size
		s.mu.changed.Broadcast()
	}
	s.mu.settling, s.mu.stop, s.mu.pending = false, nil, nil
	s.mu.Unlock()
	s.kick() // a draining session has waited for this
}

// answer waits for one produce. If all of it failed of one cause, that is the
// answer; a success never hides a failure.
func (s *session) answer(ctx context.Context, p *production) text {
	if p.refused != nil {
		return s.failure(&message{kind: kindProduce, id: p.id, topic: p.topic}, p.refused)
	}
	results := p.pending.Wait(ctx, p.timeout)
	failed, oneCause := 0, true
	var first error
	for i := range results {
		if results[i].Err == nil {
			continue
		}
		if first == nil {
			first = results[i].Err
		}
		oneCause = oneCause && api.Describe(first).Code == api.Describe(results[i].Err).Code
		failed += results[i].Count
	}
	s.srv.metrics.recordsIn.Add(float64(p.count - failed))
	if failed > 0 && ctx.Err() == nil { // else nobody waits any more
		s.srv.log.LogAttrs(ctx, slog.LevelWarn, "records of a websocket message failed", slog.String("conn", s.id),
			slog.String("topic", p.topic), slog.Int("failed", failed), slog.Int("records", p.count), slog.Any("err", first))
	}
	if failed == p.count && oneCause {
		problem := *api.ProblemOf(first)
		problem.Retriable = problem.Retriable || p.repeatable && problem.MaybeWritten
		return failure(p.id, "", s.id, problem.At(p.topic, api.AnyPartition))
	}
	t := begin(kindProduced, p.id, "").integer("count", int64(p.count))
	if failed > 0 {
		t = t.integer("failed", int64(failed))
	}
	switch p.form {
	case receiptsFull:
		t = p.full(t, results)
	case receiptsSummary:
		t = p.summary(t, results)
	case receiptsDefault, receiptsNone:
	}
	return t.close()
}

// full adds a receipt for each record, in the order of the message.
func (p *production) full(t text, results []broker.PartitionResult) text {
	taken := make([]int64, len(results))
	t = t.name("receipts")
	t.b = append(t.b, '[')
	for i, at := range p.placement {
		if i > 0 {
			t.b = append(t.b, ',')
		}
		res := &results[at]
		t.b = append(t.b, `{"partition":`...)
		t.b = strconv.AppendInt(t.b, int64(res.Partition), 10)
		if res.Err != nil {
			t = t.failure(res.Err, p.repeatable)
		} else {
			ts := res.Timestamp
			if ts < 0 {
				ts = p.times[i]
			}
			t = t.integer("offset", res.Base+taken[at])
			if !res.Untimed {
				t = t.integer("timestamp", ts)
			}
			t = t.duplicate(res)
		}
		taken[at]++
		t.b = append(t.b, '}')
	}
	t.b = append(t.b, ']')
	return t
}

// summary adds a receipt for each batch.
func (p *production) summary(t text, results []broker.PartitionResult) text {
	t = t.name("partitions")
	t.b = append(t.b, '[')
	for i := range results {
		if i > 0 {
			t.b = append(t.b, ',')
		}
		res := &results[i]
		t.b = append(t.b, `{"partition":`...)
		t.b = strconv.AppendInt(t.b, int64(res.Partition), 10)
		if res.Err != nil {
			t = t.failure(res.Err, p.repeatable)
		} else {
			t = t.integer("base_offset", res.Base).integer("last_offset", res.Base+int64(res.Count)-1)
		}
		t = t.integer("count", int64(res.Count)).duplicate(res)
		t.b = append(t.b, '}')
	}
	t.b = append(t.b, ']')
	return t
}

// duplicate says that a producer sent the batch before.
func (t text) duplicate(res *broker.PartitionResult) text {
	if res.Duplicate {
		t.b = append(t.b, `,"duplicate":true`...)
	}
	return t
}

// failure adds the member error of a receipt. repeatable says that the message
// may be sent again even if the records may have been written.
func (t text) failure(err error, repeatable bool) text {
	e := api.Describe(err)
	e.Retriable = e.Retriable || repeatable && e.MaybeWritten
	t = t.name("error")
	t.b = append(t.b, `{"code":`...)
	t.b, _ = jsontext.AppendQuote(t.b, e.Code)
	t = t.integer("status", int64(e.Status)).name("retriable")
	t.b = strconv.AppendBool(t.b, e.Retriable)
	if e.MaybeWritten {
		t.b = append(t.b, `,"maybe_written":true`...)
	}
	if e.Detail != "" {
		t = t.quote("detail", e.Detail)
	}
	t.b = append(t.b, '}')
	return t
}
