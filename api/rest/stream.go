package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"leat/api"
	"leat/broker"
)

// The kinds of streams, as the metrics name them.
const (
	kindSSE    = "sse"
	kindNDJSON = "ndjson"
	kindUpload = "produce"
)

// Why a stream ends, as its last words and the metrics say.
const (
	endClient   = "client"       // it went away
	endSlow     = "slow_client"  // it did not take a write in time
	endLifetime = "lifetime"     // it is as old as streams become
	endDrain    = "draining"     // the server shuts down
	endReset    = "stream_reset" // the topic is gone
	endError    = "error"
)

// pace is what the streams and the bodies of a server go by. It changes only in
// tests.
type pace struct {
	// beat is how long an event stream is silent at most, position how long an
	// NDJSON stream goes without a line that says where it is.
	beat, position time.Duration
	// life is how old a stream becomes, within a tenth, so that a balancer can
	// move clients and those that began together do not end together.
	life time.Duration
	// write is how long a client may leave one write waiting.
	write time.Duration
	// body is how long a client has for its body, or for bodyPace bytes of it.
	body time.Duration
	// idle is how long a client may leave an upload without any byte.
	idle time.Duration
}

var usualPace = pace{beat: 15 * time.Second, position: 10 * time.Second, life: time.Hour, write: 10 * time.Second, body: 30 * time.Second, idle: 5 * time.Minute}

// stream is an answer that goes on until the client leaves. It holds a tail and
// no records: a client that is slow lags behind, at the cost of one buffer while
// a write waits for it. While there is nothing to send it has not even that.
type stream struct {
	s     *Server
	w     *responseWriter
	r     *http.Request
	o     *readOptions
	kind  string
	frame framing
	id    broker.TopicID
	tail  *broker.Tail
	woken chan struct{}

	out []byte
	err error // of the first write that failed
	at  []broker.TailStart
	// others are the positions in partitions that are not read, for the cursor.
	others []broker.TailStart

	// failed is for how many records the filter had no answer.
	failed int

	silence time.Duration
	end     time.Time // of its life
	last    time.Time // of what was sent
	hold    *time.Timer
}

// framing is the form of a stream. Its methods append to the stream's buffer.
type framing interface {
	// begin says where the stream begins.
	begin()
	// records says what a run has; the position is behind it already.
	records(run *api.Run)
	// gap says that records are gone; the position is behind them already.
	gap(g gap)
	// pause follows whatever is sent before it goes out.
	pause()
	// beat is sent after a silence.
	beat()
	// finish is the last that is sent. p is of endError; again is when to come
	// back, where that helps.
	finish(why string, p *api.Problem, again time.Duration)
}

// stream answers with records until the client leaves, the server drains or
// the stream is old. It fails only before the first byte.
func (s *Server) stream(ctx context.Context, w *responseWriter, r *http.Request, o *readOptions) error {
	st := &stream{s: s, w: w, r: r, o: o, woken: make(chan struct{}, 1)}
	if err := st.open(ctx); err != nil {
		return err
	}
	defer st.tail.Close()
	h := w.Header()
	h.Set("Content-Type", o.media)
	// A proxy must neither keep records back nor keep them.
	h.Set("X-Accel-Buffering", "no")
	if o.media == mediaEvents {
		st.kind, st.frame, st.silence = kindSSE, &sse{stream: st}, s.pace.beat
	} else {
		st.kind, st.frame, st.silence = kindNDJSON, &ndjson{stream: st}, s.pace.position
		h.Set("Trailer", closeReason)
	}
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	w.stream, w.timeout = true, s.pace.write
	s.under.leave(w.flight)
	m := s.metrics.streams[st.kind]
	m.open.Inc()
	began := time.Now()
	why := st.run(ctx, began)
	m.open.Dec()
	m.ended[why].Inc()
	m.duration.Observe(time.Since(began).Seconds())
	s.log.LogAttrs(ctx, slog.LevelDebug, "stream ended", slog.String("request_id", w.id), slog.String("kind", st.kind),
		slog.String("topic", o.topic), slog.String("peer", r.RemoteAddr), slog.String("reason", why))
	return nil
}

// open begins the tail and looks at every position, so that what cannot be read
// is answered with a problem and not within a stream.
func (st *stream) open(ctx context.Context) error {
	t, starts, err := st.s.begin(ctx, st.r, st.o)
	if err != nil {
		return err
	}
	st.id, st.others = t.ID, unread(st.o.cursor.At, starts)
	all := st.o.whole() && st.o.partitions == nil
	st.tail, err = st.s.broker.Tail(principal(st.r), broker.TopicRef{ID: t.ID}, starts, all, func() {
		select {
		case st.woken <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return st.told(err)
	}
	for i := range st.tail.Len() {
		if err := st.look(i); err != nil {
			st.tail.Close()
			return api.ProblemOf(st.told(err)).At(st.o.topic, st.tail.Position(i).Partition)
		}
	}
	return nil
}

// look fails if nothing can be read at the position of partition i, now or
// later.
func (st *stream) look(i int) error {
	at := st.tail.Position(i)
	hw, start, err := st.tail.Watermark(i)
	if err != nil || at.Offset <= hw && (at.Offset >= start || st.o.onGap != gapFail) {
		return err
	}
	res := st.tail.Read(i, 0)
	if res.Section != nil {
		res.Section.Release()
	}
	st.tail.Seek(i, at.Offset)
	return res.Err
}

// told is err as a reader of the topic sees it.
func (st *stream) told(err error) error {
	if errors.Is(err, broker.ErrUnknownTopicID) || errors.Is(err, broker.ErrUnknownTopic) {
		return api.StreamReset(st.o.topic)
	}
	return err
}

// run sends what there is and what comes, and says why it ended.
func (st *stream) run(ctx context.Context, began time.Time) (why string) {
	life := st.s.pace.life
	st.end = began.Add(life - life/10 + rand.N(life/5+1))
	st.take()
	st.frame.begin()
	timer := time.NewTimer(min(st.silence, st.end.Sub(began)))
	defer timer.Stop()
	for {
		why := st.pump(ctx)
		st.flush()
		if st.err != nil {
			return st.lost()
		}
		if why == "" {
			st.pay(ctx)
			why = st.wait(ctx, timer)
		}
		if why == "" {
			st.gather(ctx)
		}
		if why != "" {
			st.flush()
			return why
		}
	}
}

// lost says why a write failed.
func (st *stream) lost() string {
	if errors.Is(st.err, os.ErrDeadlineExceeded) {
		return endSlow
	}
	return endClient
}

// pump sends what there is now. It returns "" once there is no more, else why
// the stream ends, which the client was told.
func (st *stream) pump(ctx context.Context) string {
	for st.err == nil {
		if ctx.Err() != nil {
			return st.over()
		}
		if !time.Now().Before(st.end) {
			return st.finish(endLifetime, nil, rand.N(2*time.Second))
		}
		i := st.tail.Next()
		if st.tail.Len() > st.most() {
			p := *api.ProblemOf(tooMany(fmt.Sprintf("the topic grew to %d", len(st.tail.Topic().Partitions))))
			p.Instance = st.w.id
			return st.finish(endError, &p, 0)
		}
		if i < 0 {
			return ""
		}
		st.take()
		run, err := st.s.feed.Read(ctx, st.tail, i, st.o.form, st.o.filter, api.Limits{Records: maxRunRecords, Bytes: maxRunBytes})
		switch {
		case err != nil && ctx.Err() != nil:
			continue
		case errors.Is(err, api.ErrNoRoom):
			st.lag(ctx)
			continue
		case err != nil:
			if why := st.trouble(ctx, i, err); why != "" {
				return why
			}
			continue
		}
		if run.Next > run.From {
			st.tail.Seek(i, run.Next)
			st.failed += run.Failed
			st.frame.records(&run)
			st.count(run.Count())
		}
		if run.Count() == 0 && st.o.filter != nil && time.Since(st.last) >= scanBeat {
			// A filter may leave out so much that nothing would be sent for long.
			st.frame.beat()
			st.flush()
		}
		if len(st.out) >= maxRunBytes {
			// The run is not held any more while the client takes its time.
			st.frame.pause()
			st.send()
			st.pay(ctx)
		}
	}
	return endClient
}

// A run of these bounds and its framing fit the buffer, so that what waits for
// a slow client is the buffer alone.
const (
	maxRunRecords = 1000
	maxRunBytes   = chunkSize / 2
)

// scanBeat is how often a stream says where it is while a filter leaves out all
// that it finds.
const scanBeat = time.Second

// wait returns "" when there may be more, else why the stream ends. It keeps
// the silence from becoming long.
func (st *stream) wait(ctx context.Context, timer *time.Timer) string {
	for {
		select {
		case <-st.woken:
			return ""
		case <-ctx.Done():
			return st.over()
		case now := <-timer.C:
			if !now.Before(st.end) {
				return "" // pump ends it
			}
			due := st.last.Add(st.silence)
			if !now.Before(due) {
				st.take()
				st.frame.beat()
				if st.flush(); st.err != nil {
					return st.lost()
				}
				due = now.Add(st.silence)
			}
			if st.end.Before(due) {
				due = st.end
			}
			timer.Reset(due.Sub(now))
		}
	}
}

// gather lets records come together while the server sends very often. What
// comes after a silence goes at once.
func (st *stream) gather(ctx context.Context) {
	left := st.s.pacer.interval() - time.Since(st.last)
	if left <= 0 {
		return
	}
	if st.hold == nil {
		st.hold = time.NewTimer(left)
	} else {
		st.hold.Reset(left)
	}
	select {
	case <-st.hold.C:
	case <-ctx.Done():
		st.hold.Stop()
	}
}

// over is the end of a stream whose context ended: the client's or the
// server's.
func (st *stream) over() string {
	if st.r.Context().Err() != nil {
		return endClient
	}
	return st.finish(endDrain, nil, time.Second+rand.N(4*time.Second))
}

// trouble tells of the error of a read of partition i. It returns "" if the
// stream goes on, else why it ends.
func (st *stream) trouble(ctx context.Context, i int, err error) string {
	at := st.tail.Position(i)
	if to, err := st.s.overtaken(ctx, st.r, st.o, at.Partition, err); err == nil {
		st.tail.Seek(i, to)
		st.frame.gap(gap{at.Partition, at.Offset, to})
		return ""
	}
	if err = st.told(err); errors.Is(err, api.ErrStreamReset) {
		return st.finish(endReset, nil, 0)
	}
	if errors.Is(err, broker.ErrShuttingDown) {
		return st.finish(endDrain, nil, time.Second+rand.N(4*time.Second))
	}
	p := *api.ProblemOf(err).At(st.o.topic, at.Partition)
	p.Instance = st.w.id
	st.s.log.LogAttrs(ctx, levelOf(p.Status), "stream failed", slog.String("request_id", st.w.id),
		slog.String("topic", st.o.topic), slog.Int("partition", int(at.Partition)), slog.Int64("offset", at.Offset), slog.Any("err", err))
	again := time.Duration(0)
	if p.Retriable {
		again = time.Second + rand.N(4*time.Second)
	}
	return st.finish(endError, &p, again)
}

func (st *stream) finish(why string, p *api.Problem, again time.Duration) string {
	st.take()
	st.frame.finish(why, p, again)
	return why
}
