package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// BenchCmd groups the load generators.
type BenchCmd struct {
	Produce BenchProduceCmd `cmd:"" help:"Write records to a topic as fast as the server takes them, or at a rate."`
	Consume BenchConsumeCmd `cmd:"" help:"Read the records of a topic as fast as the server gives them."`
}

// benchResult is what a load generator prints.
type benchResult struct {
	Topic   string    `json:"topic"`
	Records int64     `json:"records"`
	Bytes   int64     `json:"bytes"` // of keys and values
	Seconds float64   `json:"seconds"`
	Rate    float64   `json:"records_per_second"`
	MB      float64   `json:"mb_per_second"` // of 1,000,000 bytes
	Latency latencies `json:"latency_ms"`
}

func newBenchResult(topic string, records, bytes int64, took time.Duration, h *histogram) benchResult {
	seconds := max(took.Seconds(), 1e-9)
	return benchResult{
		Topic: topic, Records: records, Bytes: bytes, Seconds: took.Seconds(),
		Rate: float64(records) / seconds, MB: float64(bytes) / seconds / 1e6, Latency: h.latencies(),
	}
}

func (r benchResult) write(std IO, asJSON bool) error {
	if asJSON {
		return quiet(writeJSON(std.Out, r))
	}
	header := []string{"RECORDS", "SECONDS", "RECORDS/S", "MB/S", "P50-MS", "P95-MS", "P99-MS", "P99.9-MS", "MAX-MS"}
	return quiet(writeTable(std.Out, header, 1, func(int) []string {
		row := []string{
			strconv.FormatInt(r.Records, 10), strconv.FormatFloat(r.Seconds, 'f', 2, 64),
			strconv.FormatFloat(r.Rate, 'f', 0, 64), strconv.FormatFloat(r.MB, 'f', 2, 64),
		}
		for _, ms := range []float64{r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.P999, r.Latency.Max} {
			row = append(row, strconv.FormatFloat(ms, 'f', 2, 64))
		}
		return row
	}))
}

// BenchProduceCmd measures how a server takes records.
type BenchProduceCmd struct {
	Connection
	Reporting
	Sending
	Topic   string        `arg:"" help:"Topic to write to; the records stay there."`
	Records int64         `env:"-" default:"100000" placeholder:"N" help:"Records to write (default ${default})."`
	Size    int           `env:"-" default:"100" placeholder:"BYTES" help:"Size of a value (default ${default}); the text compresses to about half."`
	Rate    float64       `env:"-" placeholder:"N" help:"Records a second; by default as many as the server takes."`
	Linger  time.Duration `env:"-" default:"0s" placeholder:"TIME" help:"How long a record may wait for others to share a batch (default ${default})."`
	JSON    bool          `env:"-" help:"Print one JSON object."`
}

// Help is what `leat bench produce --help` says beyond its flags.
func (c *BenchProduceCmd) Help() string {
	return `Latency is the time from when a record was due to be sent until its acknowledgement. With --rate a record is due
at its place in the schedule, so a server that stalls is charged for every record that it held up; without, a record
is due when the generator has made it, and most of the latency is the queue in the client. MB are 1,000,000 bytes.`
}

// benchBuffered is how many bytes wait in the client, as in Kafka's own producer; more would only lengthen the queue.
const benchBuffered = 32 << 20

// Run writes the records and prints what it took.
func (c *BenchProduceCmd) Run(ctx context.Context, std IO) error {
	switch {
	case c.Records < 1:
		return usagef("--records %d: want at least 1", c.Records)
	case c.Size < 0 || c.Size > maxRecord:
		return usagef("--size %d: want 0 to %d", c.Size, maxRecord)
	case !(c.Rate >= 0):
		return usagef("--rate %v: want more than 0", c.Rate)
	case c.Linger < 0 || c.Linger > time.Minute:
		return usagef("--linger %s: want 0 to 1m", c.Linger)
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	most, err := c.prepare(ctx, std, c.Topic, c.Partition)
	if err != nil {
		return err
	}
	if c.Size > most.bytes {
		return fmt.Errorf("--size %d is %w", c.Size, most.exceeded())
	}
	opts = append(append(opts, most.options()...), kgo.ProducerLinger(c.Linger), kgo.MaxBufferedBytes(max(benchBuffered, 2*most.bytes)))
	s, err := c.open(ctx, std, c.waiting(), opts...)
	if err != nil {
		return err
	}
	defer s.Close()
	p := newProduction(ctx, s.Client, c.Timeout, "record", most)
	defer p.close()
	status := c.progress(s, "produced", "record", false)
	h, began := &histogram{}, time.Now()
	err = c.load(ctx, p, h, status)
	err = errors.Join(err, p.flush(ctx))
	took := time.Since(began)
	status.stop()
	written, sumErr := p.outcome(c.Topic)
	printErr := newBenchResult(c.Topic, written, written*int64(c.Size), took, h).write(std, c.JSON)
	return errors.Join(sumErr, err, printErr)
}

// load sends the records, each when it is due.
func (c *BenchProduceCmd) load(ctx context.Context, p *production, h *histogram, status *progress) error {
	values, begin := newValues(c.Size), time.Now()
	for i := range c.Records {
		due := time.Now()
		if c.Rate > 0 {
			due = begin.Add(time.Duration(float64(i) / c.Rate * float64(time.Second)))
			if err := sleepUntil(ctx, due); err != nil {
				return fmt.Errorf("interrupted after %d of %s", i, count(c.Records, "record"))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted after %d of %s", i, count(c.Records, "record"))
		case <-p.failed:
			return nil // outcome reports it
		default:
		}
		p.send(i+1, &kgo.Record{Topic: c.Topic, Partition: c.Partition, Value: values.at(i)}, func() {
			h.add(time.Since(due))
			status.add(int64(c.Size))
		})
	}
	return nil
}

// sleepUntil waits for a time, or for the end of ctx.
func sleepUntil(ctx context.Context, due time.Time) error {
	wait := time.Until(due)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// values is a text of random digits that values are cut from, so that making one costs nothing.
type values struct {
	text []byte
	size int
}

func newValues(size int) values {
	const extra = 64 << 10
	random := rand.New(rand.NewPCG(1, 2)) // the same load every time
	text := make([]byte, size+extra)
	for i := range text {
		text[i] = "0123456789abcdef"[random.IntN(16)]
	}
	return values{text: text, size: size}
}

// at is the value of record i.
func (v values) at(i int64) []byte {
	from := int(i*7919) % (len(v.text) - v.size)
	return v.text[from : from+v.size : from+v.size]
}

// BenchConsumeCmd measures how a server gives records.
type BenchConsumeCmd struct {
	Connection
	Reporting
	Topic     string `arg:"" help:"Topic to read."`
	From      string `env:"-" default:"earliest" placeholder:"WHERE" help:"Where to begin, as for consume (default ${default})."`
	Partition int32  `env:"-" default:"-1" placeholder:"N" help:"Read only this partition; by default all."`
	Records   int64  `env:"-" placeholder:"N" help:"Stop after N records; by default after the last one that was there at the start."`
	JSON      bool   `env:"-" help:"Print one JSON object."`
}

// Help is what `leat bench consume --help` says beyond its flags.
func (c *BenchConsumeCmd) Help() string {
	return `Latency is the time of a fetch request, from its last byte sent to the last byte of the answer.
MB are 1,000,000 bytes of keys and values, after decompression.`
}

// Run reads the records and prints what it took.
func (c *BenchConsumeCmd) Run(ctx context.Context, std IO) error {
	if c.Records < 0 {
		return usagef("--records %d: want at least 1", c.Records)
	}
	r := &reader{
		Connection: c.Connection, topic: c.Topic, from: c.From, partition: c.Partition,
		max: c.Records, bounded: c.Records == 0, refresh: time.Hour,
	}
	h := &histogram{}
	if err := r.open(ctx, std, fetchTimes{h}); err != nil {
		return err
	}
	defer r.close()
	status := c.progress(r.session, "consumed", "record", false)
	var records, bytes int64
	began := time.Now()
	err := r.run(ctx, func(record *kgo.Record) error {
		size := int64(len(record.Key) + len(record.Value))
		records, bytes = records+1, bytes+size
		status.add(size)
		return nil
	}, func() error { return nil })
	took := time.Since(began)
	status.stop()
	return errors.Join(err, newBenchResult(c.Topic, records, bytes, took, h).write(std, c.JSON))
}

// fetchTimes is a hook of the client that times fetch requests.
type fetchTimes struct{ h *histogram }

// OnBrokerE2E counts one request.
func (f fetchTimes) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if key == kmsg.Fetch.Int16() && e2e.Err() == nil {
		f.h.add(e2e.DurationE2E())
	}
}
