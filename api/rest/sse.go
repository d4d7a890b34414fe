package rest

import (
	"math/rand/v2"
	"time"

	"leat/api"
)

// retryAfter is how long a browser waits before it comes back, at least.
const retryAfter = 2 * time.Second

// sse writes events as the HTML standard's EventSource reads them. Every event
// that moves the position has it as its id, and the last id is what a browser
// comes back with, so nothing is lost or seen twice.
type sse struct {
	*stream
	// untold says that the position is beyond the last id.
	untold bool
}

func (e *sse) begin() {
	e.retry(retryAfter + rand.N(retryAfter/2))
	// An id without data is no event but is kept, so that a client that is cut
	// off before its first event comes back to where it was.
	e.ident()
	e.text("\n\n")
}

func (e *sse) retry(after time.Duration) {
	e.text("retry: ")
	e.integer(after.Milliseconds())
	e.text("\n")
}

func (e *sse) ident() {
	e.text("id: ")
	e.position()
	e.untold = false
}

func (e *sse) records(run *api.Run) {
	switch {
	case run.Count() == 0:
		e.untold = true
	case e.o.batch:
		e.ident()
		e.text("\ndata: [")
		e.raw(run.Text())
		e.text("]\n\n")
	default:
		e.each(run)
	}
}

// each writes an event for each record. Its id is the position behind it; that
// of the last is behind the run.
func (e *sse) each(run *api.Run) {
	for i := range run.Count() {
		offset, text := run.Record(i)
		next := offset + 1
		if i == run.Count()-1 {
			next = run.Next
		}
		e.text("id: ")
		e.positionAt(run.Partition, next)
		e.text("\ndata: ")
		e.raw(text)
		e.text("\n\n")
	}
	e.untold = false
}

func (e *sse) gap(g gap) {
	e.text("event: gap\n")
	e.ident()
	e.text("\ndata: ")
	e.out = appendGap(e.out, g)
	e.text("\n\n")
}

// pause says where records end that are not there or were left out, in an id
// without data as begin does.
func (e *sse) pause() {
	if e.untold {
		e.ident()
		e.text("\n\n")
	}
}

func (e *sse) beat() {
	e.text(": hb")
	if e.o.filter != nil {
		e.text(" filter_failed=")
		e.integer(int64(e.failed))
	}
	e.text("\n\n")
}

func (e *sse) finish(why string, p *api.Problem, again time.Duration) {
	if why == endReset {
		e.untold = false // the id is to be another
	}
	e.pause()
	if again > 0 {
		e.retry(again)
	}
	switch why {
	case endReset:
		e.text("event: stream_reset\nid: " + stopID + "\ndata: {\"topic\":\"")
		e.text(e.o.topic)
		e.text("\"}\n\n")
	case endError:
		e.text("event: error\ndata: ")
		e.raw(p.JSON())
		e.text("\n\n")
	default:
		e.text("event: reconnect\ndata: {\"in_ms\":")
		e.integer(again.Milliseconds())
		e.text("}\n\n")
	}
}
