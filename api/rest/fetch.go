package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"leat/broker"
	"leat/storage/record"
)

// fetch answers with the records of a partition from an offset on, waiting for
// some if there are none. HEAD has the headers of the GET that does not wait.
func (s *Server) fetch(w *responseWriter, r *http.Request) error {
	o, err := fetchParams(r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		o.wait = 0
	}
	if o.clamped {
		w.Header().Set("Applied-Max-Bytes", strconv.Itoa(o.maxBytes))
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Add("Vary", "Accept")
	ctx, done := s.waitContext(r.Context())
	defer done()
	if err := s.fetchFrom(ctx, w, r, o); err != nil {
		return describe(err).at(o.topic, o.partition)
	}
	return nil
}

func (s *Server) fetchFrom(ctx context.Context, w *responseWriter, r *http.Request, o *fetchOptions) error {
	offset, err := s.start(ctx, r, o)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(o.wait)
	for {
		res := s.fetchOnce(ctx, r, o, offset, time.Until(deadline))
		next, err := s.deliver(w, r, o, offset, &res)
		if res.Section != nil {
			res.Section.Release()
		}
		if err != nil || next < 0 {
			return err
		}
		// The batches held no record, as compaction leaves them: go on.
		offset = next
	}
}

func (s *Server) fetchOnce(ctx context.Context, r *http.Request, o *fetchOptions, offset int64, wait time.Duration) broker.FetchResult {
	results := s.broker.Fetch(ctx, principal(r), &broker.FetchRequest{
		MaxWait: wait, MinBytes: o.minBytes, MaxBytes: o.maxBytes,
		Partitions: []broker.FetchPartition{{
			Topic: o.topic, Partition: o.partition, Offset: offset, Epoch: -1, MaxBytes: o.maxBytes,
		}},
	})
	return results[0]
}

// deliver answers with what was fetched. If there are batches without records
// it answers nothing and returns the offset behind them; otherwise -1.
func (s *Server) deliver(w *responseWriter, r *http.Request, o *fetchOptions, offset int64, res *broker.FetchResult) (int64, error) {
	if res.Err != nil {
		return -1, res.Err
	}
	h := w.Header()
	h.Set("High-Watermark", strconv.FormatInt(res.HighWatermark, 10))
	h.Set("Log-Start-Offset", strconv.FormatInt(res.LogStart, 10))
	if o.media == mediaBatch {
		s.sendBatches(w, r, offset, res.Section)
		return -1, nil
	}
	pl := plan{from: offset, end: offset}
	var bw *batchWalk
	if res.Section != nil {
		bw = newWalk(res.Section)
		defer bw.release()
		var err error
		if pl, err = planSection(bw, offset, limits{records: o.maxRecords, bytes: int64(o.maxBytes)}); err != nil {
			return -1, err
		}
		if pl.records == 0 && pl.end > offset {
			return pl.end, nil
		}
	}
	h.Set("Next-Offset", strconv.FormatInt(pl.end, 10))
	if r.Method == http.MethodHead {
		h.Set("Content-Type", o.media)
		w.WriteHeader(http.StatusOK)
		return -1, nil
	}
	s.metrics.recordsOut.Add(float64(pl.records))
	return -1, s.encode(w, o, bw, pl, res)
}

// encode writes the records of the plan.
func (s *Server) encode(w *responseWriter, o *fetchOptions, bw *batchWalk, pl plan, res *broker.FetchResult) error {
	out := newChunks(w, http.StatusOK, o.media)
	defer out.release()
	e := &encoder{out: out, form: o.form, lines: o.media == mediaNDJSON}
	if !e.lines {
		out.text(`{"records":[`)
	}
	if pl.records > 0 {
		if err := e.section(bw, pl); err != nil {
			if !out.sent {
				return err
			}
			// What is out cannot be taken back, only broken off.
			panic(http.ErrAbortHandler)
		}
	}
	if !e.lines {
		out.text(`],"next_offset":`)
		out.integer(pl.end)
		out.text(`,"high_watermark":`)
		out.integer(res.HighWatermark)
		out.text(`,"log_start_offset":`)
		out.integer(res.LogStart)
		out.text("}\n")
	}
	return out.finish()
}

// section writes the records of bw that are in the plan.
func (e *encoder) section(bw *batchWalk, pl plan) error {
	var reader record.Reader
	defer reader.Close()
	var rec record.Record
	bw.rewind()
	// What is behind the plan may be damaged and is not looked at.
	for at := pl.from; at < pl.end; {
		b, err := bw.next()
		if err != nil {
			return damagedAt(at, err)
		}
		at = max(at, b.NextOffset())
		if b.Control() || b.NextOffset() <= pl.from {
			continue
		}
		if err := reader.Reset(b, maxExpanded); err != nil {
			return damagedAt(b.BaseOffset(), err)
		}
		for {
			err := reader.Next(&rec)
			if errors.Is(err, io.EOF) || err == nil && rec.Offset >= pl.end {
				break
			}
			if err != nil {
				return damagedAt(b.BaseOffset(), err)
			}
			if rec.Offset >= pl.from {
				e.record(&rec)
			}
		}
	}
	return nil
}
