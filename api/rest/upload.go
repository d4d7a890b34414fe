package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"leat/api"
	"leat/broker"
)

const (
	// uploadPart is how many bytes of lines are appended at a time at most,
	// unless one line is longer.
	uploadPart = 256 << 10
	// uploadLines is how many lines a part has at most: until its receipts are
	// written it keeps some bytes for each.
	uploadLines = 8 << 10
	// uploadDelay is how long a line waits for others.
	uploadDelay = 5 * time.Millisecond
	// uploadChunk is how much is read at a time.
	uploadChunk = 64 << 10
	// uploadPending is how many parts wait for their receipt to be written.
	// Then nothing more is read, so a client has at most 4 MiB, or as many long
	// lines, under way.
	uploadPending = 16
)

// upload is a produce without an end: the lines of its body are appended as they
// come, and a receipt for each part goes back on the same connection. Three
// goroutines share it, each waiting for the next: one reads the body, the
// handler's own parses and appends, one waits for the appends and writes
// receipts. Between them are queues of a fixed length, so a client that sends
// faster than the log takes, or does not read its receipts, is not read from. If
// a receipt cannot be written in time the upload ends.
type upload struct {
	*production
	coding string
	buf    body
	whole  int // bytes of buf that are whole lines
	at     api.Part
	line   int64 // the longest that a line may be
	// unmade says that the topic is still to be made, by the first record.
	unmade bool

	wire   uploadWire
	chunks chan uploadRead
	free   chan []byte // buffers for the reader
	queue  chan uploaded
	out    receiptWriter
	cancel context.CancelFunc
}

// uploadRead is what one read of the body gave.
type uploadRead struct {
	text []byte
	err  error
}

// uploaded is a part that was appended.
type uploaded struct {
	first, count int
	outcome
	pending *broker.Pending
}

// upload answers a produce with stream=true. It fails only before the first byte
// of its answer.
func (s *Server) upload(w *responseWriter, r *http.Request, o *produceOptions, topic string, partition int32) error {
	if o.receipts == receiptsDefault {
		o.receipts = receiptsSummary
	}
	coding, err := contentCoding(w, r)
	if err != nil {
		return err
	}
	// The request's own context ends with the first read that fails, but what
	// was read before is still appended and told of. A client that is gone shows
	// in reads and writes.
	r = r.WithContext(context.WithoutCancel(r.Context()))
	ctx, done := s.waitContext(r.Context())
	defer done()
	partitions, err := s.broker.PartitionCount(principal(r), topic)
	unknown := errors.Is(err, broker.ErrUnknownTopic)
	switch {
	case unknown: // the first part makes it, or tells
	case err != nil:
		return err
	case int(partition) >= partitions:
		return noPartition(topic, partition, partitions)
	}
	if err := s.opts.Budget.Take(principal(r), 2*uploadChunk); err != nil {
		return err
	}
	defer s.opts.Budget.Give(principal(r), 2*uploadChunk)
	if err := w.rc.EnableFullDuplex(); err != nil {
		return err
	}
	w.unread = false
	u := &upload{
		production: &production{produceOptions: *o, s: s, w: w, r: r, topic: topic, partition: partition, media: mediaNDJSON}, coding: coding, line: s.opts.MaxRequestBytes, unmade: unknown,
		buf:    body{budget: s.opts.Budget, who: principal(r)},
		chunks: make(chan uploadRead), free: make(chan []byte, 2), queue: make(chan uploaded, uploadPending),
	}
	defer u.buf.release()
	ctx, u.cancel = context.WithCancel(ctx)
	defer u.cancel()
	u.wire = uploadWire{src: r.Body, w: w, idle: s.pace.idle, chunked: len(r.TransferEncoding) > 0, count: s.metrics.received.Add}
	h := w.Header()
	h.Set("Content-Type", mediaNDJSON)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	if r.ProtoMajor == 1 {
		// What the client sends after the end is not the next request.
		h.Set("Connection", "close")
	}
	w.stream, w.timeout = true, s.pace.write
	s.under.leave(w.flight)
	// A client that waits for 100 Continue must get that first, and a topic that
	// cannot be made is a problem.
	u.out.begin(u, !unknown && r.Header.Get("Expect") == "")
	return u.run(ctx)
}

// run takes lines until there are no more, and tells how it ended.
func (u *upload) run(ctx context.Context) error {
	m := u.s.metrics.streams[kindUpload]
	m.open.Inc()
	defer m.open.Dec()
	began := time.Now()
	var workers sync.WaitGroup
	workers.Go(func() { u.read(ctx) })
	acknowledged := make(chan struct{})
	workers.Go(func() {
		defer close(acknowledged)
		u.out.run(u)
	})
	why, p := u.take(ctx, began)
	close(u.queue)
	<-acknowledged
	switch {
	case u.out.lost() != "":
		why, p = u.out.lost(), nil
	case p != nil && u.w.status == 0 && u.out.taken == 0:
		// Nothing was taken and nothing said: the answer is the problem alone.
		h := u.w.Header()
		for _, name := range []string{"Trailer", "X-Accel-Buffering", "Connection"} {
			h.Del(name)
		}
		p.Close = true
	default:
		u.out.finish(u, why, p)
	}
	u.cancel()
	atOnce := why == endComplete || u.out.lost() != ""
	u.wire.stop(atOnce)
	workers.Wait()
	if !atOnce {
		u.wire.linger()
	}
	u.out.release()
	m.ended[why].Inc()
	m.duration.Observe(time.Since(began).Seconds())
	u.s.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelDebug, "stream ended", slog.String("request_id", u.w.id), slog.String("kind", kindUpload),
		slog.String("topic", u.topic), slog.String("peer", u.r.RemoteAddr), slog.String("reason", why), slog.Int("records", u.at.Records))
	if p != nil && u.w.status == 0 {
		return p
	}
	return nil
}

// take appends what is read until the body, the client, the server or the
// upload's life ends, and says why.
func (u *upload) take(ctx context.Context, began time.Time) (why string, p *api.Problem) {
	life := u.s.pace.life
	old := time.NewTimer(life - life/10 + rand.N(life/5+1) - time.Since(began))
	defer old.Stop()
	due := time.NewTimer(uploadDelay)
	due.Stop()
	defer due.Stop()
	for range cap(u.free) {
		u.free <- make([]byte, uploadChunk)
	}
	for {
		select {
		case c := <-u.chunks:
			waiting := u.whole > 0
			if err := u.add(c); err != nil {
				return u.failed(err)
			}
			switch {
			case c.err != nil:
				return u.ended(c.err)
			case u.whole > uploadPart-uploadChunk:
				due.Stop()
			case u.whole > 0 && !waiting:
				due.Reset(uploadDelay)
				continue
			default:
				continue
			}
		case <-due.C:
		case <-old.C:
			return u.over(endLifetime)
		case <-ctx.Done():
			return u.over(endDrain)
		}
		n := u.whole
		if err := u.append(n); err != nil {
			return u.failed(err)
		}
		// Nothing more is read while the client owes for what it sent.
		if owed := u.s.spend(u.w, u.r, broker.QuotaProduce, int64(n)); owed > 0 {
			paid := time.NewTimer(owed)
			select {
			case <-paid.C:
			case <-old.C:
				return u.over(endLifetime)
			case <-ctx.Done():
			}
			paid.Stop()
		}
	}
}

// add puts what was read behind what is there, and gives the buffer back.
func (u *upload) add(c uploadRead) error {
	if err := u.room(len(c.text)); err != nil {
		return errors.Join(u.append(u.whole), err)
	}
	before := len(u.buf.bytes)
	u.buf.bytes = append(u.buf.bytes, c.text...)
	if end := bytes.LastIndexByte(c.text, '\n'); end >= 0 {
		u.whole = before + end + 1
	}
	if c.err == nil {
		u.free <- c.text[:cap(c.text)]
	}
	if int64(len(u.buf.bytes)-u.whole) > u.line {
		// Those before it are good.
		return errors.Join(u.append(u.whole), u.place(&api.Problem{
			Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Title: "Request too large", Limit: u.line,
			Detail: fmt.Sprintf("a line of a stream may have %d bytes", u.line),
		}))
	}
	return nil
}

// room makes room for n more bytes in the buffer.
func (u *upload) room(n int) error {
	if u.buf.taken == 0 {
		pooled := *bodyPool.Get().(*[]byte)
		if err := u.buf.budget.Grow(u.buf.who, 2*uploadChunk, int64(cap(pooled))); err != nil {
			bodyPool.Put(&pooled)
			return err
		}
		u.buf.bytes, u.buf.taken = pooled[:0], int64(cap(pooled))
	}
	if size := len(u.buf.bytes) + n; size > cap(u.buf.bytes) {
		return u.buf.grow(int64(max(size, min(2*cap(u.buf.bytes), int(u.line)+uploadPart))))
	}
	return nil
}

// ended appends what is left when the body ended. A last line without LF counts
// if the body is whole.
func (u *upload) ended(err error) (why string, p *api.Problem) {
	n := u.whole
	if err == errEnd { //nolint:errorlint // the very value is the signal
		n = len(u.buf.bytes)
	}
	if err := u.append(n); err != nil {
		return u.failed(err)
	}
	if err == errEnd { //nolint:errorlint // as above
		return endComplete, nil
	}
	return u.failed(u.place(u.wire.problem(err, u.coding)))
}

// over appends what is whole when the upload ends for a reason that is not the
// client's.
func (u *upload) over(why string) (string, *api.Problem) {
	if u.out.lost() != "" {
		return why, nil
	}
	if err := u.append(u.whole); err != nil {
		return u.failed(err)
	}
	return why, nil
}

// failed is the end by an error.
func (u *upload) failed(err error) (why string, p *api.Problem) {
	if errors.Is(err, broker.ErrShuttingDown) {
		return endDrain, nil
	}
	problem := *api.ProblemOf(err).At(u.topic, u.partition)
	problem.Instance = u.w.id
	u.s.metrics.refusedRecords(&problem)
	return endError, &problem
}

// place says where the stream stands.
func (u *upload) place(p *api.Problem) *api.Problem {
	at := u.at.Bytes
	index := u.at.Records
	p.Errors = []api.ItemError{{Index: &index, Line: u.at.Lines + 1, Byte: &at, Code: p.Code, Detail: p.Detail}}
	return p
}
