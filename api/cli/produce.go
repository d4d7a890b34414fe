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

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxBatchBytes   = 1<<20 + 12       // Kafka's default of max.message.bytes
	maxBuffered     = 64 << 20         // bytes of records not yet answered; reading stdin stops there
	deliveryTimeout = 30 * time.Second // for one record, over all its retries
)

// ProduceCmd writes a record for each line of stdin.
type ProduceCmd struct {
	Connection
	Topic        string   `arg:"" help:"Topic to write to; a server that creates topics on demand creates it."`
	KeySeparator string   `env:"-" placeholder:"S" help:"Split each line at the first S into key and value (\\t is a tab)."`
	Tombstone    bool     `env:"-" help:"A line without separator is a key, and its value is null; needs --key-separator."`
	Acks         string   `env:"-" enum:"all,1,0" default:"all" help:"When a record counts as written: all (on disk on every in-sync replica), 1 (leader), 0 (sent)."`
	Compression  string   `env:"-" enum:"none,gzip,snappy,lz4,zstd" default:"none" help:"Codec of the batches: none, gzip, snappy, lz4 or zstd."`
	Partition    int32    `env:"-" default:"-1" placeholder:"N" help:"Write to this partition; by default the key decides."`
	Header       []string `env:"-" placeholder:"K=V" sep:"none" help:"Header of every record; may be repeated."`
}

// Run reads stdin to its end. It fails if any line was not written, and names the first one.
func (c *ProduceCmd) Run(ctx context.Context, std IO) error {
	opts, err := c.options()
	if err != nil {
		return err
	}
	headers, err := parseHeaders(c.Header)
	if err != nil {
		return err
	}
	client, err := c.open(ctx, opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := c.prepare(ctx, client, std); err != nil {
		return err
	}
	format := lineFormat{separator: []byte(unescape(c.KeySeparator)), tombstone: c.Tombstone}
	p := newProduction(ctx, client)
	defer p.cancel()
	readErr := p.readAll(ctx, std.In, func(line int64, text []byte) error {
		key, value, err := format.parse(text)
		if err != nil {
			return err
		}
		p.send(line, &kgo.Record{Topic: c.Topic, Partition: c.Partition, Key: key, Value: value, Headers: headers})
		return nil
	})
	return p.finish(ctx, c.Topic, readErr, std)
}

// options translates the flags that shape the client.
func (c *ProduceCmd) options() ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.ProducerBatchMaxBytes(maxBatchBytes),
		kgo.MaxBufferedRecords(1 << 20),
		kgo.MaxBufferedBytes(maxBuffered),
		kgo.RecordDeliveryTimeout(deliveryTimeout),
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
	switch {
	case c.Tombstone && c.KeySeparator == "":
		return nil, usagef("--tombstone needs --key-separator: without one, every line is a value")
	case c.Partition < -1:
		return nil, usagef("--partition %d: partitions count from 0", c.Partition)
	case c.Partition >= 0:
		opts = append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	return opts, nil
}

// prepare makes sure that the topic and the partition are there before a line is read.
func (c *ProduceCmd) prepare(ctx context.Context, client *kgo.Client, std IO) error {
	topic, err := findTopic(ctx, client, c.Topic, false)
	if errors.Is(err, errNoTopic) {
		topic, err = findTopic(ctx, client, c.Topic, true)
		switch {
		case errors.Is(err, errNoTopic):
			return fmt.Errorf("%w at %s (`leat topic create` makes one)", err, c.Server)
		case err == nil:
			std.sayf("topic %s is new, with %s", c.Topic, count(len(topic.Partitions), "partition"))
		}
	}
	if err != nil {
		return err
	}
	if int(c.Partition) >= len(topic.Partitions) {
		return fmt.Errorf("topic %s has partitions 0 to %d, not %d", c.Topic, len(topic.Partitions)-1, c.Partition)
	}
	return nil
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
	// records lives longer than the command's context by graceTimeout, so that Ctrl-C does not throw away what has been read.
	records context.Context
	cancel  context.CancelFunc
	failed  chan struct{} // closed at the first failure
	sent    int64
	mu      struct {
		sync.Mutex
		written, lost int64
		first         *lineError // the failure of the lowest line
	}
}

func newProduction(ctx context.Context, client *kgo.Client) *production {
	p := &production{client: client, failed: make(chan struct{})}
	records, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(graceTimeout, cancel) })
	p.records = records
	p.cancel = func() { stop(); cancel() }
	return p
}

// send hands a record to the client; it blocks while too much is in flight.
func (p *production) send(line int64, r *kgo.Record) {
	p.sent++
	p.client.Produce(p.records, r, func(_ *kgo.Record, err error) { p.answered(line, err) })
}

// answered counts the outcome of one line. The client calls it from one goroutine at a time.
func (p *production) answered(line int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.mu.written++
		return
	}
	if p.mu.lost == 0 {
		close(p.failed)
	}
	p.mu.lost++
	if p.mu.first == nil || line < p.mu.first.Line {
		p.mu.first = &lineError{Line: line, Err: err}
	}
}

// readAll gives the lines of in to each, until the input ends, a line is bad, a record failed or ctx ends.
func (p *production) readAll(ctx context.Context, in io.Reader, each func(int64, []byte) error) error {
	blocks, done := make(chan block), make(chan struct{})
	defer close(done)
	go readBlocks(in, blocks, done)
	var lines splitter
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted after line %d", lines.line)
		case <-p.failed:
			return nil // finish reports it
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

// finish waits for every record in flight and sums up.
func (p *production) finish(ctx context.Context, topic string, readErr error, std IO) error {
	if err := p.flush(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost > 0 {
		return fmt.Errorf("%d of %d records written to %s; the first failure is %w", p.mu.written, p.sent, topic, p.mu.first)
	}
	if readErr != nil {
		return fmt.Errorf("%s written to %s, then %w", count(p.mu.written, "record"), topic, readErr)
	}
	std.sayf("%s written to %s", count(p.mu.written, "record"), topic)
	return nil
}

// flush waits until the fate of every record is known. It ends without a limit of its own, because every record has one:
// deliveryTimeout, and graceTimeout once another record has failed or ctx has ended.
func (p *production) flush(ctx context.Context) error {
	settled := make(chan struct{})
	defer close(settled)
	go func() {
		select {
		case <-p.failed:
		case <-settled:
			return
		}
		grace := time.NewTimer(graceTimeout)
		defer grace.Stop()
		select {
		case <-grace.C:
			p.cancel()
		case <-settled:
		}
	}()
	return p.client.Flush(context.WithoutCancel(ctx))
}
