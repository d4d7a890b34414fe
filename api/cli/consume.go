package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	outBuffer    = 256 << 10
	stallTimeout = 30 * time.Second // with --exit-at-end: how long a server may give nothing of what it said it has
)

// ConsumeCmd prints the records of a topic.
type ConsumeCmd struct {
	Connection
	Topic     string `arg:"" help:"Topic to read."`
	From      string `env:"-" default:"earliest" placeholder:"WHERE" help:"Where to begin: earliest (default), latest, an offset (with --partition), or ts:MS, a time in milliseconds since 1970."`
	Partition int32  `env:"-" default:"-1" placeholder:"N" help:"Read only this partition; by default all."`
	Max       int64  `env:"-" placeholder:"N" help:"Stop after N records."`
	ExitAtEnd bool   `env:"-" help:"Stop after the last record that was there at the start."`
	JSON      bool   `env:"-" help:"Print each record as one line of JSON with its key, offset, timestamp and headers; by default the value and a newline."`
	Group     string `env:"-" hidden:"" help:"Consumer group."`
}

// Run prints records until it has what it was asked for, the reader goes away or ctx ends.
func (c *ConsumeCmd) Run(ctx context.Context, std IO) error {
	from, err := parseStart(c.From)
	switch {
	case err != nil:
		return err
	case c.Group != "":
		return usagef("this version of leat has no consumer groups: leave --group out")
	case c.Max < 0:
		return usagef("--max %d: want at least 1", c.Max)
	case c.Partition < -1:
		return usagef("--partition %d: partitions count from 0", c.Partition)
	}
	ignoreSIGPIPE()
	admin, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	spans, err := c.spans(ctx, admin, from)
	if err != nil {
		return err
	}
	if c.ExitAtEnd {
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.next >= s.end })
		if len(spans) == 0 {
			return nil
		}
	}
	offsets := map[int32]kgo.Offset{}
	for _, s := range spans {
		offsets[s.partition] = kgo.NewOffset().At(s.next)
	}
	client, err := c.open(ctx,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.Topic: offsets}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // a record that retention took away is an error, not a jump
		kgo.KeepRetryableFetchErrors(),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	return c.print(ctx, client, spans, std)
}

// spans finds out what each wanted partition holds and where to begin.
func (c *ConsumeCmd) spans(ctx context.Context, client *kgo.Client, from start) ([]span, error) {
	topic, err := findTopic(ctx, client, c.Topic, false)
	if errors.Is(err, errNoTopic) {
		return nil, fmt.Errorf("%w at %s", err, c.Server)
	}
	if err != nil {
		return nil, err
	}
	if int(c.Partition) >= len(topic.Partitions) {
		return nil, fmt.Errorf("topic %s has partitions 0 to %d, not %d", c.Topic, len(topic.Partitions)-1, c.Partition)
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	spans, err := topicSpans(ctx, kadm.NewClient(client), topic, from)
	if err != nil {
		return nil, err
	}
	if c.Partition >= 0 {
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.partition != c.Partition })
	}
	return plan(from, spans)
}

// topicSpans asks for the bounds of every partition, and for the offsets of a time if from is one.
func topicSpans(ctx context.Context, admin *kadm.Client, topic kmsg.MetadataResponseTopic, from start) ([]span, error) {
	name := *topic.Topic
	first, err := listed(admin.ListStartOffsets(ctx, name))
	if err != nil {
		return nil, fmt.Errorf("first offsets of %s: %w", name, err)
	}
	end, err := listed(admin.ListEndOffsets(ctx, name))
	if err != nil {
		return nil, fmt.Errorf("end offsets of %s: %w", name, err)
	}
	var at kadm.ListedOffsets
	if from.kind == fromTime {
		if at, err = listed(admin.ListOffsetsAfterMilli(ctx, from.value, name)); err != nil {
			return nil, fmt.Errorf("offsets of %s at %d: %w", name, from.value, err)
		}
	}
	spans := make([]span, 0, len(topic.Partitions))
	for _, p := range topic.Partitions {
		f, okFirst := first.Lookup(name, p.Partition)
		e, okEnd := end.Lookup(name, p.Partition)
		if !okFirst || !okEnd {
			return nil, fmt.Errorf("the server gave no offsets for partition %d of %s", p.Partition, name)
		}
		s := span{partition: p.Partition, first: f.Offset, end: e.Offset, atTimestamp: -1}
		if o, ok := at.Lookup(name, p.Partition); ok {
			s.atTimestamp = o.Offset
		}
		spans = append(spans, s)
	}
	return spans, nil
}

// listed joins the two ways in which kadm reports that offsets are missing.
func listed(offsets kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err != nil {
		return nil, err
	}
	return offsets, offsets.Error()
}

// print writes what the client fetches until it is done.
func (c *ConsumeCmd) print(ctx context.Context, client *kgo.Client, spans []span, std IO) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		watchReader(ctx, std.Out, func() { cancel(errReaderGone) })
	}()
	defer func() { cancel(nil); <-watching }()

	out := bufio.NewWriterSize(std.Out, outBuffer)
	p := newPrinter(out, c, spans)
	for !p.done() {
		fetches, err := c.poll(ctx, client)
		if err != nil {
			return errors.Join(quiet(out.Flush()), err)
		}
		if fetches.IsClientClosed() || ctx.Err() != nil {
			break
		}
		for iter := fetches.RecordIter(); !iter.Done() && !p.done(); {
			if err := p.print(iter.Next()); err != nil {
				return quiet(err)
			}
		}
		// What came with an error is printed first.
		if err := fetchError(fetches); err != nil {
			return errors.Join(quiet(out.Flush()), err)
		}
		if err := out.Flush(); err != nil {
			return quiet(err)
		}
		if finished := p.takeFinished(); len(finished) > 0 {
			client.RemoveConsumePartitions(map[string][]int32{c.Topic: finished})
		}
	}
	if err := out.Flush(); err != nil {
		return quiet(err)
	}
	if c.ExitAtEnd && !p.done() && !errors.Is(context.Cause(ctx), errReaderGone) {
		return errors.New("interrupted before the end")
	}
	return nil
}

var errReaderGone = errors.New("the reader of stdout went away")

// poll waits for records. With --exit-at-end the records are known to be there, so nothing for stallTimeout is an error.
func (c *ConsumeCmd) poll(ctx context.Context, client *kgo.Client) (kgo.Fetches, error) {
	if !c.ExitAtEnd {
		return client.PollFetches(ctx), nil
	}
	limited, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	fetches := client.PollFetches(limited)
	if limited.Err() != nil && ctx.Err() == nil && fetches.NumRecords() == 0 {
		return nil, fmt.Errorf("%s gave no record for %s, before the end", c.Server, stallTimeout)
	}
	return fetches, nil
}

// fetchError is the first error that ends the command. A change of leader, for one, does not: the client retries it.
func fetchError(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		gone := errors.Is(e.Err, kerr.UnknownTopicOrPartition) || errors.Is(e.Err, kerr.UnknownTopicID)
		ended := errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded)
		if ended || kerr.IsRetriable(e.Err) && !gone {
			continue
		}
		return fmt.Errorf("read partition %d of %s: %w", e.Partition, e.Topic, e.Err)
	}
	return nil
}

// printer writes records in the form asked for and knows when there is nothing left to print. It does no network I/O.
type printer struct {
	out      *bufio.Writer
	json     bool
	left     int64           // records still to print
	ends     map[int32]int64 // with --exit-at-end: where each partition ends that is not there yet
	bounded  bool
	finished []int32
	line     []byte // reused
}

func newPrinter(out *bufio.Writer, c *ConsumeCmd, spans []span) *printer {
	p := &printer{out: out, json: c.JSON, left: c.Max, bounded: c.ExitAtEnd, ends: map[int32]int64{}}
	if c.Max == 0 {
		p.left = math.MaxInt64
	}
	for _, s := range spans {
		if p.bounded && s.next < s.end {
			p.ends[s.partition] = s.end
		}
	}
	return p
}

func (p *printer) done() bool { return p.left == 0 || p.bounded && len(p.ends) == 0 }

// takeFinished returns the partitions that reached their end since the last call.
func (p *printer) takeFinished() []int32 {
	finished := p.finished
	p.finished = nil
	return finished
}

// print writes one record, unless it lies past the end.
func (p *printer) print(r *kgo.Record) error {
	if p.bounded {
		end, open := p.ends[r.Partition]
		if !open {
			return nil
		}
		if r.Offset+1 >= end {
			delete(p.ends, r.Partition)
			p.finished = append(p.finished, r.Partition)
		}
		if r.Offset >= end { // the last records before the end are gone (compaction)
			return nil
		}
	}
	p.left--
	if p.json {
		p.line = appendRecord(p.line[:0], r)
	} else {
		p.line = append(p.line[:0], r.Value...)
	}
	p.line = append(p.line, '\n')
	_, err := p.out.Write(p.line)
	return err
}
