package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	maxBuffered = 64 << 20 // bytes of records not yet answered, or two of the largest; reading stdin stops there
	maxRecord   = 64 << 20 // bytes of a record, whatever the topic takes
)

// limit is how large a record may be.
type limit struct {
	bytes int
	whose string // what sets it
}

// exceeded is the error of a record that is too large.
func (l limit) exceeded() error { return fmt.Errorf("longer than %d bytes, %s", l.bytes, l.whose) }

// options shape the client, so that no batch is larger than the server takes.
func (l limit) options() []kgo.Opt {
	return []kgo.Opt{kgo.ProducerBatchMaxBytes(int32(max(l.bytes, 512))), kgo.MaxBufferedBytes(max(maxBuffered, 2*l.bytes))}
}

// topicLimit asks how large a record of the topic may be. A server that does not say is taken to have Kafka's default.
func topicLimit(ctx context.Context, s *session, topic string) limit {
	const config, standard = "max.message.bytes", 1<<20 + 12
	rows, err := describeConfigs(ctx, s, kmsg.ConfigResourceTypeTopic, topic)
	if err != nil {
		return limit{standard, "Kafka's default of " + config}
	}
	for _, row := range rows {
		n, err := strconv.ParseInt(deref(row.Value), 10, 64)
		switch {
		case row.Name != config || err != nil:
		case n > maxRecord:
			return limit{maxRecord, "the most that leat sends in one record"}
		default:
			return limit{int(n), "the " + config + " of topic " + topic}
		}
	}
	return limit{standard, "Kafka's default of " + config}
}

// Sending holds the flags that say how records are sent.
type Sending struct {
	Acks        string `env:"-" enum:"all,1,0" default:"all" placeholder:"ACKS" help:"When a record counts as written: all (on disk on every in-sync replica), 1 (in the leader's log) or 0 (sent); default ${default}."`
	Compression string `env:"-" enum:"none,gzip,snappy,lz4,zstd" default:"none" placeholder:"CODEC" help:"Codec of the batches: none (default), gzip, snappy, lz4 or zstd."`
	Partition   int32  `env:"-" default:"-1" placeholder:"N" help:"Write to this partition; by default the key decides."`
}

// ProduceCmd writes a record for each line of stdin.
type ProduceCmd struct {
	Connection
	Reporting
	Sending
	Topic        string   `arg:"" help:"Topic to write to; a server that creates topics on demand creates it."`
	KeySeparator string   `env:"-" placeholder:"S" help:"Split each line at the first S into key and value (\\t is a tab)."`
	Tombstone    bool     `env:"-" help:"A line without separator is a key, and its value is null; needs --key-separator."`
	Header       []string `env:"-" placeholder:"K=V" sep:"none" help:"Header of every record; may be repeated."`
	Timestamp    string   `env:"-" placeholder:"TIME" help:"Timestamp of every record, in milliseconds since 1970 or as 2026-01-31T12:00:00Z; by default the time of sending."`
}

// Help is what `leat produce --help` says beyond its flags.
func (c *ProduceCmd) Help() string {
	return `A line is a value, byte for byte, without its LF: the line "null" is the text null, and an empty line an empty
value. A null value (tombstone) is written by --key-separator S --tombstone and a line without S. Exit code 1 says
that a line was not written, and names the first one. Ctrl-C stops reading, waits for what was read, says how many
records were written and exits with 1. With --acks 0 nothing is known of a record but that it was sent. A line may
be as long as the topic's max.message.bytes allows, but no longer than 64 MiB.`
}

// Run reads stdin to its end. It fails if any line was not written, and names the first one.
func (c *ProduceCmd) Run(ctx context.Context, std IO) error {
	opts, err := c.options()
	if err != nil {
		return err
	}
	if c.Tombstone && c.KeySeparator == "" {
		return usagef("--tombstone needs --key-separator: without one, every line is a value")
	}
	headers, err := parseHeaders(c.Header)
	if err != nil {
		return err
	}
	var timestamp time.Time // zero: now
	if c.Timestamp != "" {
		ms, err := parseTime(c.Timestamp)
		if err != nil {
			return usagef("--timestamp %v", err)
		}
		timestamp = time.UnixMilli(ms)
	}
	most, err := c.prepare(ctx, std, c.Topic, c.Partition)
	if err != nil {
		return err
	}
	s, err := c.open(ctx, std, c.waiting(), append(opts, most.options()...)...)
	if err != nil {
		return err
	}
	defer s.Close()
	format := lineFormat{separator: []byte(unescape(c.KeySeparator)), tombstone: c.Tombstone}
	p := newProduction(ctx, s.Client, c.Timeout, "line", most)
	defer p.close()
	status := c.progress(s, "produced", "record", false)
	readErr := p.readAll(ctx, std.In, func(line int64, text []byte) error {
		key, value, err := format.parse(text)
		if err != nil {
			return err
		}
		p.send(line, &kgo.Record{
			Topic: c.Topic, Partition: c.Partition, Key: key, Value: value, Headers: headers, Timestamp: timestamp,
		}, func() { status.add(int64(len(text))) })
		return nil
	})
	flushErr := p.flush(ctx)
	status.stop()
	written, err := p.outcome(c.Topic)
	switch {
	case err != nil:
		return err
	case readErr != nil || flushErr != nil:
		return fmt.Errorf("%s written to %s, then %w", count(written, "record"), c.Topic, errors.Join(readErr, flushErr))
	}
	s.std.sayf("%s written to %s", count(written, "record"), c.Topic)
	return nil
}

// options translates the flags that shape the client.
func (c Sending) options() ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.MaxBufferedRecords(1 << 20),
		kgo.AllowIdempotentProduceCancellation(), // a record in doubt is reported as failed; nobody sends it again
		kgo.UnknownTopicRetries(1),
	}
	switch c.Acks {
	case "all":
		opts = append(opts, kgo.RequiredAcks(kgo.AllISRAcks()))
	case "1":
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case "0":
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	default:
		return nil, usagef("--acks %q: want all, 1 or 0", c.Acks)
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, ok := codecs[c.Compression]
	if !ok {
		return nil, usagef("--compression %q: want none, gzip, snappy, lz4 or zstd", c.Compression)
	}
	opts = append(opts, kgo.ProducerBatchCompression(codec))
	if c.Partition >= 0 {
		opts = append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	return opts, checkPartition(c.Partition)
}

// prepare makes sure that the topic and the partition are there before anything is sent, and finds out how large a
// record may be.
func (c Connection) prepare(ctx context.Context, std IO, name string, partition int32) (most limit, err error) {
	err = c.ask(ctx, std, func(ctx context.Context, s *session) error {
		topic, err := findTopic(ctx, s, name, false)
		if errors.Is(err, errNoTopic) {
			topic, err = findTopic(ctx, s, name, true)
			switch {
			case errors.Is(err, errNoTopic):
				return fmt.Errorf("%w (`leat topic create` makes one)", c.noTopic(name))
			case err == nil:
				s.std.sayf("topic %s is new, with %s", name, count(len(topic.Partitions), "partition"))
			}
		}
		if err != nil {
			return err
		}
		most = topicLimit(ctx, s, name)
		return inTopic(topic, partition)
	})
	return most, err
}

// parseHeaders reads K=V; the value may be empty and may contain '='.
func parseHeaders(args []string) ([]kgo.RecordHeader, error) {
	var headers []kgo.RecordHeader
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, usagef("--header %q is not K=V", arg)
		}
		headers = append(headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
	}
	return headers, nil
}

// unescape reads Go's escapes (\t, \x00), so that a tab can be written in any shell; anything else stands for itself.
func unescape(s string) string {
	if plain, err := strconv.Unquote(`"` + s + `"`); err == nil {
		return plain
	}
	return s
}

// production sends records and counts what became of them.
type production struct {
	client *kgo.Client
	what   string // that is counted: "line"
	most   limit
	// records lives longer than the command's context by graceTimeout, so that Ctrl-C does not throw away what has been read.
	records  context.Context
	giveUp   context.CancelCauseFunc // ends records
	failed   chan struct{}           // closed at the first failure
	flushing chan struct{}           // closed when no more records come
	patience sync.WaitGroup
	sent     int64
	mu       struct {
		sync.Mutex
		open          int64     // records in flight
		moved         time.Time // when the server last showed a sign of life, if there are any
		written, lost int64
		first         *lineError // the failure of the lowest line
	}
}

var (
	errUnanswered = errors.New("not answered in time (--timeout)")
	errOther      = errors.New("given up after another record failed")
)

// newProduction begins; close ends it. When nothing is answered for timeout, all records in flight fail.
func newProduction(ctx context.Context, client *kgo.Client, timeout time.Duration, what string, most limit) *production {
	p := &production{client: client, what: what, most: most, failed: make(chan struct{}), flushing: make(chan struct{})}
	p.records, p.giveUp = context.WithCancelCause(context.WithoutCancel(ctx))
	p.patience.Go(func() { p.losePatience(ctx, timeout) })
	return p
}

func (p *production) close() {
	p.giveUp(nil)
	p.patience.Wait()
}

// losePatience gives up when the server is silent for timeout, and graceTimeout after ctx ends or after a record failed
// and no more are to come. The client has a limit of its own, but it counts from the timestamp of a record, which may be any.
func (p *production) losePatience(ctx context.Context, timeout time.Duration) {
	tick := time.NewTicker(max(timeout/10, time.Millisecond))
	defer tick.Stop()
	interrupted, flushing := ctx.Done(), (<-chan struct{})(p.flushing)
	var failed <-chan struct{} // once flushing
	var grace <-chan time.Time
	var reason error // to give up after grace
	for {
		select {
		case <-p.records.Done():
			return
		case <-interrupted:
			interrupted = nil
			if grace == nil {
				grace, reason = time.After(graceTimeout), errInterrupted
			}
		case <-flushing:
			flushing, failed = nil, p.failed
		case <-failed:
			failed = nil
			if grace == nil {
				grace, reason = time.After(graceTimeout), errOther
			}
		case <-grace:
			p.giveUp(reason)
		case now := <-tick.C:
			p.mu.Lock()
			stalled := p.mu.open > 0 && now.Sub(p.mu.moved) > timeout
			p.mu.Unlock()
			if stalled {
				p.giveUp(errUnanswered)
			}
		}
	}
}

// send hands a record to the client; it blocks while too much is in flight. written is called once it is.
func (p *production) send(line int64, r *kgo.Record, written func()) {
	p.sent++
	p.mu.Lock()
	if p.mu.open == 0 {
		p.mu.moved = time.Now()
	}
	p.mu.open++
	p.mu.Unlock()
	p.client.Produce(p.records, r, func(_ *kgo.Record, err error) {
		if err == nil {
			written()
		}
		p.answered(line, err)
	})
}

// answered counts the outcome of one line. The client calls it from one goroutine at a time.
func (p *production) answered(line int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.open--
	if err == nil {
		p.mu.moved = time.Now()
		p.mu.written++
		return
	}
	switch {
	case errors.Is(err, context.Canceled):
		err = context.Cause(p.records)
	case errors.Is(err, kerr.MessageTooLarge):
		err = fmt.Errorf("%s: with its key and headers %w", kerr.MessageTooLarge.Message, p.most.exceeded())
	}
	if p.mu.lost == 0 {
		close(p.failed)
	}
	p.mu.lost++
	if p.mu.first == nil || line < p.mu.first.Line {
		p.mu.first = &lineError{What: p.what, Line: line, Err: err}
	}
}

// readAll gives the lines of in to each, until the input ends, a line is bad, a record failed or ctx ends.
func (p *production) readAll(ctx context.Context, in io.Reader, each func(int64, []byte) error) error {
	blocks, done := make(chan block), make(chan struct{})
	defer close(done)
	go readBlocks(in, blocks, done)
	lines := splitter{limit: p.most}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted after line %d", lines.line)
		case <-p.failed:
			return nil // outcome reports it
		case b := <-blocks:
			if err := lines.feed(b.data, each); err != nil {
				return err
			}
			if errors.Is(b.err, io.EOF) {
				return lines.finish(each)
			}
			if b.err != nil {
				return fmt.Errorf("read stdin after line %d: %w", lines.line, b.err)
			}
		}
	}
}

// outcome is how many records of topic were written; the error tells of those that were not.
func (p *production) outcome(topic string) (written int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost > 0 {
		err = fmt.Errorf("%d of %s written to %s; the first failure is %w", p.mu.written, count(p.sent, "record"), topic, p.mu.first)
	}
	return p.mu.written, err
}

// flush waits until the fate of every record is known; none may be sent any more. It ends without a limit of its own,
// because every record has one: losePatience.
func (p *production) flush(ctx context.Context) error {
	close(p.flushing)
	return p.client.Flush(context.WithoutCancel(ctx))
}
