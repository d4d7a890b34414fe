package rest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"leat/api"
	"leat/broker"
)

const (
	// scanTime is how long an answer that does not wait looks for records that
	// its filter lets through. One that waits looks as long as it waits. After
	// that it says how far it came.
	scanTime = 500 * time.Millisecond
	// scanBytes is how much is read at a time for a filter, which may leave out
	// most of it.
	scanBytes = 8 << 20
	// maxScans is how many answers look at a time: each may hold a window of the
	// log while others have the processor. More wait for their turn, and find
	// the server overloaded if that does not come.
	maxScans = 16
	// scanLeast is how long a turn is, however long it had to be waited for.
	scanLeast = 50 * time.Millisecond
)

// scan is the search of one answer for records that its filter lets through.
// The methods of a nil scan, of an answer without a filter, do nothing.
type scan struct {
	s       *Server
	matcher *broker.Matcher
	until   time.Time
	// cancel ends the wait for a turn, and the turn.
	cancel context.CancelFunc
	// turns counts those that began.
	turns           int
	scanned, failed int
}

func (s *Server) newScan(o *readOptions) *scan {
	span := o.wait
	if span == 0 {
		span = scanTime
	}
	return &scan{s: s, matcher: s.broker.Matcher(o.filter, o.topic), until: time.Now().Add(span)}
}

// wants reports whether there is anything to look at.
func (sc *scan) wants(parts []part) bool {
	for i := range parts {
		if parts[i].Section != nil {
			return true
		}
	}
	return false
}

// begin waits for a turn. There is none if ctx ends first, or the time is over
// and something was looked at already: then the answer is what there is.
func (sc *scan) begin(ctx context.Context) (ok bool, err error) {
	patience := time.Until(sc.until)
	if sc.turns == 0 {
		patience = max(patience, api.FilterPatience)
	} else if patience <= 0 {
		return false, nil
	}
	turn, cancel := context.WithTimeoutCause(ctx, patience, api.ErrFiltersBusy)
	select {
	case sc.s.scans <- struct{}{}:
		if err = sc.matcher.Begin(turn, max(time.Until(sc.until), scanLeast)); err == nil {
			sc.turns++
			sc.cancel = cancel
			return true, nil
		}
		<-sc.s.scans
	case <-turn.Done():
		err = context.Cause(turn)
	}
	cancel()
	if sc.turns > 0 || !errors.Is(err, api.ErrFiltersBusy) {
		return false, nil
	}
	return false, err
}

// end ends a turn.
func (sc *scan) end() {
	sc.matcher.End()
	sc.cancel()
	<-sc.s.scans
}

// use is the matcher, for as long as the turn is.
func (sc *scan) use() *broker.Matcher {
	if sc == nil {
		return nil
	}
	return sc.matcher
}

// over reports whether the turn is over.
func (sc *scan) over() bool { return sc != nil && sc.matcher.Over() }

// finished reports whether there is no time for another turn.
func (sc *scan) finished() bool { return !time.Now().Before(sc.until) }

func (sc *scan) count(pl *api.Plan) {
	if sc != nil {
		sc.scanned += pl.Scanned
		sc.failed += pl.Failed
	}
}

// The headers that say what a filter did.
const (
	filterScanned = "Filter-Scanned"
	filterFailed  = "Filter-Failed"
)

func (sc *scan) headers(h http.Header) {
	if sc != nil {
		h.Set(filterScanned, strconv.Itoa(sc.scanned))
		h.Set(filterFailed, strconv.Itoa(sc.failed))
	}
}

// tail writes the members that say the same.
func (sc *scan) tail(out *chunks) {
	if sc != nil {
		out.text(`,"filter_scanned":`)
		out.integer(int64(sc.scanned))
		out.text(`,"filter_failed":`)
		out.integer(int64(sc.failed))
	}
}
