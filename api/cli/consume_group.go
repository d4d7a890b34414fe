package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	commitEvery      = time.Second      // so much is printed again after a kill
	rebalanceTimeout = 60 * time.Second // how long the other members may take before they let this one in
)

// groupReader is a reader that shares the partitions of the topic with the other members of a group, and commits what was
// printed. Between two polls no partition is given or taken away.
type groupReader struct {
	*reader
	group string
	spans map[int32]span // at the start; next is where to begin if nothing is committed
	mu    struct {
		sync.Mutex
		*bounds
		wake context.CancelFunc // ends the poll under way
	}
}

// open finds out what the topic holds and where to begin where the group has committed nothing.
func (r *groupReader) open(ctx context.Context, std IO) error {
	from, err := parseStart("--from", r.from)
	if err != nil {
		return err
	}
	err = r.ask(ctx, std, func(ctx context.Context, s *session) error { return r.place(ctx, s, from) })
	if err != nil {
		return err
	}
	r.mu.bounds = newBounds(r.max, r.bounded, nil)
	r.mu.unknown = true
	patience := "trying again until it does"
	if r.bounded {
		patience = r.waiting()
	}
	r.session, err = r.Connection.open(ctx, std, patience,
		kgo.ConsumerGroup(r.group), kgo.ConsumeTopics(r.topic),
		kgo.Balancers(kgo.RangeBalancer(), kgo.RoundRobinBalancer()), // what members that are other clients know
		kgo.RebalanceTimeout(rebalanceTimeout), kgo.BlockRebalanceOnPoll(),
		kgo.AutoCommitMarks(), kgo.AutoCommitInterval(commitEvery),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()), // stands for nothing committed in begin
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),     // a committed offset that is gone is an error, not a jump
		kgo.AdjustFetchOffsetsFn(r.begin), kgo.OnPartitionsAssigned(r.given), kgo.OnPartitionsRevoked(r.revoked), kgo.OnPartitionsLost(r.lost),
		kgo.MetadataMaxAge(r.refresh), kgo.MetadataMinAge(min(r.refresh, 2*time.Second)),
		kgo.KeepRetryableFetchErrors(), kgo.KeepControlRecords(), kgo.FetchMaxWait(fetchWait),
	)
	return err
}

// place looks at every partition; --from must hold only where nothing is committed.
func (r *groupReader) place(ctx context.Context, s *session, from start) error {
	topic, err := r.existing(ctx, s, r.topic)
	if err != nil {
		return err
	}
	spans, err := topicSpans(ctx, s.admin, topic, from)
	if err != nil {
		return err
	}
	if from.kind == fromOffset && len(spans) > 1 {
		return usagef("--from %d is an offset of one partition, and the topic has %d: leat group reset-offsets sets one", from.value, len(spans))
	}
	committed, err := s.admin.FetchOffsets(ctx, r.group)
	if err != nil {
		return fmt.Errorf("offsets of group %s: %w", r.group, err)
	}
	r.spans = map[int32]span{}
	fresh := slices.DeleteFunc(slices.Clone(spans), func(s span) bool {
		o, ok := committed.Lookup(r.topic, s.partition)
		return ok && o.At >= 0
	})
	for _, s := range spans {
		s.next = s.first
		r.spans[s.partition] = s
	}
	if fresh, err = plan(from, fresh); err != nil {
		return err
	}
	for _, s := range fresh {
		r.spans[s.partition] = s
	}
	return nil
}

// begin is told what the group has committed for the partitions that this member was given, and says where to begin. A
// partition that the topic got later is read from its first record.
func (r *groupReader) begin(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for partition, offset := range offsets[r.topic] {
		s, old := r.spans[partition]
		at := offset.EpochOffset().Offset
		if at < 0 {
			at = s.next
			offsets[r.topic][partition] = kgo.NewOffset().At(at)
		}
		if r.bounded && old && at < s.end {
			r.mu.ends[partition] = s.end
		}
	}
	r.mu.unknown = false
	r.wakeLocked()
	return offsets, nil
}

// given is told of all partitions of this member; begin follows if there are any.
func (r *groupReader) given(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.unknown = len(partitions[r.topic]) > 0
	r.wakeLocked()
}

func (r *groupReader) revoked(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	_ = client.CommitMarkedOffsets(ctx) // otherwise the next member prints them again
	r.lost(ctx, client, partitions)
}

func (r *groupReader) lost(context.Context, *kgo.Client, map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.mu.ends)
	r.mu.unknown = true
}

func (r *groupReader) wakeLocked() {
	if r.mu.wake != nil && r.mu.done() {
		r.mu.wake()
	}
}

// run gives every record to each, commits those that flush has written, and leaves the group.
func (r *groupReader) run(ctx context.Context, each func(*kgo.Record) error, flush func() error) error {
	var err error
	for more := true; more && err == nil; {
		more, err = r.step(ctx, each, flush)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTimeout)
	defer cancel()
	if failed := r.session.CommitMarkedOffsets(ctx); failed != nil && err == nil {
		err = fmt.Errorf("commit offsets of group %s: %w", r.group, failed)
	}
	_ = r.session.LeaveGroupContext(ctx) // otherwise the group waits until the session times out
	return err
}

// step polls once, and tells whether there is more to do.
func (r *groupReader) step(ctx context.Context, each func(*kgo.Record) error, flush func() error) (more bool, err error) {
	defer r.session.AllowRebalance()
	fetches, err := r.poll(ctx)
	if err != nil {
		return false, err
	}
	marks := map[int32]kgo.EpochOffset{}
	for iter := fetches.RecordIter(); !iter.Done(); {
		record := iter.Next()
		counts, done := r.take(record)
		if counts {
			if err := each(record); err != nil {
				return false, err
			}
			marks[record.Partition] = kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset + 1}
		}
		if done {
			break
		}
	}
	err = flush()
	if err == nil {
		r.session.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{r.topic: marks})
		err = r.explained(fetchError(fetches))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.finished = nil
	if err == nil && (ctx.Err() != nil || fetches.IsClientClosed()) {
		return false, r.mu.interrupted(r.max)
	}
	return !r.mu.done(), err
}

// take tells whether a record counts and whether it was the last.
func (r *groupReader) take(record *kgo.Record) (counts, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.done() {
		return false, true
	}
	counts = r.mu.take(record.Partition, record.Offset, record.Attrs.IsControl())
	return counts, r.mu.done()
}

// poll waits for records, or until there is nothing left to wait for. If bounded, they are known to be there once this
// member has its partitions, so nothing for --timeout is an error.
func (r *groupReader) poll(ctx context.Context) (kgo.Fetches, error) {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	limit := r.Timeout
	if r.mu.unknown {
		limit += rebalanceTimeout
	}
	r.mu.wake = cancel
	done := r.mu.done()
	r.mu.Unlock()
	if done {
		return nil, nil
	}
	if r.bounded {
		limited, cancel = context.WithTimeout(limited, limit)
		defer cancel()
	}
	fetches := r.session.PollFetches(limited)
	if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil && fetches.NumRecords() == 0 {
		return nil, fmt.Errorf("%s gave group %s no record for %s, before the end", r.Server, r.group, limit)
	}
	return fetches, nil
}

// explained says what to do about a committed offset that is not there.
func (r *groupReader) explained(err error) error {
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return fmt.Errorf("%w: what group %s committed is not there any more; leat group reset-offsets moves it", err, r.group)
	}
	return err
}
