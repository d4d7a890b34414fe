package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const outBuffer = 256 << 10

// ConsumeCmd prints the records of a topic.
type ConsumeCmd struct {
	Connection
	Reporting
	Topic     string        `arg:"" help:"Topic to read."`
	From      string        `env:"-" default:"earliest" placeholder:"WHERE" help:"Where to begin: earliest (default), latest, an offset (with --partition), ts:TIME (milliseconds since 1970, or as 2026-01-31T12:00:00Z), or tail:N, N records before the end of each partition."`
	Partition int32         `env:"-" default:"-1" placeholder:"N" help:"Read only this partition; by default all."`
	Max       int64         `env:"-" placeholder:"N" help:"Stop after N records."`
	ExitAtEnd bool          `env:"-" help:"Stop after the last record that was there at the start."`
	JSON      bool          `env:"-" help:"Print each record as one line of JSON with its key, offset, timestamp and headers; by default the value and a newline."`
	Refresh   time.Duration `name:"metadata-max-age" env:"-" default:"10s" placeholder:"TIME" help:"How often to look for new partitions of the topic (default ${default})."`
	Form      textForm      `embed:""`
	Group     string        `env:"-" placeholder:"NAME" help:"Read as a member of this consumer group: it shares the partitions with the other members, goes on after what the group has committed, and commits what is printed. --from counts only where nothing is committed."`
}

// Help is what `leat consume --help` says beyond its flags.
func (c *ConsumeCmd) Help() string {
	return `Without --max and --exit-at-end it waits for more until Ctrl-C, which is success; a server that goes away
meanwhile is waited for. With them, Ctrl-C before the end is exit code 1. A reader of stdout that goes away
(| head) is success. In text, a null value looks like an empty one unless --print-key is given: then the
separator is missing after the key, as "leat produce --key-separator S --tombstone" reads it.

With --group, what is printed is committed each second and at the end; after a kill up to a second is printed again.
--exit-at-end means the partitions that this member was given.`
}

// Run prints records until it has what it was asked for, the reader goes away or ctx ends.
func (c *ConsumeCmd) Run(ctx context.Context, std IO) error {
	switch {
	case c.Group != "" && c.Partition >= 0:
		return usagef("--group shares out the partitions: leave --partition out")
	case c.Max < 0:
		return usagef("--max %d: want at least 1, or 0 for no end", c.Max)
	case c.Refresh <= 0:
		return usagef("--metadata-max-age %s: want more than 0", c.Refresh)
	case c.JSON && c.Form.any():
		return usagef("--json prints everything: leave the --print flags out")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		watchReader(ctx, std.Out, func() { cancel(errReaderGone) })
	}()
	defer func() { cancel(nil); <-watching }()

	r := &reader{
		Connection: c.Connection, topic: c.Topic, from: c.From, partition: c.Partition,
		max: c.Max, bounded: c.ExitAtEnd, refresh: c.Refresh,
	}
	open, run := func() error { return r.open(ctx, std) }, r.run
	if c.Group != "" {
		g := &groupReader{reader: r, group: c.Group}
		open, run = func() error { return g.open(ctx, std) }, g.run
	}
	if err := open(); err != nil {
		if errors.Is(err, errInterrupted) && !c.ExitAtEnd && c.Max == 0 {
			return nil
		}
		return unlessGone(ctx, err)
	}
	defer r.close()
	status := c.progress(r.session, "consumed", "record", true)
	defer status.stop()
	out := bufio.NewWriterSize(std.Out, outBuffer)
	form := c.Form.appender(c.JSON)
	var line []byte // reused
	err := run(ctx, func(record *kgo.Record) error {
		line = append(form(line[:0], record), '\n')
		status.add(int64(len(record.Key) + len(record.Value)))
		_, err := out.Write(line)
		return err
	}, out.Flush)
	return unlessGone(ctx, err)
}

var errReaderGone = errors.New("the reader of stdout went away")

// unlessGone turns what happened after the reader went away into success.
func unlessGone(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errReaderGone) {
		return nil
	}
	return quiet(err)
}

// textForm says what stands before the value in a line of text, in the order of Kafka's console consumer.
type textForm struct {
	PrintTimestamp bool   `env:"-" help:"Print the timestamp, in milliseconds since 1970, before the value."`
	PrintPartition bool   `env:"-" help:"Print the partition before the value."`
	PrintOffset    bool   `env:"-" help:"Print the offset before the value."`
	PrintHeaders   bool   `env:"-" help:"Print the headers before the value, as K=V,K=V."`
	PrintKey       bool   `env:"-" help:"Print the key before the value."`
	KeySeparator   string `env:"-" default:"\\t" placeholder:"S" help:"What stands between them (default ${default}, a tab)."`
}

func (f textForm) any() bool {
	return f.PrintTimestamp || f.PrintPartition || f.PrintOffset || f.PrintHeaders || f.PrintKey
}

// appender returns the function that appends a record as a line without its LF.
func (f textForm) appender(json bool) func(dst []byte, r *kgo.Record) []byte {
	if json {
		return appendRecord
	}
	separator := unescape(f.KeySeparator)
	return func(dst []byte, r *kgo.Record) []byte {
		if f.PrintTimestamp {
			dst = append(strconv.AppendInt(dst, r.Timestamp.UnixMilli(), 10), separator...)
		}
		if f.PrintPartition {
			dst = append(strconv.AppendInt(dst, int64(r.Partition), 10), separator...)
		}
		if f.PrintOffset {
			dst = append(strconv.AppendInt(dst, r.Offset, 10), separator...)
		}
		if f.PrintHeaders {
			dst = append(appendTextHeaders(dst, r.Headers), separator...)
		}
		if f.PrintKey {
			dst = append(dst, r.Key...)
			if r.Value == nil {
				return dst
			}
			dst = append(dst, separator...)
		}
		return append(dst, r.Value...)
	}
}

// appendTextHeaders appends K=V,K=V; a null value has no '='.
func appendTextHeaders(dst []byte, headers []kgo.RecordHeader) []byte {
	for i, h := range headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, h.Key...)
		if h.Value != nil {
			dst = append(append(dst, '='), h.Value...)
		}
	}
	return dst
}

// bounds decides which records count and when there is nothing left to read. It does no network I/O.
type bounds struct {
	limited  bool
	left     int64 // records still to read, if limited
	bounded  bool
	ends     map[int32]int64 // if bounded: where each partition ends that is not there yet
	unknown  bool            // a member of a group does not know its partitions yet
	finished []int32
}

func newBounds(most int64, bounded bool, spans []span) *bounds {
	b := &bounds{limited: most > 0, left: most, bounded: bounded, ends: map[int32]int64{}}
	for _, s := range spans {
		if bounded && s.next < s.end {
			b.ends[s.partition] = s.end
		}
	}
	return b
}

func (b *bounds) done() bool {
	return b.limited && b.left == 0 || b.bounded && !b.unknown && len(b.ends) == 0
}

// takeFinished returns the partitions that reached their end since the last call.
func (b *bounds) takeFinished() []int32 {
	finished := b.finished
	b.finished = nil
	return finished
}

// take tells whether a record counts; one past the end does not, nor does a control record, which only marks a place.
func (b *bounds) take(partition int32, offset int64, control bool) bool {
	if b.bounded {
		end, open := b.ends[partition]
		if !open {
			return false
		}
		if offset+1 >= end {
			delete(b.ends, partition)
			b.finished = append(b.finished, partition)
		}
		if offset >= end { // the last records before the end are gone (compaction)
			return false
		}
	}
	if control {
		return false
	}
	if b.limited {
		b.left--
	}
	return true
}

// interrupted says what is missing when the command was told where to stop and did not get there.
func (b *bounds) interrupted(most int64) error {
	switch {
	case b.done():
		return nil
	case b.bounded:
		return errors.New("interrupted before the end")
	case b.limited:
		return fmt.Errorf("interrupted after %d of %s", most-b.left, count(most, "record"))
	}
	return nil
}
