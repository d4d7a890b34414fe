package rest

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"leat/api"
	"leat/broker"
)

// endComplete is the end of an upload whose body was taken whole.
const endComplete = "complete"

// receiptWriter writes the receipts of an upload, in order. Its goroutine alone
// writes to the client until it has ended.
type receiptWriter struct {
	out           *chunks
	taken, failed int
	gone          atomic.Value // why nothing can be written any more
}

// begin makes the answer ready, and with now sends its header.
func (rw *receiptWriter) begin(u *upload, now bool) {
	status := http.StatusOK
	if u.acks == broker.AcksNone {
		status, u.receipts = http.StatusAccepted, receiptsNone
	}
	rw.out = newChunks(u.w, status, mediaNDJSON)
	u.w.Header().Set("Trailer", closeReason)
	if now {
		rw.header(u)
		rw.out.err = u.w.flush()
	}
}

// header sends the header. What is sent in so small parts is not compressed.
func (rw *receiptWriter) header(u *upload) {
	if !rw.out.sent {
		rw.out.sent = true
		u.w.WriteHeader(rw.out.status)
	}
}

func (rw *receiptWriter) release() { rw.out.release() }

// run writes a receipt for each part once its append is committed, and says that
// it is there after a silence.
func (rw *receiptWriter) run(u *upload) {
	beat := time.NewTimer(u.s.pace.beat)
	defer beat.Stop()
	for {
		select {
		case part, ok := <-u.queue:
			if !ok {
				rw.flush(u)
				return
			}
			rw.receipt(u, &part)
			if len(u.queue) > 0 && len(rw.out.buf) < chunkSize {
				continue
			}
		case <-beat.C:
			if rw.out.sent {
				rw.out.text("{\"$\":\"hb\"}\n")
			}
		}
		rw.flush(u)
		beat.Reset(u.s.pace.beat)
	}
}

// flush sends what there is. What cannot be sent in time ends the upload.
func (rw *receiptWriter) flush(u *upload) {
	if rw.lost() != "" {
		rw.out.buf = rw.out.buf[:0]
		return
	}
	if len(rw.out.buf) > 0 {
		rw.header(u)
		rw.out.flush()
		if rw.out.err == nil {
			rw.out.err = u.w.flush()
		}
	}
	if rw.out.err != nil {
		why := endClient
		if errors.Is(rw.out.err, os.ErrDeadlineExceeded) {
			why = endSlow
		}
		rw.gone.Store(why)
		u.cancel()
	}
	if u.r.ProtoMajor > 1 {
		u.w.relax()
	}
}

// lost says why nothing can be written any more, or "".
func (rw *receiptWriter) lost() string {
	why, _ := rw.gone.Load().(string)
	return why
}

// receipt waits for a part as the acks ask and tells what became of it.
func (rw *receiptWriter) receipt(u *upload, part *uploaded) {
	part.results = part.pending.Wait(u.r.Context(), u.timeout)
	failed := 0
	for i := range part.results {
		if part.results[i].Err != nil {
			failed += part.results[i].Count
			u.s.metrics.failed(part.results[i].Err, part.results[i].Count)
		}
	}
	rw.taken += part.count
	rw.failed += failed
	u.s.metrics.recordsIn.Add(float64(part.count - failed))
	u.s.metrics.streams[kindUpload].records.Add(float64(part.count - failed))
	if rw.lost() != "" {
		return
	}
	switch {
	case u.receipts == receiptsFull:
		rw.full(u, part)
	case u.receipts == receiptsSummary, failed > 0:
		rw.out.text(`{"seq":`)
		rw.out.integer(int64(part.first))
		rw.out.text(`,"count":`)
		rw.out.integer(int64(part.count))
		if failed > 0 {
			rw.out.text(`,"failed":`)
			rw.out.integer(int64(failed))
		}
		part.summary(rw.out)
		rw.out.text("}\n")
	}
}

// full writes a line for each record.
func (rw *receiptWriter) full(u *upload, part *uploaded) {
	taken := make([]int64, len(part.results))
	for i, at := range part.placement {
		res := &part.results[at]
		rw.out.text(`{"seq":`)
		rw.out.integer(int64(part.first + i))
		rw.out.text(`,"partition":`)
		rw.out.integer(int64(res.Partition))
		if res.Err != nil {
			rw.out.failure(res.Err, false)
		} else {
			rw.out.text(`,"offset":`)
			rw.out.integer(res.Base + taken[at])
			if ts := part.time(i, res); ts >= 0 {
				rw.out.text(`,"timestamp":`)
				rw.out.integer(ts)
			}
		}
		taken[at]++
		rw.out.text("}\n")
		if len(rw.out.buf) >= chunkSize {
			rw.flush(u)
			if rw.lost() != "" {
				return
			}
		}
	}
}

// finish writes the last lines: what was wrong, and the sum.
func (rw *receiptWriter) finish(u *upload, why string, p *api.Problem) {
	out := rw.out
	if p != nil {
		out.text(`{"seq":`)
		out.integer(int64(rw.taken))
		for i := range p.Errors[:min(len(p.Errors), 1)] {
			e := &p.Errors[i]
			out.text(`,"line":`)
			out.integer(int64(e.Line))
			out.text(`,"byte":`)
			out.integer(*e.Byte)
		}
		out.text(`,"taken":`)
		out.integer(int64(rw.taken))
		out.problem(p)
		out.text("}\n")
	}
	out.text(`{"$":"end","reason":"` + why + `","count":`)
	out.integer(int64(rw.taken))
	out.text(`,"failed":`)
	out.integer(int64(rw.failed))
	if why == endLifetime || why == endDrain {
		out.text(`,"in_ms":`)
		out.integer((time.Second + rand.N(4*time.Second)).Milliseconds())
	}
	if p != nil {
		out.text(`,"problem":`)
		out.buf = append(out.buf, p.JSON()...)
	}
	out.text("}\n")
	u.w.Header()[http.CanonicalHeaderKey(closeReason)] = []string{why}
	rw.flush(u)
}

// problem writes the member error of a receipt from a problem.
func (c *chunks) problem(p *api.Problem) {
	c.text(`,"error":{"code":`)
	c.quote(p.Code)
	c.text(`,"status":`)
	c.integer(int64(p.Status))
	if p.Retriable {
		c.text(`,"retriable":true`)
	} else {
		c.text(`,"retriable":false`)
	}
	if p.MaybeWritten {
		c.text(`,"maybe_written":true`)
	}
	if p.Detail != "" {
		c.text(`,"detail":`)
		c.quote(p.Detail)
	}
	c.text("}")
}
