package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchWait is how long a server may hold back an answer for want of records; short, so that its silence is noticed.
const fetchWait = time.Second

// reader fetches the records of a topic until it has what it was asked for.
type reader struct {
	Connection
	topic     string
	from      string
	partition int32 // -1: all
	max       int64 // records; 0: no limit
	bounded   bool  // stop where the partitions ended at the start
	refresh   time.Duration

	session *session
	spans   []span
	bounds  *bounds
}

// open finds out what each wanted partition holds and where to begin.
func (r *reader) open(ctx context.Context, std IO, hooks ...kgo.Hook) error {
	from, err := parseStart("--from", r.from)
	if err != nil {
		return err
	}
	if err := checkPartition(r.partition); err != nil {
		return err
	}
	err = r.ask(ctx, std, func(ctx context.Context, s *session) error {
		r.spans, err = r.find(ctx, s, from)
		return err
	})
	if err != nil {
		return err
	}
	if r.bounded {
		r.spans = slices.DeleteFunc(r.spans, func(s span) bool { return s.next >= s.end })
	}
	r.bounds = newBounds(r.max, r.bounded, r.spans)
	offsets := map[int32]kgo.Offset{}
	for _, s := range r.spans {
		offsets[s.partition] = kgo.NewOffset().At(s.next)
	}
	patience := "trying again until it does"
	if r.bounded {
		patience = r.waiting()
	}
	r.session, err = r.Connection.open(ctx, std, patience,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: offsets}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // a record that retention took away is an error, not a jump
		kgo.KeepRetryableFetchErrors(),
		kgo.KeepControlRecords(), // the last record before the end may be one
		kgo.FetchMaxWait(fetchWait),
		kgo.WithHooks(hooks...),
	)
	return err
}

func (r *reader) close() { r.session.Close() }

func (r *reader) find(ctx context.Context, s *session, from start) ([]span, error) {
	topic, err := r.existing(ctx, s, r.topic)
	if err != nil {
		return nil, err
	}
	if err := inTopic(topic, r.partition); err != nil {
		return nil, err
	}
	spans, err := topicSpans(ctx, s.admin, topic, from)
	if err != nil {
		return nil, err
	}
	if r.partition >= 0 {
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.partition != r.partition })
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
		s := span{partition: p.Partition, first: f.Offset, end: e.Offset, atTimestamp: -1, atTime: -1}
		if o, ok := at.Lookup(name, p.Partition); ok {
			s.atTimestamp, s.atTime = o.Offset, o.Timestamp
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

// run gives every record to each, and calls flush when it has no more at hand. It ends without error where it was asked
// to, and when ctx ends if it was not.
func (r *reader) run(ctx context.Context, each func(*kgo.Record) error, flush func() error) error {
	following, stop := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer func() { stop(); followers.Wait() }()
	if r.partition < 0 && !r.bounded {
		followers.Go(func() { r.follow(following) })
	}
	for !r.bounds.done() {
		fetches, err := r.poll(ctx)
		if err != nil {
			return err
		}
		if fetches.IsClientClosed() || ctx.Err() != nil {
			return r.bounds.interrupted(r.max)
		}
		for iter := fetches.RecordIter(); !iter.Done() && !r.bounds.done(); {
			record := iter.Next()
			if !r.bounds.take(record.Partition, record.Offset, record.Attrs.IsControl()) {
				continue
			}
			if err := each(record); err != nil {
				return err
			}
		}
		// What came with an error is printed first.
		if err := errors.Join(flush(), fetchError(fetches)); err != nil {
			return err
		}
		if finished := r.bounds.takeFinished(); len(finished) > 0 {
			r.session.RemoveConsumePartitions(map[string][]int32{r.topic: finished})
		}
	}
	return nil
}

// poll waits for records. If bounded, the records are known to be there, so nothing for --timeout is an error.
func (r *reader) poll(ctx context.Context) (kgo.Fetches, error) {
	if !r.bounded {
		return r.session.PollFetches(ctx), nil
	}
	limited, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	fetches := r.session.PollFetches(limited)
	if limited.Err() != nil && ctx.Err() == nil && fetches.NumRecords() == 0 {
		return nil, fmt.Errorf("%s gave no record for %s (--timeout), before the end", r.Server, r.Timeout)
	}
	return fetches, nil
}

// follow adds partitions that the topic gets later, from their first record, until ctx ends.
func (r *reader) follow(ctx context.Context) {
	known := len(r.spans) // partitions count from 0 and never go away
	tick := time.NewTicker(r.refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		topic, err := findTopic(ctx, r.session, r.topic, false)
		if err != nil {
			continue // fetching tells what is wrong
		}
		fresh := map[int32]kgo.Offset{}
		for ; known < len(topic.Partitions); known++ {
			fresh[int32(known)] = kgo.NewOffset().At(0)
		}
		if len(fresh) > 0 {
			r.session.AddConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: fresh})
		}
	}
}

// fetchError is the first error that ends the command. A change of leader, or a server that is away for a while, does
// not: the client tries again.
func fetchError(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		gone := errors.Is(e.Err, kerr.UnknownTopicOrPartition) || errors.Is(e.Err, kerr.UnknownTopicID)
		ended := errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded)
		if ended || kerr.IsRetriable(e.Err) && !gone {
			continue
		}
		if joining, ok := errors.AsType[*kgo.ErrGroupSession](e.Err); ok {
			if rejoins(joining.Err) {
				continue
			}
			return fmt.Errorf("join the group: %w", joining.Err)
		}
		return fmt.Errorf("read partition %d of %s: %w", e.Partition, e.Topic, e.Err)
	}
	return nil
}

// rejoins tells whether the client is let into its group again after an error: not after a refusal of the server that says
// more than that the member was forgotten.
func rejoins(err error) bool {
	code, answered := errors.AsType[*kerr.Error](err)
	return !answered || slices.Contains([]*kerr.Error{kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress}, code)
}
