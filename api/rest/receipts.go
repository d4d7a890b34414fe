package rest

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// outcome is what became of a request's records.
type outcome struct {
	results []broker.PartitionResult
	// placement says for each record which result is its own; nil where
	// receipts are for batches only.
	placement []int32
	// times are the records' timestamps in ms; nil where they are not known.
	times []int64
	// firsts says that the receipts are those of the first try, to the byte.
	firsts bool
	// repeatable says that the request may be sent again whatever became of it.
	repeatable bool
}

// answer tells what became of the records. If all failed of one cause, that is
// the answer; a success never hides a failure.
func (p *production) answer(o *outcome) error {
	total, failed, oneCause := 0, 0, true
	var first error
	for i := range o.results {
		res := &o.results[i]
		total += res.Count
		if res.Err == nil {
			continue
		}
		if first == nil {
			first = res.Err
		}
		oneCause = oneCause && api.Describe(first).Code == api.Describe(res.Err).Code
		failed += res.Count
		p.s.metrics.failed(res.Err, res.Count)
	}
	p.s.metrics.recordsIn.Add(float64(total - failed))
	if failed == total && oneCause {
		return first
	}
	status := http.StatusOK
	switch {
	case failed > 0:
		status = http.StatusMultiStatus
		p.s.log.LogAttrs(p.r.Context(), slog.LevelWarn, "some records of a request failed", slog.String("request_id", p.w.id),
			slog.String("topic", p.topic), slog.Int("failed", failed), slog.Int("records", total), slog.Any("err", first))
	case p.acks == broker.AcksNone:
		status, p.receipts = http.StatusAccepted, receiptsNone
	}
	if o.replayed() {
		p.w.Header().Set("Idempotency-Replayed", "true")
	}
	o.firsts = p.once != ""
	o.repeatable = p.identified()
	out := newChunks(p.w, status, mediaJSON)
	defer out.release()
	out.text(`{"count":`)
	out.integer(int64(total))
	if failed > 0 {
		out.text(`,"failed":`)
		out.integer(int64(failed))
	}
	switch p.receipts {
	case receiptsFull:
		o.full(out)
	case receiptsSummary:
		o.summary(out)
	}
	out.text("}\n")
	out.finish()
	return nil
}

// replayed reports whether all was written before.
func (o *outcome) replayed() bool {
	for i := range o.results {
		if o.results[i].Err != nil || !o.results[i].Duplicate {
			return false
		}
	}
	return true
}

// full writes a receipt for each record, in the order of the request.
func (o *outcome) full(out *chunks) {
	taken := make([]int64, len(o.results))
	out.text(`,"receipts":[`)
	for i, at := range o.placement {
		if i > 0 {
			out.text(",")
		}
		res := &o.results[at]
		out.text(`{"partition":`)
		out.integer(int64(res.Partition))
		if res.Err != nil {
			out.failure(res.Err, o.repeatable)
		} else {
			out.text(`,"offset":`)
			out.integer(res.Base + taken[at])
			if ts := o.time(i, res); ts >= 0 {
				out.text(`,"timestamp":`)
				out.integer(ts)
			}
			o.duplicate(out, res)
		}
		taken[at]++
		out.text("}")
		out.flushFull()
	}
	out.text("]")
}

// time is the timestamp of record i, -1 if it is not known.
func (o *outcome) time(i int, res *broker.PartitionResult) int64 {
	switch {
	case res.Timestamp >= 0:
		return res.Timestamp
	case res.Untimed:
		return -1
	case i < len(o.times):
		return o.times[i]
	}
	return -1
}

// summary writes a receipt for each batch.
func (o *outcome) summary(out *chunks) {
	out.text(`,"partitions":[`)
	for i := range o.results {
		if i > 0 {
			out.text(",")
		}
		res := &o.results[i]
		out.text(`{"partition":`)
		out.integer(int64(res.Partition))
		if res.Err != nil {
			out.failure(res.Err, o.repeatable)
		} else {
			out.text(`,"base_offset":`)
			out.integer(res.Base)
			out.text(`,"last_offset":`)
			out.integer(res.Base + int64(res.Count) - 1)
		}
		out.text(`,"count":`)
		out.integer(int64(res.Count))
		o.duplicate(out, res)
		out.text("}")
		out.flushFull()
	}
	out.text("]")
}

// duplicate says that the batch was there before.
func (o *outcome) duplicate(out *chunks, res *broker.PartitionResult) {
	if res.Duplicate && !o.firsts {
		out.text(`,"duplicate":true`)
	}
}

// failure writes the member error of a receipt. repeatable says that the request
// may be sent again even if the records may have been written.
func (c *chunks) failure(err error, repeatable bool) {
	e := api.Describe(err)
	e.Retriable = e.Retriable || repeatable && e.MaybeWritten
	c.text(`,"error":{"code":`)
	c.quote(e.Code)
	c.text(`,"status":`)
	c.integer(int64(e.Status))
	c.text(`,"retriable":`)
	c.buf = strconv.AppendBool(c.buf, e.Retriable)
	if e.MaybeWritten {
		c.text(`,"maybe_written":true`)
	}
	if e.Detail != "" {
		c.text(`,"detail":`)
		c.quote(e.Detail)
	}
	c.text("}")
}

// quote writes s as a JSON string.
func (c *chunks) quote(s string) {
	// Bytes that are no UTF-8 become U+FFFD, which the error tells of.
	c.buf, _ = jsontext.AppendQuote(c.buf, s)
}
